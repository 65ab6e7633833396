"""Short waits for locks: one that is not had soon is given up, and asked for again after a pause.

Whoever waits for a table's lock has everybody queue behind it who comes later. So a change of the
schema waits no longer than calls may wait for it, lets them all go first, and comes again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import OperationalError, connection

log = logging.getLogger(__name__)

# Of all locks of a transaction together. More than PostgreSQL's deadlock_timeout (1 s): only then
# it sends an autovacuum away that is in the way. With what is done under the lock less than 2 s.
LOCKS_WITHIN_SECONDS = 1.2
LEAST_WAIT_MS = 20
# After each try that had to give up: time for those who queued, and for who was in the way.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 15.0
GIVE_UP_AFTER_SECONDS = 1_800.0

IN_THE_WAY = """
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::int
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
"""
PASSING = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class NotFree(Exception):
    """A lock could not be had for half an hour; says who was in the way. Nothing was changed."""


@contextmanager
def short_waits() -> Iterator[None]:
    """In a transaction: each statement waits for locks for what is left of the time, and no more.

    Raises OperationalError, of LockNotAvailable, in a statement that waited in vain.
    """
    began = time.monotonic()

    def ask(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        left = LOCKS_WITHIN_SECONDS - (time.monotonic() - began)
        context["cursor"].cursor.execute(
            f"SET LOCAL lock_timeout = {max(LEAST_WAIT_MS, int(left * 1_000))}"
        )
        return execute(sql, params, many, context)

    with connection.execute_wrapper(ask):
        yield


def patiently[T](
    what: str, attempt: Callable[[], T], *, within_seconds: float = GIVE_UP_AFTER_SECONDS
) -> T:
    """`attempt`, which is all or nothing, as often as it takes. Raises NotFree in the end.

    what: for whoever reads the log.
    """
    began, pause = time.monotonic(), PAUSE_SECONDS_MIN
    while True:
        try:
            return attempt()
        except OperationalError as failure:
            if not isinstance(failure.__cause__, PASSING):
                raise
            told = in_the_way()
            if time.monotonic() - began + pause > within_seconds:
                raise NotFree(
                    f"{what}: its lock was not free for {within_seconds:.0f} s{told}. Nothing was"
                    " changed by it: end that, and run this again"
                ) from failure
        log.warning("%s: its lock is not free%s; again in %.0f s", what, told, pause)
        time.sleep(random.uniform(pause / 2, pause))  # noqa: S311
        pause = min(PAUSE_SECONDS_MAX, pause * 1.5)


def in_the_way() -> str:
    """Whose transaction is the oldest: most often it is that one."""
    with connection.cursor() as cursor:
        cursor.execute(IN_THE_WAY)
        row = cursor.fetchone()
    if row is None:
        return ""
    pid, name, state, seconds = row
    return f" (the oldest transaction: pid {pid}, {name or 'without a name'}, {state}, {seconds} s)"
