"""Whether a failure means that the database is away, or can only be read: 503, no fault of ours."""

from __future__ import annotations

import psycopg
from django.db import InterfaceError, OperationalError

READ_ONLY = psycopg.errors.ReadOnlySqlTransaction.sqlstate


def is_outage(failed: BaseException | None) -> bool:
    """Of an exception of Django's. A server that recovers, or stands by for another, answers and
    refuses every write: PostgreSQL calls that an internal error."""
    return isinstance(failed, OperationalError | InterfaceError) or is_read_only(failed)


def is_read_only(failed: BaseException | None) -> bool:
    return getattr(getattr(failed, "__cause__", None), "sqlstate", None) == READ_ONLY
