"""Whether this store's log is distributed on Citus, and what is asked of it otherwise then.

Runs, leases and all else stand on the coordinator, so they are locked and decided as ever. Only
what is asked of several runs' events in one statement goes another way: Citus joins nothing of the
coordinator's with a LATERAL look into a worker's table, and what it does join it first sends to
every worker. So these name the runs. Why: docs/decisions/0043-citus.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store import rowsql
from agentstate.store.effects import TOLD_BYTES_MAX, TOLD_MAX

_KNOWN = "_agentstate_distributed"  # kept beside the connection: it ends with it
HAS_CITUS = "SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL"
HAS_LOG = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition
    WHERE logicalrelid = to_regclass('agentstate_event') AND partmethod = 'h')
"""


def is_distributed() -> bool:
    """Asked of the database once in a connection: nobody is connected while it is distributed."""
    connection.ensure_connection()
    session: Any = connection.connection
    known: bool | None = getattr(session, _KNOWN, None)
    if known is None:
        with connection.cursor() as cursor:
            known = look(cursor)
        setattr(session, _KNOWN, known)
    return known


def look(cursor: Any) -> bool:
    """Whether the log is distributed, as the database says now."""
    cursor.execute(HAS_CITUS)
    if not cursor.fetchone()[0]:
        return False
    cursor.execute(HAS_LOG)
    return bool(cursor.fetchone()[0])


def forget() -> None:
    """What this connection was told; a pooler may have kept it while the store was distributed."""
    if connection.connection is not None and hasattr(connection.connection, _KNOWN):
        delattr(connection.connection, _KNOWN)


# --- statements ----------------------------------------------------------------------------------

LOG_EVENTS = "SELECT agentstate_log_events(%s)"
# More than is asked for, where an id of one run is in another one, too: nobody looks at that.
KNOWN_EVENTS = f"""
SELECT {rowsql.EVENT_COLUMNS} FROM agentstate_event
WHERE run_id = ANY(%s::uuid[]) AND event_id = ANY(%s::text[])
"""
WRITERS = """
SELECT run_id, seq, actor, token FROM agentstate_event
WHERE run_id = ANY(%s::uuid[]) AND seq = ANY(%s::bigint[])
"""
_OPEN = f"""
SELECT w.run_id, array_agg(o.seq ORDER BY o.seq) FROM unnest(%s::uuid[]) AS w (run_id)
CROSS JOIN LATERAL (SELECT seq FROM agentstate_openeffect
    WHERE run_id = w.run_id ORDER BY seq LIMIT {TOLD_MAX}) o
GROUP BY w.run_id ORDER BY w.run_id
"""
_OPEN_OF_RUN = f"""
SELECT run_id, event_id, seq, type, token, actor, at, size,
    CASE WHEN sum(size) OVER (PARTITION BY run_id ORDER BY seq) <= {TOLD_BYTES_MAX} THEN data END
FROM (
    SELECT run_id, event_id, seq, type, token, actor, at, data::text AS data,
        octet_length(data::text) AS size
    FROM agentstate_event WHERE run_id = %s AND seq = ANY(%s::bigint[])
) told ORDER BY seq
"""
PREPARED = frozenset({LOG_EVENTS, KNOWN_EVENTS})
# Of a log with triggers Citus asks that this is said. Ours refuse a change, and look at nothing.
ALLOW_TRIGGERS = "SET LOCAL citus.enable_unsafe_triggers TO on"


def by_one_clock(
    cursor: Any, statement: str, params: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The same, with the coordinator's clock read before: a worker would ask its own."""
    if not is_distributed():
        return statement, dict(params)
    cursor.execute("SELECT agentstate_now()")
    return statement.replace("agentstate_now()", "%(now)s"), {**params, "now": cursor.fetchone()[0]}


def known_events(asked: Iterable[Mapping[str, Any]]) -> list[Any] | None:
    """The parameters of KNOWN_EVENTS for (run_id, event_id); None if there is nothing to ask."""
    rows = list(asked)
    if not rows:
        return None
    runs, ids = {row["run_id"] for row in rows}, {row["event_id"] for row in rows}
    return [sorted(map(str, runs)), sorted(ids)]


def writers(places: Iterable[tuple[UUID, int]]) -> list[Any]:
    """The parameters of WRITERS."""
    runs, numbers = zip(*places, strict=True)
    return [sorted({str(run) for run in runs}), sorted(set(numbers))]


def open_effects(cursor: Any, run_ids: Sequence[UUID]) -> list[tuple[Any, ...]]:
    """The rows of rowsql.OPEN_EFFECTS: one look into a worker for each run that has any."""
    cursor.execute(_OPEN, [list(run_ids)])
    found: list[tuple[Any, ...]] = []
    for run_id, numbers in cursor.fetchall():
        cursor.execute(_OPEN_OF_RUN, [run_id, numbers])
        found += cursor.fetchall()
    return found
