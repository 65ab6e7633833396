"""What every test can use. The database is a real PostgreSQL, embedded, shared by all test runs."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import TransactionTestCase
from psycopg.pq import TransactionStatus

from agentstate import postgres, presence
from agentstate.caching import copies
from agentstate.embedded import FORGETFUL, EmbeddedPostgres
from agentstate.store import audit, distributing, distribution, partitions
from agentstate.store.claims import QUIET
from agentstate.store.minutes import TALLY
from tests import clock as test_clock
from tests.citus import cluster

# How long an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")


# Both clients are made from one source, and these wait for real leases: of the second flavour they
# are in the long set.
WAITING = {"client/test_leases.py", "client/test_networks.py", "tests/test_client_leases.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = "/".join(item.path.parts[-2:])
        if file in WAITING and "[async" in item.name and not item.get_closest_marker("long"):
            item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.many)
        if item.get_closest_marker("deep"):  # of the long ones, whoever forgot to say so
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[None]:
    """The server runs while any test run does. With DATABASE_URL, that server is used instead."""
    if not settings.EMBEDDED:
        yield
        return
    server = EmbeddedPostgres(settings.AGENTSTATE_HOME / "postgres", settings=FORGETFUL)
    with server.held():
        drop_leftovers()
        yield


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    postgres_server: None, django_db_modify_db_settings_parallel_suffix: None
) -> None:
    """pytest-django's hook before it makes the test database: here, start the server."""


def drop_leftovers() -> None:
    """Drop the databases of test runs that were killed."""
    with psycopg.connect(
        postgres.conninfo(settings.DATABASE_PARTS, dbname="postgres"), autocommit=True
    ) as connection:
        rows = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'test_agentstate_%'"
        )
        for (name,) in rows.fetchall():
            run = re.fullmatch(r"test_agentstate_p(\d+)(_.*)?", name)
            if run and not is_alive(int(run[1])):
                connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """The test database, with a clock that a test can set, emptied quickly after each test."""
    with django_db_blocker.unblock():
        if settings.SESSION_URL:  # behind a pooler (`./run test-pooler`)
            name = connection.settings_dict["NAME"]
            settings.SESSION_PARTS = settings.SESSION_PARTS | {"dbname": name}
            # For the processes that tests begin.
            os.environ["DATABASE_SESSION_URL"] = postgres.conninfo(settings.SESSION_PARTS)
        # Of the release before (tests/upgrades): what this code does on it.
        if schema := os.environ.get("AGENTSTATE_TEST_SCHEMA"):
            call_command("migrate", "agentstate", schema, verbosity=0)
        test_clock.install()
        if (servers := cluster.given()) is not None:
            servers.spread(connection.settings_dict["NAME"])
            distributing.distribute(shards=4)
        make_weeks()
        empty = empty_quickly(tables_to_empty())
        TransactionTestCase._fixture_teardown = empty  # type: ignore[attr-defined]
        TransactionTestCase._should_reload_connections = is_spoilt  # type: ignore[attr-defined]


def make_weeks() -> None:
    """The log's partitions of now and of the tests' clock. A test that is rolled back would make
    them anew, ten tables in all, and so would the next."""
    partitions.ensure_ahead()
    clock = test_clock.Clock()
    partitions.ensure_ahead()
    clock.release()


def tables_to_empty() -> list[str]:
    """All tables but those that migrations fill: groups and permissions stay."""
    kept = {"django_migrations", "django_content_type", "auth_permission", "auth_group"}
    tables = connection.introspection.django_table_names(only_existing=True)
    return sorted(set(tables) - kept - {"auth_group_permissions"})


# Of deleted rows that are still on the tables' pages: nobody vacuums here.
DEAD_ROWS_MAX = 3_000


def empty_quickly(tables: list[str]) -> Callable[[TransactionTestCase], None]:
    """Django's flush truncates every table and makes permissions anew, in 0.3 s a test. To truncate
    what was written to takes 0.05 s and makes every session read the catalogue again; most tests
    write few rows, and to delete these takes 0.003 s."""
    truncate = f"TRUNCATE {', '.join(tables)} CASCADE"
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        (may_delete,) = cursor.fetchone()
        # Of a distributed log the workers' triggers know nothing of this session's role.
        is_apart = distribution.look(cursor)
        cursor.execute(deletion([t for t in tables if not is_apart or t != distributing.LOG]))
    dead = 0

    def empty(case: TransactionTestCase) -> None:
        nonlocal dead
        with connection.cursor() as cursor:
            if is_apart:
                cursor.execute(f"TRUNCATE {distributing.LOG}")
            if may_delete:
                cursor.execute("SELECT test_delete_all()")
                dead += cursor.fetchone()[0]
            if dead > DEAD_ROWS_MAX or not may_delete:
                cursor.execute(truncate)
                dead = 0

    return empty


def deletion(tables: list[str]) -> str:
    """A function that deletes all rows and says how many: without triggers, which keep the log from
    being changed, and foreign keys, whose order does not matter then. A superuser may do that."""
    each = "".join(
        f"DELETE FROM {table}; GET DIAGNOSTICS rows = ROW_COUNT; total := total + rows;\n"
        for table in tables
    )
    return f"""
        CREATE OR REPLACE FUNCTION test_delete_all() RETURNS int LANGUAGE plpgsql
            SET session_replication_role = replica
        AS $$ DECLARE total int := 0; rows int; BEGIN {each} RETURN total; END $$
    """


def is_spoilt(case: TransactionTestCase) -> bool:
    """Whether the next test needs a connection of its own. A session's first statements are slow:
    it knows nothing of the tables."""
    session = connection.connection
    return session is not None and (
        session.closed or session.info.transaction_status != TransactionStatus.IDLE
    )


@pytest.fixture(autouse=True)
def no_copies() -> None:
    """No test begins with copies of what another one had in its database, nor with its people, nor
    with what is still to be counted of it."""
    copies.empty()
    presence.board._signs = {}
    TALLY.forget()
    QUIET.forget()


# Where whatever a test did to the store has to add up when it is over.
VERIFIED = {"store", "api", "live", "tasks", "client", "brokers", "cases"}


@pytest.fixture(autouse=True)
def nothing_is_broken(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that wrote to the store, derive everything from its events again.

    One that damages the store on purpose is marked `damages`.
    """
    database = {"db", "transactional_db"} & set(request.fixturenames)
    marker = request.node.get_closest_marker("django_db")
    if not (database or marker) or request.path.parent.name not in VERIFIED:
        yield
        return
    request.getfixturevalue("_django_db_helper")
    yield
    if request.node.get_closest_marker("damages") is None and not connection.needs_rollback:
        assert differences() == []


def differences() -> list[audit.Difference]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM agentstate_run) OR EXISTS (SELECT FROM agentstate_budget)"
            " OR EXISTS (SELECT FROM agentstate_leaseterm)"
        )
        (written,) = cursor.fetchone()
    if not written:
        return []
    with prepared():
        return audit.differences()


@contextmanager
def prepared() -> Iterator[None]:
    """What every test asks again is planned once: that takes longer than to answer it."""
    if not settings.PREPARED_STATEMENTS:  # behind a pooler
        yield
        return
    session = connection.connection
    usual, session.prepare_threshold = session.prepare_threshold, 0
    yield
    session.prepare_threshold = usual


@pytest.fixture
def clock(transactional_db: None) -> Iterator[test_clock.Clock]:
    """The database's clock, standing still until the test moves it."""
    clock = test_clock.Clock()
    yield clock
    clock.release()
