"""Whether what we stand on is there and can be used: asked by /health/ready and `./run doctor`."""

from __future__ import annotations

from functools import cache

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from kombu import Connection
from kombu.exceptions import KombuError

from agentstate.store import outages
from agentstate.store.schema.releases import RELEASE_BEFORE

BROKER_SECONDS = 1
FINE = "ok"
WRITABLE = """
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    to_regproc('agentstate_restoring') IS NOT NULL
"""


def database() -> str:
    """FINE when it answers and can be written to; else why not."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(WRITABLE)
            in_recovery, read_only, restoring = cursor.fetchone()
        full = not (in_recovery or read_only or outages.has_room())
    except DatabaseError:
        return "does not answer"
    if full:
        return "has no room left on its disk"
    if in_recovery:
        return "is in recovery, or a replica: it can only be read"
    if read_only:
        return "is read-only"
    return "is being restored" if restoring else FINE


def migrations() -> str:
    """FINE when the schema is of this release, a newer one, or the one before, on which this code
    serves as well; else how many are missing."""
    try:
        return _once_migrated()
    except _Unmigrated as missing:
        return str(missing)


class _Unmigrated(Exception):
    """Migrations are missing; how many."""


@cache
def _once_migrated() -> str:
    """Looked up until it is true, then never again: it costs more than a request should."""
    if missing := missing_migrations(since_release_before=False):
        raise _Unmigrated(f"{missing} to be applied")
    return FINE


def missing_migrations(*, since_release_before: bool = True) -> int:
    """How many are to be applied; or without those that this code does without."""
    executor = MigrationExecutor(connection)
    leaves = executor.loader.graph.leaf_nodes()
    if not since_release_before:
        leaves = [(app, RELEASE_BEFORE.get(app, name)) for app, name in leaves]
    # For one that is there already, and newer ones are, Django plans the way back.
    return sum(not back for _, back in executor.migration_plan(leaves))


def broker() -> str:
    """FINE when it answers; else that it does not. Never its address."""
    if settings.CELERY_BROKER_URL.startswith("pgmq"):
        return _queues()
    try:
        with Connection(settings.CELERY_BROKER_URL, connect_timeout=BROKER_SECONDS) as asked:
            asked.ensure_connection(max_retries=1, timeout=BROKER_SECONDS)
    except (OSError, KombuError):
        return "does not answer"
    return FINE


def _queues() -> str:
    """The broker that lives in the database: whether its tables are there."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('pgmq.meta')")
        return FINE if cursor.fetchone()[0] else "has no tables yet"
