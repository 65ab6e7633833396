"""Alerts over the API: how they stand, and acknowledging one."""

from datetime import timedelta

import pytest

from agentstate.store import alerts
from agentstate.store.alerting import RULES
from agentstate.store.minutes import TALLY, Tally
from tests.api.asking import Api, new_key


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    """Nothing writes what was counted by itself: on a busy machine slow writes are an alert."""
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


@pytest.fixture
def firing(clock):
    """A run is past its deadline, and somebody has looked."""
    api = Api(new_key("fleet"))
    deadline = (clock.now + timedelta(seconds=10)).isoformat()
    api.create("late", deadline_at=deadline)
    clock.advance(seconds=10)
    alerts.evaluate_all()
    return api


def acknowledge(api, rule="overdue-runs", *, version=1, reason="at it", **headers):
    return api.post(
        f"/alerts/{rule}/acknowledge", {"version": version, "reason": reason}, **headers
    )


def test_before_anybody_has_judged_it_says_so(api):
    found = api.get("/alerts")
    assert (found["silent"], found["checked_at"], found["firing"]) == (True, None, 0)
    assert {item["rule"] for item in found["items"]} == set(RULES)
    assert {item["message"] for item in found["items"]} == {"not judged yet"}


def test_what_fires_comes_first_with_its_facts(firing, clock):
    found = firing.get("/alerts")
    assert (found["silent"], found["firing"]) == (False, 1)
    first = found["items"][0]
    assert (first["rule"], first["state"], first["value"], first["alert"]) == (
        "overdue-runs", "alert", 1, 1)  # fmt: skip
    assert first["facts"] == {"runs": ["late"]}
    assert first["message"] == "past their deadline and not ended: 1"
    clock.advance(minutes=1)
    assert firing.get("/alerts")["silent"] is True


def test_an_acknowledgement_is_kept_and_sent_twice_is_one(firing):
    first = acknowledge(firing, Idempotency_Key="k")
    again = acknowledge(firing, Idempotency_Key="k")
    assert (first.status, first["by"]) == (200, "key:fleet")
    assert (again.json, again.headers["Idempotent-Replayed"]) == (first.json, "true")
    item = firing.get("/alerts")["items"][0]
    assert (item["acknowledged_by"], item["acknowledged_why"]) == ("key:fleet", "at it")


def test_what_cannot_be_acknowledged_is_refused(firing, with_scopes):
    stale = acknowledge(firing, version=9)
    assert stale.refused == (412, "version-conflict")
    assert stale["current"] == {"rule": "overdue-runs", "state": "alert", "version": 1}
    assert acknowledge(firing, "fenced").refused == (412, "version-conflict")
    assert acknowledge(firing, "none").refused == (404, "not-found")
    assert acknowledge(firing, reason="").refused == (422, "invalid")
    assert acknowledge(firing, reason="a\nb").refused == (422, "invalid")
    assert acknowledge(firing, version=0).refused == (422, "invalid")
    assert acknowledge(firing, "a b").refused == (422, "invalid")
    assert acknowledge(with_scopes("read", "write")).refused == (403, "not-allowed")
    assert firing.post("/alerts/overdue-runs/acknowledge", {"version": 1}).status == 422


def snooze(api, rule="overdue-runs", *, version=1, seconds=600, reason="known", **headers):
    sent = {"version": version, "seconds": seconds, "reason": reason}
    return api.post(f"/alerts/{rule}/snooze", sent, **headers)


def test_a_snoozed_alert_says_so_and_what_it_is_all_the_same(firing, clock):
    done = snooze(firing, Idempotency_Key="k")
    assert (done.status, done["state"], done["by"]) == (200, "alert", "key:fleet")
    assert snooze(firing, Idempotency_Key="k").json == done.json
    (item,) = (i for i in firing.get("/alerts")["items"] if i["rule"] == "overdue-runs")
    assert (item["state"], item["judged"], item["snoozed_until"], item["snoozed_why"]) == (
        "snoozed", "alert", done["until"], "known")  # fmt: skip
    woken = snooze(firing, seconds=None)
    assert "until" not in woken.json
    assert firing.get("/alerts")["items"][0]["state"] == "alert"


def test_what_cannot_be_snoozed_is_refused(firing, with_scopes):
    assert snooze(firing, version=9).refused == (412, "version-conflict")
    assert snooze(firing, "none").refused == (404, "not-found")
    for seconds in (0, 59, 2_592_001, 60.5, "60", True):
        assert snooze(firing, seconds=seconds).refused == (422, "invalid")
    assert snooze(firing, reason="").refused == (422, "invalid")
    assert firing.post("/alerts/overdue-runs/snooze", {"version": 1, "reason": "x"}).status == 422
    assert snooze(with_scopes("read", "write")).refused == (403, "not-allowed")
