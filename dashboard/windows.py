"""The part of time that a page's charts show, as the address says it: `from` and `to`, or a length.

Pure: an address in, whole columns of time out. Dragging over a chart writes `from` and `to`
(brush.js), and so do the form with two times and the links beside it; so each part has an address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from dashboard import zones
from dashboard.closeups import instant

COLUMNS_MOST = 100
# A part is shown by at least so many columns: what was dragged over in haste is widened.
COLUMNS_LEAST = 5
_SECONDS = (1, 2, 5, 10, 15, 30)
_MINUTES = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
# How long a column of a chart may stand for. Of the minute tables a minute at least.
BY_MINUTES = tuple(timedelta(seconds=n) for n in (*_MINUTES, 604_800))
BY_SECONDS = tuple(timedelta(seconds=n) for n in _SECONDS) + BY_MINUTES
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WRONG = "“{text}” is no time. Write it as 2026-03-01 14:30."
BACKWARDS = "The first time has to be before the second one."
AHEAD = "Nothing has happened yet after that time: it is {now}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A length that is offered: its name in the address, and in words."""

    name: str
    said: str
    span: timedelta


HOUR = Choice(name="1h", said="60 min", span=timedelta(hours=1))
DAY = Choice(name="24h", said="24 hours", span=timedelta(hours=24))
WEEK = Choice(name="7d", said="7 days", span=timedelta(days=7))
CHOICES = (HOUR, DAY, WEEK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Whole columns from `since` to before `until`; each stands for `slot`.

    name: of the length that goes on to now, or nothing of a part with two ends. error: what was
    wrong with the address, if anything; then it is the usual length.
    """

    since: datetime
    until: datetime
    slot: timedelta
    said: str
    name: str = ""
    error: str = ""

    @property
    def span(self) -> timedelta:
        return self.until - self.since

    @property
    def count(self) -> int:
        return self.span // self.slot

    @property
    def starts(self) -> list[datetime]:
        """When each column begins."""
        return [self.since + n * self.slot for n in range(self.count)]

    @property
    def is_part(self) -> bool:
        """Whether it has two ends that somebody chose."""
        return not self.name

    def at(self, moment: datetime) -> int:
        """Which column a moment is in; beyond the ends of the window the outermost ones."""
        return max(0, min(self.count - 1, (moment - self.since) // self.slot))


def read_window(
    query: Mapping[str, str],
    *,
    now: datetime,
    usual: Choice = HOUR,
    choices: Sequence[Choice] = CHOICES,
    slots: Sequence[timedelta] = BY_MINUTES,
    longest: timedelta = timedelta(days=31),
) -> Window:
    """What the address asks for. slots: how long a column may be, ascending.

    A part without a beginning or an end has the usual length; one that is longer than `longest`
    keeps its end, which is never after now. Both ends are widened to whole columns.
    """
    asked = next((one for one in choices if one.name == query.get("window")), usual)
    texts = {name: query.get(name, "").strip() for name in ("from", "to")}
    if not any(texts.values()):
        return _recent(asked, now, slots)
    since, until = instant(texts["from"]), instant(texts["to"])
    error = _wrong(texts, since, until, now)
    if error:
        return _recent(asked, now, slots, error=error)
    end = min(now, until or (since + asked.span if since else now))
    begin = max(since or end - asked.span, end - longest)
    return _part(begin, end, slots)


def _wrong(
    texts: dict[str, str], since: datetime | None, until: datetime | None, now: datetime
) -> str:
    for text, found in ((texts["from"], since), (texts["to"], until)):
        if text and found is None:
            return WRONG.format(text=text[:40])
    if since and until and since >= until:
        return BACKWARDS
    return AHEAD.format(now=zones.clock(now, "%Y-%m-%d %H:%M")) if since and since >= now else ""


def _recent(asked: Choice, now: datetime, slots: Sequence[timedelta], error: str = "") -> Window:
    """The last so much, the running column included."""
    slot = slot_of(asked.span, slots)
    until = _floor(now, slot) + slot
    return Window(
        since=until - asked.span,
        until=until,
        slot=slot,
        said=f"the last {asked.said}",
        name=asked.name,
        error=error,
    )


def _part(begin: datetime, end: datetime, slots: Sequence[timedelta]) -> Window:
    least = slots[0] * COLUMNS_LEAST
    if end - begin < least:
        begin = begin - (least - (end - begin)) / 2
        end = begin + least
    slot = slot_of(end - begin, slots)
    since, until = _floor(begin, slot), -_floor_of(-(end - EPOCH), slot) + EPOCH
    return Window(since=since, until=until, slot=slot, said=_said(since, until))


def ending_by(window: Window, at: datetime) -> Window:
    """The same columns, moved back so that none reaches beyond `at`: of a page as of that moment.

    Of a length that goes on to then the last one has what happened at that very instant.
    """
    end = at + timedelta(microseconds=1)
    back = max(window.until - end, timedelta())
    said = f"the {window.said.removeprefix('the last ')} before" if window.name else window.said
    return replace(window, since=window.since - back, until=window.until - back, said=said)


def slot_of(span: timedelta, slots: Sequence[timedelta]) -> timedelta:
    """The shortest column of which not too many are needed."""
    return next((slot for slot in slots if span / slot <= COLUMNS_MOST), slots[-1])


def _floor(at: datetime, slot: timedelta) -> datetime:
    return _floor_of(at - EPOCH, slot) + EPOCH


def _floor_of(span: timedelta, slot: timedelta) -> timedelta:
    return span // slot * slot


def _said(since: datetime, until: datetime) -> str:
    """`2026-03-01 14:00 to 15:30`."""
    form = "%H:%M:%S" if since.second or until.second else "%H:%M"
    same_day = zones.local(since).date() == zones.local(until).date()
    last = zones.written(until, form if same_day else f"%Y-%m-%d {form}")
    return f"{zones.written(since, f'%Y-%m-%d {form}')} to {last}"


def typed(at: datetime) -> str:
    """An instant as links say it."""
    return at.strftime("%Y-%m-%d %H:%M:%S" if at.second else "%Y-%m-%d %H:%M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A link to another part. name: a choice's, or earlier, later, closer, wider."""

    name: str
    said: str
    query: str
    key: str = ""


class Ways:
    """Links to other parts; they keep what else the address says, but for a place in a list."""

    def __init__(self, window: Window, query: Mapping[str, str], *, now: datetime) -> None:
        self.window, self.now = window, now
        left_out = ("from", "to", "window", "after", "before")
        self.kept = {name: value for name, value in query.items() if name not in left_out}

    def lengths(self, choices: Sequence[Choice] = CHOICES) -> list[Way]:
        return [
            Way(name=one.name, said=f"Last {one.said}", query=self._to(window=one.name))
            for one in choices
        ]

    def beside(self) -> list[Way]:
        """Earlier and, where there is something, later; the middle half, and twice as much."""
        w = self.window
        quarter, half = w.span / 4, w.span / 2
        ways = [self._way("earlier", "<", w.since - w.span, w.since)]
        if w.span > w.slot * COLUMNS_LEAST:
            ways.append(self._way("closer", "+", w.since + quarter, w.until - quarter))
        ways.append(self._way("wider", "-", w.since - half, w.until + half))
        if w.until < self.now:
            ways.append(self._way("later", ">", w.until, w.until + w.span))
        return ways

    def _way(self, name: str, key: str, since: datetime, until: datetime) -> Way:
        query = self._to(**{"from": typed(since), "to": typed(until)})
        return Way(name=name, said=name.capitalize(), query=query, key=key)

    def _to(self, **said: str) -> str:
        return f"?{urlencode(self.kept | said)}"


def describe_window(
    window: Window,
    query: Mapping[str, str],
    *,
    now: datetime,
    choices: Sequence[Choice] = CHOICES,
) -> dict[str, Any]:
    """What the bar above a chart shows (components/window.html): which part it is of, and the ways
    to others. What was typed wrongly stays typed.
    """
    ways = Ways(window, query, now=now)
    wrong = bool(window.error)
    return {
        "window": window,
        "lengths": ways.lengths(choices),
        "beside": ways.beside(),
        "kept": ways.kept,
        "typed_from": query.get("from", "") if wrong else zones.typed(window.since),
        "typed_to": query.get("to", "") if wrong else zones.typed(window.until),
    }
