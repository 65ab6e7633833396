"""A budget in slots as one bank: each slot's ledger, the caps that move between them, the whole.

A slot's ledger is checked like any other. The whole has no number that every charge moves, so what
somebody saw of it has no one place; but time bounds it: what had been acknowledged before the call
was sent is in it, and nothing that was sent after it was answered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from bench.torture.budgets import (
    ADMITTING,
    KINDS,
    Sums,
    check_holds,
    check_marks,
    marks_of,
)
from bench.torture.final import Budget, Entry, Final
from bench.torture.history import OK, Op
from bench.torture.order import (
    HOLE,
    LOST,
    ORDER,
    OVER_CAP,
    WRONG,
    Finding,
    Placed,
    check_order,
)

SETTLING = ("commit", "late", "release", "drop")

type Place = tuple[str, Entry]  # a slot's name, a line of its ledger


@dataclass(frozen=True, slots=True)
class Family:
    """A split budget: the whole's own row and ledger, and those of its slots, by name."""

    name: str
    whole: Budget
    slots: dict[str, Budget]

    def ledgers(self) -> Iterator[tuple[str, Budget]]:
        yield self.name, self.whole
        yield from self.slots.items()

    def entries(self) -> list[Entry]:
        return [entry for _, budget in self.ledgers() for entry in budget.entries]


def families(final: Final) -> dict[str, Family]:
    """Every split budget by its name."""
    slots: dict[str, dict[str, Budget]] = defaultdict(dict)
    for name, budget in final.budgets.items():
        if budget.slot_of is not None:
            slots[budget.slot_of][name] = budget
    return {name: Family(name, final.budgets[name], found) for name, found in slots.items()}


def check_family(
    family: Family, ops: list[Op], from_below: set[str], charging: Iterable[Op]
) -> Iterator[Finding]:
    """One split budget. from_below: marks of what was charged to budgets under it. charging: every
    call that may have charged it, also by way of those."""
    what = f"budget {family.name}"
    for name, budget in family.ledgers():
        yield from check_slot(f"budget {name}", budget)
        yield from check_holds(f"budget {name}", budget)
    yield from check_caps(what, family)
    by_mark: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for name, budget in family.ledgers():
        for entry in budget.entries:
            by_mark[entry.kind, entry.mark].append((name, entry))
    entries = {mark: [entry for _, entry in places] for mark, places in by_mark.items()}
    yield from check_marks(what, ops, entries, from_below)
    yield from check_places(what, family, ops, by_mark)
    yield from check_sights(what, family, ops, Spendings(charging, entries))


def check_slot(what: str, budget: Budget) -> Iterator[Finding]:
    """Numbers without a hole, nothing admitted beyond the slot's cap, and the row is the sum.

    More may be used than the cap when that is flagged, or when the next line brings the cap.
    """
    now = Sums(0, 0, 0)
    unmended = 0
    for n, entry in enumerate(budget.entries, 1):
        if entry.n != n:
            yield Finding(HOLE, what, f"after line {n - 1} comes {entry.n}")
            return
        if unmended and entry.kind != "shift":
            yield Finding(OVER_CAP, what, f"line {unmended} is over the cap and not flagged")
        cap = now.cap if entry.cap is None else entry.cap
        now = Sums(cap, now.spent + entry.spent, now.reserved + entry.reserved)
        if min(now.spent, now.reserved) < 0:
            yield Finding(WRONG, what, f"line {n}: {now}")
        if entry.kind in ADMITTING and (now.used > now.cap or entry.overdrawn):
            yield Finding(OVER_CAP, what, f"line {n} admitted {entry.kind}: {now}")
        unmended = n if now.used > now.cap and not entry.overdrawn else 0
    if unmended:
        yield Finding(OVER_CAP, what, f"line {unmended} is over the cap and not flagged")
    if (budget.cap, budget.spent, budget.reserved) != (now.cap, now.spent, now.reserved):
        yield Finding(
            WRONG, what, f"the row says {budget.spent}+{budget.reserved}, its ledger {now}"
        )
    if budget.version != len(budget.entries):
        yield Finding(HOLE, what, f"b{budget.version} with {len(budget.entries)} lines")


def check_caps(what: str, family: Family) -> Iterator[Finding]:
    """Caps that move neither make money nor lose it: at each moment that moves some, and in the
    end. While more is used than the cap, a slot's cap is what it has used, whatever the sum."""
    moved: dict[float, int] = defaultdict(int)
    over: set[float] = set()
    # A flag can change without a line; where one ever did, only admissions are sure to move room.
    was_over = any(entry.overdrawn for entry in family.entries())
    for name, budget in family.ledgers():
        cap = 0
        for entry in budget.entries:
            if entry.overdrawn or (was_over and entry.kind in (*SETTLING, "cap")):
                over.add(entry.at)
            change = 0 if entry.cap is None else entry.cap - cap
            cap += change
            moved[entry.at] += -change if name == family.name else change
    for at, change in moved.items():
        if change and at not in over:
            yield Finding(OVER_CAP, what, f"the slots' caps grew by {change} at {at:.6f}")
    own, slots = family.whole, family.slots.values()
    used = own.spent + own.reserved + sum(slot.spent + slot.reserved for slot in slots)
    dealt = own.spent + own.reserved + sum(slot.cap for slot in slots)
    if dealt != max(own.cap, used):
        yield Finding(OVER_CAP, what, f"caps of {dealt} are dealt out of {own.cap}, used {used}")


def check_places(
    what: str, family: Family, ops: list[Op], by_mark: dict[tuple[str, str], list[Place]]
) -> Iterator[Finding]:
    """Every call that was acknowledged has its line, and each ledger's order obeys time."""
    placed: dict[str, list[Placed]] = defaultdict(list)
    for op in ops:
        name = f"{op.kind} {op.id}" + (f" ({op.code})" if op.code else "")
        places = [place for key in marks_of(op) for place in by_mark.get(key, ())]
        if places:
            slot, entry = places[0]
            placed[slot].append(Placed(entry.n, op.invoked_at, op.effective_end, name))
        elif op.outcome == OK and op.kind in KINDS and not op.answer.get("dropped"):
            yield Finding(LOST, what, f"{name} was acknowledged")
        if "version" in op.answer and not (op.replayed and op.outcome != OK):
            # The whole's own number moves with its cap.
            rank = op.answer["version"] + 0.5
            placed[family.name].append(Placed(rank, op.invoked_at, op.ended_at, name))
    for name, calls in placed.items():
        yield from check_order(f"budget {name}", calls)


class Spendings:
    """What was spent of a split budget, by when it may have been and must have been."""

    def __init__(self, ops: Iterable[Op], entries: dict[tuple[str, str], list[Entry]]) -> None:
        sent: list[tuple[float, int]] = []
        acknowledged: list[tuple[float, int]] = []
        for op in ops:
            amount = sum(e.spent for key in marks_of(op) for e in entries.get(key, ())[:1])
            if amount:
                sent.append((op.invoked_at, amount))
                if op.outcome == OK:
                    acknowledged.append((op.ended_at, amount))
        self._sent, self._may = _summed(sent)
        self._acknowledged, self._must = _summed(acknowledged)

    def at_least(self, before: float) -> int:
        """What had been acknowledged before."""
        return self._must[bisect_left(self._acknowledged, before)]

    def at_most(self, until: float) -> int:
        """What had been sent until then."""
        return self._may[bisect_right(self._sent, until)]


def _summed(spent: list[tuple[float, int]]) -> tuple[list[float], list[int]]:
    spent.sort()
    return [at for at, _ in spent], list(accumulate((s for _, s in spent), initial=0))


def check_sights(
    what: str, family: Family, ops: Sequence[Op], spendings: Spendings
) -> Iterator[Finding]:
    """What callers saw of the whole: its cap of that version, a sum that time allows, and a refusal
    only without room."""
    caps: list[int] = []  # after each line; the first one opens the budget with its cap
    for entry in family.whole.entries:
        caps.append(caps[-1] if entry.cap is None else entry.cap)
    for op in ops:
        told = op.answer
        if "version" not in told or (op.replayed and op.outcome != OK):
            continue
        name = f"{op.kind} {op.id}" + (f" ({op.code})" if op.code else "")
        if not 1 <= told["version"] <= len(caps) or caps[told["version"] - 1] != told["cap"]:
            yield Finding(WRONG, what, f"{name} saw a cap of {told['cap']} at b{told['version']}")
        used = told["spent"] + told["reserved"]
        if told["left"] != max(0, told["cap"] - used):
            yield Finding(WRONG, what, f"{name} saw {told['left']} left of {told}")
        least, most = spendings.at_least(op.invoked_at), spendings.at_most(op.ended_at)
        if not least <= told["spent"] <= most:
            yield Finding(
                ORDER, what, f"{name} saw {told['spent']} spent; it was from {least} to {most}"
            )
        if op.code == "budget-exhausted" and used + op.ask["amount"] <= told["cap"]:
            yield Finding(WRONG, what, f"{name} was refused, and there was room: {told}")
