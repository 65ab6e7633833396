"""Who tries to connect while the server is away: one thread of a process, and not at once.

A server that recovers from a crash forks a process for each that knocks, to tell it "not yet". All
threads of all processes knock at that moment, and recovery waits behind them for a processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

# A fifth of a second later than the first is not seen in an outage of seconds.
PAUSE_SECONDS = 0.2
# Whoever has the turn may hang in a network that swallows everything. So long others wait for what
# becomes of it; then they say that the server is away, which was so the last time.
BEHIND_ONE_SECONDS = 1.0
# Who has the turn hangs for no longer (a host of several addresses, each with its own time-out).
# If there is still no word of it then, it is not known whether the server is away.
TURN_SECONDS = 20.0


class Away(psycopg.OperationalError):
    """The server could not be connected to: nothing was asked of it."""


class Turns:
    """While the last try failed there is one every `pause_seconds`; whoever waited shares it."""

    def __init__(
        self,
        *,
        pause_seconds: float = PAUSE_SECONDS,
        behind_one_seconds: float = BEHIND_ONE_SECONDS,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._pause_seconds = pause_seconds
        self._behind_one_seconds = behind_one_seconds
        self._turn_seconds = turn_seconds
        self._one = threading.Lock()
        self._begun_at = 0.0  # the turn of who has it
        # When, and what: not the error itself, which would keep the caller's frames.
        self._failed: tuple[float, tuple[Any, ...]] | None = None

    def take[T](self, connect: Callable[[], T]) -> T:
        """What `connect` returns. Raises Away: for its own reason, or that of another thread that
        tried before this one or while it waited.
        """
        if self._failed is None:
            return self._try(connect)
        came = time.monotonic()
        if not self._one.acquire(timeout=self._behind_one_seconds):
            failed = self._failed
            if failed is None or time.monotonic() - self._begun_at > self._turn_seconds:
                return self._try(connect)
            raise Away(*failed[1])
        try:
            self._begun_at = came
            if failed := self._failed:
                at, said = failed
                if at > came:
                    raise Away(*said)
                time.sleep(max(0.0, at + self._pause_seconds - time.monotonic()))
            self._begun_at = time.monotonic()
            return self._try(connect)
        finally:
            self._one.release()

    def _try[T](self, connect: Callable[[], T]) -> T:
        try:
            connection = connect()
        except psycopg.OperationalError as error:
            self._failed = (time.monotonic(), error.args)
            raise Away(*error.args) from error
        self._failed = None
        return connection
