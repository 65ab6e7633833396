"""Every budget, split or not, by itself, and levels that are charged together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from bench.torture.budgets import check_budget
from bench.torture.final import Budget, Final
from bench.torture.history import OK, Op
from bench.torture.order import LOST, TORN, Finding
from bench.torture.slots import check_family, families


def check_budgets(ops: Iterable[Op], final: Final) -> Iterator[Finding]:
    """Every ledger by itself, every call against it, and levels that are charged together."""
    by_budget: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.on.startswith("budget:"):
            by_budget[op.on[7:]].append(op)
    children: dict[str, list[str]] = defaultdict(list)
    for name, budget in final.budgets.items():
        if budget.parent is not None:
            children[budget.parent].append(name)
    split = families(final)
    lines = {name: budget.entries for name, budget in final.budgets.items()}
    lines |= {name: family.entries() for name, family in split.items()}
    above = {
        name: {(e.kind, e.mark): (e.spent, e.reserved) for e in lines[name]}
        for name in children
        if name in lines
    }
    for name in by_budget.keys() | final.budgets.keys():
        if name not in final.budgets:
            yield from (
                Finding(LOST, f"budget {name}", f"{op.kind} {op.id} was acknowledged")
                for op in by_budget[name]
                if op.outcome == OK
            )
            continue
        budget = final.budgets[name]
        if budget.slot_of is not None:
            continue
        from_below = {
            entry.mark
            for child in children[name]
            for entry in final.budgets[child].entries
            if entry.mark
        }
        if name in split:
            charging = [op for one in (name, *children[name]) for op in by_budget[one]]
            yield from check_family(split[name], by_budget[name], from_below, charging)
        else:
            yield from check_budget(f"budget {name}", by_budget[name], budget, from_below)
        if budget.parent in above:
            yield from check_levels(name, budget, above[budget.parent])


def check_levels(
    name: str, budget: Budget, above: dict[tuple[str, str], tuple[int, int]]
) -> Iterator[Finding]:
    """What is charged to a budget is charged to the one above it, in the same amounts."""
    for entry in budget.entries:
        if entry.kind in ("open", "cap") or not entry.mark:
            continue
        there = above.get((entry.kind, entry.mark))
        if there != (entry.spent, entry.reserved):
            yield Finding(
                TORN, f"budget {name}", f"line {entry.n}, {entry.kind} {entry.mark}: above {there}"
            )
