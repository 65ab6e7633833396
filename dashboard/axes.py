"""The time axis of a chart: where an instant stands, which times are written, what is marked on it.

Pure geometry. Whatever has such an axis can be dragged over (brush.js reads `knots`), and carries
marks where an operator acted and where a version was seen for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dashboard import zones

WIDTH = 1_000.0
TEXTS_MOST = 8
STEPS_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800,
)  # fmt: skip
# Marks nearer than this are one with a count.
MARKS_APART = 9.0
# Of more in one place only their number is told.
TOLD_MOST = 4
# In words, one and several.
KINDS = {
    "action": ("operator action", "operator actions"),
    "deploy": ("new version", "new versions"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened beside what is drawn. kind: `action` or `deploy`."""

    at: datetime
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMark:
    """A mark, or several of a kind that would touch: then `at` is the first one's."""

    x: float
    at: datetime
    kind: str
    title: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """left: where the drawing begins in its picture; all x here are from there.

    marks: as they are drawn. happened: each of them by itself, for the table.
    """

    since: datetime
    until: datetime
    left: float = 0.0
    width: float = WIDTH
    marks: tuple[PlacedMark, ...] = ()
    happened: tuple[Mark, ...] = ()

    def x(self, at: datetime) -> float:
        part = (at - self.since) / (self.until - self.since)
        return round(min(1.0, max(0.0, part)) * self.width, 1)

    def shows(self, at: datetime) -> bool:
        return self.since <= at < self.until

    @property
    def knots(self) -> str:
        """`x:milliseconds x:milliseconds` of the picture, between which time runs evenly."""
        ends = ((self.left, self.since), (self.left + self.width, self.until))
        return " ".join(f"{x:.1f}:{at.timestamp() * 1000:.0f}" for x, at in ends)

    @property
    def ticks(self) -> list[Tick]:
        """Round times, not too many, with the day where a new one begins."""
        span = (self.until - self.since).total_seconds()
        step = next((s for s in STEPS_SECONDS if span / s <= TEXTS_MOST), STEPS_SECONDS[-1])
        times = zones.round_times(self.since, self.until, step)
        return [Tick(x=self.x(at), text=_text(at, step)) for at in times]

    @property
    def told(self) -> str:
        """`2 operator actions, 1 new version`; nothing where there is none."""
        counts = {kind: sum(m.kind == kind for m in self.happened) for kind in KINDS}
        parts = [f"{n} {KINDS[kind][n > 1]}" for kind, n in counts.items() if n]
        return ", ".join(parts)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The kinds of marks that are there, and what they are called."""
        there = {mark.kind for mark in self.marks}
        return [(kind, one) for kind, (one, _) in KINDS.items() if kind in there]


def _text(at: datetime, step: int) -> str:
    there = zones.local(at)
    # Where clocks go back at midnight there are two; the day begins with the first.
    is_midnight = (there.hour, there.minute, there.second, there.fold) == (0, 0, 0, 0)
    if step >= 86_400 or is_midnight:
        return f"{there.day} {there:%b}"
    return zones.written(at, "%H:%M:%S" if step < 60 else "%H:%M")


def axis_of(
    since: datetime,
    until: datetime,
    marks: Sequence[Mark] = (),
    *,
    left: float = 0.0,
    width: float = WIDTH,
) -> Axis:
    """The axis of this time, with those of the marks that are in it."""
    end = max(until, since + timedelta(seconds=1))
    bare = Axis(since=since, until=end, left=left, width=width)
    there = sorted((m for m in marks if bare.shows(m.at)), key=lambda m: (m.at, m.title))
    return replace(bare, marks=tuple(_place(bare, there)), happened=tuple(there))


def _place(axis: Axis, marks: Sequence[Mark]) -> list[PlacedMark]:
    placed: list[PlacedMark] = []
    last: dict[str, int] = {}
    for mark in marks:
        x = axis.x(mark.at)
        there = last.get(mark.kind)
        if there is not None and x - placed[there].x < MARKS_APART:
            placed[there] = _merged(placed[there], mark)
            continue
        last[mark.kind] = len(placed)
        placed.append(PlacedMark(x=x, at=mark.at, kind=mark.kind, title=mark.title))
    return placed


def _merged(old: PlacedMark, mark: Mark) -> PlacedMark:
    count = old.count + 1
    many = f"{count} {KINDS[mark.kind][1]}"
    first = old.title if old.count == 1 else old.title.partition(": ")[2]
    told = f"{many}: {first}; {mark.title}" if count <= TOLD_MOST else many
    return replace(old, count=count, title=told)
