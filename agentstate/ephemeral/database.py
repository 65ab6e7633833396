"""The databases of a test server: a template that is migrated once, and a copy for each process.

A database with nobody connected to it is what a killed process left, and goes at the next start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import django
import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from psycopg.sql import SQL, Identifier

from agentstate import postgres, store
from agentstate.prepare import install_queues
from agentstate.store import settable_clock
from agentstate.store.partitions import ensure_ahead

TEMPLATE, COPY = "template_", "test_"
LOCK = 0x61676E74_74657374
LEFTOVERS = """
SELECT datname FROM pg_database d
WHERE (starts_with(datname, 'test_') OR starts_with(datname, 'template_'))
    AND datname != %(template)s
    AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = d.datname)
"""
USED = "SELECT '{0}' WHERE EXISTS (SELECT FROM \"{0}\")"


def make() -> None:
    """Make this process's database, and connect to it, so that nobody takes it for a leftover."""
    template = f"{TEMPLATE}{release()}"
    with alone() as session:
        for (name,) in session.execute(LEFTOVERS, {"template": template}).fetchall():
            drop(session, name)
        known = session.execute("SELECT FROM pg_database WHERE datname = %s", [template]).fetchone()
        own = str(settings.DATABASES["default"]["NAME"])
        if known is None:
            copy(session, own, of="template0")
            migrate()
            connection.close()
            copy(session, template, of=own)
        else:
            copy(session, own, of=template)
        connection.ensure_connection()
    ensure_ahead()


def end() -> None:
    """Drop this process's database, whoever is still connected to it."""
    connection.close()
    with alone() as session:
        drop(session, str(settings.DATABASES["default"]["NAME"]))


def migrate() -> None:
    """This release's tables, the queues that a readiness check looks for, the settable clock."""
    call_command("migrate", interactive=False, verbosity=0)
    settable_clock.install()
    ensure_ahead()
    with psycopg.connect(postgres.conninfo(settings.DATABASE_PARTS), autocommit=True) as session:
        install_queues(session)


def release() -> str:
    """Of what a template is made, as a name: another schema has another template."""
    parts = [django.__version__.encode()]
    parts += [Path(made_of).read_bytes() for made_of in (__file__, settable_clock.__file__)]
    for path in sorted((Path(store.__file__).parent / "migrations").rglob("*.*")):
        if path.suffix in (".py", ".sql"):
            parts += [path.name.encode(), path.read_bytes()]
    return sha256(b"\0".join(parts)).hexdigest()[:12]


@contextmanager
def alone() -> Iterator[psycopg.Connection]:
    """A session that makes and drops databases, one process at a time."""
    where = postgres.conninfo(settings.DATABASE_PARTS, dbname="postgres")
    with psycopg.connect(where, autocommit=True) as session:
        session.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        yield session


def copy(session: psycopg.Connection, name: str, *, of: str) -> None:
    session.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(of)))


def drop(session: psycopg.Connection, name: str) -> None:
    session.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))


def used_tables() -> list[str]:
    """Names of the tables that have rows, in order."""
    tables = connection.introspection.django_table_names(only_existing=True)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(map(USED.format, sorted(tables))))
        return sorted(name for (name,) in cursor.fetchall())
