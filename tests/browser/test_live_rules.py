"""The rules for live pages: one scheduler that backs off and rests, nothing taken from under a
reader, panels that tell their own age and fail alone. docs/console.md, Live pages."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import expect

from agentstate.store.commands import CreateBudget, NewBudget

pytestmark = [pytest.mark.long, pytest.mark.many]

# What acts must not stand in what is exchanged under the pointer; a link to a page that asks may.
BUTTONS = "button:not([type=button]), input:not([type=checkbox])"
ACTING = f":is([data-patch], [data-rows]) :is(form, {BUTTONS})"
LIVE = "/leases"
LEASES = re.compile(r"/leases\??$")
AGELESS = """
regions => regions.filter((one) => !(one.closest(".panel") ?? one).querySelector("[data-as-of]"))
    .map((one) => one.dataset.live)
"""
HOUR_MS = 3_600_000


def chip(page):
    return page.locator("#live")


def row(page, unit):
    return page.locator(f"tr[id='u-{unit}']")


def count_asked(window, part="/leases"):
    return len([url for url in window.requests if part in url and "/live/" not in url])


def open_leases(store, window, *, units=2):
    for number in range(units):
        store.acquire(f"unit-{number}", f"w-{number}", ttl_seconds=600)
    window.page.goto(LIVE)
    expect(chip(window.page)).to_have_attribute("data-state", "live")


def test_nobody_there_for_an_hour_rests_it_and_a_touch_goes_on(store, window):
    page = window.page
    page.clock.install()
    open_leases(store, window)

    page.clock.fast_forward(HOUR_MS + 5_000)
    expect(chip(page)).to_contain_text("Paused: nobody here")
    asked = count_asked(window)
    page.clock.run_for(30_000)
    assert count_asked(window) == asked
    store.acquire("unit-new", "w-9")
    page.mouse.move(5, 5)
    page.clock.run_for(5_000)

    expect(row(page, "unit-new")).to_be_visible()
    expect(chip(page)).to_contain_text("Live")


def hide(page, hidden):
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_hidden_tab_asks_nothing_and_is_up_to_date_when_it_is_back(store, window):
    page = window.page
    page.clock.install()
    open_leases(store, window)

    hide(page, True)
    asked = count_asked(window)
    page.clock.run_for(60_000)
    assert count_asked(window) == asked
    store.acquire("unit-new", "w-9")
    hide(page, False)
    page.clock.run_for(3_000)

    expect(row(page, "unit-new")).to_be_visible()


def test_what_fails_is_asked_less_and_less_often(store, window):
    page = window.page
    page.clock.install()
    open_leases(store, window)
    tries = []
    page.route(LEASES, lambda route: (tries.append(1), route.abort())[1])

    for _ in range(60):
        page.clock.run_for(1_000)

    # Every three seconds it would have been twenty.
    assert 2 <= len(tries) <= 8
    expect(chip(page)).to_have_attribute("data-state", "off")
    expect(chip(page)).to_contain_text("Reconnecting")
    expect(page.locator("#board")).to_have_class("stack is-stale")
    expect(row(page, "unit-0")).to_be_visible()
    page.unroute(LEASES)
    page.clock.run_for(30_000)
    expect(chip(page)).to_have_attribute("data-state", "live", timeout=20_000)
    expect(page.locator("#board")).not_to_have_class("stack is-stale")


def test_a_panel_that_fails_is_late_alone(store, window):
    store.create("42")
    store.hold("42", "w-1", ttl_seconds=600)
    page = window.page
    page.clock.install()
    page.goto("/runs/42")
    expect(chip(page)).to_have_attribute("data-state", "live")
    drawn = re.compile(r"/runs/42/(timeline|refresh\?.*\bdrawn=)")
    page.route(drawn, lambda route: route.fulfill(status=500))

    for _ in range(70):
        page.clock.run_for(1_000)

    expect(chip(page)).to_have_attribute("data-state", "stale")
    late = page.locator(".as-of[data-fresh=stale]")
    expect(late).to_have_count(1)
    expect(page.locator(".panel:has(.as-of[data-fresh=stale])")).to_contain_text("Timeline")
    expect(page.locator("[data-live].is-stale")).to_have_count(0)


def test_what_is_in_use_is_kept_and_the_chip_says_why(store, window):
    page = window.page
    open_leases(store, window)
    new = row(page, "unit-new")

    page.keyboard.press("j")
    store.acquire("unit-new", "w-9", ttl_seconds=30)
    expect(chip(page)).to_have_text("Frozen: in focus", timeout=10_000)
    expect(new).to_have_count(0)
    page.evaluate("document.activeElement.blur()")
    expect(new).to_be_visible(timeout=10_000)

    row(page, "unit-0").locator(".l-since").hover()
    store.acquire("unit-newer", "w-9", ttl_seconds=20)
    expect(chip(page)).to_have_text("Frozen: pointed at", timeout=10_000)
    expect(row(page, "unit-newer")).to_have_count(0)
    page.mouse.down()
    expect(chip(page)).to_have_text("Frozen: pressed")
    page.mouse.up()
    page.mouse.move(5, 5)
    expect(row(page, "unit-newer")).to_be_visible(timeout=10_000)
    expect(chip(page)).to_have_attribute("data-state", "live")
    assert window.faults == []


def test_regions_hold_data_only_and_tell_their_age(store, clock, open_window):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=100)))
    store.hold("42", "w-1", ttl_seconds=60)
    clock.advance(seconds=100)
    store.create("43", deadline_at=clock.now + timedelta(seconds=60))
    window = open_window("bo", "admin")
    for address in ("/runs", "/runs/42", LIVE, "/leases/run:42", "/leases/run:42/reclaim",
                    "/workers", "/contention", "/budgets", "/budgets/team", "/alerts",
                    "/alerts/-/targets", "/system"):  # fmt: skip
        window.page.goto(address)
        assert window.page.locator(ACTING).count() == 0, address
        regions = window.page.locator("[data-live]").evaluate_all(AGELESS)
        assert regions == [], address
    assert window.faults == []


def test_our_own_scripts_are_short():
    scripts = Path(settings.BASE_DIR, "dashboard/static/dashboard").glob("*.js")

    assert sum(len(script.read_text().splitlines()) for script in scripts) < 650


@pytest.mark.parametrize("address", ["/leases", "/workers"])
def test_a_session_that_is_over_takes_the_whole_page_to_the_login(store, window, address):
    from dashboard.models import Session

    store.acquire("unit", "w-1")
    window.page.goto(address)
    Session.objects.all().delete()

    window.page.wait_for_url(f"**/login?next=%2F{address[1:]}", timeout=20_000)
    expect(window.page.locator("table")).to_have_count(0)
