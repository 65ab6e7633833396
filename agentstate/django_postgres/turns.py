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
# Whoever has the turn may hang in a network that swallows everything. Then others try as well.
BEHIND_ONE_SECONDS = 1.0


class Turns:
    """While the last try failed there is one every `pause_seconds`; whoever waited shares it."""

    def __init__(
        self,
        *,
        pause_seconds: float = PAUSE_SECONDS,
        behind_one_seconds: float = BEHIND_ONE_SECONDS,
    ) -> None:
        self._pause_seconds = pause_seconds
        self._behind_one_seconds = behind_one_seconds
        self._one = threading.Lock()
        # When, and what: not the error itself, which would keep the caller's frames.
        self._failed: tuple[float, type[psycopg.OperationalError], tuple[Any, ...]] | None = None

    def take[T](self, connect: Callable[[], T]) -> T:
        """What `connect` returns. Raises psycopg.OperationalError: its own, or that of another
        thread that tried while this one waited.
        """
        if self._failed is None:
            return self._try(connect)
        came = time.monotonic()
        if not self._one.acquire(timeout=self._behind_one_seconds):
            return self._try(connect)
        try:
            if failed := self._failed:
                at, kind, said = failed
                if at > came:
                    raise kind(*said)
                time.sleep(max(0.0, at + self._pause_seconds - time.monotonic()))
            return self._try(connect)
        finally:
            self._one.release()

    def _try[T](self, connect: Callable[[], T]) -> T:
        try:
            connection = connect()
        except psycopg.OperationalError as error:
            self._failed = (time.monotonic(), type(error), error.args)
            raise
        self._failed = None
        return connection
