"""Compare and set by the client: computed anew on the run as it is, until it holds or gives up."""

from __future__ import annotations

import pytest
from agentstate_client import (
    Applied,
    Duplicate,
    Event,
    FenceRequired,
    GaveUp,
    LeaseLost,
    NotFound,
    RunRecord,
    SeqConflict,
    StaleFence,
)

from agentstate.store.minutes import TALLY
from tests.store.asking import at_once, rows


def counted(record: RunRecord) -> dict[str, int]:
    return {"n": record.attrs.get("n", 0) + 1}


def test_the_first_try_holds_when_nobody_interferes(worker):
    client = worker()
    client.create(task="audit", key="42", attrs={"n": 4})

    record, version, attempts = client.cas("42", counted)

    assert (record, version, attempts) == ({"n": 5}, 2, 1)
    assert client.run("42").read().attrs == {"n": 5}


def test_it_is_computed_anew_on_what_somebody_else_wrote(worker):
    client, other = worker("a"), worker("b")
    client.create(task="audit", key="42", attrs={"n": 0})
    seen = []

    def change(record: RunRecord) -> dict[str, int]:
        if not seen:
            other.cas("42", lambda r: {"n": 10})
        seen.append(record.attrs["n"])
        return counted(record)

    assert client.cas("42", change) == ({"n": 11}, 3, 2)
    assert seen == [0, 10]
    assert rows("SELECT code, attempt FROM agentstate_refusal") == [("version-conflict", 1)]


def test_giving_up_says_how_often_and_what_stood_in_the_way(worker):
    client, other = worker("a"), worker("b")
    client.create(task="audit", key="42")

    def change(record: RunRecord) -> dict[str, int]:
        other.cas("42", counted)
        return {"n": -1}

    with pytest.raises(GaveUp) as gave_up:
        client.cas("42", change, attempts=3)

    assert gave_up.value.attempts == 3
    assert gave_up.value.last_conflict.current["version"] == 4
    assert client.run("42").read().attrs == {"n": 3}
    assert rows("SELECT attempt FROM agentstate_refusal ORDER BY id") == [(1,), (2,), (3,)]


def test_giving_up_is_counted_and_a_try_that_holds_is_not(worker):
    client, other = worker("a"), worker("b")
    client.create(task="audit", key="given-up")

    def change(record: RunRecord) -> dict[str, int]:
        other.cas("given-up", counted, attempts=1)
        return {"n": -1}

    for attempts in (1, 3):
        with pytest.raises(GaveUp):
            client.cas("given-up", change, attempts=attempts)

    TALLY.write()
    found = rows(
        "SELECT outcome, sum(count)::int, sum(gave_up)::int FROM agentstate_minute"
        " WHERE run_key = 'given-up' AND operation = 'patch' GROUP BY outcome ORDER BY outcome"
    )
    assert found == [("ok", 4, 0), ("version-conflict", 4, 2)]


def test_eight_adders_lose_nothing(worker):
    client = worker()
    client.create(task="audit", key="42", attrs={"n": 0})

    outcomes = at_once(8, lambda n: client.cas("42", counted, attempts=50))

    assert [o for o in outcomes if isinstance(o, Exception)] == []
    assert client.run("42").read().attrs == {"n": 8}
    assert sorted(o.record["n"] for o in outcomes) == list(range(1, 9))


def test_a_change_that_returns_nothing_is_an_error_and_writes_nothing(worker):
    client = worker()
    client.create(task="audit", key="42", attrs={"n": 1})
    with pytest.raises(ValueError, match="None"):
        client.cas("42", lambda record: None)
    with pytest.raises(NotFound):
        client.cas("none", counted)
    assert client.run("42").read().version == 1


def test_a_handle_with_a_lease_writes_under_it(worker):
    client, other = worker("a"), worker("b")
    run = client.create(task="audit", key="42", status="running").acquire()
    assert client.cas(run, counted).record == {"n": 1}
    run.release()
    taken = other.run("42").acquire()
    with pytest.raises((StaleFence, LeaseLost)):
        client.cas(run, counted)
    assert other.cas(taken, counted).record == {"n": 2}


def test_a_change_id_is_applied_once_whoever_repeats_it(worker):
    client, other = worker("a"), worker("b")
    client.create(task="audit", key="42", attrs={"n": 0})

    assert client.apply("req-1", "42", counted) == Applied(version=2, attempts=1)
    client.cas("42", lambda record: {"n": 10})
    assert client.apply("req-1", "42", counted) == Duplicate(version=2)
    assert client.run("42").read().attrs == {"n": 10}

    held = other.run("42").acquire()  # under a lease the same id is known all the same
    assert other.apply("req-1", held, counted) == Duplicate(version=2)
    with pytest.raises(FenceRequired):
        client.apply("req-2", "42", counted)


def test_a_change_id_races_itself(worker):
    clients = [worker(f"w-{n}") for n in range(6)]
    clients[0].create(task="audit", key="42", attrs={"n": 0})

    def once(n: int) -> Applied | Duplicate:
        return clients[n].apply("req-1", "42", counted, attempts=20)

    results = at_once(6, once)

    assert [r for r in results if isinstance(r, Applied)] != []
    assert {r.version for r in results} == {2}
    assert sum(isinstance(r, Applied) for r in results) == 1
    assert clients[0].run("42").read().attrs == {"n": 1}


def test_who_lost_the_race_for_a_number_takes_the_next_one(worker):
    client, other = worker("a"), worker("b")
    run = client.create(task="audit", key="42", events=[Event("step") for _ in range(3)])
    run.append(Event("tool.called"), expected_seq=4)

    with pytest.raises(SeqConflict):
        other.run("42").append(Event("tool.called"), expected_seq=4)
    appended = other.run("42").append(Event("tool.called"), expected_seq=4, retry="next-free")

    assert (appended.first_seq, appended.last_seq) == (6, 6)


def test_eight_who_want_the_same_number_get_eight_in_a_row(worker):
    client = worker()
    client.create(task="audit", key="42")

    def append(n: int) -> int:
        return (
            client.run("42")
            .append(Event("step"), expected_seq=1, retry="next-free", attempts=30)
            .first_seq
        )

    assert sorted(at_once(8, append)) == list(range(2, 10))


def test_the_next_free_number_is_not_tried_for_ever(worker):
    client, other = worker("a"), worker("b")
    client.create(task="audit", key="42")
    for _ in range(3):
        other.run("42").append(Event("step"))
    with pytest.raises(GaveUp) as gave_up:
        client.run("42").append(Event("x"), expected_seq=1, retry="next-free", attempts=1)
    assert isinstance(gave_up.value.last_conflict, SeqConflict)
    assert gave_up.value.last_conflict.last_seq == 4


@pytest.mark.parametrize("told", [{"retry": "always", "expected_seq": 1}, {"retry": "next-free"}])
def test_a_retry_that_makes_no_sense_is_refused_before_sending(worker, told):
    client = worker()
    client.create(task="audit", key="42")
    with pytest.raises(ValueError, match="next-free"):
        client.run("42").append(Event("x"), **told)
