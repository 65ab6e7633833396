"""A database whose clock can be set: for tests and labs, on a scratch database of their own.

It replaces `agentstate_now()` there; the product's own database never gets it, and nothing in the
product could turn it on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection

INSTALL = """
CREATE UNLOGGED TABLE IF NOT EXISTS test_clock (at timestamptz NOT NULL);
CREATE OR REPLACE FUNCTION agentstate_now() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$ SELECT coalesce((SELECT at FROM test_clock), clock_timestamp()) $$;
"""
START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def install() -> None:
    """Into the database that this process is connected to. Only ever a scratch one."""
    with connection.cursor() as cursor:
        cursor.execute(INSTALL)


class Clock:
    """Stands still at `now` until it is moved; all connections see the same."""

    def __init__(self) -> None:
        self.set(START)

    def set(self, at: datetime) -> None:
        self.now = at
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM test_clock")
            cursor.execute("INSERT INTO test_clock VALUES (%s)", [at])

    def advance(self, **by: float) -> None:
        """Move on: `clock.advance(seconds=61)`, as timedelta takes it."""
        self.set(self.now + timedelta(**by))

    def release(self) -> None:
        """Back to the real clock."""
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM test_clock")
