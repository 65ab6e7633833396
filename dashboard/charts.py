"""Charts as numbers for the templates: coordinates, labels, and what each part says.

Drawn as SVG by the server. The box is 1000 wide; the template puts the scale beside it. What has a
time axis gets it from `axes.py`. Nothing is told by colour alone: series differ by dashes, patterns
and shapes too, each has its name beside it, and every chart is also a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard import zones
from dashboard.families import BY_NAME, FAMILIES
from dashboard.queries.contention import Contention, Heat, Slot, contested

WIDTH = 1_000
HEIGHT = 120
LEVELS = 5
ROW = 22
LABEL_CHARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    y: float
    height: float
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    x: float
    width: float
    title: str
    pieces: list[Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Stacked columns in a box of 1000 by 120; top: what the upper edge stands for."""

    columns: list[Column]
    top: int


def draw_columns(slots: Sequence[Slot]) -> Columns:
    """A column per slot; the scale ends at a round number above the highest."""
    top = round_up(max((slot.total for slot in slots), default=0))
    width = WIDTH / len(slots)
    columns = [_column(slot, at * width, width, top) for at, slot in enumerate(slots)]
    return Columns(columns=columns, top=top)


def _column(slot: Slot, x: float, width: float, top: int) -> Column:
    pieces, y = [], float(HEIGHT)
    for family in FAMILIES:
        height = HEIGHT * slot.families.get(family.name, 0) / top
        if height:
            y -= height
            pieces.append(Piece(y=round(y, 1), height=round(height, 1), family=family.name))
    told = ", ".join(f"{n} {BY_NAME[name].label.lower()}" for name, n in slot.families.items())
    time = zones.clock(slot.at)
    return Column(
        x=round(x, 2),
        width=round(width * 0.78, 2),
        title=f"{time}: {told or 'nothing refused'}",
        pieces=pieces,
    )


def round_up(value: int) -> int:
    """The next of 4, 10, 20, 50, 100, 200, …"""
    size = 10
    if value <= 4:
        return 4
    while True:
        for factor in (1, 2, 5):
            if value <= size * factor:
                return size * factor
        size *= 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """level: 1 to 5 of the most of any cell. title: all about it; told: in short."""

    x: float
    width: float
    level: int
    title: str
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """A run; label: its name, cut in the middle so that both ends can be read."""

    y: int
    run: str
    label: str
    total: int
    cells: list[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    rows: list[HeatRow]
    height: int
    most: int


def draw_heat(found: Contention) -> HeatMap:
    """Runs by slots; the darker, the more was contested there."""
    most = max((contested(cell) for heat in found.heat for cell in heat.cells), default=0)
    width = WIDTH / len(found.slots)
    rows = [
        HeatRow(
            y=at * ROW,
            run=heat.run,
            label=cut_middle(heat.run, LABEL_CHARS),
            total=heat.total,
            cells=_cells(heat, found.slots, width, most),
        )
        for at, heat in enumerate(found.heat)
    ]
    return HeatMap(rows=rows, height=len(rows) * ROW, most=most)


def _cells(heat: Heat, slots: Sequence[Slot], width: float, most: int) -> list[Cell]:
    return [
        Cell(
            x=round(at * width, 2),
            width=round(width * 0.9, 2),
            level=-(-contested(cell) * LEVELS // most),
            title=f"{zones.clock(slot.at)}, {heat.run}: {cell.conflicts} conflicts,"
            f" {cell.fenced} fenced of {cell.writes} writes",
            told=f"{zones.written(slot.at, '%H:%M')} {contested(cell)}",
        )
        for at, (slot, cell) in enumerate(zip(slots, heat.cells, strict=True))
        if contested(cell)
    ]


def cut_middle(text: str, most: int) -> str:
    """At most so many characters, the end longer than the beginning: keys differ there."""
    if len(text) <= most:
        return text
    tail = (most - 1) * 3 // 5
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


SPARK_WIDTH, SPARK_HEIGHT = 120, 24


def draw_spark(values: Sequence[float], top: float) -> str:
    """A small line from the oldest to the newest, as the points of a polyline in 120 by 24.

    top: what the upper edge stands for. Nothing at all is a line along the lower edge.
    """
    step = SPARK_WIDTH / max(1, len(values) - 1)
    heights = [min(1.0, value / top) if top else 0.0 for value in values]
    return " ".join(
        f"{n * step:.1f},{1 + (SPARK_HEIGHT - 2) * (1 - height):.1f}"
        for n, height in enumerate(heights)
    )
