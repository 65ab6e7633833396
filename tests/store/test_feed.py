"""The feed never skips, never goes back within a run, and has no hole."""

from threading import Event as Signal

from django.db import connection, transaction

from agentstate.store import audit, feed
from tests.store.asking import at_once, event, rows
from tests.store.waiting import wait_until_blocked  # noqa: F401


def test_a_change_becomes_one_position_with_its_numbers_and_types(store):
    store.create("42", events=(event("a"), event("b"), event("a")))
    store.append("42")

    moved = feed.move()

    assert moved.position == 2
    assert moved.runs == {"42": 5}
    assert rows(
        "SELECT position, run_key, first_seq, last_seq, version, types FROM agentstate_feed"
        " ORDER BY position"
    ) == [
        (1, "42", 1, 4, 1, ["run.created", "a", "b"]),
        (2, "42", 5, 5, 2, ["step.done"]),
    ]
    assert feed.move() is None
    assert rows("SELECT count(*) FROM agentstate_outbox") == [(0,)]


def test_nothing_is_lost_or_doubled_while_writers_and_movers_race(store):
    for n in range(4):
        store.create(f"r-{n}")
    done = Signal()

    def work(n):
        if n >= 6:
            while not done.is_set():
                feed.move(limit=7)
            return
        for k in range(20):
            store.append(f"r-{(n + k) % 4}")
        if n == 0:
            done.set()

    at_once(8, work)
    while feed.move():
        pass

    assert audit.verify() == []
    assert rows("SELECT sum(last_seq - first_seq + 1) FROM agentstate_feed") == [(4 + 120,)]


def test_an_event_that_commits_late_is_not_skipped(store):
    """A reader that remembers the last id it saw would have passed it by (O-13)."""
    store.create("A")
    store.create("B")
    feed.move()

    def late(n):
        if n == 0:
            with transaction.atomic():
                rows(
                    "INSERT INTO agentstate_outbox (run_id, run_key, first_seq, last_seq, version,"
                    " types, at) SELECT id, key, 2, 2, 2, '{}', now() FROM agentstate_run"
                    " WHERE key = 'A'"
                )
                written.set()
                seen.wait(30)
        else:
            written.wait(30)
            store.append("B")
            first = feed.move()
            seen.set()
            return first
        return None

    written, seen = Signal(), Signal()
    _, first = at_once(2, late)
    assert first.runs == {"B": 2}

    second = feed.move()
    assert second.runs == {"A": 2}
    assert second.position == first.position + 1


def test_a_hint_is_sent_after_the_move_and_names_the_runs(store):
    import psycopg
    from django.conf import settings

    from agentstate import postgres

    name = connection.settings_dict["NAME"]
    conninfo = postgres.conninfo(settings.SESSION_PARTS, dbname=name)
    with psycopg.connect(conninfo, autocommit=True) as listener:
        listener.execute(f"LISTEN {feed.CHANNEL}")
        store.create("42")
        feed.move()
        (hint,) = listener.notifies(timeout=10, stop_after=1)

    assert hint.payload == '{"position": 1, "kinds": ["run"], "runs": {"42": 1}}'


def test_the_mover_thread_moves_soon_after_a_write(store):
    from agentstate.store.execute import moving_the_feed
    from tests.store.waiting import wait_for

    with moving_the_feed():
        store.create("42")
        wait_for(lambda: rows("SELECT count(*) FROM agentstate_feed") == [(1,)])
