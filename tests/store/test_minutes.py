"""What happened in a minute, added up beside the writes and never in their way."""

import pytest
from django.db import transaction

from agentstate.store import minutes
from agentstate.store.errors import LeaseHeld, SeqConflict, StaleFence
from agentstate.store.minutes import TALLY
from tests.store.asking import at_once, event, rows


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db):
    TALLY.forget()


def counted():
    TALLY.write()
    return {
        (operation, worker, outcome): (count, events)
        for operation, worker, outcome, count, events in rows(
            "SELECT operation, worker, outcome, sum(count)::int, sum(events)::int"
            " FROM agentstate_minute GROUP BY 1, 2, 3"
        )
    }


def test_each_outcome_is_counted_with_its_worker(store, clock):
    store.create("42", events=(event(),))
    lease = store.hold("42", "w-1")
    store.append("42", [event(), event()], fence=lease.token)
    with pytest.raises(SeqConflict):
        store.append("42", expected_seq=1, fence=lease.token)
    with pytest.raises(LeaseHeld):
        store.acquire("run:42", "w-2")
    with pytest.raises(StaleFence):
        store.append("42", fence=lease.token + 1)

    assert counted() == {
        ("create", "", "ok"): (1, 2),
        ("acquire", "w-1", "ok"): (1, 1),
        ("acquire", "w-2", "lease-held"): (1, 0),
        ("transition", "w-1", "ok"): (1, 1),
        ("append", "w-1", "ok"): (1, 2),
        ("append", "w-1", "seq-conflict"): (1, 0),
        ("append", "", "stale-fence"): (1, 0),
    }
    assert rows("SELECT DISTINCT minute FROM agentstate_minute") == [(clock.now,)]


def test_counts_of_several_writers_and_passes_add_up(store):
    store.create("42")
    TALLY.write()
    for _ in range(3):
        at_once(4, lambda n: store.append("42"))
        TALLY.write()
    found = rows(
        "SELECT sum(count)::int, sum(events)::int, sum(attempts[1])::int,"
        " sum((SELECT sum(b) FROM unnest(latency) b))::int"
        " FROM agentstate_minute WHERE operation = 'append'"
    )
    assert found == [(12, 12, 12, 12)]


def test_what_cannot_be_written_is_counted_on(store, monkeypatch):
    store.create("42")
    monkeypatch.setattr(minutes, "SAVE", "SELECT 1/0 -- %s")
    assert TALLY.write() == 0
    monkeypatch.undo()
    assert TALLY.write() == 1


def test_the_movers_thread_writes_them(store):
    from agentstate.store.execute import moving_the_feed
    from tests.store.waiting import wait_for

    with moving_the_feed():
        store.create("42")
        wait_for(lambda: rows("SELECT count(*) FROM agentstate_minute") == [(1,)])


def test_counts_of_a_minute_that_runs_are_added_in_place(clock):
    def count_each():
        for number in range(100):
            TALLY.add(
                at=clock.now, run_key=f"r-{number}", operation="append", worker="a worker's name",
                outcome="ok", attempt=1, latency_ms=3,
            )  # fmt: skip
        TALLY.write()

    with transaction.atomic():  # the statistics of one that is open are those of this session alone
        for _ in range(2):
            count_each()
        updates = rows(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables"
            " WHERE relname = 'agentstate_minute'"
        )
    assert updates == [(100, 100)]
