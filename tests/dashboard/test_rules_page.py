"""Rules of one's own on screen: a preview while typing, made, changed, deleted; and quiet hours."""

import re
from datetime import timedelta

import pytest
from django.test import Client

from agentstate import store as the_store
from agentstate.store import alerts, bounds, deliveries, targets
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import ChangeRule
from agentstate.store.minutes import TALLY, Tally
from tests.dashboard.reading import Page
from tests.store.asking import ANA
from tests.store.test_rates import count

NEW = "/alerts/-/rules/-/new"
MINE = "/alerts/-/rules/own-mine"
FIELDS = {
    "name": "own-mine", "title": "Fenced calls of w-3", "metric": "fenced", "run": "",
    "worker": "w-3", "operation": "", "window": "5", "warn": "5", "alert": "10",
    "no_data": "no-data", "hold": "1", "again": "0", "reason": "w-3 again",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


@pytest.fixture
def an_hour_ago(still_clock):
    """Twelve fenced calls of w-3, an hour ago."""
    count(still_clock.now, outcome="stale-fence", times=12, worker="w-3")
    TALLY.write()
    still_clock.advance(seconds=3_600)


def send(client: Client, address: str = NEW, /, **fields: str):
    asked = Page(client.get(address))
    hidden = {name: asked.field(name) for name in ("form_key", "seen_version")}
    return client.post(address, hidden | FIELDS | fields)


def test_the_preview_draws_the_last_hours_with_the_bounds_and_when_it_would_have_fired(
    an_hour_ago, operator
):
    page = Page(send(operator, preview="yes", reason=""))

    assert page.status == 200
    assert "It would have begun to fire 1 time" in page.text
    assert "at alert 1 time" in page.text
    assert len(re.findall(r'class="fired-alert"', page.html)) == 1
    assert [len(re.findall(f'class="bound-{n}"', page.html)) for n in ("warn", "alert")] == [1, 1]
    assert page.field("title") == "Fenced calls of w-3"
    assert "own-mine" not in bounds.rules()

    part = Page(
        operator.post(
            NEW, FIELDS | {"preview": "yes", "worker": "w-4"},
            HTTP_HX_REQUEST="true", HTTP_HX_TARGET="preview",
        )
    )  # fmt: skip
    assert "<html" not in part.html
    assert "no figure of it is known" in part.text
    for wrong, told in (
        ({"warn": "many"}, "a number such as 12"), ({"window": "90"}, "from 60 to 3600"),
        ({"warn": "", "alert": ""}, "one of warn and alert"), ({"warn": "11"}, "above warn"),
    ):  # fmt: skip
        assert told in Page(send(operator, preview="yes", **wrong)).text


def test_it_is_made_stands_on_the_board_and_is_changed(an_hour_ago, still_clock, operator, viewer):
    assert send(operator).url == "/alerts"
    count(still_clock.now, outcome="stale-fence", times=6, worker="w-3")
    TALLY.write()
    alerts.evaluate_all()

    board = Page(operator.get("/alerts"))
    assert "6 fenced calls by worker w-3 in 5 min" in board.text
    assert "A rule of ana: “w-3 again”" in board.text
    assert Page(operator.get(board.link(r"own-mine/bounds$"), follow=True)).field("warn") == "5"
    assert send(operator, MINE, warn="7").url == "/alerts"
    assert (bounds.rule("own-mine").warn, bounds.find("own-mine").bounds.version) == (7, 2)
    assert "needs the role operator" in Page(viewer.get(MINE)).text
    assert send_as_viewer(viewer).status_code == 403
    assert operator.get("/alerts/-/rules/fenced").status_code == 404
    assert operator.get("/alerts/-/rules/own-none").status_code == 404


def send_as_viewer(viewer):
    return viewer.post(MINE, FIELDS | {"seen_version": "2", "form_key": "a" * 32})


def test_when_somebody_was_faster_the_difference_is_shown_and_what_was_typed_stays(operator):
    send(operator)
    asked = Page(operator.get(MINE))
    form = {n: asked.field(n) for n in ("form_key", "seen_version")} | FIELDS | {"warn": "6"}
    ask = ChangeRule(rule="own-mine", version=1, warn=2, alert=3, reason="me first")
    the_store.execute(ask, by=ANA)

    page = Page(operator.post(MINE, form))

    assert page.status == 409
    assert "Nothing was done" in page.text
    assert "Warns from 2 6 Alerts from 3 10" in page.text
    assert page.field("warn") == "6"
    again = form | {"seen_version": page.field("seen_version"), "form_key": page.field("form_key")}
    assert operator.post(MINE, again).url == "/alerts"
    assert bounds.rule("own-mine").warn == 6


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"title": ""}, "say what it is about"), ({"reason": ""}, "Say why"),
        ({"name": "mine"}, "begins with own-"), ({"metric": "moons"}, "Looks at: one of"),
        ({"no_data": "x"}, "Without data"), ({"hold": "-1"}, "a whole number"),
        ({"again": "99999"}, "a whole number"), ({"seen_version": ""}, "has lost what you saw"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_said_and_stays_typed(operator, wrong, told):
    page = Page(send(operator, **wrong))

    assert page.status == 422
    assert told in page.text
    assert page.field("worker") == "w-3"
    assert "own-mine" not in bounds.rules()


def test_it_is_deleted_with_a_reason(operator):
    send(operator)
    assert send(operator, f"{MINE}/delete").url == "/alerts"
    assert operator.get(MINE).status_code == 404
    assert Page(operator.get("/alerts")).status == 200


def test_quiet_hours_of_a_target_hold_back_and_the_pages_say_until_when(
    store, still_clock, log_in, operator
):
    admin = log_in("ada", "admin")
    targets.create_target(
        name="ops", kind="webhook", address="https://x.example.org/", hint="x", by=SYSTEM
    )
    address = "/alerts/-/targets/ops/quiet"
    begins = still_clock.now - timedelta(minutes=1)
    asked = Page(admin.get(address))
    form = {n: asked.field(n) for n in ("form_key", "seen_version")} | {
        "on": "yes", "begins": f"{begins:%H:%M}", "ends": f"{begins + timedelta(hours=2):%H:%M}",
        "zone": "UTC", "days": list("0123456"), "then": "send", "reason": "we sleep",
    }  # fmt: skip
    assert admin.post(address, form).url == "/alerts/-/targets/ops"
    store.create("late", deadline_at=still_clock.now + timedelta(seconds=5))
    still_clock.advance(seconds=10)
    alerts.evaluate_all()

    until = f"{begins + timedelta(hours=2):%H:%M:00}"
    assert f"held until {until}" in Page(operator.get("/alerts/-/targets")).text
    page = Page(operator.get("/alerts/-/targets/ops"))
    assert "held back" in page.text
    assert f"On until {begins + timedelta(hours=2):%Y-%m-%d} {until} UTC" in page.text
    assert "needs the role admin" in Page(operator.get(address)).text
    assert operator.post(address, form | {"form_key": "b" * 32}).status_code == 403
    for wrong, told in (
        ({"begins": "25:00"}, "a time of the day"), ({"zone": "Berlin"}, "name of a zone"),
        ({"days": []}, "choose one at least"), ({"days": ["9"]}, "from 0, Monday"),
        ({"then": "x"}, "one of send, drop"), ({"reason": ""}, "Say why"),
    ):  # fmt: skip
        answer = Page(admin.post(address, form | wrong | {"seen_version": "1"}))
        assert (answer.status, told in answer.text) == (422, True), told
    moved = Page(admin.post(address, form | {"form_key": "c" * 32}))
    assert (moved.status, "Nothing was done" in moved.text) == (409, True)


def test_ones_own_quiet_hours_count_for_the_targets_that_are_ones_own(log_in, viewer):
    admin = log_in("ada", "admin")
    asked = Page(admin.get("/alerts/-/targets/-/new"))
    new = {
        "form_key": asked.field("form_key"), "name": "vis-mail", "kind": "webhook",
        "address": "https://x.example.org/", "least": "warn", "person": "nobody",
    }  # fmt: skip
    assert "nobody of this name" in Page(admin.post("/alerts/-/targets/-/new", new)).text.lower()
    assert admin.post("/alerts/-/targets/-/new", new | {"person": "vi"}).status_code == 200
    page = Page(viewer.get("/settings/quiet"))
    assert "vis-mail" in page.text
    form = {n: page.field(n) for n in ("form_key", "seen_version")} | {
        "on": "yes", "begins": "22:00", "ends": "7:30", "zone": "Europe/Berlin", "days": ["0"],
        "critical": "yes", "then": "drop",
    }  # fmt: skip

    assert viewer.post("/settings/quiet", form).url == "/settings"
    kept = deliveries.read_quiets()["person:vi"].quiet
    assert (kept.begins, kept.ends, kept.days, kept.then) == (1_320, 450, (0,), "drop")
    assert "22:00 to 07:30 Europe/Berlin, Mon" in Page(viewer.get("/settings")).text
