"""Compare and set by the client: computed anew on the run as it is, until it holds or gives up."""

from __future__ import annotations

import pytest
from agentstate_client import GaveUp, LeaseLost, NotFound, RunRecord, StaleFence

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
