"""Each budget as a bank: at every line of its ledger, cap = free + reserved + spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.torture.final import Budget, Entry
from bench.torture.history import OK, REFUSED, Op
from bench.torture.order import (
    DOUBLED,
    HOLE,
    INVENTED,
    LOST,
    OVER_CAP,
    WRONG,
    Finding,
    Placed,
    check_order,
)

# Which lines a kind of call leaves. A commit that comes late is another line.
KINDS = {
    "spend": ("spend",),
    "reserve": ("reserve",),
    "commit": ("commit", "late"),
    "let-go": ("release",),
    "cap": ("cap",),
}
ADMITTING = ("spend", "reserve")


@dataclass(frozen=True, slots=True)
class Sums:
    """A budget as of a line of its ledger; its number is the budget's version."""

    cap: int
    spent: int
    reserved: int

    @property
    def used(self) -> int:
        return self.spent + self.reserved


def check_budget(
    what: str, ops: list[Op], budget: Budget, from_below: set[str]
) -> Iterator[Finding]:
    """One budget. from_below: marks of what was charged to budgets under this one."""
    sums: list[Sums] = []
    yield from check_ledger(what, budget, sums)
    by_mark: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in budget.entries:
        by_mark[entry.kind, entry.mark].append(entry)
    yield from check_marks(what, ops, by_mark, from_below)
    yield from check_holds(what, budget)
    placed: list[Placed] = []
    for op in ops:
        yield from place(what, op, by_mark, sums, placed)
    yield from check_order(what, placed)


def check_ledger(what: str, budget: Budget, sums: list[Sums]) -> Iterator[Finding]:
    """Numbers without a hole; nothing admitted beyond the cap; what is over it flagged; the row
    is the sum. Fills `sums`, one for each line."""
    now = Sums(0, 0, 0)
    for n, entry in enumerate(budget.entries, 1):
        if entry.n != n:
            yield Finding(HOLE, what, f"after line {n - 1} comes {entry.n}")
            return
        cap = now.cap if entry.cap is None else entry.cap
        now = Sums(cap, now.spent + entry.spent, now.reserved + entry.reserved)
        sums.append(now)
        if min(now.spent, now.reserved) < 0:
            yield Finding(WRONG, what, f"line {n}: {now}")
        if now.used > now.cap and entry.kind in ADMITTING:
            yield Finding(OVER_CAP, what, f"line {n} admitted {entry.kind}: {now}")
        elif (now.used > now.cap) != entry.overdrawn:
            yield Finding(OVER_CAP, what, f"line {n} is flagged {entry.overdrawn}: {now}")
    if (budget.cap, budget.spent, budget.reserved) != (now.cap, now.spent, now.reserved):
        yield Finding(
            WRONG, what, f"the row says {budget.spent}+{budget.reserved}, its ledger {now}"
        )
    if budget.version != len(budget.entries):
        yield Finding(HOLE, what, f"b{budget.version} with {len(budget.entries)} lines")


def marks_of(op: Op) -> Iterator[tuple[str, str]]:
    """(kind, mark) of the lines that a call may leave: one of them, once."""
    for kind in KINDS.get(op.kind, ()):
        yield kind, op.ask.get("hold") or op.id


def check_marks(
    what: str,
    ops: list[Op],
    by_mark: dict[tuple[str, str], list[Entry]],
    from_below: set[str],
) -> Iterator[Finding]:
    """Every line once, of a call that was made and not refused."""
    known: set[tuple[str, str]] = set()
    refused: dict[tuple[str, str], Op] = {}
    for op in ops:
        if op.outcome == REFUSED:
            refused.update(dict.fromkeys(marks_of(op), op))
        else:
            known.update(marks_of(op))
    for (kind, mark), entries in by_mark.items():
        if kind not in ("spend", "reserve", "commit", "late", "release", "cap"):
            continue
        if len(entries) > 1:
            yield Finding(DOUBLED, what, f"{kind} {mark} is on lines {[e.n for e in entries]}")
        if (kind, mark) in known or mark in from_below:
            continue
        why = refused.get((kind, mark))
        said = f"it was refused ({why.code})" if why else "nobody asked for it"
        yield Finding(INVENTED, what, f"line {entries[0].n}, {kind} {mark}: {said}")


def check_holds(what: str, budget: Budget) -> Iterator[Finding]:
    """A hold is made once and settled once at most; only what was dropped may still come late."""
    settled: dict[str, list[str]] = defaultdict(list)
    for entry in budget.entries:
        if entry.kind in ("commit", "release", "drop", "late"):
            settled[entry.mark].append(entry.kind)
    for mark, kinds in settled.items():
        if len(kinds) > 1 and kinds != ["drop", "late"]:
            yield Finding(DOUBLED, what, f"hold {mark} was settled as {kinds}")
    states = {"commit": "committed", "release": "released", "drop": "dropped", "late": "late"}
    for hold, state in budget.holds.items():
        ended = settled.get(hold)
        if state != (states[ended[-1]] if ended else "held"):
            yield Finding(WRONG, what, f"hold {hold} is {state}, its ledger says {ended}")


def place(
    what: str,
    op: Op,
    by_mark: dict[tuple[str, str], list[Entry]],
    sums: list[Sums],
    placed: list[Placed],
) -> Iterator[Finding]:
    """Find a call's line, and hold what it was told against the sums."""
    name = f"{op.kind} {op.id}" + (f" ({op.code})" if op.code else "")
    entries = [entry for key in marks_of(op) for entry in by_mark.get(key, ())]
    if entries:
        placed.append(Placed(entries[0].n, op.invoked_at, op.effective_end, name))
    elif op.outcome == OK and op.kind in KINDS and not op.answer.get("dropped"):
        yield Finding(LOST, what, f"{name} was acknowledged")
    told = op.answer
    if "version" not in told or (op.replayed and op.outcome != OK):
        return
    # A first answer that is given again, and what a refusal saw, were true within the call too.
    placed.append(Placed(told["version"] + 0.5, op.invoked_at, op.ended_at, name))
    yield from check_snapshot(what, name, op, sums)
    if op.outcome == OK and entries and not op.replayed and told["version"] != entries[0].n:
        yield Finding(
            WRONG, what, f"{name} was told b{told['version']}, its line is {entries[0].n}"
        )


def check_snapshot(what: str, name: str, op: Op, sums: list[Sums]) -> Iterator[Finding]:
    """cap, spent and reserved as told are the ledger's at that version; 402 only without room."""
    told: dict[str, Any] = op.answer
    if not 1 <= told["version"] <= len(sums):
        yield Finding(LOST, what, f"{name} saw b{told['version']}, which is not there")
        return
    there = sums[told["version"] - 1]
    seen = Sums(told["cap"], told["spent"], told["reserved"])
    if seen != there:
        yield Finding(WRONG, what, f"{name} saw {seen} at b{told['version']}, it was {there}")
    if told["left"] != max(0, there.cap - there.used) and told["left"] != there.cap - there.used:
        yield Finding(WRONG, what, f"{name} saw {told['left']} left of {there}")
    if op.code == "budget-exhausted" and there.used + op.ask["amount"] <= there.cap:
        yield Finding(WRONG, what, f"{name} was refused, and there was room: {there}")
