"""The figures of rules that people made: read from the minute table, now and for the last hours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from math import inf
from typing import Any

from agentstate.store import rates
from agentstate.store.alerting import WRITES_MIN, Figure
from agentstate.store.made import METRICS, Definition
from agentstate.store.minutes import LATENCY_MS
from agentstate.store.rates import Figures, add_up

MINUTE = timedelta(minutes=1)


def _latency(found: Figures) -> float | None:
    bound = found.percentile_ms(0.95)
    return None if bound is None else float(LATENCY_MS[-1] if bound == inf else bound)


def _retries(found: Figures) -> float | None:
    if not found.writes:
        return None
    return found.retries_per_success if found.accepted else float(found.retries)


VALUES: dict[str, Callable[[Figures], float | None]] = {
    "conflict-share": lambda found: found.conflict_ratio,
    "retries-per-success": _retries,
    "latency-p95": _latency,
    "conflicts": lambda found: found.conflicts,
    "gave-up": lambda found: found.gave_up,
    "fenced": lambda found: found.fenced,
    "refused": lambda found: found.refused,
    "refused-charges": lambda found: found.writes,
    "failed": lambda found: found.failed,
    "writes": lambda found: found.writes,
    "few-writes": lambda found: found.writes,
}


def figure_of(definition: Definition, found: Figures) -> Figure:
    """What these counts are by the definition."""
    metric, minutes = METRICS[definition.metric], definition.window_seconds // 60
    facts: dict[str, Any] = {"of": definition.of, "window": f"{minutes} min"}
    facts |= {"runs": [definition.run]} if definition.run else {}
    facts |= {"workers": [definition.worker]} if definition.worker else {}
    if not found.writes and not metric.always:
        return Figure(value=None, facts=facts, missing=f"no write{definition.of} was counted")
    if metric.share and found.writes < WRITES_MIN:
        few = f"only {found.writes} writes{definition.of}: too few to judge by a share"
        return Figure(value=None, facts=facts, fine=few)
    return Figure(value=VALUES[definition.metric](found), facts=facts)


def read_figure(definition: Definition, now: datetime) -> Figure:
    """The figure of the window that ends now."""
    return figure_of(definition, rates.read(since=now - definition.window, **_of(definition)).total)


def read_figures(
    definition: Definition, *, since: datetime, until: datetime
) -> dict[datetime, Figure]:
    """The figure of each minute as it would have been judged at its end, from the minute table."""
    first = since - definition.window
    count = (until - first) // MINUTE + 2
    found = rates.read(
        since=first, until=until + MINUTE, by=("minute",), limit=count, **_of(definition)
    )
    by_minute = {group.keys["minute"]: group.figures for group in found.groups}
    figures: dict[datetime, Figure] = {}
    minute = since
    while minute <= until:
        # The running minute and so many before it: what `read_figure` looks at.
        spans = (minute - n * MINUTE for n in range(definition.window // MINUTE + 1))
        there = [by_minute[at] for at in spans if at in by_minute]
        figures[minute] = figure_of(definition, add_up(there))
        minute += MINUTE
    return figures


def _of(definition: Definition) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "operation": definition.operation or None,
        "worker": definition.worker or None,
        "outcome": METRICS[definition.metric].outcome,
    }
    return asked | ({"runs": (definition.run,)} if definition.run else {})
