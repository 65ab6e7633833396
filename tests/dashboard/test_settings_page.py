"""What people choose for themselves: the zone of all times, theme, density, keys, what opens."""

import re
from datetime import UTC, datetime

import pytest

from dashboard.models import Preference, SavedView
from tests.dashboard.reading import Page

CHOICES = {
    "zone": "Asia/Kathmandu", "theme": "dark", "density": "compact", "opens": "leases", "view": "",
}  # fmt: skip


def seen(client) -> str:
    return field(Page(client.get("/settings")), "seen_version")


def field(page: Page, name: str) -> str:
    return next(
        str(attrs["value"])
        for tag, attrs in page.tags
        if tag == "input" and attrs.get("name") == name
    )


def zone_shown(client) -> str:
    """Of the instant that the page says it is as of."""
    found = re.search(r"As of \d\d:\d\d:\d\d (\S+)", Page(client.get("/alerts")).text)
    assert found
    return found[1]


def save(client, **changed):
    asked = CHOICES | {"seen_version": seen(client)} | changed
    return client.post("/settings", asked)


def html_of(client, address="/alerts"):
    tags = Page(client.get(address)).tags
    return next(attrs for tag, attrs in tags if tag == "html")


def test_what_is_chosen_counts_on_every_page(viewer, log_in):
    answer = save(viewer, keys="")

    assert answer.status_code == 302
    assert html_of(viewer) == {
        "lang": "en", "data-zone": "Asia/Kathmandu",
        "data-theme": "dark", "data-density": "compact", "data-keys": "off",
    }  # fmt: skip
    page = Page(viewer.get("/leases"))
    assert page.status == 200
    assert zone_shown(viewer) == "UTC+05:45"
    assert viewer.get("/").headers["Location"] == "/leases"
    assert Page(viewer.get("/now")).status == 200
    other = log_in("somebody-else", "viewer")
    assert "data-density" not in html_of(other)
    assert other.get("/").status_code == 200


def test_settings_and_account_lead_to_each_other(viewer, log_in):
    assert "/account" in Page(viewer.get("/settings")).html.partition("<main")[2]
    account = Page(viewer.get("/account")).html.partition("<main")[2]
    assert 'href="/settings"' in account
    assert 'href="/settings/quiet"' in account
    without = Page(log_in("new", None).get("/account")).html.partition("<main")[2]
    assert 'href="/settings' not in without


def test_another_browser_of_the_same_person_has_the_same(viewer):
    save(viewer)
    person = viewer.get("/leases").wsgi_request.user
    viewer.cookies.clear()
    viewer.force_login(person)

    assert html_of(viewer)["data-theme"] == "dark"


def test_the_form_shows_what_counts_and_refuses_what_is_none(viewer):
    for wrong, told in (
        ({"zone": "Berlin"}, "no zone of this name"),
        ({"theme": "pink"}, "Choose one of what is offered"),
        ({"opens": "admin"}, "Choose one of what is offered"),
        ({"view": "999"}, "not there any more"),
        ({"seen_version": "x"}, "has lost what you saw"),
    ):
        answer = Page(save(viewer, **wrong))
        assert answer.status == 422
        assert told in answer.text
    assert not Preference.objects.exists()
    save(viewer)
    assert field(Page(viewer.get("/settings")), "zone") == "Asia/Kathmandu"


def test_sent_twice_it_is_kept_once_and_what_was_changed_elsewhere_is_shown(viewer):
    before = seen(viewer)
    for _ in range(2):
        assert save(viewer, seen_version=before).status_code == 302
    assert Preference.objects.get().version == 1

    answer = Page(save(viewer, seen_version=before, zone="Europe/Berlin"))

    assert answer.status == 409
    assert "Asia/Kathmandu Europe/Berlin" in answer.text
    assert field(answer, "zone") == "Europe/Berlin"
    again = save(viewer, seen_version=field(answer, "seen_version"), zone="Europe/Berlin")
    assert again.status_code == 302
    assert Preference.objects.get().zone == "Europe/Berlin"


def test_runs_opens_with_a_view_that_the_person_sees(viewer, clock):
    person = viewer.get("/alerts").wsgi_request.user
    now = clock.now() if callable(getattr(clock, "now", None)) else None
    view = SavedView.objects.create(
        owner=person, name="mine", filter="status:failed", changed_by="vi",
        changed_at=now or "2026-03-02T00:00:00Z",
    )  # fmt: skip

    save(viewer, view=str(view.pk), opens="runs")

    assert viewer.get("/").headers["Location"] == "/runs"
    assert "status%3Afailed" in viewer.get("/runs").headers["Location"]


def test_the_zone_is_changed_for_now_on_any_page(viewer):
    save(viewer, opens="")
    back = viewer.post("/settings/zone", {"zone": "UTC"}, HTTP_REFERER="http://testserver/leases")
    assert back.headers["Location"] == "http://testserver/leases"
    assert zone_shown(viewer) == "UTC"

    viewer.post("/settings/zone", {"zone": "Asia/Kathmandu"})
    assert zone_shown(viewer) == "UTC+05:45"


def test_an_address_may_say_the_zone_and_its_parts_follow(viewer, settings):
    settings.AGENTSTATE_SHARED_ANSWERS = True
    parts = {"HTTP_HX_REQUEST": "true", "HTTP_HX_TARGET": "board"}
    shown = {"HTTP_HX_CURRENT_URL": "http://testserver/alerts?zone=Asia/Kathmandu"}

    assert "UTC+05:45" in Page(viewer.get("/alerts", {"zone": "Asia/Kathmandu"})).text
    assert "UTC+05:45" in Page(viewer.get("/alerts", **parts, **shown)).text
    assert "UTC+05:45" not in Page(viewer.get("/alerts", **parts)).text
    save(viewer)  # the answer that was shared a moment ago is not this person's
    assert "UTC+05:45" in Page(viewer.get("/alerts", **parts)).text


def test_a_time_that_is_typed_goes_into_the_address_as_an_instant(viewer):
    save(viewer)
    form = Page(viewer.get("/contention"))
    assert field(form, "zone") == "Asia/Kathmandu"

    answer = viewer.get("/contention", {"zone": "Asia/Kathmandu", "from": "2026-03-02 12:00"})

    assert answer.headers["Location"] == "/contention?from=2026-03-02T06%3A15%3A00Z"


@pytest.mark.parametrize("theme", ["light", "dark", "system"])
def test_the_theme_of_the_bar_is_kept_with_the_person(viewer, theme):
    viewer.post("/theme", {"theme": theme})
    viewer.cookies.pop("agentstate_theme", None)

    assert html_of(viewer)["data-theme"] == theme


@pytest.mark.parametrize(("hour", "said"), [(8, "PDT"), (9, "PST")])
def test_a_time_that_came_twice_says_its_zone_once(store, still_clock, viewer, hour, said):
    """S-201 (docs/sweeps.md): the moment said it, and the page once more: "PST PST"."""
    still_clock.set(datetime(2026, 11, 1, hour, 30, tzinfo=UTC))
    store.create("42")
    save(viewer, seen_version=seen(viewer), zone="America/Los_Angeles")
    for address in ("/now", "/leases", "/workers", "/alerts", "/runs/42"):
        text = Page(viewer.get(address, follow=True)).text
        assert f"01:30:00 {said}" in text
        assert f"{said} {said}" not in text
