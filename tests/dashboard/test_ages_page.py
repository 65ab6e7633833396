"""Retention on screen: how long each kind is kept, what would go, and changing it."""

import pytest

from agentstate.store import retention
from agentstate.store.errors import SeqConflict
from tests.dashboard.reading import Page
from tests.store.asking import rows

ADDRESS = "/system/retention/refusals"


@pytest.fixture
def admin(log_in):
    return log_in("root", "admin")


@pytest.fixture
def old_refusals(store, still_clock):
    """Three, of 20 days ago."""
    store.create("42")
    for _ in range(3):
        with pytest.raises(SeqConflict):
            store.append("42", expected_seq=0)
    still_clock.advance(days=20)


def hidden(client, address=ADDRESS):
    asked = Page(client.get(address))
    return {name: asked.field(name) for name in ("form_key", "seen_version", "seen_days")}


def send(client, address=ADDRESS, /, **fields):
    return client.post(address, hidden(client, address) | {"reason": "the disk is full"} | fields)


def test_system_and_the_admin_lead_there_and_runs_are_said_to_be_of_the_environment(
    viewer, admin, settings
):
    assert Page(viewer.get("/system")).link(ADDRESS + "$")
    assert Page(admin.get("/admin/")).link("/system/retention$")
    page = Page(viewer.get("/system/retention"))
    assert "Created without saying so kept for ever" in page.text
    assert "AGENTSTATE_RETAIN_SECONDS is not set" in page.text
    assert page.line("Refusals")[1:3] == ["30 days", "30 days"]
    assert page.line("Minutes")[3:] == ["8 to 366 days", "never"]
    assert page.line("Sessions")[1].endswith("d, by AGENTSTATE_SESSION_SECONDS")
    assert "needs the role admin" in page.text
    settings.DEFAULT_RETAIN_SECONDS = 86_400 * 40
    assert "kept for 40d after their end" in Page(viewer.get("/system/retention")).text


def test_what_would_go_is_shown_and_nothing_is_changed(old_refusals, admin, viewer):
    page = Page(send(admin, days="10", preview="yes", reason=""))
    assert page.status == 200
    assert (page.line("As it is")[1], page.line("As typed")[1]) == ("0", "3")
    assert page.field("days") == "10"
    looked = Page(viewer.get(f"{ADDRESS}?days=10"))
    assert looked.line("As typed")[1] == "3"
    assert "You cannot change it: it needs the role admin" in looked.text
    assert retention.find("refusals").version == 0


def test_it_is_changed_once_however_often_the_form_is_sent_and_set_back(old_refusals, admin):
    fields = hidden(admin) | {"days": "10", "reason": "the disk is full"}
    for _ in range(2):
        assert admin.post(ADDRESS, fields).url == "/system/retention"
    page = Page(admin.get("/system/retention"))
    assert "Refusals: kept for 10 days from now on." in page.text
    assert page.line("Refusals")[1:3] == ["10 days", "30 days"]
    assert "by root: “the disk is full”" in page.line("Refusals")[4]
    assert page.line("Minutes")[4] == "never"
    assert "10d not 30d" in Page(admin.get("/system")).line("Refusals")[1]
    assert retention.find("refusals").version == 1
    assert retention.purge("refusals") == 3

    assert "10 days in place of the 30" in Page(admin.get(ADDRESS)).text
    send(admin, days="10", default="yes")
    assert (retention.find("refusals").days, retention.find("refusals").version) == (None, 2)
    assert (
        rows("SELECT actor, action, object FROM agentstate_operatoraction")
        == [("person:root", "retention.changed", "refusals")] * 2
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"days": "x"}, "a whole number such as 30"),
        ({"days": "-1"}, "a whole number such as 30"),
        ({"days": "1.5"}, "a whole number such as 30"),
        ({"days": "0"}, "from 8 to 3660 days"),
        ({"days": "7"}, "from 8 to 3660 days: Contention shows a week"),
        ({"days": "9" * 18}, "from 8 to 3660 days"),
        ({"days": "10", "reason": ""}, "Say why"),
        ({"days": "10", "seen_version": ""}, "has lost what you saw"),
    ],
)
def test_what_cannot_be_is_said_and_what_was_typed_stays(admin, fields, said):
    page = Page(send(admin, **fields))
    assert page.status == 422
    assert said in page.text
    assert page.field("days") == fields["days"]
    assert retention.find("refusals").version == 0


def test_somebody_was_faster_and_the_difference_is_shown(admin):
    seen = hidden(admin)
    send(admin, days="12")
    page = Page(admin.post(ADDRESS, seen | {"days": "9", "reason": "x"}))
    assert page.status == 409
    assert "You saw 30 days and asked for 9. Now they are kept for 12 days." in page.text
    assert page.field("days") == "9"
    assert retention.find("refusals").days == 12


def test_who_may_not_is_refused_and_a_kind_that_is_not_there(admin, viewer, senior):
    for client in (viewer, senior):
        answer = client.post(ADDRESS, {"days": "9", "reason": "x", "seen_version": "0"})
        assert answer.status_code == 403
    assert (
        rows("SELECT action, object, outcome FROM agentstate_refusedaction")
        == [("retention.changed", "refusals", "forbidden")] * 2
    )
    for address in ("/system/retention/none", "/system/retention/operator-actions"):
        assert admin.get(address).status_code == admin.post(address).status_code == 404
    assert admin.get("/system/retention/sessions").url == "/system/retention"
    assert viewer.get("/system/retention/free-units").status_code == 200
