"""The part of a run's time that somebody looks at closely, as the address says it: `from`, `to`.

Pure: instants in, addresses out. Without `to` the part goes on to the run's end, or to now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils.http import urlencode

from dashboard import zones

SHORTEST = timedelta(milliseconds=20)
# A term or a cluster stands with a little of its surroundings.
MARGIN_PART = 0.06
MARGIN_LEAST = timedelta(milliseconds=5)
ZOOM_PART = 0.5
OVERVIEW_BINS = 80
OVERVIEW_WIDTH = 1200.0
OVERVIEW_HEIGHT = 26.0
# Of an instant that stays one with some margin on either side.
YEARS = (1970, 9000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeup:
    """start, end: what is drawn; end is now when it `follows`. whole: nothing is left out.

    first, last: of all of the run. gaps: long stretches without an event are drawn in full.
    """

    first: datetime
    last: datetime
    start: datetime
    end: datetime
    follows: bool
    gaps: bool

    @property
    def whole(self) -> bool:
        return self.start <= self.first and self.end >= self.last

    @property
    def window(self) -> tuple[datetime, datetime] | None:
        return None if self.whole else (self.start, self.end)


def read_closeup(query: dict[str, str], *, first: datetime, last: datetime) -> Closeup:
    """What the address asks for; whatever is no instant, or outside the run, is all of it."""
    last = max(last, first + SHORTEST)
    start, end = instant(query.get("from")), instant(query.get("to"))
    begin = max(first, start) if start else first
    until = min(last, end) if end else last
    if until - begin < SHORTEST or begin >= last:
        begin, until, end = first, last, None
    return Closeup(
        first=first,
        last=last,
        start=begin,
        end=until,
        follows=end is None or until >= last,
        gaps=query.get("gaps") == "1",
    )


def instant(text: str | None) -> datetime | None:
    """What a text in an address says; None for whatever is no time. Without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if not YEARS[0] <= at.year <= YEARS[1]:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parameters(closeup: Closeup) -> dict[str, str]:
    """What the address has to say for it; nothing for all of the run."""
    said = {}
    if closeup.start > closeup.first:
        said["from"] = told(closeup.start)
    if closeup.end < closeup.last and not closeup.follows:
        said["to"] = told(closeup.end)
    if closeup.gaps:
        said["gaps"] = "1"
    return said


def told(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A link that draws another part. key: the one that does the same."""

    title: str
    key: str
    query: str


class Ways:
    """Queries of an address that keep everything else that it says (`kept`)."""

    def __init__(self, closeup: Closeup, kept: dict[str, str]) -> None:
        self.closeup = closeup
        self.kept = {n: v for n, v in kept.items() if n not in ("from", "to", "gaps", "event")}
        self.window = parameters(closeup)
        self.opened = {"event": kept["event"]} if "event" in kept else {}

    def to(self, start: datetime, end: datetime, *, gaps: bool | None = None) -> str:
        """The query that draws this part, as far as the run has it."""
        c = self.closeup
        query = self.kept | self.opened
        if start > c.first:
            query["from"] = told(start)
        if end < c.last:
            query["to"] = told(end)
        if c.gaps if gaps is None else gaps:
            query["gaps"] = "1"
        return f"?{urlencode(query)}"

    def around(self, start: datetime, end: datetime) -> str:
        """The same with a margin on both sides."""
        margin = max(MARGIN_LEAST, (end - start) * MARGIN_PART)
        return self.to(start - margin, max(end, start + SHORTEST) + margin)

    def closer(self) -> Way:
        """The middle of it; what is followed stays at its end."""
        c = self.closeup
        cut = (c.end - c.start) * ZOOM_PART
        start = c.end - cut if c.follows else c.start + cut / 2
        end = c.last if c.follows else start + cut
        return Way(title="Closer", key="+", query=self.to(start, end))

    def farther(self) -> Way:
        c = self.closeup
        more = (c.end - c.start) / ZOOM_PART - (c.end - c.start)
        start = c.start - (more if c.follows else more / 2)
        return Way(title="Farther", key="-", query=self.to(start, c.end + more / 2))

    def earlier(self) -> Way | None:
        c = self.closeup
        if c.start <= c.first:
            return None
        step = min((c.end - c.start) / 2, c.start - c.first)
        return Way(title="Earlier", key="<", query=self.to(c.start - step, c.end - step))

    def later(self) -> Way | None:
        c = self.closeup
        if c.end >= c.last:
            return None
        step = (c.end - c.start) / 2
        return Way(title="Later", key=">", query=self.to(c.start + step, c.end + step))

    def all(self) -> Way:
        c = self.closeup
        return Way(title="All of the run", key="0", query=self.to(c.first, c.last))

    def unfolded(self) -> Way:
        """The same part with its idle stretches, or without."""
        c = self.closeup
        title = "Fold idle stretches" if c.gaps else "Draw idle stretches in full"
        return Way(title=title, key="gg", query=self.to(c.start, c.end, gaps=not c.gaps))

    def term_beside(
        self, terms: Sequence[tuple[datetime, datetime | None]], *, step: int
    ) -> Way | None:
        """The term before (step -1) or after the one in the middle of what is drawn."""
        c = self.closeup
        middle = c.start + (c.end - c.start) / 2
        if c.whole:
            at = len(terms) - 1 if step < 0 else 0
        else:
            begun = sum(1 for start, _ in terms if start <= middle)
            at = begun - 1 + step
        if not 0 <= at < len(terms):
            return None
        start, end = terms[at]
        key, title = ("{", "The term before") if step < 0 else ("}", "The term after")
        return Way(title=title, key=key, query=self.around(start, end or c.last))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    x: float
    width: float
    height: float
    query: str
    title: str

    @property
    def y(self) -> float:
        return OVERVIEW_HEIGHT - self.height

    @property
    def bar_width(self) -> float:
        return self.width - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All of the run in small, with what is drawn marked; each bin leads there."""

    bins: list[Bin]
    x: float
    width: float


def overview(ways: Ways, moments: Sequence[tuple[datetime, int]]) -> Overview:
    """moments: when something happened, and how often."""
    c = ways.closeup
    span = c.last - c.first
    counts = [0] * OVERVIEW_BINS
    for at, count in moments:
        place = int((min(max(at, c.first), c.last) - c.first) / span * OVERVIEW_BINS)
        counts[min(place, OVERVIEW_BINS - 1)] += count
    most = max(*counts, 1)
    step, wide = span / OVERVIEW_BINS, OVERVIEW_WIDTH / OVERVIEW_BINS
    half = (c.end - c.start) / 2
    bins = []
    for n, count in enumerate(counts):
        middle = c.first + step * (n + 0.5)
        start = min(max(middle - half, c.first), max(c.last - 2 * half, c.first))
        bins.append(
            Bin(
                x=round(n * wide, 1),
                width=round(wide, 1),
                height=round(3 + (OVERVIEW_HEIGHT - 6) * count / most, 1) if count else 1.0,
                query=ways.to(start, start + 2 * half),
                title=f"{zones.stamp(middle)}, events: {count}",
            )
        )
    x = (c.start - c.first) / span * OVERVIEW_WIDTH
    return Overview(
        bins=bins,
        x=round(x, 1),
        width=round(max((c.end - c.start) / span * OVERVIEW_WIDTH, 3), 1),
    )
