"""Where everything goes on a run's timeline: pure geometry, no drawing and no database.

A lane per term of ownership, time from left to right. Long stretches in which nothing happened are
folded, so that the rest can be told apart. Marks that would touch are drawn as one with a count.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

WIDTH = 1200
GUTTER = 172
RIGHT = 20
AXIS = 30
LANE = 30
# A run that goes on keeps room for so many lanes, so that what is below does not move.
LANES_KEPT = 5
TERMS_MAX = 8
FOLD_WIDTH = 54
FOLDS_MAX = 6
# A stretch is folded when it is more than this part of all that is not folded yet.
FOLD_PART = 0.22
FOLD_SECONDS_MIN = 30
MERGE_WIDTH = 7.0
TICKS_MAX = 9
TEXTS_APART = 62
STEPS_SECONDS = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200,
    86_400, 172_800, 604_800, 2_592_000, 31_536_000,
)  # fmt: skip
TERM_COLOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A term of ownership. ends_at None: still open; lapsed_at: when its lease ran out, if so."""

    token: int
    owner: str
    starts_at: datetime
    ends_at: datetime | None
    lapsed_at: datetime | None
    ended: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """What happened. token None: outside a term. kind: worker, store, refused or action."""

    at: datetime
    token: int | None
    kind: str
    title: str
    seq: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDot:
    x: float
    kind: str
    title: str
    seq: int
    count: int
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of the drawing. colour: 0 to 5, or none; the line is solid, then dashed, then ends."""

    y: int
    label: str
    sub: str
    colour: str
    title: str = ""
    line: tuple[float, float] | None = None
    overdue: tuple[float, float] | None = None
    ended: str = ""
    open: bool = False
    end_x: float = 0.0
    dots: list[PlacedDot] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    x: float
    width: float
    text_x: float
    span: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch in which nobody held the unit."""

    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    width: int
    height: int
    gutter: int
    lanes: list[Lane]
    bands: list[Band]
    band_y: int | None
    folds: list[Fold]
    ticks: list[Tick]
    actions: list[PlacedDot]
    now_x: float | None
    earlier_terms: int

    @property
    def floor(self) -> int:
        return self.height - 6


class Scale:
    """Instants to x, with folded stretches. Monotonic: later is never further left."""

    def __init__(self, start: datetime, end: datetime, moments: Sequence[datetime]) -> None:
        self.start, self.end = start, max(end, start + timedelta(milliseconds=1))
        edges = sorted({self.start, self.end, *(m for m in moments if start < m < self.end)})
        self.folded = _foldable(edges)
        room = WIDTH - GUTTER - RIGHT - FOLD_WIDTH * len(self.folded)
        folded_seconds = sum((b - a).total_seconds() for a, b in self.folded)
        self.per_second = room / max((self.end - self.start).total_seconds() - folded_seconds, 1e-3)
        self.knots: list[tuple[datetime, float]] = []
        x, at = float(GUTTER), self.start
        for a, b in self.folded:
            self.knots.append((at, x))
            x += (a - at).total_seconds() * self.per_second
            self.knots.append((a, x))
            x += FOLD_WIDTH
            at = b
        self.knots += [(at, x), (self.end, float(WIDTH - RIGHT))]

    def x(self, at: datetime) -> float:
        at = min(max(at, self.start), self.end)
        place = bisect.bisect_right(self.knots, at, key=lambda knot: knot[0])
        if place == len(self.knots):
            return round(self.knots[-1][1], 1)
        (t0, x0), (t1, x1) = self.knots[place - 1], self.knots[place]
        part = (at - t0) / (t1 - t0) if t1 > t0 else 0.0
        return round(x0 + (x1 - x0) * part, 1)

    @property
    def fold_middles(self) -> list[float]:
        """Where the text of each fold stands."""
        return [(self.x(a) + self.x(b)) / 2 for a, b in self.folded]

    def is_folded(self, at: datetime) -> bool:
        return any(a < at < b for a, b in self.folded)

    def visible_seconds(self) -> float:
        return (WIDTH - GUTTER - RIGHT - FOLD_WIDTH * len(self.folded)) / self.per_second


def _foldable(edges: Sequence[datetime]) -> list[tuple[datetime, datetime]]:
    gaps = sorted(pairwise(edges), key=lambda gap: gap[0] - gap[1])
    left = (edges[-1] - edges[0]).total_seconds()
    found: list[tuple[datetime, datetime]] = []
    for a, b in gaps[:FOLDS_MAX]:
        span = (b - a).total_seconds()
        if span < FOLD_SECONDS_MIN or span < FOLD_PART * left or len(edges) < 5:
            break
        # A little of the stretch stays, so that what stands at its ends does not touch the fold.
        margin = timedelta(seconds=min(span * 0.02, (left - span) * 0.04))
        found.append((a + margin, b - margin))
        left -= span
    return sorted(found)


def draw(
    *,
    start: datetime,
    now: datetime,
    ended_at: datetime | None,
    spans: Sequence[Span],
    dots: Sequence[Dot],
) -> Drawing:
    """Lay out a run from `start` to its end, or to now."""
    end = ended_at or now
    happened = [m for dot in dots if (m := dot.at)]
    borders = [m for s in spans for m in (s.starts_at, s.lapsed_at, s.ends_at) if m]
    end = max([end, *happened, *(m for m in borders if m <= now)])
    scale = Scale(start, end, [*happened, *borders])
    shown, earlier = spans[-TERMS_MAX:], max(0, len(spans) - TERMS_MAX)
    lanes, band_y, y = _lanes(scale, shown, dots, earlier=earlier, running=ended_at is None)
    return Drawing(
        width=WIDTH,
        height=max(y + 8, AXIS + LANE * LANES_KEPT if ended_at is None else 0),
        gutter=GUTTER,
        lanes=lanes,
        bands=_bands(scale, spans, end) if spans else [],
        band_y=band_y,
        folds=[
            Fold(
                x=scale.x(a),
                width=round(scale.x(b) - scale.x(a), 1),
                text_x=round((scale.x(a) + scale.x(b)) / 2, 1),
                span=b - a,
            )
            for a, b in scale.folded
        ],
        ticks=_ticks(scale),
        actions=[placed for dot in dots if dot.kind == "action" for placed in _place(scale, [dot])],
        now_x=scale.x(now) if ended_at is None else None,
        earlier_terms=earlier,
    )


def _lanes(
    scale: Scale, spans: Sequence[Span], dots: Sequence[Dot], *, earlier: int, running: bool
) -> tuple[list[Lane], int | None, int]:
    known = {span.token for span in spans}
    own = [d for d in dots if d.kind in ("worker", "store")]
    loose = [d for d in own if d.token not in known]
    refused = [d for d in dots if d.kind == "refused"]
    lanes: list[Lane] = []
    y = AXIS + LANE // 2
    if loose:
        text = "earlier terms" if earlier else "outside a term" if spans else "events"
        lanes.append(Lane(y=y, label=text, sub="", colour="none", dots=_place(scale, loose)))
        y += LANE
    for number, span in enumerate(spans, start=earlier):
        mine = [d for d in own if d.token == span.token]
        lanes.append(_lane(scale, span, mine, y=y, colour=number % TERM_COLOURS, running=running))
        y += LANE
    band_y = None
    if spans:
        band_y, y = y, y + LANE
    if refused:
        lanes.append(
            Lane(y=y, label="refused", sub="", colour="refused", dots=_place(scale, refused))
        )
        y += LANE
    return lanes, band_y, y - LANE // 2


def _lane(
    scale: Scale, span: Span, dots: Sequence[Dot], *, y: int, colour: int, running: bool
) -> Lane:
    still = span.ends_at is None and running
    last = span.ends_at or scale.end
    solid = min(span.lapsed_at, last) if span.lapsed_at else last
    return Lane(
        y=y,
        label=span.owner,
        sub=f"#{span.token}",
        colour=str(colour),
        title=span.title,
        line=(scale.x(span.starts_at), max(scale.x(solid), scale.x(span.starts_at) + 2)),
        overdue=(scale.x(solid), scale.x(last)) if last > solid else None,
        ended=span.ended,
        open=still and span.lapsed_at is None,
        end_x=scale.x(last),
        dots=_place(scale, dots),
    )


def _place(scale: Scale, dots: Sequence[Dot]) -> list[PlacedDot]:
    """Dots in order; those that would touch one of their kind become one with a count."""
    placed: list[PlacedDot] = []
    last: dict[str, int] = {}
    for dot in sorted(dots, key=lambda d: d.at):
        x = scale.x(dot.at)
        at = last.get(dot.kind)
        if at is not None and x - placed[at].x < MERGE_WIDTH:
            old = placed[at]
            count = old.count + dot.count
            title = f"{count} {_plural(dot.kind)}"
            placed[at] = PlacedDot(
                x=old.x, kind=old.kind, title=title, seq=old.seq, count=count, radius=_radius(count)
            )
            continue
        last[dot.kind] = len(placed)
        placed.append(
            PlacedDot(
                x=x,
                kind=dot.kind,
                title=dot.title,
                seq=dot.seq,
                count=dot.count,
                radius=_radius(dot.count),
            )
        )
    return placed


def _plural(kind: str) -> str:
    return {
        "worker": "events of the worker",
        "store": "events of the store",
        "refused": "refused writes",
        "action": "operator actions",
    }[kind]


def _radius(count: int) -> float:
    return round(3.2 + min(3.4, 0.8 * math.log2(count)), 1)


def _bands(scale: Scale, spans: Sequence[Span], end: datetime) -> list[Band]:
    """Where nobody held it: before the first term, between two, and after a term that ended."""
    found: list[Band] = []
    free_from = scale.start
    for span in spans:
        if span.starts_at > free_from:
            found.append(_band(scale, free_from, span.starts_at))
        free_from = span.lapsed_at or span.ends_at or end
    if free_from < end:
        found.append(_band(scale, free_from, end))
    return [band for band in found if band.width >= 1]


def _band(scale: Scale, a: datetime, b: datetime) -> Band:
    x = scale.x(a)
    seconds = (b - a).total_seconds()
    return Band(x=x, width=round(scale.x(b) - x, 1), title=f"nobody for {seconds:.1f} s")


def _ticks(scale: Scale) -> list[Tick]:
    seconds = scale.visible_seconds()
    step = next((s for s in STEPS_SECONDS if seconds / s <= TICKS_MAX), STEPS_SECONDS[-1])
    first = math.ceil(scale.start.timestamp() / step)
    last = math.floor(scale.end.timestamp() / step)
    found: list[Tick] = []
    for number in _numbers(scale, first, last, step):
        at = datetime.fromtimestamp(number * step, tz=scale.start.tzinfo)
        x = scale.x(at)
        near_fold = any(abs(x - middle) < TEXTS_APART for middle in scale.fold_middles)
        near_tick = found and x - found[-1].x < TEXTS_APART
        if scale.is_folded(at) or near_fold or near_tick or x > WIDTH - 40:
            continue
        found.append(Tick(x=x, at=at, text=_tick_text(at, step)))
    return found


def _numbers(scale: Scale, first: int, last: int, step: float) -> list[int]:
    """The tick numbers outside folds; a fold of a month is not walked through second by second."""
    numbers: list[int] = []
    at = first
    for a, b in [*scale.folded, (scale.end, scale.end)]:
        stop = min(last, math.floor(a.timestamp() / step))
        numbers += range(at, stop + 1)
        at = max(at, math.ceil(b.timestamp() / step))
    return numbers


def _tick_text(at: datetime, step: float) -> str:
    if step >= 86_400:
        return at.strftime("%d %b")
    if step >= 60:
        return at.strftime("%H:%M")
    return at.strftime("%H:%M:%S") if step >= 1 else at.strftime("%H:%M:%S.%f")[:-5]
