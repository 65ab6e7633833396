"""How agentstate itself does: the feed and its readers, partitions, the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from agentstate.store import feed, partitions

OUTBOX_COUNT_MAX = 10_000
CONSUMERS_SHOWN = 100
TABLES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """position, moved_at: of the head. waiting: rows that the mover has not taken (capped).
    counted_to: the newest minute that was counted, for charts and alerts."""

    position: int
    moved_at: datetime | None
    waiting: int
    oldest_at: datetime | None
    counted_to: datetime | None
    consumers: tuple[feed.Consumer, ...]

    @property
    def capped(self) -> bool:
        return self.waiting >= OUTBOX_COUNT_MAX

    @property
    def consumers_most(self) -> int:
        """So many are shown."""
        return CONSUMERS_SHOWN


FEED = """
SELECT coalesce((SELECT position FROM agentstate_feedhead), 0),
    (SELECT moved_at FROM agentstate_feedhead),
    (SELECT count(*) FROM (SELECT 1 FROM agentstate_outbox LIMIT %s) AS waiting),
    (SELECT at FROM agentstate_outbox ORDER BY gid LIMIT 1),
    (SELECT max(minute) FROM agentstate_minute)
"""


def read_feed() -> FeedState:
    with connection.cursor() as cursor:
        cursor.execute(FEED, [OUTBOX_COUNT_MAX])
        position, moved_at, waiting, oldest_at, counted_to = cursor.fetchone()
    return FeedState(
        position=position,
        moved_at=moved_at,
        waiting=waiting,
        oldest_at=oldest_at,
        counted_to=counted_to,
        consumers=feed.consumers(limit=CONSUMERS_SHOWN),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A table and what it takes on disk, with its indexes. rows: as the planner guesses."""

    name: str
    octets: int
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The event table's weeks. ahead: whole weeks after this one that have their partition."""

    ahead: int
    weeks: list[Stored]

    @property
    def octets(self) -> int:
        return sum(week.octets for week in self.weeks)


WEEKS = """
SELECT substr(c.relname, 18), pg_total_relation_size(c.oid), nullif(c.reltuples, -1)::bigint
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'agentstate_event'::regclass ORDER BY c.relname
"""


def read_partitions() -> Partitions:
    return Partitions(ahead=partitions.weeks_ahead(), weeks=_stored(WEEKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """connections: of this database, of all that the server allows. tables: the largest."""

    version: str
    octets: int
    started_at: datetime
    connections: int
    connections_max: int
    oldest_transaction_seconds: float
    tables: list[Stored]


DATABASE = """
SELECT current_setting('server_version'), pg_database_size(current_database()),
    pg_postmaster_start_time(), count(*), current_setting('max_connections')::int,
    coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)
        FILTER (WHERE pid <> pg_backend_pid())), 0)::float
FROM pg_stat_activity WHERE datname = current_database()
"""
TABLES = """
SELECT substr(c.relname, 12), pg_total_relation_size(c.oid), nullif(c.reltuples, -1)::bigint
FROM pg_class c WHERE c.relkind = 'r' AND c.relname LIKE 'agentstate\\_%' AND NOT c.relispartition
ORDER BY 2 DESC, 1 LIMIT 12
"""


def read_database() -> Database:
    with connection.cursor() as cursor:
        cursor.execute(DATABASE)
        version, octets, started_at, used, allowed, oldest = cursor.fetchone()
    return Database(
        version=version,
        octets=octets,
        started_at=started_at,
        connections=used,
        connections_max=allowed,
        oldest_transaction_seconds=oldest,
        tables=_stored(TABLES),
    )


def _stored(statement: str) -> list[Stored]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return [Stored(name=name, octets=octets, rows=count) for name, octets, count in rows]
