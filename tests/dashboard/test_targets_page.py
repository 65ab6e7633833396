"""Targets on screen: made, tried, changed, deleted, each asked; secrets shown once; the log."""

from datetime import timedelta

import pytest

from agentstate.store import alerts, deliveries, targets
from agentstate.store.callers import SYSTEM
from agentstate.store.delivering import Answer
from agentstate.store.minutes import TALLY, Tally
from tests.dashboard.reading import Page
from tests.store.asking import rows

BASE = "/alerts/-/targets"
ADDRESS = "https://hooks.example.org/T0/s3cret-path"


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    """Nothing writes what was counted by itself: on a busy machine slow writes are an alert."""
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


@pytest.fixture
def admin(log_in):
    return log_in("ada", "admin")


@pytest.fixture
def ops(db):
    """A webhook that is told of everything."""
    return targets.create_target(
        name="ops", kind="webhook", address=ADDRESS, hint="https://hooks.example.org/…", by=SYSTEM
    )


def send(client, address, /, **fields):
    """Open the form and send it, as a browser does."""
    asked = Page(client.get(address))
    hidden = {
        n: asked.field(n) for n in ("form_key", "seen_version") if f'name="{n}"' in asked.html
    }
    return client.post(address, hidden | {"reason": "moved"} | fields)


def new(client, **fields):
    told = {"name": "ops", "kind": "webhook", "address": ADDRESS, "least": "warn"}
    return send(client, f"{BASE}/-/new", **told | fields)


def test_without_targets_it_says_that_alerts_are_told_nowhere(viewer, admin):
    page = Page(viewer.get(BASE))
    assert "Alerts are told nowhere but here" in page.text
    assert "needs the role admin" in page.text
    assert Page(admin.get(BASE)).link("/-/new$")


def test_one_is_made_and_its_secret_is_shown_once(admin):
    page = Page(new(admin, rules=["fenced", "overdue-runs"]))
    assert "whsec_" in page.text
    assert "s3cret" not in page.html
    made = targets.find("ops")
    assert (made.created_by, made.rules) == ("person:ada", ("fenced", "overdue-runs"))
    for address in (BASE, f"{BASE}/ops", f"{BASE}/ops/change", f"{BASE}/ops/delete"):
        shown = Page(admin.get(address))
        assert shown.status == 200
        assert "https://hooks.example.org/…" in shown.text
        assert "whsec_" not in shown.html
        assert "s3cret" not in shown.html
    assert "Warnings and alerts, of Fenced writes, Overdue runs" in Page(admin.get(BASE)).text


def test_the_same_form_sent_twice_makes_one_and_shows_no_secret_again(admin):
    asked = Page(admin.get(f"{BASE}/-/new"))
    form = {"name": "ops", "kind": "webhook", "address": ADDRESS, "least": "warn"}
    form["form_key"] = asked.field("form_key")
    first = Page(admin.post(f"{BASE}/-/new", form))
    again = Page(admin.post(f"{BASE}/-/new", form))
    assert "whsec_" in first.text
    assert "whsec_" not in again.html
    assert "This form was sent before" in again.text
    assert rows("SELECT count(*) FROM agentstate_alerttarget") == [(1,)]


def test_what_cannot_be_one_is_said_and_what_was_typed_stays(admin, settings):
    settings.DELIVERY_NETWORKS = ()
    page = Page(new(admin, address="http://10.0.0.1/hook"))
    assert page.status == 422
    assert "10.0.0.1 is not a public address" in page.text
    assert page.field("name") == "ops"
    assert page.field("address") == "http://10.0.0.1/hook"
    for wrong in (
        {"name": ""}, {"name": "a b"}, {"name": "a\0b"}, {"kind": "fax"}, {"address": ""},
        {"address": "\0"}, {"least": "ok"}, {"least": ""}, {"rules": ["none"]},
        {"reason": "x" * 501},
    ):  # fmt: skip
        assert new(admin, **wrong).status_code == 422, wrong
    assert rows("SELECT count(*) FROM agentstate_alerttarget") == [(0,)]


def test_a_name_that_is_taken_is_said(admin, ops):
    page = Page(new(admin))
    assert page.status == 409
    assert "Nothing was done: exists already." in page.text


def test_only_an_admin_acts(senior, ops):
    page = Page(senior.get(f"{BASE}/ops"))
    assert "Trying and changing it needs the role admin" in page.text
    for address in ("/-/new", "/ops/test", "/ops/change", "/ops/delete"):
        forged = {"seen_version": "1", "reason": "x", "form_key": "a" * 32, "least": "warn"}
        forged |= {"name": "x", "kind": "apprise", "address": "slack://a/b/c"}
        assert senior.post(BASE + address, forged).status_code == 403
    assert rows("SELECT count(*) FROM agentstate_alerttarget") == [(1,)]


def test_a_test_is_sent_and_the_log_says_how_it_ended(admin, ops):
    answer = send(admin, f"{BASE}/ops")
    assert answer.status_code == 405
    form_key = Page(admin.get(f"{BASE}/ops")).field("form_key")
    for _ in range(2):
        answer = admin.post(f"{BASE}/ops/test", {"form_key": form_key})
        assert answer.url == f"{BASE}/ops"
    page = Page(admin.get(f"{BASE}/ops"))
    assert "a test is on its way" in page.text
    assert "waiting" in page.text
    (claim,) = deliveries.claim(limit=5)
    assert "being tried" in Page(admin.get(f"{BASE}/ops")).text
    deliveries.settle(claim, Answer(arrived=False, text="<b>no</b>", status=500))
    page = Page(admin.get(BASE))
    assert "failed" in page.text
    assert "500 <b>no</b>" in page.text
    assert "<b>no</b>" not in page.html
    one = Page(admin.get(page.link("/deliveries/msg_")))
    assert (one.status, "1 of 1" in one.text) == (200, True)


def test_a_message_is_sent_again_from_its_page(admin, viewer, ops):
    admin.post(f"{BASE}/ops/test", {"form_key": "a" * 32})
    for claim in deliveries.claim(limit=5):
        deliveries.settle(claim, Answer(arrived=True, text="fine", status=200))
    address = Page(admin.get(BASE)).link("/deliveries/msg_")
    assert "Sending it again needs the role admin" in Page(viewer.get(address)).text
    assert viewer.post(address, {"form_key": "b" * 32}).status_code == 403
    assert send(admin, address).url == address
    page = Page(admin.get(address))
    assert "It is on its way again" in page.text
    assert "again" in page.text
    assert rows("SELECT action FROM agentstate_operatoraction ORDER BY id DESC LIMIT 1") == [
        ("delivery.resent",)]  # fmt: skip


def test_one_is_switched_off_and_on_with_a_reason(admin, ops):
    assert send(admin, f"{BASE}/ops/change", least="alert", rules=["fenced"]).url == f"{BASE}/ops"
    found = targets.find("ops")
    assert (found.enabled, found.least, found.rules) == (False, "alert", ("fenced",))
    assert "Switched off by person:ada: moved" in Page(admin.get(BASE)).text
    assert (
        send(admin, f"{BASE}/ops/change", enabled="yes", least="warn", reason="").status_code == 422
    )
    assert send(admin, f"{BASE}/ops/change", enabled="yes", least="warn").status_code == 302
    assert targets.find("ops").enabled


def test_one_that_has_changed_meanwhile_is_not_changed(admin, ops):
    asked = Page(admin.get(f"{BASE}/ops/change"))
    send(admin, f"{BASE}/ops/change", least="alert", enabled="yes")
    form = {n: asked.field(n) for n in ("form_key", "seen_version")}
    page = Page(admin.post(f"{BASE}/ops/change", form | {"least": "warn", "reason": "x"}))
    assert page.status == 409
    assert "Nothing was done: it has changed since you looked." in page.text
    assert targets.find("ops").version == 2


def test_one_is_deleted_with_a_reason_and_its_log_stays(admin, ops):
    admin.post(f"{BASE}/ops/test", {"form_key": "a" * 32})
    assert send(admin, f"{BASE}/ops/delete", reason="").status_code == 422
    assert send(admin, f"{BASE}/ops/delete").url == BASE
    page = Page(admin.get(BASE))
    assert page.rows("target-") == []
    one = Page(admin.get(page.link("/deliveries/msg_")))
    assert "Its target was deleted" in one.text
    assert "target.deleted" in Page(admin.get("/audit")).text


def test_what_somebody_else_deleted_is_told_as_that(admin, ops, log_in):
    """S-407 (docs/sweeps.md): "There is no page at this address", to who had its form open."""
    form = {"form_key": "b" * 32, "seen_version": "1", "reason": "moved"}
    assert send(log_in("bea", "admin"), f"{BASE}/ops/delete").url == BASE
    page = Page(admin.post(f"{BASE}/ops/delete", form))
    assert page.status == 404
    assert "What this form is about is not there, or not any more. Nothing was done." in page.text


def test_alerts_say_when_nobody_outside_is_told(store, still_clock, viewer, admin):
    store.create("late", deadline_at=still_clock.now + timedelta(seconds=10))
    still_clock.advance(seconds=70)
    alerts.evaluate_all()
    assert "Nobody is told outside of this page" in Page(viewer.get("/alerts")).text
    new(admin)
    assert "Nobody is told outside" not in Page(viewer.get("/alerts")).text
    assert "1 of 1 on" in Page(viewer.get("/alerts")).text


@pytest.mark.parametrize("name", ["none", "%00", "a%20b", "-"])
def test_what_is_not_there_is_a_404(admin, name):
    for address in (f"{BASE}/{name}", f"{BASE}/{name}/change", f"{BASE}/{name}/delete",
                    f"{BASE}/{name}/quiet", f"/alerts/-/deliveries/{name}"):  # fmt: skip
        assert admin.get(address).status_code == 404
    assert admin.post(f"{BASE}/{name}/test").status_code == 404


@pytest.mark.parametrize("before", ["nonsense", "msg_" + "0" * 32, "%00", "x" * 5_000])
def test_any_place_in_the_log_is_a_page(viewer, before):
    assert viewer.get(f"{BASE}?before={before}").status_code == 200


def test_a_new_secret_is_shown_once_and_the_old_one_signs_for_a_day(ops, admin):
    page = Page(send(admin, f"{BASE}/ops/rotate", reason="it was in a chat"))
    assert "The new secret, shown only now" in page.text
    assert "whsec_" in page.text
    assert ops.secret not in page.html
    assert "whsec_" not in Page(admin.get(f"{BASE}/ops")).html
    assert rows("SELECT version FROM agentstate_alerttarget") == [(2,)]


def test_who_may_not_makes_no_new_secret(ops, viewer):
    assert "needs the role admin" in Page(viewer.get(f"{BASE}/ops/rotate")).text
    assert viewer.post(f"{BASE}/ops/rotate", {"reason": "x"}).status_code == 403
