"""The database's clock, and a limit on how long a panel may ask it to think."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import OperationalError, connection, transaction
from psycopg import errors


class TooSlow(Exception):
    """A panel's own time limit ran out; the rest of the page is not concerned."""


def database_now() -> datetime:
    """The one clock that leases live by."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        found: datetime = cursor.fetchone()[0]
        return found


@contextmanager
def at_most(milliseconds: int) -> Iterator[None]:
    """Let the queries inside take so long each. Raises TooSlow."""
    inside = connection.in_atomic_block  # a transaction that goes on has to get rid of the limit
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, true)", [str(milliseconds)]
                )
            yield
            if inside:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT set_config('statement_timeout', '0', true)")
    except OperationalError as slow:
        if isinstance(slow.__cause__, errors.QueryCanceled):
            raise TooSlow from None
        raise
