"""The few lasting threads in which streams read the database.

Under ASGI a request would get a thread, and with it a database connection, of its own. Streams are
many and wait most of the time: so they share these, and hold nothing while they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from django.db import connection

from agentstate import metrics
from agentstate.admission import RETRY_AFTER, Kind
from agentstate.store import spent
from agentstate.store.errors import Overloaded
from agentstate.store.spent import Spent

THREADS = 4  # and as many connections, at most

# One for each stream that a process may have, and as many more as wait for no more than seconds.
LOOKS_MAX = 2_500

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live")
_waiting = 0


def check_room() -> None:
    """Whether somebody new may look. Raises Overloaded; streams that are open go on."""
    if _waiting >= LOOKS_MAX:
        after_ms = RETRY_AFTER[Kind.FEED] * 1_000
        raise Overloaded("too many wait to look", retry_after_ms=after_ms)


async def in_thread[R](look: Callable[[], R]) -> R:
    """What `look` returns or raises, on a connection that works."""
    global _waiting
    record, asked_at = spent.record(), perf_counter()
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(
            _threads, _look, look, record, asked_at
        )
    finally:
        _waiting -= 1


def _look[R](look: Callable[[], R], record: Spent | None, asked_at: float) -> R:
    connection.close_if_unusable_or_obsolete()
    try:
        with spent.kept(record):
            spent.note_queue(perf_counter() - asked_at)
            return look()
    finally:
        connection.close_if_unusable_or_obsolete()


metrics.STREAMS.count_waiting = lambda: _waiting
