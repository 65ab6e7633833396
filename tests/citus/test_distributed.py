"""A store whose log is distributed: written in two phases, and read from its beginning on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from agentstate.store import distribution, partitions, reads, retention
from agentstate.store.audit import verify
from agentstate.store.commands import Append, ClaimRuns, CreateRun
from agentstate.store.errors import OutcomeUnknown, Unavailable
from agentstate.store.execute import _ask_how_it_ended
from tests.citus.cluster import Cluster, Node
from tests.clock import Clock
from tests.conftest import make_weeks
from tests.store.asking import Asking, event, rows

pytestmark = [pytest.mark.citus, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def store(servers: Cluster, transactional_db: None) -> Asking:
    return Asking()


def two_phases() -> int:
    """How many transactions of workers the coordinator has decided in two phases."""
    return int(rows("SELECT count(*) FROM pg_dist_transaction")[0][0])


WRITES: dict[str, Callable[[Asking], Any]] = {
    "create": lambda store: store.create("new"),
    "append": lambda store: store.append("42"),
    "append, under a key": lambda store: store.ask(Append(run="42", events=(event(),)), key="once"),
    "claim": lambda store: store.claim(),
    "acquire": lambda store: store.acquire("run:42"),
    "cancel": lambda store: store.move("42", "cancelled"),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_to_the_log_is_committed_in_two_phases(store: Asking, name: str) -> None:
    store.create("42")
    before = two_phases()
    WRITES[name](store)
    assert two_phases() == before + 1


def shards(node: Node, like: str = "agentstate_event_.*") -> Iterator[tuple[Any, str]]:
    """A session of the server, and each shard that it has of tables with such names."""
    with node.connect(connection.settings_dict["NAME"]) as session:
        session.execute("SET citus.override_table_visibility TO off")  # else they are hidden
        names = session.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s",
            [f"^{like}_[0-9]{{6,}}$"],
        ).fetchall()
        for (name,) in names:
            yield session, name


def test_the_events_are_on_the_workers_and_nowhere_else(store: Asking, servers: Cluster) -> None:
    for n in range(20):
        store.create(f"run-{n}")
        store.append(f"run-{n}", [event(), event("step.done", {"n": n})])
    found = [
        sum(
            session.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            for session, name in shards(node)
        )
        for node in servers.nodes
    ]
    assert found[0] == 0
    assert sum(found) == 60
    assert min(found[1:]) > 0
    assert verify() == []


@contextmanager
def unfinished(servers: Cluster, run: str) -> Iterator[None]:
    """The run's last event is written on its worker, and its second phase has yet to come: as when
    the worker was lost between. Finished when the block ends."""
    ((run_id, seq),) = rows("SELECT id, last_seq FROM agentstate_run WHERE key = %s", run)
    where = sql.SQL("{} WHERE run_id = %s AND seq = %s")
    node, table = next(
        (node, sql.Identifier(name))
        for node in servers.workers
        for session, name in shards(node)
        if session.execute(
            sql.SQL("SELECT FROM ") + where.format(sql.Identifier(name)), [run_id, seq]
        ).fetchone()
        is not None
    )
    name = connection.settings_dict["NAME"]
    with node.connect(name) as session:
        session.execute("SET session_replication_role = replica")
        kept = sql.SQL("CREATE TABLE kept AS SELECT * FROM ") + where.format(table)
        session.execute("SET citus.enable_ddl_propagation TO off")
        session.execute(psycopg.ClientCursor(session).mogrify(kept, [run_id, seq]))
        session.execute(sql.SQL("DELETE FROM ") + where.format(table), [run_id, seq])
    with psycopg.connect(node.url, dbname=name) as session:
        session.execute(sql.SQL("INSERT INTO {} SELECT * FROM kept").format(table))
        session.execute("PREPARE TRANSACTION 'unfinished'")
    try:
        yield
    finally:
        with node.connect(name) as session:
            session.execute("COMMIT PREPARED 'unfinished'")
            session.execute("SET citus.enable_ddl_propagation TO off")
            session.execute("DROP TABLE kept")


def test_nothing_is_written_behind_an_event_that_cannot_be_seen_yet(
    store: Asking, servers: Cluster
) -> None:
    store.create("42")
    store.append("42")
    with unfinished(servers, "42"):
        with pytest.raises(Unavailable):
            store.append("42")
        page = reads.events(run_key="42", wanted=reads.EventFilter(), limit=100)
        assert [item.seq for item in page.items] == [1]
        assert page.last_seq == 2
    assert store.append("42").first_seq == 3
    assert [item.seq for item in store.events("42")] == [1, 2, 3]


def test_a_commit_without_an_answer_is_not_taken_for_lost(
    store: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("42")

    class Batch:
        """A batch that was committed, as far as the coordinator knows; nobody sees its events."""

        asks = (None,)
        xact_id = str(rows("SELECT pg_current_xact_id()")[0][0])

        def is_there(self, _: Any) -> bool:
            return False

    (outcome,) = _ask_how_it_ended(Batch())  # type: ignore[arg-type, misc]
    assert isinstance(outcome, OutcomeUnknown)


def test_an_id_is_known_on_whichever_worker_it_is(store: Asking) -> None:
    for n in range(10):
        store.create(f"run-{n}")
        first = store.append(f"run-{n}", [event(id="once")])
        again = store.append(f"run-{n}", [event(id="once")])
        assert again.first_seq == first.first_seq


def test_a_week_is_made_and_dropped_on_the_workers(
    store: Asking, servers: Cluster, clock: Clock
) -> None:
    def pieces(week: str) -> int:
        return sum(1 for node in servers.workers for _ in shards(node, week))

    clock.advance(days=70)
    week = partitions.name_of(partitions.week_of(clock.now))
    partitions.ensure_ahead(weeks=0)
    assert pieces(week) == 4
    store.ask(CreateRun(key="old", task="t", retain_seconds=60))
    store.move("old", "cancelled")
    clock.advance(days=15)
    dropped = set()
    while (done := retention.drop_oldest_week()) is not None:
        dropped.add(done.dropped)
    assert week in dropped
    assert pieces(week) == 0
    clock.release()
    make_weeks()  # also those of the clock that other tests set


def test_a_claim_gives_what_waits(store: Asking) -> None:
    for n in range(5):
        store.create(f"run-{n}")
    got = store.ask(ClaimRuns(owner="w-1", limit=3, ttl_seconds=60))
    assert [claim.run for claim in got.items] == ["run-0", "run-1", "run-2"]
    assert store.types("run-0")[-2:] == ["lease.acquired", "run.running"]


def test_a_connection_asks_once_and_again_when_it_was_told_wrongly(store: Asking) -> None:
    assert distribution.is_distributed()
    store.create("42")
    setattr(connection.connection, distribution._KNOWN, False)
    # As by a pooler that kept the connection: what Citus refuses has it look again. A plain append
    # is refused nothing, and the function that it calls knows.
    try:
        store.ask(Append(run="42", events=(event(id="a"),)), key="once")
        assert distribution.is_distributed()
    finally:
        distribution.forget()
