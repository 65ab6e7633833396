"""A page of a run's events: all of them, or those that match, found in bounded steps.

What is looked for in payloads has no index. So the events are gone through in pieces, from where
the reader is, until a page is full or the time is up; the page says how far it looked.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store.models import Event
from dashboard.queries import together
from dashboard.queries.clock import TooSlow, at_most
from dashboard.queries.together import Read

EVENTS_SHOWN = 200
# Of a view that puts several in a row, so many are read.
EVENTS_GROUPED = 300
PREVIEW_CHARS = 600
RAW_CHARS = 4_000
# So much of a payload stands before what was looked for.
BEFORE_CHARS = 60
# A payload that takes more than this on disk is not opened for a list.
PREVIEW_STORED_OCTETS_MAX = 32 * 1024
SEQ_MAX = 2**63 - 1
SEARCH_SECONDS = 0.5
STEP_FIRST, STEP_MOST = 64, 16_384
STEP_FAST_SECONDS = 0.06
STEP_MS_MAX = 1_000
SEARCH_CHARS_MAX = 200
# Of a larger payload its beginning is looked through.
SEARCHED_CHARS = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """An event as a row. preview None: too large to be opened here; octets: at least, then.

    excerpt: the preview begins in the middle, shortly before what was looked for.
    """

    seq: int
    at: Any
    type: str
    origin: str
    token: int | None
    actor: str
    preview: str | None
    octets: int
    excerpt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """origin: worker, store or "" (both); type: how it begins; text: in type, actor or payload.

    errors: those that say that something went wrong, by their type or in their payload.
    payloads: whether what is in payloads may be looked at.
    """

    origin: str = ""
    type: str = ""
    text: str = ""
    errors: bool = False
    payloads: bool = True

    @property
    def all(self) -> bool:
        return not (self.origin or self.type or self.text or self.errors)

    def has(self, origin: str, type_: str) -> bool:
        """Whether an event's origin and type are wanted."""
        return self.origin in ("", origin) and type_.startswith(self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events in order. earlier, later: ask for those before or after this number; None: no more.

    looked: the first and the last number that were looked at, when the time was up before the end.
    """

    lines: list[EventLine]
    earlier: int | None
    later: int | None
    looked: tuple[int, int] | None = None


# What went wrong, as events say it: the last word of their type, or a member of their payload.
ERROR_TYPES = re.compile(
    r"(?:^|[._-])(?:error|errors|errored|failed|failure|crashed|lapsed|reclaimed|refused|rejected|"
    r"denied|exhausted|timeout|timed_out|aborted|killed|lost|exception)$"
)
ERROR_MEMBERS = re.compile(
    r'"(?:error|errors|exception|traceback)"\s*:\s*(?:true|"[^"]|\{\s*[^}\s]|\[\s*[^\]\s]|-?[1-9])'
    r'|"(?:is_error|isError|failed|timed_out)"\s*:\s*true|"(?:ok|success)"\s*:\s*false'
    r'|"(?:exit_code|exitCode|exit_status|returncode)"\s*:\s*"?-?[1-9]'
)

# The size of a large payload is what it takes on disk (compressed): opening it for its length
# would read all of it.
EVENTS = """
SELECT seq, at, type, origin, token, actor,
    CASE WHEN small OR %(large)s THEN left(data::text, %(chars)s) END,
    CASE WHEN small THEN octet_length(data::text) ELSE pg_column_size(data) END, small
FROM (SELECT *, pg_column_size(data) <= %(stored)s AS small FROM agentstate_event) event
WHERE run_id = %(run)s AND seq > %(after)s AND seq < %(before)s
    AND (%(origin)s = '' OR origin = %(origin)s)
    AND (%(type)s = '' OR starts_with(type, %(type)s))
ORDER BY seq {} LIMIT %(limit)s
"""
EVENTS_UP, EVENTS_DOWN = EVENTS.format("ASC"), EVENTS.format("DESC")


def read_events(
    run: UUID,
    *,
    newest: int,
    wanted: EventFilter = EventFilter(),
    after: int | None = None,
    before: int | None = None,
    limit: int = EVENTS_SHOWN,
    chars: int = PREVIEW_CHARS,
) -> EventPage:
    """A page of events in order: those after a number, those before one, or the newest.

    newest: the last one there is, as far as the caller knows.
    """
    down = after is None
    low = 0 if after is None else min(after, newest)
    high = newest + 1 if before is None else min(before, newest + 1)
    asked = _Asked(run=run, wanted=wanted, limit=limit, chars=chars, down=down)
    if wanted.all:
        rows, stopped = asked.read(low, high, limit + 1), None
    else:
        rows, stopped = asked.search(low, high)
    more, rows = len(rows) > limit, rows[:limit]
    if down:
        rows.reverse()
        earlier = rows[0].seq if more else stopped
        later = high - 1 if before is not None and high <= newest else None
        looked = (stopped, high - 1) if stopped and not more else None
        return EventPage(lines=rows, earlier=earlier, later=later, looked=looked)
    later = rows[-1].seq if more else stopped
    looked = (low + 1, stopped) if stopped and not more else None
    return EventPage(lines=rows, earlier=low + 1 if low > 0 else None, later=later, looked=looked)


def tail_reads(run: UUID, *, after: int, limit: int, searched: bool) -> dict[str, Read[Any]]:
    """The events after a number, to be read together with something else; `tail_of` makes a page of
    them. searched: something is looked for in payloads, of which more is read then.
    """
    facts: dict[str, Any] = {
        "run": run,
        "after": after,
        "before": SEQ_MAX,
        "origin": "",
        "type": "",
        "limit": limit + 1,
        "large": searched,
        "stored": PREVIEW_STORED_OCTETS_MAX,
        "chars": SEARCHED_CHARS if searched else RAW_CHARS,
    }
    return {"tail": together.sql_of(EVENTS_UP, facts, columns=9)}


def tail_of(
    rows: list[list[Any]], *, wanted: EventFilter, after: int, limit: int, chars: int
) -> EventPage | None:
    """A page of what `tail_reads` found; None when a search has to go on where that ends."""
    if len(rows) > limit and not wanted.all:
        return None
    match = _Match(wanted)
    found = [(seq, together.moment(at), *rest) for seq, at, *rest in rows[:limit]]
    lines = [line for row in found if (line := match.line(row, chars)) is not None]
    if not wanted.all:
        lines = [line for line in lines if wanted.has(line.origin, line.type)]
    later = lines[-1].seq if len(rows) > limit else None
    return EventPage(lines=lines, earlier=after + 1 if after > 0 else None, later=later)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    run: UUID
    wanted: EventFilter
    limit: int
    chars: int
    down: bool

    def read(self, low: int, high: int, limit: int) -> list[EventLine]:
        """Those with low < number < high that match, from the side that the reader is on."""
        wanted, match = self.wanted, _Match(self.wanted)
        facts: dict[str, Any] = {
            "run": self.run,
            "after": low,
            "before": high,
            "origin": wanted.origin,
            "type": wanted.type,
            # Whatever is looked at is filtered here: much faster than PostgreSQL's expressions.
            "limit": high if match.needed else limit,
            "large": match.in_payloads,
            "stored": PREVIEW_STORED_OCTETS_MAX,
            "chars": max(self.chars, SEARCHED_CHARS) if match.in_payloads else self.chars,
        }
        with connection.cursor() as cursor:
            cursor.execute(EVENTS_DOWN if self.down else EVENTS_UP, facts)
            rows = [line for row in cursor if (line := match.line(row, self.chars)) is not None]
        return rows[:limit]

    def search(self, low: int, high: int) -> tuple[list[EventLine], int | None]:
        """One more than the page holds, if there are; and how far it came if not to the end."""
        found: list[EventLine] = []
        steps = _Steps()
        while high - low > 1 and len(found) <= self.limit:
            if steps.over:
                return found, high if self.down else low
            size = min(steps.size, high - low - 1)
            span = (high - 1 - size, high) if self.down else (low, low + size + 1)
            try:
                with steps.timed(), at_most(STEP_MS_MAX):
                    found += self.read(*span, self.limit + 1 - len(found))
            except TooSlow:
                if not steps.smaller():
                    return found, high if self.down else low
                continue
            low, high = (low, span[0] + 1) if self.down else (span[1] - 1, high)
        return found, None


class _Match:
    """What of a filter the database does not do."""

    def __init__(self, wanted: EventFilter) -> None:
        self.errors, self.payloads = wanted.errors, wanted.payloads
        self.ways = ways_to_write(wanted.text)
        self.needed = bool(wanted.errors or self.ways)
        self.in_payloads = self.needed and wanted.payloads

    def line(self, row: tuple[Any, ...], chars: int) -> EventLine | None:
        """The row as it is shown; None when it does not match."""
        seq, at, type_, origin, token, actor, text, octets, small = row
        place = 0
        searched = text or "" if self.in_payloads else ""
        if self.errors and not (
            ERROR_TYPES.search(type_) or (origin == "worker" and ERROR_MEMBERS.search(searched))
        ):
            return None
        if self.ways:
            found = self._find(f"{type_}\n{actor}", searched)
            if found is None:
                return None
            place = found - BEFORE_CHARS
        start = max(0, place) if small else 0
        return EventLine(
            seq=seq,
            at=at,
            type=type_,
            origin=origin,
            token=token,
            actor=actor,
            preview=text[start : start + chars] if small and text is not None else None,
            octets=octets,
            excerpt=start > 0,
        )

    def _find(self, names: str, text: str) -> int | None:
        """Where it stands in the payload, 0 when only in the names; None: nowhere."""
        lowered = text.lower()
        places = [place for way in self.ways if (place := lowered.find(way)) >= 0]
        if places:
            return min(places)
        return 0 if self.ways[0] in names.lower() else None


class _Steps:
    """How many events are gone through at once: more as long as that is fast."""

    def __init__(self) -> None:
        self.size = STEP_FIRST
        self.until = time.monotonic() + SEARCH_SECONDS

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    def timed(self) -> _Timed:
        return _Timed(self)

    def smaller(self) -> bool:
        """Whether less can be tried."""
        if self.size <= 1 or self.over:
            return False
        self.size = max(1, self.size // 16)
        return True


class _Timed:
    def __init__(self, steps: _Steps) -> None:
        self.steps, self.began = steps, time.monotonic()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_failed: object) -> None:
        if time.monotonic() - self.began < STEP_FAST_SECONDS:
            self.steps.size = min(STEP_MOST, self.steps.size * 4)


def ways_to_write(text: str) -> list[str]:
    """A text as it may stand in a payload: as it is, or with JSON's escapes; in small letters."""
    if not text:
        return []
    escaped = [json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (False, True)]
    return list(dict.fromkeys(way.lower() for way in (text, *escaped)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGroup:
    """Events one after the other that belong together: of one family, under one token.

    family: what their types have in common before the last dot; verbs: what comes after it.
    last: the last of them, which says how it came out.
    """

    family: str
    verbs: list[tuple[str, int]]
    first: EventLine
    last: EventLine
    count: int

    @property
    def seq(self) -> int:
        """The number of the last one: a list of groups goes on after it."""
        return self.last.seq

    @property
    def took(self) -> Any:
        return self.last.at - self.first.at


def family_of(type_: str) -> tuple[str, str]:
    """`tool.called` is `called` of the family `tool`; a type without a dot is its own family."""
    family, dot, verb = type_.rpartition(".")
    return (family, verb) if dot and family and verb else (type_, "")


def grouped(lines: list[EventLine]) -> list[EventGroup]:
    return list(_groups(lines))


def _groups(lines: list[EventLine]) -> Iterator[EventGroup]:
    group: EventGroup | None = None
    for line in lines:
        family, verb = family_of(line.type)
        if group is None or (family, line.token, line.origin) != (
            group.family,
            group.last.token,
            group.last.origin,
        ):
            if group is not None:
                yield group
            group = EventGroup(family=family, verbs=[(verb, 1)], first=line, last=line, count=1)
            continue
        counts = dict(group.verbs)
        counts[verb] = counts.get(verb, 0) + 1
        group = replace(group, verbs=list(counts.items()), last=line, count=group.count + 1)
    if group is not None:
        yield group


def read_event(run: UUID, seq: int) -> Event | None:
    return Event.objects.filter(run_id=run, seq=seq).first()
