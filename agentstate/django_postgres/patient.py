"""Connections whose patience has an end.

TCP tells of a machine that is gone (postgres.TCP). It does not when something in between goes on
saying "received" and passes nothing on: a proxy, a pooler, a server that stands still. There
whoever waits for an answer has to give up by himself. Why: docs/decisions/0041-outages.md.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors

# What looks whether somebody is there asks for no more than that.
ALIVE_SECONDS = 2.0


class NoAnswer(psycopg.OperationalError):
    """The server said nothing for too long. The connection is closed; what it does is unknown."""


class Patient(psycopg.Connection[Any]):
    """A connection that waits for an answer for so long at most; then it is closed and the wait
    ends with NoAnswer. answer_seconds: None waits for ever."""

    answer_seconds: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is not None or self.answer_seconds is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_seconds)
        except errors._WaitTimeout:
            self.pgconn.finish()
            raise NoAnswer(f"no answer in {self.answer_seconds:g} s") from None


class AsyncPatient(psycopg.AsyncConnection[Any]):
    """The same for an event loop, and what is asked there. A wait with a time-out of its own, such
    as that for notifications, is not an answer's."""

    answer_seconds: float = ALIVE_SECONDS

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        try:
            return await super().wait(gen, interval, self.answer_seconds)
        except errors._WaitTimeout:
            self.pgconn.finish()
            raise NoAnswer(f"no answer in {self.answer_seconds:g} s") from None
