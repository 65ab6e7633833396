"""How the whole store is doing, in a few cheap numbers: what `/metrics` tells beside this process.

Each part is read by itself within its own time: one that is slow or broken is missing, and the
others are there. Counts end at COUNT_MAX, so that asking costs as much on a large store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connection, transaction

from agentstate.store import alerts, reads
from agentstate.store.alerting import RANK, State
from agentstate.store.schema.releases import has_restores, without_restores
from agentstate.store.states import TERMINAL, Status
from agentstate.store.upkeep import in_short

PART_TIMEOUT_MS = 1_000
COUNT_MAX = 100_000
LIVE = [status for status in Status if status not in TERMINAL]

log = logging.getLogger(__name__)

# A part's numbers: the name of a metric without its prefix, and the value of each of its labels.
type Figures = dict[str, dict[tuple[str, ...], float]]

FEED = """
SELECT coalesce((SELECT position FROM agentstate_feedhead), 0),
    (SELECT count(*) FROM (SELECT FROM agentstate_outbox LIMIT %(most)s) AS waiting),
    coalesce((SELECT greatest(0, extract(epoch FROM agentstate_now() - at))
        FROM agentstate_outbox ORDER BY gid LIMIT 1), 0)::float8,
    (SELECT count(*) FROM agentstate_feedconsumer),
    coalesce((SELECT max(agentstate_feed_lag(c.position, h.position))
        FROM agentstate_feedconsumer c, agentstate_feedhead h), 0)
"""
RUNS = "SELECT count(*) FROM (SELECT FROM agentstate_run WHERE status = %s LIMIT %s) AS counted"
LEASES = """
SELECT count(*) FILTER (WHERE expires_at > agentstate_now()),
    count(*) FILTER (WHERE expires_at <= agentstate_now()),
    coalesce(extract(epoch FROM agentstate_now() - min(expires_at)), 0)::float8
FROM (SELECT expires_at FROM agentstate_lease WHERE token IS NOT NULL LIMIT %(most)s) AS held
"""
DATABASE = """
SELECT count(*), current_setting('max_connections')::int,
    coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)
        FILTER (WHERE pid <> pg_backend_pid())), 0)::float8,
    pg_database_size(current_database())
FROM pg_stat_activity WHERE datname = current_database()
"""
# Of rows that are written again and again. What is dead is on their pages until it is cleaned up.
TABLES = ("run", "lease", "budget", "outbox", "feed", "idempotencyrecord", "heartbeat")
DEAD = """
SELECT substr(relname, 12), n_dead_tup, n_live_tup FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND relname = ANY(%(tables)s)
"""


def _row(statement: str, **values: Any) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        found: tuple[Any, ...] = cursor.fetchone()
        return found


def _feed() -> Figures:
    position, waiting, lag, consumers, behind = _row(
        FEED if has_restores() else without_restores(FEED), most=COUNT_MAX
    )
    return {
        "feed_position": {(): position},
        "feed_waiting": {(): waiting},
        "feed_lag_seconds": {(): lag},
        "feed_consumers": {(): consumers},
        "feed_consumer_behind_max": {(): behind},
    }


def _runs() -> Figures:
    counted: dict[tuple[str, ...], float] = {}
    with connection.cursor() as cursor:
        for status in LIVE:
            cursor.execute(RUNS, [status, COUNT_MAX])
            counted[status,] = cursor.fetchone()[0]
    return {"runs": counted}


def _leases() -> Figures:
    live, lapsed, oldest = _row(LEASES, most=COUNT_MAX)
    return {
        "leases": {("live",): live, ("lapsed",): lapsed},
        "lease_lapsed_oldest_seconds": {(): max(0.0, oldest) if lapsed else 0.0},
    }


def _database() -> Figures:
    used, allowed, oldest, octets = _row(DATABASE)
    return {
        "database_connections": {(): used},
        "database_connections_max": {(): allowed},
        "database_oldest_transaction_seconds": {(): oldest},
        "database_bytes": {(): octets},
    }


def _tables() -> Figures:
    with connection.cursor() as cursor:
        cursor.execute(DEAD, {"tables": [f"agentstate_{table}" for table in TABLES]})
        rows = cursor.fetchall()
    return {
        "table_dead_rows": {(name,): dead for name, dead, _ in rows},
        "table_live_rows": {(name,): live for name, _, live in rows},
    }


def _jobs() -> Figures:
    now = reads.now()
    figures: Figures = {
        "job_started_timestamp_seconds": {},
        "job_ended_timestamp_seconds": {},
        "job_age_seconds": {},
        "job_took_seconds": {},
        "job_behind": {},
        "job_silent": {},
        "job_failed": {},
    }
    for job in reads.heartbeats():
        told: dict[str, float | None] = {
            "job_started_timestamp_seconds": _timestamp(job.started_at),
            "job_ended_timestamp_seconds": _timestamp(job.ended_at),
            "job_age_seconds": _age(job.started_at, now),
            "job_took_seconds": None if job.took_ms is None else job.took_ms / 1_000,
            "job_behind": job.behind,
            "job_silent": float(job.silent),
            "job_failed": float(job.failed is not None),
        }
        for name, value in told.items():
            if value is not None:
                figures[name][job.name,] = value
    return figures


def _timestamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _age(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max(0.0, (now - moment).total_seconds())


def _alerts() -> Figures:
    board = alerts.read()
    states: dict[tuple[str, ...], float] = {
        (rule.name,): float(RANK[standing.state])
        for rule, standing in board.standings
        if standing is not None and standing.state is not State.NO_DATA
    }
    return {"alert_state": states, "alerts_silent": {(): float(board.silent)}}


PARTS: Mapping[str, Callable[[], Figures]] = {
    "feed": _feed,
    "runs": _runs,
    "leases": _leases,
    "database": _database,
    "tables": _tables,
    "jobs": _jobs,
    "alerts": _alerts,
}


def read() -> tuple[Figures, frozenset[str]]:
    """All figures that could be read, and the parts that could not."""
    figures: Figures = {}
    failed = set()
    for name, part in PARTS.items():
        try:
            figures |= _in_time(part)
        except DatabaseError as broken:
            log.warning("metrics: %s could not be read: %s", name, in_short(broken))
            failed.add(name)
    return figures, frozenset(failed)


def _in_time(part: Callable[[], Figures]) -> Figures:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(PART_TIMEOUT_MS)])
        figures = part()
        cursor.execute("SELECT set_config('statement_timeout', '0', true)")
        return figures
