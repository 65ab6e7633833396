"""What is known of runs that came as traces of OpenTelemetry: read by the one who writes them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.db import connection

STATUS = "SELECT status FROM agentstate_run WHERE key = %s"
KNOWN = """
SELECT event_id FROM agentstate_event
WHERE run_id = (SELECT id FROM agentstate_run WHERE key = %s) AND event_id = ANY (%s)
"""
# Runs that go on, that no worker ever had, and to which nobody has written for so long by the
# database's clock: sooner where the span that has no parent has ended.
QUIET = """
SELECT key, version, attrs::text FROM agentstate_run
WHERE status = 'running' AND last_token IS NULL
    AND starts_with(key, %(prefix)s) AND %(tag)s = ANY (tags)
    AND updated_at < agentstate_now() - make_interval(secs =>
        CASE WHEN attrs::json #> '{trace,root}' IS NULL THEN %(idle)s ELSE %(quiet)s END)
ORDER BY created_at LIMIT %(limit)s
"""
LAST_OF_AGENT = """
SELECT type FROM agentstate_event
WHERE run_id = (SELECT id FROM agentstate_run WHERE key = %s)
    AND type IN ('agent.finished', 'agent.failed', 'workflow.finished', 'workflow.failed')
ORDER BY seq DESC LIMIT 1
"""


def status_of(key: str) -> str | None:
    """A run's status; None where there is no such run."""
    with connection.cursor() as cursor:
        cursor.execute(STATUS, [key])
        found = cursor.fetchone()
    return str(found[0]) if found else None


def known_ids(key: str, ids: Collection[str]) -> set[str]:
    """Which of these event ids the run has."""
    with connection.cursor() as cursor:
        cursor.execute(KNOWN, [key, list(ids)])
        return {row[0] for row in cursor.fetchall()}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietRun:
    """A run to which nothing has come for long. root: what is known of the span without a parent.
    last: the type of the last event of an agent, if there is one."""

    key: str
    version: int
    root: dict[str, Any] | None
    last: str | None


def quiet_runs(
    *, prefix: str, tag: str, quiet_seconds: int, idle_seconds: int, limit: int
) -> list[QuietRun]:
    """Runs of this tag and prefix that wait to be ended, the oldest first."""
    asked: dict[str, str | int] = {
        "prefix": prefix,
        "tag": tag,
        "quiet": quiet_seconds,
        "idle": idle_seconds,
        "limit": limit,
    }
    with connection.cursor() as cursor:
        cursor.execute(QUIET, asked)
        rows = cursor.fetchall()
        return [_quiet(cursor, *row) for row in rows]


def _quiet(cursor: Any, key: str, version: int, attrs: str) -> QuietRun:
    trace = json.loads(attrs).get("trace")
    root = trace.get("root") if isinstance(trace, dict) else None
    cursor.execute(LAST_OF_AGENT, [key])
    last = cursor.fetchone()
    return QuietRun(
        key=key,
        version=version,
        root=root if isinstance(root, dict) else None,
        last=last[0] if last else None,
    )
