"""Make the database ready for this release: its schema, the broker's queues, months ahead.

Safe to run at every start and from several machines at once; a database that is ready already
costs a few milliseconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from agentstate import __version__, postgres
from agentstate.store import restoring, versions
from agentstate.store.partitions import ensure_ahead
from agentstate.store.restoring import Restored
from agentstate.store.schema.waiting import NotFree

# Any number of our own: one start prepares, the others wait for it.
PREPARE_LOCK = 0x61676E74_73746174
TURN_SECONDS = 0.2


class DatabaseUnfit(Exception):
    """The database cannot be used. The text is one line for a person, with the cause."""


@dataclass(frozen=True)
class Prepared:
    """server: its version as text. now: the database's clock. migrations: how many were run.

    restored: what had to be done because the data came from a backup, if it did.
    """

    server: str
    now: datetime
    migrations: int
    restored: Restored | None = None


def prepare(*, report: Callable[[str], None] = lambda _: None) -> Prepared:
    """Bring the configured database to this release. Raises DatabaseUnfit."""
    if settings.EMBEDDED:
        make_database()
    with connect(settings.SESSION_PARTS) as session:
        refuse_old(session)
        wait_for_turn(session)
        restoring.pass_gate()
        migrations = migrate(report)
        if settings.CELERY_BROKER_URL.startswith("pgmq"):
            install_queues(session)
        ensure_ahead()
        restored = restoring.finish(report=report, end_sessions=end_sessions)
        versions.note_site(__version__)
        connection.close()
        row = session.execute("SELECT current_setting('server_version'), now()").fetchone()
    assert row is not None
    return Prepared(server=row[0].split()[0], now=row[1], migrations=migrations, restored=restored)


def connect(parts: dict[str, str]) -> psycopg.Connection:
    """A session of its own, in autocommit. Raises DatabaseUnfit with libpq's reason."""
    try:
        session = psycopg.connect(
            postgres.conninfo(parts, application_name="agentstate prepare"), autocommit=True
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnfit(f"the database cannot be reached: {one_line(error)}") from None
    return session


def wait_for_turn(session: psycopg.Connection) -> None:
    """One start prepares, the others wait for it.

    They ask again and again rather than wait in the database: a statement that waits there has a
    snapshot, and an index that is made beside its users (CREATE INDEX CONCURRENTLY) waits until all
    snapshots of before are gone. Each would wait for the other, without PostgreSQL noticing.
    """
    asked = "SELECT pg_try_advisory_lock(%s)"
    while session.execute(asked, [PREPARE_LOCK]).fetchone() != (True,):
        time.sleep(TURN_SECONDS)


def make_database() -> None:
    """Create the embedded server's database at its first start."""
    name = settings.SESSION_PARTS["dbname"]
    with connect(settings.SESSION_PARTS | {"dbname": "postgres"}) as session:
        known = session.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if known is None:
            try:
                session.execute(
                    psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
                )
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                return  # another start was quicker


def refuse_old(session: psycopg.Connection) -> None:
    """Refuse what the test suite does not run on."""
    if session.info.server_version < postgres.OLDEST:
        major = session.info.server_version // 10_000
        where = f"{session.info.host}:{session.info.port}"
        raise DatabaseUnfit(
            f"PostgreSQL {major} at {where} is too old: agentstate needs 15 or newer"
        )


def end_sessions() -> int:
    """End what everybody is signed in by; how many that were."""
    from dashboard.models import Session  # a test's site has no console

    ended, _ = Session.objects.all().delete()
    return ended


def migrate(report: Callable[[str], None]) -> int:
    """Run the migrations that have not been run. Returns how many."""
    executor = MigrationExecutor(connection)
    waiting = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    try:
        if waiting:
            report(f"{waiting} migration{'s' if waiting > 1 else ''} …")
            call_command("migrate", interactive=False, verbosity=0)
    except NotFree as failure:
        raise DatabaseUnfit(str(failure)) from None
    finally:
        connection.close()
    return waiting


def install_queues(session: psycopg.Connection) -> None:
    """The broker's tables and functions. Its script cannot be run twice."""
    row = session.execute("SELECT to_regclass('pgmq.meta')").fetchone()
    if row == (None,):
        from pgmq.install import get_embedded_install_sql

        with session.transaction():
            session.execute(get_embedded_install_sql().encode())


def fault_of_database(error: Exception) -> str:
    """One line about what the database cannot or may not do; nothing for any other error."""
    if isinstance(error, DatabaseUnfit):
        return str(error)
    cause: BaseException | None = error
    while isinstance(cause, DatabaseError):  # Django's, around psycopg's
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, psycopg.OperationalError | psycopg.errors.InsufficientPrivilege):
        return f"the database: {cause.diag.message_primary or one_line(cause)}"
    return ""


def one_line(error: Exception) -> str:
    """An error's text without line breaks, and without libpq's repetition of the address."""
    return " ".join(str(error).split())
