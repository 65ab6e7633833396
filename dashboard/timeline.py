"""Where everything goes on a run's timeline: pure geometry, no drawing and no database.

A lane per term of ownership, time from left to right: all of the run, or the part that somebody
looks at closely. Long stretches in which nothing happened are folded, so that the rest can be told
apart. Marks that would touch are drawn as one with a count, so what is drawn is bounded.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from dashboard import zones
from dashboard.templatetags.console import duration

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
# Folds nearer than this have only the larger unit of their length, so that the texts do not touch.
FOLD_TEXTS_APART = 76
RENEWALS_APART = 3.0
# Parts of a run are bars in so many rows; what finds no room is counted.
PART_ROWS = 4
PART_HEIGHT = 11
PART_WIDTH_MIN = 5.0
LABEL_CHARS = 24
STEPS_SECONDS = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200,
    86_400, 172_800, 604_800, 2_592_000, 31_536_000,
)  # fmt: skip
TERM_COLOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    at: datetime
    late: bool


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
    renewals: Sequence[Renewal] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Another run of the same family, as long as it lives. ends_at None: it goes on."""

    key: str
    status: str
    starts_at: datetime
    ends_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """What happened. token None: outside a term. kind: worker, store, refused, budget, action or
    deploy.

    until: of several in one, when the last of them was.
    """

    at: datetime
    token: int | None
    kind: str
    title: str
    seq: int = 0
    count: int = 1
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDot:
    """colour: of the term that it was written under, or none. at, until: the first and the last."""

    x: float
    kind: str
    title: str
    seq: int
    count: int
    radius: float
    colour: str
    at: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRenewal:
    x: float
    late: bool
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A part of the run, or the run that it is a part of."""

    key: str
    status: str
    x: float
    width: float
    y: int
    goes_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of the drawing. colour: 0 to 5, or none; the line is solid, then dashed, then ends.

    starts_at, ends_at: of a term's lane, to now when it is open.
    """

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
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    dots: list[PlacedDot] = field(default_factory=list)
    renewals: list[PlacedRenewal] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    x: float
    width: float
    text_x: float
    text: str
    title: str


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
    deploys: list[PlacedDot]
    parts: list[Bar]
    parts_y: int | None
    parts_left_out: int
    parent: Bar | None
    knots: str
    earlier_terms: int
    later_terms: int

    @property
    def floor(self) -> int:
        return self.height - 6


class Scale:
    """Instants to x, with folded stretches. Monotonic: later is never further left."""

    def __init__(
        self, start: datetime, end: datetime, moments: Sequence[datetime], *, fold: bool = True
    ) -> None:
        self.start, self.end = start, max(end, start + timedelta(milliseconds=1))
        edges = sorted({self.start, self.end, *(m for m in moments if start < m < self.end)})
        self.folded = _foldable(edges) if fold else []
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

    def shows(self, at: datetime) -> bool:
        return self.start <= at <= self.end

    @property
    def told_knots(self) -> str:
        """`x:milliseconds …`, between which time runs evenly: for whoever drags over it."""
        return " ".join(f"{x:.1f}:{at.timestamp() * 1000:.0f}" for at, x in self.knots)

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
    parts: Sequence[Part] = (),
    parent: Part | None = None,
    window: tuple[datetime, datetime] | None = None,
    fold: bool = True,
) -> Drawing:
    """Lay out a run from `start` to its end or to now, or what of it is in the window."""
    # A new version is no event of the run: a long stretch with one is folded all the same.
    happened = [dot.at for dot in dots if dot.kind != "deploy"]
    borders = [m for s in spans for m in (s.starts_at, s.lapsed_at, s.ends_at) if m]
    lives = [m for p in parts for m in (p.starts_at, p.ends_at) if m]
    if window is None:
        end = max([ended_at or now, *happened, *(m for m in borders if m <= now)])
        scale = Scale(start, end, [*happened, *borders, *lives], fold=fold)
    else:
        scale = Scale(*window, [*happened, *borders, *lives], fold=fold)
    there = [one for one in enumerate(spans) if _meets(scale, one[1].starts_at, one[1].ends_at)]
    shown = there[-TERMS_MAX:]
    seen = [dot for dot in dots if scale.shows(dot.at)]
    colours = {span.token: str(at % TERM_COLOURS) for at, span in enumerate(spans)}
    bands = _bands(scale, spans) if spans else []
    # All of a run keeps a row for them, so that what is below does not move when it is let go.
    rows_of_bands = 1 if shown and (bands or window is None) else 0
    lanes, band_y, y = _lanes(
        scale, shown, seen, colours, bands=rows_of_bands, running=ended_at is None, now=now
    )
    bars, rows, left_out = _bars(scale, parts, y)
    parts_y = y if rows else None
    y += rows * (PART_HEIGHT + 3) + 10 if rows else 0
    above = _bar(scale, parent, y - PART_HEIGHT // 2) if parent else None
    y += LANE if above else 0
    kept = AXIS + LANE * LANES_KEPT if ended_at is None and window is None else 0
    return Drawing(
        width=WIDTH,
        height=max(y - LANE // 2 + 8, kept),
        gutter=GUTTER,
        lanes=lanes,
        bands=bands,
        band_y=band_y,
        folds=_folds(scale),
        ticks=_ticks(scale),
        actions=[p for dot in seen if dot.kind == "action" for p in _place(scale, [dot], {})],
        deploys=_place(scale, [dot for dot in seen if dot.kind == "deploy"], {}),
        parts=bars,
        parts_y=parts_y,
        parts_left_out=left_out,
        parent=above,
        knots=scale.told_knots,
        earlier_terms=shown[0][0] if shown else 0,
        later_terms=len(spans) - 1 - shown[-1][0] if shown else 0,
    )


def _meets(scale: Scale, starts_at: datetime, ends_at: datetime | None) -> bool:
    return starts_at <= scale.end and (ends_at is None or ends_at >= scale.start)


def _folds(scale: Scale) -> list[Fold]:
    middles = scale.fold_middles
    found: list[Fold] = []
    for at, (a, b) in enumerate(scale.folded):
        near = [m for n, m in enumerate(middles) if n != at]
        close = min((abs(middles[at] - m) for m in near), default=WIDTH) < FOLD_TEXTS_APART
        told = duration(b - a)
        x = scale.x(a)
        found.append(
            Fold(
                x=x,
                width=round(scale.x(b) - x, 1),
                text_x=round(middles[at], 1),
                text=told.split(" ")[0] if close else f"⋯ {told}",
                title=f"{told} without an event, folded",
            )
        )
    return found


def _lanes(
    scale: Scale,
    shown: Sequence[tuple[int, Span]],
    dots: Sequence[Dot],
    colours: dict[int, str],
    *,
    bands: int,
    running: bool,
    now: datetime,
) -> tuple[list[Lane], int | None, int]:
    """The lanes, where the stretches without a holder go, and the middle of the next row."""
    known = {span.token for _, span in shown}
    own = [d for d in dots if d.kind in ("worker", "store")]
    loose = [d for d in own if d.token not in known]
    refused = [d for d in dots if d.kind in ("refused", "budget")]
    lanes: list[Lane] = []
    y = AXIS + LANE // 2
    if loose:
        earlier = any(d.token is not None for d in loose)
        text = "earlier terms" if earlier else "outside a term" if shown else "events"
        placed = _place(scale, loose, colours)
        lanes.append(Lane(y=y, label=text, sub="", colour="none", dots=placed))
        y += LANE
    for number, span in shown:
        mine = [d for d in own if d.token == span.token]
        lanes.append(
            _lane(scale, span, mine, y=y, colour=number % TERM_COLOURS, running=running, now=now)
        )
        y += LANE
    band_y = None
    if bands:
        band_y, y = y, y + LANE
    if refused:
        placed = _place(scale, refused, colours)
        lanes.append(Lane(y=y, label="refused", sub="", colour="refused", dots=placed))
        y += LANE
    return lanes, band_y, y


def _lane(
    scale: Scale,
    span: Span,
    dots: Sequence[Dot],
    *,
    y: int,
    colour: int,
    running: bool,
    now: datetime,
) -> Lane:
    still = span.ends_at is None and running
    last = span.ends_at or scale.end
    solid = min(span.lapsed_at, last) if span.lapsed_at else last
    sub = f"#{span.token}"
    room = max(8, LABEL_CHARS - len(sub))
    return Lane(
        y=y,
        label=span.owner if len(span.owner) <= room else f"{span.owner[: room - 1]}…",
        sub=sub,
        colour=str(colour),
        title=span.title,
        line=(scale.x(span.starts_at), max(scale.x(solid), scale.x(span.starts_at) + 2)),
        overdue=(scale.x(solid), scale.x(last)) if last > solid else None,
        ended=span.ended if last <= scale.end else "",
        open=still and span.lapsed_at is None,
        end_x=scale.x(last),
        starts_at=span.starts_at,
        ends_at=span.ends_at or now,
        dots=_place(scale, dots, {span.token: str(colour)}),
        renewals=_renewals(scale, span.renewals),
    )


def _renewals(scale: Scale, renewals: Sequence[Renewal]) -> list[PlacedRenewal]:
    """Ticks; of those that would touch the first, but a late one always."""
    placed: list[PlacedRenewal] = []
    for one in renewals:
        if not scale.shows(one.at) or scale.is_folded(one.at):
            continue
        x = scale.x(one.at)
        told = f"renewed at {zones.clock(one.at, '%H:%M:%S')}{', late' if one.late else ''}"
        mark = PlacedRenewal(x=x, late=one.late, title=told)
        if placed and x - placed[-1].x < RENEWALS_APART:
            if one.late and not placed[-1].late:
                placed[-1] = mark
            continue
        placed.append(mark)
    return placed


def _bars(scale: Scale, parts: Sequence[Part], y: int) -> tuple[list[Bar], int, int]:
    """Parts alive in what is drawn, in the first row with room; rows used; how many found none."""
    ends: list[float] = []
    bars: list[Bar] = []
    left_out = 0
    for part in parts:
        if not _meets(scale, part.starts_at, part.ends_at):
            continue
        x = scale.x(part.starts_at)
        row = next((n for n, end in enumerate(ends) if end + 2 <= x), len(ends))
        if row >= PART_ROWS:
            left_out += 1
            continue
        bar = _bar(scale, part, y - PART_HEIGHT // 2 + row * (PART_HEIGHT + 3))
        ends[row : row + 1] = [bar.x + bar.width]
        bars.append(bar)
    return bars, len(ends), left_out


def _bar(scale: Scale, part: Part, y: int) -> Bar:
    x = scale.x(part.starts_at)
    end = scale.x(part.ends_at or scale.end)
    return Bar(
        key=part.key,
        status=part.status,
        x=x,
        width=round(max(end - x, PART_WIDTH_MIN), 1),
        y=y,
        goes_on=part.ends_at is None,
    )


def _place(scale: Scale, dots: Sequence[Dot], colours: dict[int, str]) -> list[PlacedDot]:
    """Dots in order; those that would touch one of their kind become one with a count."""
    placed: list[PlacedDot] = []
    last: dict[str, int] = {}
    for dot in sorted(dots, key=lambda d: d.at):
        x = scale.x(dot.at)
        at = last.get(dot.kind)
        if at is not None and x - placed[at].x < MERGE_WIDTH:
            placed[at] = _merged(placed[at], dot)
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
                colour=colours.get(dot.token, "none") if dot.token is not None else "none",
                at=dot.at,
                until=dot.until or dot.at,
            )
        )
    return placed


def _merged(old: PlacedDot, dot: Dot) -> PlacedDot:
    count = old.count + dot.count
    return replace(
        old,
        title=f"{count} {_plural(dot.kind)}",
        count=count,
        radius=_radius(count),
        until=max(old.until, dot.until or dot.at),
    )


def _plural(kind: str) -> str:
    return {
        "worker": "events of the worker",
        "store": "events of the store",
        "refused": "refused writes",
        "budget": "refused charges",
        "action": "operator actions",
        "deploy": "new versions",
    }[kind]


def _radius(count: int) -> float:
    return round(3.2 + min(3.4, 0.8 * math.log2(count)), 1)


def _bands(scale: Scale, spans: Sequence[Span]) -> list[Band]:
    """Where nobody held it: before the first term, between two, and after a term that ended."""
    found: list[Band] = []
    free_from: datetime | None = scale.start
    for span in spans:
        if free_from is not None and span.starts_at > free_from:
            found.append(_band(scale, free_from, span.starts_at))
        free_from = span.lapsed_at or span.ends_at
    if free_from is not None and free_from < scale.end:
        found.append(_band(scale, free_from, scale.end))
    return [band for band in found if band.width >= 1]


def _band(scale: Scale, a: datetime, b: datetime) -> Band:
    x = scale.x(a)
    seconds = (b - a).total_seconds()
    return Band(x=x, width=round(scale.x(b) - x, 1), title=f"nobody for {seconds:.1f} s")


def _ticks(scale: Scale) -> list[Tick]:
    seconds = scale.visible_seconds()
    step = next((s for s in STEPS_SECONDS if seconds / s <= TICKS_MAX), STEPS_SECONDS[-1])
    found: list[Tick] = []
    for at in _times(scale, step):
        x = scale.x(at)
        near_fold = any(abs(x - middle) < TEXTS_APART for middle in scale.fold_middles)
        near_tick = found and x - found[-1].x < TEXTS_APART
        if scale.is_folded(at) or near_fold or near_tick or x > WIDTH - 40:
            continue
        found.append(Tick(x=x, at=at, text=_tick_text(at, step)))
    return found


def _times(scale: Scale, step: float) -> list[datetime]:
    """Round times outside folds; a fold of a month is not walked through second by second."""
    times: list[datetime] = []
    at = scale.start
    for a, b in [*scale.folded, (scale.end, scale.end)]:
        times += zones.round_times(at, min(a, scale.end), step)
        at = max(at, b)
    return times


def _tick_text(at: datetime, step: float) -> str:
    if step >= 86_400:
        return zones.written(at, "%d %b")
    if step >= 60:
        return zones.written(at, "%H:%M")
    return zones.written(at) if step >= 1 else f"{zones.local(at):%H:%M:%S.%f}"[:-5]
