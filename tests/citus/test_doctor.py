"""What `./run doctor` finds on real workers; each thing is broken and mended again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from psycopg.sql import SQL, Identifier

from agentstate.doctor import distribution
from agentstate.store import distributing
from agentstate.store.migrations.sql.append_events import APPEND_EVENTS
from tests.citus.cluster import Cluster, free_port

pytestmark = [pytest.mark.citus, pytest.mark.django_db(transaction=True)]

# Of the tests' servers, which forget: a crash of theirs loses everything, and that is told, too.
OF_THE_TESTS = ("autovacuum", "fsync, full_page_writes", "citus.recover_2pc_interval",
                "citus.node_connection_timeout")  # fmt: skip


def told() -> list[str]:
    """What is found, but for what is so of the tests' servers."""
    return [
        found.what for found in distribution.look()
        if not any(word in found.what for word in OF_THE_TESTS)
    ]  # fmt: skip


@pytest.fixture
def name(servers: Cluster, transactional_db: None) -> str:
    return str(connection.settings_dict["NAME"])


def test_a_distributed_store_is_fine_but_for_what_the_tests_servers_are(name: str) -> None:
    assert told() == []
    found = [found.what for found in distribution.look()]
    assert all(any(word in what for what in found) for word in OF_THE_TESTS)


def test_functions_that_know_of_no_worker(name: str) -> None:
    # As a migration of a later release would put them.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(APPEND_EVENTS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    try:
        (what,) = told()
        assert "know of no worker" in what
    finally:
        with connection.cursor() as cursor:
            distributing.put_functions(cursor)
    assert told() == []


def test_a_week_that_is_on_the_coordinator_alone(name: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM pg_dist_partition WHERE logicalrelid = (SELECT max(inhrelid) FROM"
            " pg_inherits WHERE inhparent = 'agentstate_event'::regclass)"
            " RETURNING logicalrelid::text"
        )
        (week,) = cursor.fetchone()
        (what,) = told()
        assert f"{week} of the log" in what
        transaction.set_rollback(True)
    assert told() == []


@contextmanager
def elsewhere(servers: Cluster, name: str) -> Iterator[None]:
    """The coordinator is told a port for its last worker at which nobody answers."""
    worker = servers.workers[-1]
    change = "UPDATE pg_dist_node SET nodeport = %s WHERE nodeport = %s"
    port = free_port()
    with servers.coordinator.connect(name) as session:
        session.execute(change, [port, worker.port])
    try:
        yield
    finally:
        with servers.coordinator.connect(name) as session:
            session.execute(change, [worker.port, port])


def test_a_worker_that_does_not_answer(name: str, servers: Cluster) -> None:
    with elsewhere(servers, name):
        (what,) = told()
        assert "cannot be asked" in what
    assert told() == []


def test_a_transaction_that_nobody_finishes(
    name: str, servers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = distribution.OF_WORKERS.replace(f"{distribution.UNFINISHED_MINUTES} min", "0 min")
    monkeypatch.setattr(distribution, "OF_WORKERS", short)
    with servers.workers[0].connect(name) as session:
        session.execute("BEGIN")
        session.execute("SELECT pg_advisory_xact_lock(1)")
        session.execute("PREPARE TRANSACTION 'citus_0_1_2_3'")
        try:
            (what,) = told()
            assert "1 transactions" in what
        finally:
            session.execute("ROLLBACK PREPARED 'citus_0_1_2_3'")
    assert told() == []


def test_a_worker_whose_limit_was_taken_away(name: str, servers: Cluster) -> None:
    with servers.workers[0].connect() as session:
        session.execute(SQL("ALTER DATABASE {} RESET lock_timeout").format(Identifier(name)))
    try:
        (what,) = told()
        assert distributing.BOUNDED in what
    finally:
        with connection.cursor() as cursor:
            distributing._bound_waiting(cursor, 0)
    assert told() == []
