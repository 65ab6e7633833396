"""The zone that times are shown in: this alone decides it, writes instants in it and reads them.

A page has one zone: that of the person, or of the address (`zone`), or UTC. `page` activates it for
as long as the page is made (Django's `timezone.override`); whatever writes a time asks here. What
is kept, compared and put into addresses are instants. A time that somebody types comes with the
zone of the form, which was the one that they saw, and becomes an instant in the address (`settle`).
Once a year an hour comes twice: both are written with the name of their part of the year
(`02:30 CEST`, `02:30 CET`). Why: docs/decisions/0027-zones-rules-quiet-hours.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from django.http import QueryDict
from django.utils import timezone

from agentstate.store.clocks import jump

UTC_NAME = "UTC"
FIELD = "zone"
# What may be typed in the address; `asof` may be the number of an event as well.
TYPED = ("from", "to", "asof")
NAME_CHARS = 64
# Without an offset, so that only a zone tells which instant it is.
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?", re.ASCII)
# Of an instant that stays one whatever its offset is.
_YEARS = (1970, 9000)
_HIDDEN = ("Etc/", "SystemV/", "posix/", "right/")


@functools.cache
def names() -> tuple[str, ...]:
    """All zones that this machine knows, UTC first; it alone where there is no data of zones."""
    found = (n for n in available_timezones() if "/" in n and not n.startswith(_HIDDEN))
    return (UTC_NAME, *sorted(found))


def find(name: str | None) -> tzinfo | None:
    """The zone of this name; None for whatever is none."""
    if name == UTC_NAME:
        return UTC
    return ZoneInfo(name) if name and len(name) <= NAME_CHARS and name in names() else None


def current() -> tzinfo:
    """The zone of the page that is being made."""
    return timezone.get_current_timezone()


def name() -> str:
    """Its name, as an address has it."""
    return getattr(current(), "key", UTC_NAME)


def word() -> str:
    """Its name in a heading: `UTC`, `Berlin`, `Buenos Aires`."""
    return name().rpartition("/")[2].replace("_", " ")


def local(at: datetime) -> datetime:
    return at.astimezone(current())


def abbreviation(at: datetime) -> str:
    """What the zone is called at that instant: `UTC`, `CEST`, `UTC+05:45`."""
    there = local(at)
    said = there.tzname() or ""
    return said if said.isalpha() else f"UTC{there:%:z}"


def is_twice(at: datetime) -> bool:
    """Whether the clocks there showed this time twice on that day."""
    there = local(at)
    return there.replace(fold=0).utcoffset() != there.replace(fold=1).utcoffset()


def written(at: datetime, form: str = "%H:%M:%S") -> str:
    """The instant in the zone of the page; one whose time came twice says which of the two."""
    text = local(at).strftime(form)
    return f"{text} {abbreviation(at)}" if "%H" in form and is_twice(at) else text


def full(at: datetime) -> str:
    """`2026-03-12 10:40:00`."""
    return written(at, "%Y-%m-%d %H:%M:%S")


def stamp(at: datetime) -> str:
    """`2026-03-12 10:40:00 CET`."""
    return f"{local(at):%Y-%m-%d %H:%M:%S} {abbreviation(at)}"


def clock(at: datetime, form: str = "%H:%M") -> str:
    """`10:40 CET`."""
    return f"{local(at):{form}} {abbreviation(at)}"


def in_both(at: datetime) -> str:
    """For a tooltip: `2026-03-12 09:40:00 UTC · 2026-03-12 10:40:00 CET`."""
    utc = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return utc if name() == UTC_NAME else f"{utc} · {stamp(at)}"


def typed(at: datetime) -> str:
    """As it stands in a field of a form, from which `read` makes the same instant."""
    there = local(at)
    form = "%Y-%m-%d %H:%M:%S" if there.second else "%Y-%m-%d %H:%M"
    return there.strftime(form + ("%:z" if is_twice(at) else ""))


# Of an instant in an address: only whole seconds are shown otherwise, so that it stays the same.
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d)?(\.0+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def shown(text: str) -> str:
    """What an address says, as it stands in a field; whatever is no instant stays as it is. In UTC
    all of it does: there an address is as good to read.
    """
    if name() == UTC_NAME or not _INSTANT.fullmatch(text):
        return text
    try:
        return typed(datetime.fromisoformat(text.upper().replace(" ", "T")))
    except (ValueError, OverflowError):
        return text


class Twice(ValueError):
    """A time that came twice on that day. first, second: the instants that it may be."""

    def __init__(self, first: datetime, second: datetime) -> None:
        # In UTC: of these two hours, Python compares no others.
        self.first, self.second = first.astimezone(UTC), second.astimezone(UTC)
        a, b = (f"{at:%:z}" for at in (first, second))
        super().__init__(f"{a} or {b}")


def read(text: str, zone: tzinfo) -> datetime:
    """The instant that a time without an offset is in this zone.

    One that the clocks jumped over is the instant of the jump. Raises Twice, and ValueError for
    what is no such time.
    """
    if not _LOCAL.fullmatch(text):
        raise ValueError(text)
    at = datetime.fromisoformat(text.replace(" ", "T"))
    if not _YEARS[0] < at.year < _YEARS[1]:
        raise ValueError(text)
    first, second = (at.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    before, after = first.utcoffset(), second.utcoffset()
    assert before is not None
    assert after is not None
    if before == after:
        return first.astimezone(UTC)
    if before > after:
        raise Twice(first, second)
    return jump(second.astimezone(UTC), first.astimezone(UTC), zone)


def settle(query: QueryDict) -> QueryDict | None:
    """An address in which what was typed is instants; None for one that is right as it is.

    A beginning that came twice is the first, an end the second, so that nothing is left out; of a
    single moment that came twice nothing is made, and the page says why (`moments.read`).
    """
    zone = find(query.get(FIELD))
    if zone is None:
        return None
    settled, changed = query.copy(), False
    for field in TYPED:
        text = query.get(field, "").strip()
        if instant := _settled(field, text, zone):
            settled[field] = instant
            changed = True
    if not changed:
        return None
    del settled[FIELD]
    return settled


def _settled(field: str, text: str, zone: tzinfo) -> str:
    """The instant of what was typed in this field, or nothing."""
    try:
        at = read(text, zone)
    except Twice as twice:
        if field == "asof":
            return f"{text} {twice}"
        at = twice.first if field == "from" else twice.second
    except (ValueError, OverflowError):
        return ""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def offsets(zone: tzinfo | None, since: datetime, until: datetime) -> list[tuple[datetime, str]]:
    """How far the zone is from UTC at first, and from when on it is another; to the day."""
    if zone is None:
        return []
    found: list[tuple[datetime, str]] = []
    day = since
    while day < until:
        said = f"UTC{day.astimezone(zone):%:z}" if day.astimezone(zone).utcoffset() else "UTC"
        if not found or found[-1][1] != said:
            found.append((day, said))
        day += timedelta(days=1)
    return found


# --- axes ----------------------------------------------------------------------------------------

DAY = timedelta(days=1)
# All offsets of now are whole quarters of an hour.
QUARTER_SECONDS = 900


def round_times(since: datetime, until: datetime, step_seconds: float) -> Iterator[datetime]:
    """The instants from `since` to `until` at which the clocks of the zone show a round time.

    step_seconds: a part of a day that divides it, or whole days.
    """
    zone = current()
    if step_seconds >= DAY.total_seconds():
        yield from _round_days(since, until, int(step_seconds // DAY.total_seconds()), zone)
        return
    grain = min(step_seconds, QUARTER_SECONDS)
    first, last = -(-since.timestamp() // grain), until.timestamp() // grain
    for number in range(int(first), int(last) + 1):
        at = datetime.fromtimestamp(number * grain, UTC)
        if grain == step_seconds or _of_day(at.astimezone(zone)) % step_seconds == 0:
            yield at


def _of_day(at: datetime) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second


def _round_days(since: datetime, until: datetime, days: int, zone: tzinfo) -> Iterator[datetime]:
    midnight = datetime(1970, 1, 1)  # noqa: DTZ001  of whatever day the clocks there show
    number = (since.astimezone(zone).replace(tzinfo=None) - midnight) // DAY
    number -= number % days
    while True:
        at = (midnight + number * DAY).replace(tzinfo=zone).astimezone(UTC)
        if at > until:
            return
        if at >= since:
            yield at
        number += days
