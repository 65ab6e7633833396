"""Where the time of one request went: what `Server-Timing` tells (docs/metrics.md).

queue: waiting for a turn (a thread, a lane). lock: in statements that take row locks, the waiting
and the reading of the rows together: from a client's side of PostgreSQL they are one. db: in all
other statements. commit: in COMMIT of what `execute` writes. A command that another thread wrote
along has the parts of that batch, and its own waiting for it as queue. What remains is Python's.

A record belongs to a context (a thread's request, an asyncio task), so nothing is passed along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

LOCKING = (
    "FOR NO KEY UPDATE",
    "SELECT pg_advisory_xact_lock(",
    "SELECT agentstate_append_events(",
    "SELECT agentstate_renew_plain(",
)


@dataclass(slots=True)
class Spent:
    """Seconds."""

    queue: float = 0.0
    lock: float = 0.0
    db: float = 0.0
    commit: float = 0.0

    @property
    def working(self) -> float:
        """All but the queue."""
        return self.lock + self.db + self.commit

    def told(self, total_seconds: float) -> str:
        """The header's text; milliseconds, as its standard has it. total: with the queue."""
        return (
            f"total;dur={total_seconds * 1000:.2f}, queue;dur={self.queue * 1000:.2f},"
            f" lock;dur={self.lock * 1000:.2f}, db;dur={self.db * 1000:.2f},"
            f" commit;dur={self.commit * 1000:.2f}"
        )

    def note(self, seconds: float, *, locks: bool) -> None:
        """What statements took; locks: whether one of them takes row locks."""
        if locks:
            self.lock += seconds
        else:
            self.db += seconds

    def add(self, other: Spent) -> None:
        self.queue += other.queue
        self.lock += other.lock
        self.db += other.db
        self.commit += other.commit


_RECORD: ContextVar[Spent | None] = ContextVar("spent", default=None)


def begin(*, queue_seconds: float = 0.0) -> Spent:
    """A new record for all that this context does from now on."""
    record = Spent(queue=queue_seconds)
    _RECORD.set(record)
    return record


def record() -> Spent | None:
    """The record of this context; None where nobody asks for it."""
    return _RECORD.get()


@contextmanager
def kept(into: Spent | None) -> Iterator[None]:
    """What the block spends is counted in this record instead of the context's."""
    before = _RECORD.set(into)
    try:
        yield
    finally:
        _RECORD.reset(before)


def note_queue(seconds: float) -> None:
    if (record := _RECORD.get()) is not None:
        record.queue += seconds


def note_commit(seconds: float) -> None:
    if (record := _RECORD.get()) is not None:
        record.commit += seconds


@lru_cache(maxsize=500)
def locks(statement: str) -> bool:
    """Whether it takes locks, and so may wait for somebody."""
    return any(word in statement for word in LOCKING)


def count_statement(
    execute: Callable[..., Any], statement: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Django's hook around each statement of a connection."""
    record = _RECORD.get()
    if record is None:
        return execute(statement, params, many, context)
    began = perf_counter()
    try:
        return execute(statement, params, many, context)
    finally:
        record.note(perf_counter() - began, locks=isinstance(statement, str) and locks(statement))


def count_statements(*, connection: Any, **_: Any) -> None:
    """Of a connection that was just made; it may be made again on the same object."""
    if count_statement not in connection.execute_wrappers:
        connection.execute_wrappers.append(count_statement)
