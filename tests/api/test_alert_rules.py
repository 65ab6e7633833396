"""Rules of alerts over HTTP: their bounds, changing them, and what others would have said."""

import json
from datetime import timedelta

import pytest

from agentstate.store import alerts
from agentstate.store.alerting import RULES
from agentstate.store.minutes import TALLY, Tally

RULE = "/alerts/rules/overdue-runs"


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


def patch(api, rule, document, **headers):
    return api.send("PATCH", f"/alerts/rules/{rule}", json.dumps(document), **headers)


def change(api, version=0, reason="too many at night", **bounds):
    asked = {"version": version, "reason": reason, **bounds}
    return patch(api, "overdue-runs", asked, Idempotency_Key="k")


def test_each_rule_says_what_counts_and_what_it_came_with(api):
    found = api.get("/alerts/rules")["items"]
    assert [item["rule"] for item in found] == list(RULES)
    first = next(item for item in found if item["rule"] == "conflict-share")
    assert (first["warn"], first["alert"], first["own_warn"], first["version"]) == (
        0.1, 0.2, 0.1, 0)  # fmt: skip
    assert (first["unit"], first["changed_at"], first["window_seconds"]) == ("share", None, 300)


def test_bounds_are_changed_once_and_the_board_goes_by_them(api):
    first, again = change(api, warn=1, alert=5), change(api, warn=1, alert=5)
    assert (first.status, first["version"], first["by"]) == (200, 1, "key:fleet")
    assert (again.json, again.headers["Idempotent-Replayed"]) == (first.json, "true")
    told = next(i for i in api.get("/alerts")["items"] if i["rule"] == "overdue-runs")
    assert (told["warn"], told["alert"]) == (1, 5)
    kept = next(i for i in api.get("/alerts/rules")["items"] if i["rule"] == "overdue-runs")
    assert (kept["own_warn"], kept["own_alert"], kept["changed_why"]) == (
        None, 1, "too many at night")  # fmt: skip


def test_new_bounds_are_judged_by_from_then_on(clock, api):
    api.create("late", deadline_at=(clock.now + timedelta(seconds=10)).isoformat())
    clock.advance(seconds=10)
    alerts.evaluate_all()
    assert state_of(api) == "alert"
    change(api, warn=2, alert=5)
    clock.advance(minutes=5)  # good again only after a while
    alerts.evaluate_all()
    assert state_of(api) == "ok"


def state_of(api):
    return next(i["state"] for i in api.get("/alerts")["items"] if i["rule"] == "overdue-runs")


def test_null_is_never_and_what_is_left_out_stays(api):
    assert change(api, warn=0.5).json["alert"] == 1
    asked = {"version": 1, "alert": None, "reason": "x"}
    assert patch(api, "overdue-runs", asked)["warn"] == 0.5
    assert patch(api, "overdue-runs", asked | {"version": 2, "warn": None}).refused == (
        422, "invalid")  # fmt: skip


@pytest.mark.parametrize(
    "bounds",
    [{"alert": -1}, {"alert": "5"}, {"alert": True}, {"warn": 5, "alert": 5}, {"alert": 1e300},
     {"alert": 0}, {"warn": None, "alert": None}, {"limit": 5}, {"warn": 9, "alert": 2},
     {"alert": "many"}, {"alert": 5, "reason": ""}],
)  # fmt: skip
def test_bounds_that_nothing_can_be_judged_by_are_refused(api, bounds):
    assert change(api, **bounds).refused == (422, "invalid")


def test_what_somebody_else_changed_is_not_written_over(api):
    change(api, alert=5)
    found = patch(api, "overdue-runs", {"version": 0, "alert": 9, "reason": "x"})
    assert found.refused == (412, "version-conflict")
    assert (found["current"]["alert"], found["current"]["version"]) == (5, 1)


def test_who_may_only_read_changes_nothing(with_scopes):
    reader = with_scopes("read")
    assert reader.get("/alerts/rules").status == 200
    assert change(reader, alert=5).status == 403
    assert change(with_scopes("read", "write"), alert=5).refused == (403, "not-allowed")


def test_a_rule_that_is_not_there(api):
    assert api.get("/alerts/rules/none/preview?warn=1").refused == (404, "not-found")
    asked = {"version": 0, "alert": 2, "reason": "x"}
    assert patch(api, "none", asked).refused == (404, "not-found")


def test_a_preview_tells_the_last_day_with_both(clock, api):
    deadline = (clock.now + timedelta(seconds=10)).isoformat()
    api.create("late", deadline_at=deadline)
    for _ in range(3):
        clock.advance(minutes=1)
        alerts.evaluate_all()
    found = api.get(f"{RULE}/preview?warn=1&alert=2.5")
    assert (found.status, found["minutes"], found["worst"]) == (200, 3, 1)
    assert (found["now"]["alert"], found["now"]["began"], found["now"]["alert_minutes"]) == (
        1,
        1,
        3,
    )
    assert (found["then"]["alert"], found["then"]["alerted"], found["then"]["firing_minutes"]) == (
        2.5, 0, 3)  # fmt: skip
    assert {item["version"] for item in api.get("/alerts/rules")["items"]} == {0}


@pytest.mark.parametrize("query", ["", "?warn=x", "?warn=-1", "?warn=5&alert=1", "?alert=nan"])
def test_a_preview_of_bounds_that_cannot_be_is_refused(api, query):
    assert api.get(f"{RULE}/preview{query}").refused == (422, "invalid")
