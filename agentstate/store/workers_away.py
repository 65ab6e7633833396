"""Workers of a distributed store that do not answer: their runs are refused at once, for a moment.

Without this each write to such a run would have the batch fail that it came in, and all the others
in it would go one by one; a claim would choose the run that waits longest and fail with it, again
and again. Each process finds out for itself, by what Citus says, and asks again after a second or
two. Nothing is decided by it that matters: a run of a worker that is back is refused for so long,
and one of a worker that has just gone fails by itself.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from typing import Any

import psycopg
from django.db import connection

from agentstate.store import rowsql as sql

AWAY_SECONDS = 2.0
WORDS = "the worker of Citus that has the run's events cannot be reached"
# Of the message, when there is no connection; else of its context.
_NAMED = re.compile(r"remote node (?:\S+@)?(\S+:\d+)|executing command on (\S+:\d+)")
# No connection; and a session that the worker ended.
_STATES = ("08", "57P")

_SHARDS = """
SELECT array_agg(shardid) FROM pg_dist_shard_placement
WHERE nodename || ':' || nodeport = ANY(%s) AND shardid IN (
    SELECT shardid FROM pg_dist_shard WHERE logicalrelid = 'agentstate_event'::regclass)
"""
_SHARD_OF = "get_shard_id_for_distribution_column('agentstate_event', {})"
_THERE = (
    f"SELECT key FROM agentstate_run WHERE key = ANY(%s) AND {_SHARD_OF.format('id')} = ANY(%s)"
)

_lock = threading.Lock()
_until: dict[str, float] = {}


def told_by(failed: BaseException) -> str:
    """The worker's name, if it is Citus that tells of one and our own session lives; else nothing.

    failed: psycopg's exception.
    """
    if not isinstance(failed, psycopg.Error) or not (failed.sqlstate or "").startswith(_STATES):
        return ""
    diag = failed.diag
    if diag.severity_nonlocalized != "ERROR":  # FATAL: that was our own session
        return ""
    found = _NAMED.search(f"{diag.message_primary or ''}\n{diag.context or ''}")
    return (found[1] or found[2]) if found else ""


def note(failed: BaseException | None) -> bool:
    """Remember the worker of which this failure tells; whether there is one."""
    name = told_by(failed) if failed is not None else ""
    if name:
        with _lock:
            _until[name] = time.monotonic() + AWAY_SECONDS
    return bool(name)


def known() -> list[str]:
    """Their names."""
    if not _until:
        return []
    now = time.monotonic()
    with _lock:
        for name in [name for name, until in _until.items() if until <= now]:
            del _until[name]
        return sorted(_until)


def forget() -> None:
    """For tests."""
    with _lock:
        _until.clear()


def runs_of(keys: Iterable[str]) -> frozenset[str]:
    """Which of these runs have their events on a worker that is away."""
    names, asked = known(), sorted(set(keys))
    if not names or not asked:
        return frozenset()
    with connection.cursor() as cursor:
        shards = _shards(cursor, names)
        cursor.execute(_THERE, [asked, shards])
        return frozenset(key for (key,) in cursor.fetchall())


# Of each statement that chooses runs: behind which words, and which column has the run's id.
_CHOOSING = {
    sql.CLAIM_UNITS: ("AND l.unit <> ALL(%(taken)s)", "r.id"),
    sql.LAPSED_UNITS: ("WHERE run_id IS NOT NULL", "run_id"),
    sql.OVERDUE_UNITS: ("WHERE deadline_at <= agentstate_now()", "id"),
}


def passed_by(cursor: Any, statement: str) -> tuple[str, dict[str, Any]]:
    """A statement of _CHOOSING, so that it chooses none of those; and its parameter more."""
    names = known()
    if not names:
        return statement, {}
    words, column = _CHOOSING[statement]
    there = f"{words} AND {_SHARD_OF.format(column)} <> ALL(%(away)s::bigint[])"
    return statement.replace(words, there), {"away": _shards(cursor, names)}


def _shards(cursor: Any, names: list[str]) -> list[int]:
    cursor.execute(_SHARDS, [names])
    return list(cursor.fetchone()[0] or [])
