"""Budgets: admission under a cap. All levels admit a charge or none does."""

from __future__ import annotations

from collections.abc import Sequence

from agentstate.store.errors import BudgetExhausted, CapBelowUse, Invalid
from agentstate.store.rows import BudgetRow, HoldRow, replace
from agentstate.store.rules.names import AMOUNT_MAX


def check_room(levels: Sequence[BudgetRow], amount: int) -> None:
    """Raises BudgetExhausted naming the first level, from the outermost, that has no room."""
    for level in levels:
        if level.reserved + level.spent + amount > level.cap:
            raise BudgetExhausted(
                f"{level.name}: {amount} asked, {level.left} {level.unit} left of {level.cap}",
                current=level.facts(),
                budget=level.name,
                cap=level.cap,
                spent=level.spent,
                reserved=level.reserved,
                asked=amount,
            )


def spend(levels: Sequence[BudgetRow], amount: int) -> list[BudgetRow]:
    """Every level with `amount` more spent. Raises BudgetExhausted; then nothing is added."""
    check_room(levels, amount)
    return [enter(level, spent=amount) for level in levels]


def reserve(levels: Sequence[BudgetRow], amount: int) -> list[BudgetRow]:
    """Every level with `amount` more reserved. Raises BudgetExhausted."""
    check_room(levels, amount)
    return [enter(level, reserved=amount) for level in levels]


def settle(levels: Sequence[BudgetRow], hold: HoldRow, actual: int) -> list[BudgetRow]:
    """Every level with the hold given back and `actual` spent.

    What was really used is recorded whatever the cap says: the money is gone. A level that it takes
    over its cap is flagged, and admits nothing more until the cap allows it.
    """
    held = hold.amount if hold.state == "held" else 0
    return [enter(level, spent=actual, reserved=-held) for level in levels]


def check_countable(levels: Sequence[BudgetRow], actual: int, more: int) -> None:
    """Raises Invalid when the sums of a level would leave the numbers that every reader of JSON
    keeps. A cap does not keep what was really used within them.

    more: what is used beyond the hold; when that is nothing no sum grows.
    """
    for level in levels:
        room = AMOUNT_MAX - level.used
        if more > max(0, room):
            most = max(0, room) + actual - more
            raise Invalid(
                "amount", f"at most {most}: what {level.name} has used stays within {AMOUNT_MAX}"
            )


def enter(level: BudgetRow, *, spent: int = 0, reserved: int = 0) -> BudgetRow:
    """The budget with one more line in its ledger, at the next version."""
    spent, reserved = level.spent + spent, level.reserved + reserved
    return replace(
        level,
        spent=spent,
        reserved=reserved,
        overdrawn=spent + reserved > level.cap,
        version=level.version + 1,
        entries=level.entries + 1,
    )


def change_cap(level: BudgetRow, cap: int) -> BudgetRow:
    """The budget with another cap. Raises CapBelowUse, unless that raises an overdrawn one."""
    used = level.spent + level.reserved
    if cap < used and cap <= level.cap:
        raise CapBelowUse(
            f"{level.name}: {used} {level.unit} are used, more than {cap}",
            current=level.facts(),
            used=used,
        )
    return enter(replace(level, cap=cap))
