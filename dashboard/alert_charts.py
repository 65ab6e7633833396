"""The chart of a preview: a rule's figures, its bounds, and when it would have fired.

Drawn as SVG by the server. Above a bound that is far off nothing is cut: the scale reaches from 0
to the greatest of the figures and the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from agentstate.store.alerting import Foreseen, Rule, told
from agentstate.store.bounds import Preview
from dashboard.axes import Axis, axis_of
from dashboard.templatetags.console import plain

LEFT, WIDTH, HEIGHT = 64.0, 700.0, 130
MINUTE = timedelta(minutes=1)
FIRED_DRAWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLine:
    """name: `warn` or `alert`."""

    name: str
    y: float
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """When it would have begun to fire, or got worse; state: to what."""

    x: float
    at: datetime
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChart:
    """line: the figures, broken where there is none. fired_more: how many are not drawn."""

    axis: Axis
    top: str
    line: str
    bounds: list[BoundLine]
    fired: list[Fired]
    fired_more: int


def draw(preview: Preview, rule: Rule, foreseen: Foreseen) -> AlertChart:
    """The figures with the bounds of `rule`."""
    axis = axis_of(preview.since, preview.until + MINUTE, left=LEFT, width=WIDTH)
    known = [value for value in preview.values.values() if value is not None]
    limits = [("warn", rule.warn), ("alert", rule.alert)]
    top = 1.1 * max([*known, *(bound for _, bound in limits if bound is not None)], default=0) or 1
    fired = [Fired(x=axis.x(at), at=at, state=str(state)) for at, state in foreseen.fired]
    return AlertChart(
        axis=axis,
        top=told(rule.unit, top),
        line=_line(preview, axis, top),
        bounds=[
            BoundLine(name=name, y=_y(bound, top), said=f"{name} {told(rule.unit, bound)}")
            for name, bound in limits
            if bound is not None
        ],
        fired=fired[-FIRED_DRAWN:],
        fired_more=max(0, len(fired) - FIRED_DRAWN),
    )


def _y(value: float, top: float) -> float:
    return round(HEIGHT * (1 - value / top), 1)


def _line(preview: Preview, axis: Axis, top: float) -> str:
    """Level over each minute; nothing where nobody judged or nothing could be bad."""
    path: list[str] = []
    before: datetime | None = None
    for at in sorted(preview.values):
        value = preview.values[at]
        if value is None or not axis.shows(at):
            continue
        y = plain(_y(value, top))
        goes_on = before is not None and at - before == MINUTE
        path.append(
            f"{'V' + y if goes_on else f'M{plain(axis.x(at))} {y}'}H{plain(axis.x(at + MINUTE))}"
        )
        before = at
    return "".join(path)
