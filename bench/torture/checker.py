"""The verdict on a history: everything that was promised and not kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from bench.torture.accounts import check_budgets
from bench.torture.budgets import marks_of as marks_in_ledgers
from bench.torture.feed import check_feed
from bench.torture.final import Final
from bench.torture.history import History, Op
from bench.torture.order import TORN, Finding
from bench.torture.readers import check_readers
from bench.torture.runs import check_runs, marks_of
from bench.torture.units import check_units


def check(history: History, final: Final) -> list[Finding]:
    """Every finding, none when the history is good. Time and memory grow with the history's
    length (and a sort). Pure: neither Django nor a server is needed."""
    ops = history.ops
    return [
        *check_runs(ops, final),
        *check_units(ops, final),
        *check_budgets(ops, final),
        *check_wholes(ops, final),
        *check_feed(ops, final),
        *check_readers(ops, final),
    ]


def check_wholes(ops: list[Op], final: Final) -> Iterator[Finding]:
    """Of a call with several parts all happened, or none."""
    wholes: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.whole:
            wholes[op.whole].append(op)
    in_runs = {(run, e.mark) for run, events in final.events.items() for e in events if e.mark}
    in_ledgers = {(name, e.kind, e.mark) for name, b in final.budgets.items() for e in b.entries}
    for whole, parts in wholes.items():
        there = {op.id: is_there(op, in_runs, in_ledgers) for op in parts}
        known = {part: found for part, found in there.items() if found is not None}
        if len(set(known.values())) > 1:
            yield Finding(TORN, f"batch {whole}", f"of its parts are there: {known}")


def is_there(
    op: Op, in_runs: set[tuple[str, str]], in_ledgers: set[tuple[str, str, str]]
) -> bool | None:
    """Whether an effect is stored; None for what leaves no mark."""
    if op.on.startswith("run:"):
        marks = marks_of(op)
        return any((op.on[4:], mark) in in_runs for mark in marks) if marks else None
    lines = list(marks_in_ledgers(op))
    return any((op.on[7:], *line) in in_ledgers for line in lines) if lines else None
