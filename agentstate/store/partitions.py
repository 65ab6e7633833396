"""Partitions of the event table: one per week of the runs' ids, made ahead of time.

A run's UUIDv7 carries when it was made, so a run stays in one partition, and an old week goes by
dropping a table. No DEFAULT partition: it would have to be scanned for each new one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from agentstate.store import distribution
from agentstate.store.ids import lowest_uuid7

WEEK = timedelta(days=7)
WEEKS_AHEAD = 8
# Two processes that make the same week at once would meet in the catalogue.
ADVISORY_LOCK = 7206


def week_of(at: datetime) -> datetime:
    """Monday, 00:00 UTC, of the week that `at` is in."""
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def name_of(week: datetime) -> str:
    year, number, _ = week.isocalendar()
    return f"agentstate_event_{year}w{number:02d}"


def ensure_ahead(*, weeks: int = WEEKS_AHEAD) -> list[str]:
    """Make the partitions from last week to `weeks` ahead that are missing; their names.

    Daily is enough. Twice, late or never is safe: `execute` makes the present one itself when an
    event finds none.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        cursor.execute("SELECT agentstate_now()")
        first = week_of(cursor.fetchone()[0]) - WEEK
        wanted = [first + n * WEEK for n in range(weeks + 2)]
        there = _names(cursor)
        missing = [week for week in wanted if name_of(week) not in there]
        for week in missing:
            _make(cursor, week)
    return [name_of(week) for week in missing]


def weeks_there(cursor: Any) -> list[datetime]:
    """The Mondays of all partitions, the oldest first."""
    names = sorted(_names(cursor))
    years = [re.fullmatch(r"agentstate_event_(\d{4})w(\d{2})", name) for name in names]
    return [
        datetime.fromisocalendar(int(found[1]), int(found[2]), 1).replace(tzinfo=UTC)
        for found in years
        if found
    ]


def _names(cursor: Any) -> set[str]:
    cursor.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'agentstate_event'::regclass"
    )
    return {name for (name,) in cursor.fetchall()}


# Of so many the first that has no table.
AHEAD_LOOKED = 520
FIRST_MISSING = """
SELECT n FROM unnest(%s::text[]) WITH ORDINALITY AS week (name, n)
WHERE to_regclass(name) IS NULL ORDER BY n LIMIT 1
"""


def weeks_ahead() -> int:
    """How many whole weeks after this one have their partition; System shows it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        week = week_of(cursor.fetchone()[0]) + WEEK
        names = [name_of(week + n * WEEK) for n in range(AHEAD_LOOKED)]
        cursor.execute(FIRST_MISSING, [names])
        missing = cursor.fetchone()
    return AHEAD_LOOKED if missing is None else missing[0] - 1


def _make(cursor: Any, week: datetime) -> None:
    name, low, high = name_of(week), lowest_uuid7(week), lowest_uuid7(week + WEEK)
    if distribution.look(cursor):
        cursor.execute(distribution.ALLOW_TRIGGERS)
    # Attached rather than created in place: that locks out neither readers nor writers.
    cursor.execute(f"CREATE TABLE {name} (LIKE agentstate_event INCLUDING ALL)")
    bounds = f"FOR VALUES FROM ('{low}') TO ('{high}')"
    cursor.execute(f"ALTER TABLE agentstate_event ATTACH PARTITION {name} {bounds}")
