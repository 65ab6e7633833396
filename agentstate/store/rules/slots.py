"""A hot shared budget in slots: rows of their own, each of which may admit its part of the cap.

A charge locks one slot, not the budget, so that processes do not queue for one row. What makes it
safe is one sum: what the budget itself has used and the caps of its slots are its cap, never more.
Caps move between slots only while the budget and all of its slots are locked ("whole").
Why: docs/decisions/0010-budget-slots.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from agentstate.store.rows import BudgetRow, replace
from agentstate.store.rules.budgets import enter

# After every other budget in the one order of locks: what is hot is held for the shortest time.
DEPTH = 1_000_000


class NeedsWhole(Exception):
    """One slot is not enough to decide: roll back, and lock these budgets with all their slots.

    Not a refusal: no caller ever sees it.
    """

    def __init__(self, budget_id: UUID) -> None:
        super().__init__(f"all slots of {budget_id} are needed")
        self.budget_id = budget_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a transaction has a split budget.

    slots: the ids of all, by number. chosen: which takes the charges made here. whole: the budget
    and all of its slots are locked; else only those that are in the draft, and what the others have
    is in spent and reserved, as last committed. exact: it was read when those were locked already,
    in one snapshot: so much was used at that moment.
    """

    slots: tuple[UUID, ...]
    chosen: UUID
    whole: bool = False
    exact: bool = False
    spent: int = 0
    reserved: int = 0


def slot_row(budget: BudgetRow, slot: int, slot_id: UUID) -> BudgetRow:
    """A new slot, without room until it is dealt some."""
    return BudgetRow(
        id=slot_id,
        run_id=None,
        name=f"{budget.name}#{slot}",
        unit=budget.unit,
        cap=0,
        entries=1,
        depth=DEPTH,
        slot_of_id=budget.id,
        slot=slot,
    )


def summed(budget: BudgetRow, slots: Iterable[BudgetRow], beside: Split) -> BudgetRow:
    """The budget as everybody sees it: with what its slots have."""
    spent, reserved = budget.spent + beside.spent, budget.reserved + beside.reserved
    for slot in slots:
        spent, reserved = spent + slot.spent, reserved + slot.reserved
    return replace(budget, spent=spent, reserved=reserved, overdrawn=spent + reserved > budget.cap)


def deal(
    budget: BudgetRow, slots: Sequence[BudgetRow], *, asking: UUID | None = None, amount: int = 0
) -> tuple[BudgetRow, list[BudgetRow]]:
    """The budget, and those slots that change, so that all room is in the slots again.

    The slot that asks gets `amount` and half of what is left, the others share the rest; without
    one all share alike. When more is used than the cap allows no slot has room, and all are
    flagged: then nothing is given back or charged without the whole.
    amount: at most the room that there is.
    """
    room = budget.cap - budget.used - sum(slot.used for slot in slots)
    shares = _shares(slots, max(0, room), asking, amount)
    changed = [
        _with_cap(slot, slot.used + share, overdrawn=room < 0)
        for slot, share in zip(slots, shares, strict=True)
        if slot.cap != slot.used + share or slot.overdrawn != (room < 0)
    ]
    return replace(budget, overdrawn=room < 0), changed


def _shares(slots: Sequence[BudgetRow], room: int, asking: UUID | None, amount: int) -> list[int]:
    if asking is None or len(slots) == 1:
        return _even(room, len(slots))
    first = amount + (room - amount + 1) // 2
    others = iter(_even(room - first, len(slots) - 1))
    return [first if slot.id == asking else next(others) for slot in slots]


def _even(room: int, count: int) -> list[int]:
    each, more = divmod(room, count)
    return [each + (n < more) for n in range(count)]


def _with_cap(slot: BudgetRow, cap: int, *, overdrawn: bool) -> BudgetRow:
    """With a line in its ledger when the cap changes; a flag alone is none."""
    if slot.cap != cap:
        slot = enter(replace(slot, cap=cap))
    return replace(slot, overdrawn=overdrawn)


def takes(row: BudgetRow, amount: int) -> bool:
    """Whether a row of a split budget takes it alone: a slot that has room and is not flagged.

    amount: negative when something is given back.
    """
    return row.slot_of_id is not None and not row.overdrawn and row.used + amount <= row.cap
