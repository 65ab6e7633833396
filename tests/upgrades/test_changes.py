"""Changes of the schema beside everybody: waits for locks are short, and what stopped goes on."""

import threading

import psycopg
import pytest
from django.conf import settings
from django.db import OperationalError, connection, migrations, models
from django.db.migrations.loader import MigrationLoader

from agentstate import postgres, prepare
from agentstate.store import partitions
from agentstate.store.schema import waiting
from agentstate.store.schema.batches import Batches
from agentstate.store.schema.executor import PatientExecutor
from agentstate.store.schema.operations import (
    AtOnce,
    CheckBeside,
    IndexBeside,
    has_column,
)

pytestmark = pytest.mark.django_db(transaction=True)
COLUMN = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'agentstate_run'::regclass AND attname"


@pytest.fixture
def other():
    """A session beside Django's, in autocommit."""
    parts = settings.SESSION_PARTS | {"dbname": connection.settings_dict["NAME"]}
    with psycopg.connect(postgres.conninfo(parts), autocommit=True) as session:
        yield session


@pytest.fixture
def in_haste(monkeypatch):
    monkeypatch.setattr(waiting, "LOCKS_WITHIN_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "PAUSE_SECONDS_MIN", 0.02)


def ask(question, *values):
    with connection.cursor() as cursor:
        cursor.execute(question, values)
        return cursor.fetchone()[0]


def run(operation, *, back=False):
    """One operation after all of our migrations, outside of a transaction."""
    before = MigrationLoader(connection).project_state()
    after = before.clone()
    operation.state_forwards("agentstate", after)
    with connection.schema_editor(atomic=False) as editor:
        if back:
            operation.database_backwards("agentstate", editor, after, before)
        else:
            operation.database_forwards("agentstate", editor, before, after)


NOTE = AtOnce(
    migrations.AddField("run", "x", models.TextField(null=True)),
    migrations.AddField("lease", "x", models.TextField(null=True)),
    there=has_column("agentstate_lease", "x"),
)


def test_a_change_whose_lock_is_not_free_lets_others_go_first_and_comes_again(
    other, in_haste, monkeypatch
):
    paused = []

    def pause(seconds):
        # Everybody else goes on: the change waits outside of the queue. Then its way is free.
        assert other.execute("SELECT count(*) FROM agentstate_run").fetchone() == (0,)
        assert ask(f"{COLUMN} = 'x'") == 0  # nothing of it is done
        if paused:
            other.execute("COMMIT")
        paused.append(seconds)

    monkeypatch.setattr(waiting.time, "sleep", pause)
    other.execute("BEGIN")
    other.execute("SELECT FROM agentstate_lease")  # the second of its two tables
    run(NOTE)
    assert len(paused) == 2
    assert ask(f"{COLUMN} = 'x'") == 1
    run(NOTE)  # done already: nothing to do
    run(NOTE, back=True)
    assert ask(f"{COLUMN} = 'x'") == 0


def test_it_gives_up_in_the_end_and_says_who_is_in_the_way(other, in_haste, monkeypatch):
    monkeypatch.setattr(waiting.time, "sleep", lambda _: None)
    monkeypatch.setattr(waiting, "GIVE_UP_AFTER_SECONDS", 0.2)
    other.execute("BEGIN")
    other.execute("SELECT FROM agentstate_run")

    def attempt():
        with connection.schema_editor(atomic=True) as editor, waiting.short_waits():
            editor.execute("ALTER TABLE agentstate_run ADD COLUMN x text")

    with pytest.raises(waiting.NotFree) as refused:
        waiting.patiently("agentstate.0999_x", attempt, within_seconds=0.2)
    assert f"pid {other.info.backend_pid}" in str(refused.value)
    assert ask(f"{COLUMN} = 'x'") == 0
    other.execute("ROLLBACK")


def test_other_errors_are_not_tried_again():
    def attempt():
        raise OperationalError("away")

    with pytest.raises(OperationalError, match="away"):
        waiting.patiently("x", attempt)


def test_a_migration_that_is_one_transaction_is_tried_again_as_a_whole(
    other, in_haste, monkeypatch
):
    monkeypatch.setattr(waiting.time, "sleep", lambda _: other.execute("COMMIT"))
    members = {"operations": [migrations.AddField("run", "x", models.TextField(null=True))]}
    migration = type("Migration", (migrations.Migration,), members)("0999_x", "agentstate")
    executor = PatientExecutor(connection)
    before = executor.loader.project_state()
    other.execute("BEGIN")
    other.execute("SELECT FROM agentstate_run")
    executor.apply_migration(before.clone(), migration)
    assert ask(f"{COLUMN} = 'x'") == 1
    assert ask("SELECT count(*) FROM django_migrations WHERE name = '0999_x'") == 1
    executor.unapply_migration(before, migration)
    assert ask(f"{COLUMN} = 'x'") == 0
    assert ask("SELECT count(*) FROM django_migrations WHERE name = '0999_x'") == 0


VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"


def test_an_index_that_was_left_half_made_is_made_anew():
    index = IndexBeside("heartbeat", models.Index(fields=["host"], name="heartbeat_x"))
    run(index)
    ask("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'heartbeat_x'::regclass"
        " RETURNING 1")  # fmt: skip
    run(index)
    assert ask(VALID, "heartbeat_x") is True
    run(index, back=True)
    assert ask("SELECT to_regclass('heartbeat_x')") is None


def test_an_index_of_all_weeks_goes_on_with_those_that_are_missing():
    partitions.ensure_ahead()
    index = IndexBeside("event", models.Index(fields=["actor"], name="event_x"))
    with connection.cursor() as cursor:
        weeks = partitions.weeks_there(cursor)
        first = partitions.name_of(weeks[0])
        # As it is when it was stopped after the first week, with the second half-made.
        cursor.execute("CREATE INDEX event_x ON ONLY agentstate_event (actor)")
        cursor.execute(f"CREATE INDEX {first}_actor_idx ON {first} (actor)")
        cursor.execute(f"ALTER INDEX event_x ATTACH PARTITION {first}_actor_idx")
        second = partitions.name_of(weeks[1])
        cursor.execute(f"CREATE INDEX {second}_actor_idx ON {second} (type)")
    assert ask(VALID, "event_x") is False
    run(index)
    assert ask(VALID, "event_x") is True
    assert ask("SELECT count(*) FROM pg_inherits WHERE inhparent = 'event_x'::regclass") == len(
        weeks
    )
    run(index, back=True)
    assert ask("SELECT to_regclass('event_x')") is None


def test_a_check_that_was_not_looked_at_for_old_rows_is_looked_at():
    check = models.CheckConstraint(condition=models.Q(did__gte=0), name="heartbeat_x")
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE agentstate_heartbeat ADD CONSTRAINT heartbeat_x CHECK (did >= 0) NOT VALID"
        )
    run(CheckBeside("heartbeat", check))
    assert ask("SELECT convalidated FROM pg_constraint WHERE conname = 'heartbeat_x'") is True
    run(CheckBeside("heartbeat", check), back=True)
    assert ask("SELECT count(*) FROM pg_constraint WHERE conname = 'heartbeat_x'") == 0


def counting(change="UPDATE counted SET times = times + 1 WHERE {range}"):
    return Batches("count", table="counted", key="id", type="bigint", change=change, rows=10)


@pytest.fixture
def counted():
    """A table of 95 rows that tell how often each was changed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE counted AS SELECT id::bigint, 0 AS times FROM generate_series(1, 95) id"
        )
    yield lambda: ask("SELECT array_agg(DISTINCT times ORDER BY times) FROM counted")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE counted; DROP TABLE IF EXISTS agentstate_migration_progress")


def test_rows_in_batches_go_on_where_they_stopped(counted):
    stumbling = "UPDATE counted SET times = times + 1 / (id <> 34)::int WHERE {range}"
    with pytest.raises(Exception, match="division by zero"):
        run(counting(stumbling))
    assert ask("SELECT after FROM agentstate_migration_progress") == "30"
    assert counted() == [0, 1]
    run(counting())
    assert counted() == [1]
    assert ask("SELECT to_regclass('agentstate_migration_progress')") is None


def test_a_start_that_waits_for_another_one_is_in_no_indexs_way(other):
    """CREATE INDEX CONCURRENTLY waits for snapshots, and a start may not wait with one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [prepare.PREPARE_LOCK])
    waiter = threading.Thread(target=prepare.wait_for_turn, args=[other])
    waiter.start()
    run(IndexBeside("heartbeat", models.Index(fields=["host"], name="heartbeat_x")))
    run(IndexBeside("heartbeat", models.Index(fields=["host"], name="heartbeat_x")), back=True)
    assert waiter.is_alive()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [prepare.PREPARE_LOCK])
    waiter.join(10)
    assert not waiter.is_alive()
