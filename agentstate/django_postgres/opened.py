"""Which connections this process has open to the database, and what they are at: for `/metrics`.

Nothing is counted while they are used. Whoever asks looks at each of them, which libpq tells
without a word to the server.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus

BUSY = (TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """busy: in a statement or a transaction. connecting: threads that wait for a connection to be
    made, or for their turn to try. made, failed: since the process began.
    """

    busy: int
    idle: int
    connecting: int
    made: int
    failed: int


class Opened:
    """The connections that were made here and are not closed yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakSet[Any] = WeakSet()
        self._connecting = self._made = self._failed = 0

    def noted[T](self, connect: Callable[[], T]) -> T:
        """What `connect` returns, a connection of psycopg. Raises what it raises."""
        with self._lock:
            self._connecting += 1
        try:
            connection = connect()
        except psycopg.OperationalError:
            with self._lock:
                self._failed += 1
            raise
        finally:
            with self._lock:
                self._connecting -= 1
        with self._lock:
            self._made += 1
            self._open.add(connection)
        return connection

    def count(self) -> Counted:
        """How many there are now."""
        with self._lock:
            self._open = WeakSet(one for one in self._open if not one.closed)
            found = Counter(one.pgconn.transaction_status for one in self._open)
            return Counted(
                busy=sum(found[status] for status in BUSY),
                idle=found[TransactionStatus.IDLE],
                connecting=self._connecting,
                made=self._made,
                failed=self._failed,
            )
