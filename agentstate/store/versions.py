"""Versions of the site and of its workers, and when each was first seen: charts mark them.

A worker says its version when it announces itself, the site when it is made ready for a start.
Nothing correct depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from agentstate.store import rowsql

WORKERS, SITE = "workers", "site"
ADVISORY_LOCK = 7214
FIRST_SEEN = """
SELECT what, version, first_seen_at FROM agentstate_seenversion
WHERE first_seen_at >= %(since)s AND first_seen_at < %(until)s
ORDER BY first_seen_at DESC, what, version LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A version that was new then. what: WORKERS or SITE."""

    what: str
    version: str
    at: datetime


def noted(what: str, version: str, at: datetime) -> dict[str, Any]:
    """The values of NOTE_VERSION."""
    return {"what": what, "version": version, "at": at, "lock": ADVISORY_LOCK}


def note_site(version: str) -> None:
    """Say that the site is about to run in this version."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        cursor.execute(rowsql.NOTE_VERSION, noted(SITE, version, cursor.fetchone()[0]))


def first_seen(*, since: datetime, until: datetime, limit: int) -> list[Seen]:
    """Versions that were new in this time, the newest first."""
    with connection.cursor() as cursor:
        cursor.execute(FIRST_SEEN, {"since": since, "until": until, "limit": limit})
        return [Seen(what=what, version=version, at=at) for what, version, at in cursor.fetchall()]
