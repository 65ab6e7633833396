"""Bounds on screen: what they are, what others would have said of a day, and changing them."""

from datetime import timedelta

import pytest

from agentstate.store import alerts, bounds
from agentstate.store.minutes import TALLY, Tally
from tests.dashboard.reading import Page
from tests.store.asking import rows

ADDRESS = "/alerts/overdue-runs/bounds"


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


@pytest.fixture
def three_minutes(store, still_clock):
    """A run was late for three minutes, in each of which somebody looked."""
    store.create("late", deadline_at=still_clock.now + timedelta(seconds=10))
    for _ in range(3):
        still_clock.advance(minutes=1)
        alerts.evaluate_all()


def send(client, address=ADDRESS, /, **fields):
    asked = Page(client.get(address))
    hidden = {name: asked.field(name) for name in ("form_key", "seen_version")}
    return client.post(address, hidden | {"reason": "single ones can wait"} | fields)


def test_the_board_leads_there_and_it_shows_what_counts(three_minutes, operator):
    assert Page(operator.get("/alerts")).link(r"/alerts/fenced/bounds$")
    page = Page(operator.get(ADDRESS))
    assert "It alerts from 1" in page.text
    assert (page.field("warn"), page.field("alert")) == ("", "1")
    assert "minutes were judged, the worst was 1" in page.text
    assert "As typed" not in page.text


def test_what_is_typed_is_tried_on_the_last_day_and_nothing_is_changed(three_minutes, operator):
    page = Page(send(operator, warn="1", alert="5", preview="yes", reason=""))
    assert page.status == 200
    assert "As typed warns from 1, alerts from 5 1 3 min 0 0 min" in page.text
    assert "As it is alerts from 1 1 3 min 1 3 min" in page.text
    assert (page.field("warn"), page.field("alert")) == ("1", "5")
    assert bounds.find("overdue-runs").bounds.version == 0


def test_a_link_may_carry_bounds_to_look_at(three_minutes, viewer):
    page = Page(viewer.get(f"{ADDRESS}?alert=2.5"))
    assert "As typed alerts from 2.5 0 0 min" in page.text
    assert "needs the role operator" in page.text


def test_they_are_changed_with_a_reason_and_written_down(operator):
    answer = send(operator, warn="1", alert="5")
    assert answer.url == "/alerts"
    assert "Overdue runs: it warns from 1, alerts from 5." in Page(operator.get("/alerts")).text
    assert rows("SELECT actor, action, reason FROM agentstate_operatoraction") == [
        ("person:ana", "alert-rule.changed", "single ones can wait")
    ]
    page = Page(operator.get(ADDRESS))
    assert "It came with It alerts from 1" in page.text
    assert "by ana" in page.text


def test_a_share_is_typed_in_per_cent(operator):
    page = Page(operator.get("/alerts/conflict-share/bounds"))
    assert (page.field("warn"), page.field("alert")) == ("10", "20")
    send(operator, "/alerts/conflict-share/bounds", warn="12.5", alert="30")
    rule = bounds.rule("conflict-share")
    assert (rule.warn, rule.alert) == (0.125, 0.3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"warn": "x", "alert": "1"}, "a number such as 12 or 0.5"),
        ({"warn": "", "alert": ""}, "one of warn and alert"),
        ({"warn": "5", "alert": "5"}, "above warn"),
        ({"warn": "-1", "alert": "5"}, "a number such as"),
        ({"warn": "1", "alert": "5", "reason": ""}, "Say why"),
    ],
)
def test_what_cannot_be_is_said_and_what_was_typed_stays(operator, fields, said):
    page = Page(send(operator, **fields))
    assert page.status == 422
    assert said in page.text
    assert page.field("warn") == fields["warn"]
    assert bounds.find("overdue-runs").bounds.version == 0


def test_what_somebody_else_changed_meanwhile_is_shown(operator):
    asked = Page(operator.get(ADDRESS))
    hidden = {name: asked.field(name) for name in ("form_key", "seen_version")}
    send(operator, warn="", alert="7")
    page = Page(operator.post(ADDRESS, hidden | {"warn": "", "alert": "9", "reason": "x"}))
    assert page.status == 409
    assert "It alerts from 7" in page.text
    assert page.lines[:2] == [["Field", "Now", "You typed"], ["Alerts from", "7", "9"]]
    assert page.field("alert") == "9"
    assert bounds.rule("overdue-runs").alert == 7


def test_who_may_only_look_changes_nothing(viewer):
    fields = {"warn": "", "alert": "9", "reason": "x", "seen_version": "0", "form_key": "a" * 32}
    assert viewer.post(ADDRESS, fields).status_code == 403
    assert bounds.find("overdue-runs").bounds.version == 0


def test_a_rule_that_is_not_there(viewer):
    assert viewer.get("/alerts/none/bounds").status_code == 404
