"""Two real connections, one step at a time: a command that is stopped when only COMMIT is left.

No time is waited for: PostgreSQL itself says (`pg_stat_activity`) that the other one waits for a
lock, or its thread says that it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from django.db import connections

from agentstate import store
from tests.store.asking import rows

PATIENCE_SECONDS = 20.0
WAITS = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"


class Stepped:
    """A command on a thread and a connection of its own.

    hold: it stops once it has decided and written, with every lock in hand and only COMMIT to do,
    until `go`. It does not pass through the lanes: two of these are two transactions.
    """

    def __init__(self, ask: store.Ask, *, hold: bool = False) -> None:
        self._ask, self._hold = ask, hold
        self._at_commit, self._may_commit = Event(), Event()
        self._connected = Event()
        self.pid = 0
        self.outcome: Any = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._connected.wait(PATIENCE_SECONDS):
            raise AssertionError("it never connected")

    def _run(self) -> None:
        own = connections["default"]  # the wrapper itself: `django.db.connection` is a proxy
        try:
            own.ensure_connection()
            self.pid = own.connection.info.backend_pid
            if self._hold:
                self._stop_at_commit(own)
            self._connected.set()
            self._carry_out()
        except Exception as failure:
            self.outcome = failure
        finally:
            self._at_commit.set()
            own.close()

    def _carry_out(self) -> None:
        (self.outcome,) = store.execute_all([self._ask])

    def _stop_at_commit(self, own: Any) -> None:
        commit: Callable[[], None] = own._commit

        def stop_first() -> None:
            if not self._may_commit.is_set():
                self._at_commit.set()
                if not self._may_commit.wait(PATIENCE_SECONDS):
                    raise AssertionError("nobody let it commit")
            commit()

        own._commit = stop_first

    def wait_until_at_commit(self) -> bool:
        """True when it holds its locks; False when it ended without coming so far."""
        if not self._at_commit.wait(PATIENCE_SECONDS):
            raise AssertionError("it never came to its COMMIT")
        return self._thread.is_alive()

    def wait_until_blocked_or_done(self) -> bool:
        """True when it waits for somebody else's lock, False when it is done."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            if not self._thread.is_alive():
                return False
            rows("SELECT pg_stat_clear_snapshot()")
            if rows(WAITS, self.pid) == [(True,)]:
                return True
            time.sleep(0.001)
        raise AssertionError("it neither waited nor ended")

    def kill(self) -> None:
        """End its connection as a crash of its backend would."""
        rows("SELECT pg_terminate_backend(%s, 10000)", self.pid)

    def go(self) -> None:
        self._may_commit.set()

    def end(self) -> Any:
        """Its outcome: a result or a refusal."""
        self._may_commit.set()
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            raise AssertionError("it never ended")
        return self.outcome


class InLane(Stepped):
    """One that passes through the lanes: what others bring while it is at work goes along."""

    def _carry_out(self) -> None:
        ask = self._ask
        self.outcome = store.execute(ask.command, by=ask.by, under=ask.under)
