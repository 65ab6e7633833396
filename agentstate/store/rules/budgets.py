"""Budgets: admission under a cap. All levels admit a charge or none does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentstate.store.errors import BudgetExhausted
from agentstate.store.rows import BudgetRow


def spend(levels: Sequence[BudgetRow], amount: int) -> list[BudgetRow]:
    """Every level with `amount` more spent; levels run from the outermost to the run's own.

    Raises BudgetExhausted naming the first level that has no room; then nothing is added.
    """
    for level in levels:
        if level.overdrawn or level.reserved + level.spent + amount > level.cap:
            raise BudgetExhausted(
                f"{level.name}: {amount} asked, {level.left} {level.unit} left of {level.cap}",
                current=level.facts(),
                budget=level.name,
                cap=level.cap,
                spent=level.spent,
                reserved=level.reserved,
                asked=amount,
            )
    return [
        replace(
            level, spent=level.spent + amount, version=level.version + 1, entries=level.entries + 1
        )
        for level in levels
    ]
