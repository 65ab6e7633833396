"""How a transaction locks a split budget: one slot of it, or the whole. Part of `execute`.

Every process charges a slot of its own, drawn at its start, and a batch of charges locks that one
alone. A budget that is not split costs nothing here: its row is locked with its tree.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentstate.store import rowsql as sql
from agentstate.store.plan import Plan
from agentstate.store.rows import BudgetRow
from agentstate.store.rules.slots import NeedsWhole, Split, summed, takes

_draw = random.SystemRandom()


class _Number:
    """This process's own: a fork draws anew, or a server's children would all share a slot."""

    def __init__(self) -> None:
        self.draw()
        os.register_at_fork(after_in_child=self.draw)

    def draw(self) -> None:
        self.number = _draw.randrange(2**16)


_OWN = _Number()


def slot_number() -> int:
    """Which slot charges go to that are made here: this modulo how many there are."""
    return _OWN.number


@dataclass(slots=True, kw_only=True)
class LockedBudgets:
    """The budgets of a transaction.

    rows: those that are locked, slots among them. roots: split ones that are only read. splits: how
    each split one is here. dead: holds to be given back, (budget, reservation).
    """

    rows: list[BudgetRow]
    roots: list[BudgetRow] = field(default_factory=list)
    splits: dict[UUID, Split] = field(default_factory=dict)
    dead: list[tuple[UUID, str]] = field(default_factory=list)

    @property
    def homes(self) -> dict[UUID, UUID]:
        """Of each slot, its budget."""
        return {slot: root for root, split in self.splits.items() for slot in split.slots}

    def ids_for(self, run: str | None) -> list[UUID]:
        """Where a charge or hold of a run, or of none, may be known by its id."""
        ids = [row.id for row in self.rows]
        if run is None:
            ids += [*self.splits, *self.homes]
        return ids

    def full(self, charging: int) -> list[BudgetRow]:
        """Those that may refuse so much, a split one as a whole."""
        slots = {row.id: row for row in self.rows if row.slot_of_id is not None}
        figures = [row for row in self.rows if row.slot_of_id is None and row.slots == 1]
        for root in (*self.roots, *(row for row in self.rows if row.slots > 1)):
            split = self.splits[root.id]
            chosen = slots.get(split.chosen)
            if split.exact and chosen is not None and not takes(chosen, charging):
                mine = [slots[slot] for slot in split.slots if slot in slots]
                figures.append(summed(root, mine, split))
        return [row for row in figures if row.used + charging > row.cap]

    def lacks_room(self, charging: int) -> bool:
        """Whether a slot that is charged here has not the room, and the whole is not known yet."""
        chosen = {split.chosen for split in self.splits.values() if not split.exact}
        return any(row.id in chosen and not takes(row, charging) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the commands name of split budgets. shared: names; holds: ids; ending: runs that end.

    by_id: a charge or hold of the shared one itself, which any slot may know. slots: ids, of holds
    to be given back. whole: ids of those that must be locked whole.
    """

    shared: frozenset[str]
    charging: bool
    by_id: bool
    holds: tuple[str, ...]
    ending: tuple[UUID, ...]
    slots: frozenset[UUID]
    whole: frozenset[UUID]


def wanted_of(
    parts: Sequence[Plan],
    run_ids: dict[str, UUID],
    *,
    slots: Iterable[UUID],
    whole: frozenset[UUID],
) -> Wanted:
    named = [budget for part in parts for budget in part.budgets]
    return Wanted(
        shared=frozenset(name for run, name in named if run is None and name is not None),
        charging=any(part.charging for part in parts),
        by_id=any(p.run is None and (p.charge_ids or p.holds) for p in parts),
        holds=tuple(sorted({hold for part in parts for hold in part.holds})),
        ending=tuple(sorted(run_ids[p.run] for p in parts if p.all_holds and p.run in run_ids)),
        slots=frozenset(slots),
        whole=whole,
    )


def lock_slots(cursor: Any, rows: list[BudgetRow], wanted: Wanted) -> LockedBudgets:
    """Lock what is wanted of the split budgets above `rows`, and read how they stand.

    rows: the budgets that are locked already; a split one among them is wanted whole.
    Raises NeedsWhole when it was split further meanwhile.
    """
    locked = LockedBudgets(rows=rows)
    known = {row.id for row in rows}
    split = {row.id for row in rows if row.slots > 1}
    names = wanted.shared - {row.name for row in rows if row.run_id is None}
    roots = {row.parent_id for row in rows if row.parent_id} - known | split | wanted.whole
    if not roots and not names and not wanted.slots:
        return locked
    params: dict[str, Any] = {"roots": list(roots), "names": list(names)}
    slots = wanted.slots | _slots_of_holds(cursor, params, rows, wanted)
    if wanted.charging or slots or split:
        _lock(cursor, params, locked, slots=slots, whole=split, charging=wanted.charging)
    found = {root.name: root.id for root in locked.roots}
    if split or wanted.by_id or not names <= found.keys() or not roots <= set(found.values()):
        params["roots"] += found.values()
        _read_splits(cursor, params, locked)
    return locked


def _lock(
    cursor: Any,
    params: dict[str, Any],
    locked: LockedBudgets,
    *,
    slots: frozenset[UUID] | set[UUID],
    whole: set[UUID],
    charging: bool,
) -> None:
    more = {"slots": list(slots), "whole": list(whole), "charging": charging}
    cursor.execute(sql.LOCK_SLOTS, params | more | {"number": slot_number()})
    found = [(sql.read_budget(row[:_WIDTH]), row[_WIDTH:]) for row in cursor.fetchall()]
    locked.rows += [slot for slot, _ in found]
    for columns in {slot.slot_of_id: columns for slot, columns in found}.values():
        _take(columns, locked, exact=False)


_WIDTH = len(sql.BUDGET_COLUMNS.split(","))


def add_rows(cursor: Any, locked: LockedBudgets, rows: list[BudgetRow]) -> None:
    """More that were locked afterwards, slots among them: the figures beside them are read anew."""
    locked.rows += rows
    if any(row.slot_of_id is not None for row in rows):
        look_again(cursor, locked)


def look_again(cursor: Any, locked: LockedBudgets) -> None:
    """Read how split budgets stand now that slots of theirs are locked."""
    _read_splits(cursor, {"roots": list(locked.splits), "names": []}, locked)


def _slots_of_holds(
    cursor: Any, params: dict[str, Any], rows: Sequence[BudgetRow], wanted: Wanted
) -> set[UUID]:
    if not wanted.holds and not wanted.ending:
        return set()
    more = {
        "holds": list(wanted.holds),
        "ending": list(wanted.ending),
        "budgets": [row.id for row in rows],
    }
    cursor.execute(sql.SLOTS_OF_HOLDS, params | more)
    return {slot for (slot,) in cursor.fetchall()}


def _read_splits(cursor: Any, params: dict[str, Any], locked: LockedBudgets) -> None:
    locked.roots.clear()
    cursor.execute(sql.SPLITS, params)
    for columns in cursor.fetchall():
        _take(columns, locked, exact=True)


def _take(found: Sequence[Any], locked: LockedBudgets, *, exact: bool) -> None:
    ids, spent, reserved, *columns = found
    root, known = sql.read_budget(columns), {row.id for row in locked.rows}
    if root.id not in known:
        locked.roots.append(root)
    elif exact and not known.issuperset(ids):
        raise NeedsWhole(root.id)
    beside = [n for n, slot in enumerate(ids) if slot not in known]
    locked.splits[root.id] = Split(
        slots=tuple(ids),
        chosen=ids[slot_number() % len(ids)],
        whole=root.id in known,
        exact=exact,
        spent=sum(spent[n] for n in beside),
        reserved=sum(reserved[n] for n in beside),
    )


def try_ids(cursor: Any, parts: Sequence[Plan], locked: LockedBudgets) -> None:
    """Take the ids of charges and holds that are new to a split budget itself.

    Where there is a run its lock keeps two apart; here nothing else would. Raises NeedsWhole when
    somebody else is at the same id: under the lock of the whole it is there, or it is free.
    """
    roots = {root.name: root.id for root in locked.roots}
    named = sorted(
        (root, part_id)
        for part in parts
        if part.run is None and part.charging
        for _, name in part.budgets
        if (root := roots.get(name or "")) is not None
        for part_id in (*part.charge_ids, *part.holds)
    )
    if not named:
        return
    cursor.execute(sql.TRY_IDS, [sql.records({"budget_id": r, "id": i} for r, i in named)])
    taken = cursor.fetchone()
    if taken is not None:
        raise NeedsWhole(taken[0])
