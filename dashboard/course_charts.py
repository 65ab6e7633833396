"""The chart of a budget's course as numbers for the template: how full it was, what was spent.

Drawn as SVG by the server, over the time axis of `axes.py`. Used and cap differ by their dashes, a
refused charge by its shape, and each has its name beside it; the same figures are a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard import zones
from dashboard.axes import Axis
from dashboard.charts import round_up
from dashboard.queries.ledgers import Course, Point
from dashboard.templatetags.console import number, plain

FILL_HEIGHT, SPENT_HEIGHT = 120, 64
# Room for the figures beside the bands.
LEFT = 96.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """Charges that were refused in one column, as one mark."""

    x: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What was spent in a column; y from the top of its own band."""

    x: float
    width: float
    y: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A column in words, for whoever points at it, and its figures for the table."""

    x: float
    width: float
    title: str
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseChart:
    """Two bands over one axis: how full it was against its cap, and what was spent in each column.

    used, area, cap: paths in the upper band; nothing where it is not known. rows: of every column;
    told: those of them in which anything happened.
    """

    axis: Axis
    top: int
    used: str
    area: str
    cap: str
    cap_label_y: float
    spent_top: int
    bars: list[Bar]
    refusals: list[Refusals]
    rows: list[Row]

    @property
    def told(self) -> list[Row]:
        return [row for row in self.rows if row.point.spent or row.point.refused]


def draw(course: Course, axis: Axis) -> CourseChart:
    """A budget over time. Used and cap are at the end of a column and stay until the next one's."""
    points = course.points
    width = axis.width / len(points)
    known = [value for p in points for value in (p.used, p.cap) if value is not None]
    top = round_up(max(known, default=0))
    spent_top = round_up(max((point.spent for point in points), default=0))
    used = [_y(point.used, top, FILL_HEIGHT) for point in points]
    cap = [_y(point.cap, top, FILL_HEIGHT) for point in points]
    return CourseChart(
        axis=axis,
        top=top,
        used=_steps(used, width),
        area=_area(used, width),
        cap=_steps(cap, width),
        cap_label_y=next((y for y in reversed(cap) if y is not None), 0.0),
        spent_top=spent_top,
        bars=[
            _bar(at * width, width, point.spent, spent_top)
            for at, point in enumerate(points)
            if point.spent
        ],
        refusals=[
            Refusals(x=round((at + 0.5) * width, 1), count=point.refused)
            for at, point in enumerate(points)
            if point.refused
        ],
        rows=[
            Row(
                x=round(at * width, 2),
                width=round(width, 2),
                title=_course_told(point),
                point=point,
            )
            for at, point in enumerate(points)
        ],
    )


def _y(value: int | None, top: int, height: int) -> float | None:
    return None if value is None else round(height * (1 - value / top), 1)


def _bar(x: float, width: float, value: int, top: int) -> Bar:
    """Something is never drawn as nothing."""
    height = max(1.5, SPENT_HEIGHT * value / top)
    return Bar(
        x=round(x, 2),
        width=round(width * 0.78, 2),
        y=round(SPENT_HEIGHT - height, 1),
        height=round(height, 1),
    )


def _steps(heights: Sequence[float | None], width: float) -> str:
    """A line that is level over each column; broken where nothing is known."""
    path: list[str] = []
    before: float | None = None
    for at, y in enumerate(heights):
        if y is not None:
            begin = f"M{plain(at * width)} {plain(y)}" if before is None else f"V{plain(y)}"
            path.append(f"{begin}H{plain((at + 1) * width)}")
        before = y
    return "".join(path)


def _area(heights: Sequence[float | None], width: float) -> str:
    """What is below such a line."""
    return "".join(
        f"M{plain(at * width)} {FILL_HEIGHT}V{plain(y)}h{plain(width)}V{FILL_HEIGHT}z"
        for at, y in enumerate(heights)
        if y is not None
    )


def _course_told(point: Point) -> str:
    parts = [f"{number(point.spent)} spent"]
    if point.used is not None and point.cap is not None:
        parts.append(f"{number(point.used)} of {number(point.cap)} used at its end")
    if point.refused:
        parts.append(f"{number(point.refused)} refused")
    return f"{zones.stamp(point.at)}: {', '.join(parts)}"
