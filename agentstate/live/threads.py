"""The few lasting threads in which streams read the database.

Under ASGI a request would get a thread, and with it a database connection, of its own. Streams are
many and wait most of the time: so they share these, and hold nothing while they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connection

THREADS = 4  # and as many connections, at most

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live")


async def in_thread[R](look: Callable[[], R]) -> R:
    """What `look` returns or raises, on a connection that works."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _look, look)


def _look[R](look: Callable[[], R]) -> R:
    connection.close_if_unusable_or_obsolete()
    try:
        return look()
    finally:
        connection.close_if_unusable_or_obsolete()
