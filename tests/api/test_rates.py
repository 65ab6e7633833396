"""Rates of a window: what is asked, what is answered, what is refused."""

from datetime import timedelta
from urllib.parse import urlencode

import pytest

from agentstate.store.minutes import TALLY
from tests.api.asking import Api, new_key


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db):
    TALLY.forget()


def rates(api, **query):
    TALLY.write()
    return api.get(f"/rates?{urlencode(query, doseq=True)}")


@pytest.fixture
def busy(clock):
    """Run 42, which w-1 writes to: one try was accepted, three were refused."""
    api = Api(new_key("fleet"))
    api.create("42")
    token = api.hold("42")
    for attempt in ("1", "2"):
        api.append("42", expected_seq=1, Agentstate_Fence=token, Agentstate_Attempt=attempt)
    api.append(
        "42",
        expected_seq=1,
        Agentstate_Fence=token,
        Agentstate_Attempt="3",
        Agentstate_Attempts_Max="3",
    )
    api.append("42", Agentstate_Fence=token)
    return api


def test_the_last_hour_as_a_whole(busy, clock):
    found = rates(busy, operation="append")
    total = found["total"]
    assert {name: total[name] for name in list(total)[:11]} == {
        "writes": 4, "accepted": 1, "refused": 3, "failed": 0, "conflicts": 3,
        "conflict_ratio": 0.75, "fenced": 0, "retries": 2, "retries_per_success": 2.0, "gave_up": 1,
        "attempts": [2, 1, 1, 0, 0],
    }  # fmt: skip
    assert total["latency"]["bounds_ms"][0] == 1
    assert sum(total["latency"]["counts"]) == 4
    assert (found["items"], found["by"], found["more"]) == ([], [], False)


def test_groups_name_what_they_are_of(busy, clock):
    found = rates(busy, operation="append", by=["worker", "outcome"])
    assert [(i["worker"], i["outcome"], i["writes"]) for i in found["items"]] == [
        ("w-1", "seq-conflict", 3), ("w-1", "ok", 1)]  # fmt: skip
    assert "run" not in found["items"][0]
    (minute,) = rates(busy, by="minute")["items"]
    assert minute["minute"] == clock.now.strftime("%Y-%m-%dT%H:%M:00.000000Z")
    assert rates(busy, by=["outcome"], limit=1)["more"] is True


def test_filters_and_windows(busy, clock):
    assert rates(busy, run="42", operation="append", worker="w-1")["total"]["writes"] == 4
    assert rates(busy, outcome="seq-conflict")["total"]["writes"] == 3
    assert rates(busy, run="43")["total"]["conflict_ratio"] is None
    clock.advance(minutes=5)
    now = clock.now.isoformat()
    recent = rates(busy, since=(clock.now - timedelta(minutes=1)).isoformat())
    assert (recent["total"]["writes"], recent["total"]["latency"]["p95_ms"]) == (0, None)
    before = rates(
        busy, operation="append", since=(clock.now - timedelta(minutes=9)).isoformat(), until=now
    )
    assert before["total"]["writes"] == 4
    assert before["since"] < before["until"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("by=colour", "by"), ("by=run&by=run", "by"), ("by=run,minute", "by"), ("by=", "by"),
        ("since=yesterday", "since"), ("since=2026-01-01", "since"),
        ("since=9999-01-01T00:00:00Z", "since"), ("since=1970-01-01T00:00:00Z", "since"),
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since"),
        ("until=1970-01-01T00:00:00Z&since=1970-01-01T00:00:00Z", "since"),
        ("since=2026-01-01T00:00:00%2B25:00", "since"), ("limit=0", "limit"), ("limit=-1", "limit"),
        ("limit=2001", "limit"), ("limit=1e2", "limit"), ("limit=99999999999999999999", "limit"),
        ("run=", "run"), ("run=a/b", "run"), ("run=%00", "run"), ("worker=%00", "worker"),
        ("operation=DROP", "operation"), ("operation=%00", "operation"), ("outcome=no", "outcome"),
        ("outcome=%00", "outcome"), ("wait=3", "wait"), ("colour=red", "colour"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused_with_its_field(api, query, field):
    answer = api.get(f"/rates?{query}")
    assert (answer.status, answer["field"]) == (422, field), answer.text
    assert answer["rule"]


def test_it_needs_a_key_that_may_read(with_scopes, anonymous):
    assert with_scopes("read").get("/rates").status == 200
    assert with_scopes("write").get("/rates").refused == (403, "not-allowed")
    assert anonymous.get("/rates").status == 401


@pytest.mark.parametrize("sent", ["0", "-1", "x", "1.5", "1000001", ""])
def test_a_last_attempt_that_is_no_number_is_refused(api, sent):
    api.create("42")
    answer = api.append("42", Agentstate_Attempts_Max=sent)
    assert (answer.status, answer["field"]) == (422, "Agentstate-Attempts-Max")
