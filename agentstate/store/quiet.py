"""Quiet hours: when a target, or a person, is not to be told; what is held back, and what is not.

They are hours of the clocks of a zone, on the days on which they begin, also past midnight. What is
held back is sent when they are over, or dropped, as the setting says; what is at alert goes through
if it says so. Pure. Why: docs/decisions/0027-zones-rules-quiet-hours.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from agentstate.store.alerting import State
from agentstate.store.clocks import jump
from agentstate.store.errors import Invalid
from agentstate.store.rules import names

SEND, DROP = "send", "drop"
THEN = (SEND, DROP)
DAY_MINUTES = 24 * 60
WEEK = tuple(range(7))
TARGET, PERSON = "target:", "person:"
DROPPED_THEN = "quiet hours: it was dropped, as they say"
OVERTAKEN = "quiet hours: a later message of this rule went through"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """begins, ends: minutes of the day by the clocks of the zone; the same: a whole day. days: 0 is
    Monday, none: never. critical: what is at alert is told all the same. Raises Invalid.
    """

    zone: str
    begins: int
    ends: int
    days: tuple[int, ...] = WEEK
    critical: bool = True
    then: str = SEND

    def __post_init__(self) -> None:
        if self.zone != "UTC" and self.zone not in available_timezones():
            raise Invalid("zone", "the name of a zone such as Europe/Berlin")
        for name in ("begins", "ends"):
            names.check_whole(name, getattr(self, name), at_least=0, at_most=DAY_MINUTES - 1)
        if not set(self.days) <= set(WEEK) or len(set(self.days)) < len(self.days):
            raise Invalid("days", "whole numbers from 0, Monday, to 6, each once")
        if self.then not in THEN:
            raise Invalid("then", f"one of {', '.join(THEN)}")

    def until(self, now: datetime) -> datetime | None:
        """When they are over, if they are on at that moment."""
        zone = UTC if self.zone == "UTC" else ZoneInfo(self.zone)
        today = now.astimezone(zone).date()
        found = None
        for day in (today - timedelta(days=1), today):
            if day.weekday() not in self.days:
                continue
            last = day if self.ends > self.begins else day + timedelta(days=1)
            start = _instants(day, self.begins, zone)[0]
            end = _instants(last, self.ends, zone)[1]
            if start <= now < end:
                found = end if found is None else max(found, end)
        return found

    def facts(self) -> dict[str, Any]:
        """What the audit says of them."""
        return asdict(self) | {"days": list(self.days)}


def _instants(day: date, minutes: int, zone: tzinfo) -> tuple[datetime, datetime]:
    """When the clocks there show this time of that day, for the first and for the last time. What
    they jump over is the instant of the jump.
    """
    there = datetime.combine(day, time(minutes // 60, minutes % 60), zone)
    first, second = (there.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    if second < first:
        first = second = jump(second, first, zone)
    return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptQuiet:
    """Quiet hours as they are kept. whose: `target:NAME` or `person:NAME`. version 0: none yet."""

    whose: str
    quiet: Quiet | None
    version: int
    changed_at: datetime | None = None
    changed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A message that is not to go out now. until: when it is; None: never, it is dropped."""

    until: datetime | None


def held(several: Iterable[Quiet], severity: State, now: datetime) -> Held | None:
    """Whether a message of this severity is held back by any of these, and until when."""
    ends: list[datetime] = []
    for quiet in several:
        end = quiet.until(now)
        if end is None or (quiet.critical and severity is State.ALERT):
            continue
        if quiet.then == DROP:
            return Held(until=None)
        ends.append(end)
    return Held(until=max(ends)) if ends else None
