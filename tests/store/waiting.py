"""Waiting for something that PostgreSQL can be asked about, never for a time."""

from __future__ import annotations

import time

from tests.store.asking import rows

BLOCKED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def wait_until_blocked(*, sessions: int = 1, deadline_seconds: float = 20) -> None:
    """Return when so many sessions of this database wait for a lock."""
    ends = time.monotonic() + deadline_seconds
    while time.monotonic() < ends:
        # Seen within a transaction, pg_stat_activity is a snapshot: ask for a new one.
        rows("SELECT pg_stat_clear_snapshot()")
        if rows(BLOCKED)[0][0] >= sessions:
            return
        time.sleep(0.005)
    raise AssertionError(f"no {sessions} session(s) waited for a lock")


def wait_for(holds, *, deadline_seconds: float = 20) -> None:
    """Return when `holds()` is true; fail when it never is."""
    ends = time.monotonic() + deadline_seconds
    while not holds():
        if time.monotonic() > ends:
            raise AssertionError("it never came true")
        time.sleep(0.005)
