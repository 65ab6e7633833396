"""Rules that people made: a figure of the minute table, of all writes or of some, with bounds.

What a rule of our own looks at is code. One that was made names a metric, whose it is (a run, a
worker, an operation), over how long, what no data means, and how often it is told again; its name
begins with `own-`, so that it never meets one of ours. It is judged by the same `evaluate`, and a
preview of the last hours is the same figures of the same table (made_figures.py). Pure.
Why: docs/decisions/0027-zones-rules-quiet-hours.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from agentstate.store.alerting import Rule, State
from agentstate.store.errors import BudgetExhausted, Invalid
from agentstate.store.rules import names

PREFIX = "own-"
MADE_MAX = 50
TITLE_CHARS = 80
WINDOW_SECONDS = (60, 3_600)
AGAIN_SECONDS_MAX = 7 * 86_400
HOLD_SECONDS_MAX = 3_600
# What a figure that cannot be found out counts as.
NO_DATA = (str(State.NO_DATA), str(State.OK), str(State.WARN), str(State.ALERT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What can be looked at. said: of the value, with `of` (whose) and `window`.

    always: also without a write in the window there is a value.
    """

    label: str
    unit: str
    said: str
    falling: bool = False
    share: bool = False
    always: bool = False
    outcome: str | None = None


METRICS: dict[str, Metric] = {
    "conflict-share": Metric(
        label="share of writes that met another writer first",
        unit="share",
        said="{value} of the writes{of} in {window} met another writer first",
        share=True,
    ),
    "retries-per-success": Metric(
        label="retries per accepted write",
        unit="ratio",
        said="{value} retries for each accepted write{of} in {window}",
        share=True,
    ),
    "latency-p95": Metric(
        label="95th percentile in the store",
        unit="ms",
        said="the 95th percentile of writes{of} in {window} is {value}",
    ),
    "conflicts": Metric(
        label="conflicts",
        unit="count",
        said="{value} conflicts{of} in {window}",
    ),
    "gave-up": Metric(
        label="changes that were given up",
        unit="count",
        said="{value} changes were given up{of} in {window}",
    ),
    "fenced": Metric(
        label="calls of workers that hold nothing any more",
        unit="count",
        said="{value} fenced calls{of} in {window}",
    ),
    "refused": Metric(
        label="refused writes",
        unit="count",
        said="{value} refused writes{of} in {window}",
    ),
    "refused-charges": Metric(
        label="charges refused for their cap",
        unit="count",
        said="{value} charges refused for their cap{of} in {window}",
        always=True,
        outcome=BudgetExhausted.code,
    ),
    "failed": Metric(
        label="writes that ended in a fault of ours",
        unit="count",
        said="{value} writes failed{of} in {window}",
    ),
    "writes": Metric(
        label="writes, too many",
        unit="count",
        said="{value} writes{of} in {window}",
        always=True,
    ),
    "few-writes": Metric(
        label="writes, too few",
        unit="count",
        said="{value} writes{of} in {window}",
        falling=True,
        always=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What somebody wants to be looked at. run, worker, operation: of these alone; "": of all.

    again_seconds: told again after so long while it stands; 0: as the site does.
    Raises Invalid for what cannot be judged.
    """

    title: str
    metric: str
    run: str = ""
    worker: str = ""
    operation: str = ""
    window_seconds: int = 300
    hold_seconds: int = 60
    no_data: str = str(State.NO_DATA)
    again_seconds: int = 0

    def __post_init__(self) -> None:
        names.check_line("title", self.title, at_least=1, at_most=TITLE_CHARS)
        for name in ("run", "worker", "operation"):
            names.check_line(name, getattr(self, name), at_least=0, at_most=200)
        if self.metric not in METRICS:
            raise Invalid("metric", f"one of {', '.join(METRICS)}")
        low, high = WINDOW_SECONDS
        names.check_whole("window_seconds", self.window_seconds, at_least=low, at_most=high)
        if self.window_seconds % 60:
            raise Invalid(
                "window_seconds", "whole minutes: what is counted is counted by the minute"
            )
        names.check_whole("hold_seconds", self.hold_seconds, at_least=0, at_most=HOLD_SECONDS_MAX)
        if self.no_data not in NO_DATA:
            raise Invalid("no_data", f"one of {', '.join(NO_DATA)}")
        if self.again_seconds and not 60 <= self.again_seconds <= AGAIN_SECONDS_MAX:
            raise Invalid("again_seconds", f"0, or 60 to {AGAIN_SECONDS_MAX}")

    @property
    def window(self) -> timedelta:
        return timedelta(seconds=self.window_seconds)

    @property
    def of(self) -> str:
        """Whose, in words: ` of run 42, by worker w-3`."""
        parts = [
            f" {word} {value}"
            for word, value in (
                ("of run", self.run),
                ("by worker", self.worker),
                ("that are", self.operation),
            )
            if value
        ]
        return "".join(parts)

    def members(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRule:
    """Bounds as they are kept, and of a rule that was made what it looks at."""

    warn: float | None
    alert: float | None
    version: int
    definition: Definition | None = None


def read_definition(members: Mapping[str, Any]) -> Definition | None:
    """What is kept; None for what another release wrote and this one cannot judge."""
    known = {field.name for field in fields(Definition)}
    try:
        return Definition(**{name: value for name, value in members.items() if name in known})
    except (Invalid, TypeError):
        return None


def is_made(rule: str) -> bool:
    """Whether a rule of this name is, or was, somebody's own."""
    return rule.startswith(PREFIX)


def rule_of(
    name: str, definition: Definition, *, warn: float | None, alert: float | None, advice: str = ""
) -> Rule:
    metric = METRICS[definition.metric]
    return Rule(
        name=name,
        title=definition.title,
        unit=metric.unit,
        warn=warn,
        alert=alert,
        message=metric.said,
        advice=advice,
        window_seconds=definition.window_seconds,
        hold_seconds=definition.hold_seconds,
        falling=metric.falling,
        again_seconds=definition.again_seconds,
        no_data=State(definition.no_data),
        made=True,
    )
