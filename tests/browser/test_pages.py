"""A walk through the pages beside runs and leases, as an operator takes it."""

import pytest
from playwright.sync_api import expect

from tests.browser.scene import Scene
from tests.store.asking import rows


@pytest.fixture
def company(store, clock):
    scene = Scene(store, clock)
    scene.company()
    return scene


def actions():
    return [name for (name,) in rows("SELECT action FROM agentstate_operatoraction ORDER BY id")]


def test_a_cap_is_changed_after_its_meaning_was_shown(company, open_window):
    window = open_window("bo", "senior")
    page = window.page
    page.goto("/budgets")

    page.get_by_role("link", name="ticket-77").first.click()
    page.get_by_role("link", name="Change the cap").click()
    page.get_by_label("New cap").fill("200 000")
    page.keyboard.press("Enter")
    expect(
        page.get_by_text("charge refused in the last hour would fit if it comes again now")
    ).to_be_visible()
    page.get_by_label("Why").fill("the ticket is worth it")
    page.keyboard.press("Enter")

    expect(page.get_by_text("The cap of tokens is")).to_be_visible()
    assert actions()[-1] == "budget.cap-changed"
    assert window.faults == []


def test_a_worker_is_asked_to_drain_and_that_is_taken_back(store, company, open_window):
    store.acquire("unit", "w-9")
    window = open_window("ana", "operator")
    page = window.page
    page.goto("/workers")

    page.get_by_label("Drain w-9").click()
    page.get_by_label("Why").fill("the node goes")
    page.get_by_role("button", name="Drain w-9").click()
    page.get_by_label("Stop draining w-9").click()
    page.get_by_label("Why").fill("it stays")
    page.get_by_role("button", name="Stop draining w-9").click()

    expect(page.get_by_label("Drain w-9")).to_be_visible()
    assert actions()[-2:] == ["worker.drained", "worker.undrained"]
    assert window.faults == []


def test_a_run_is_noted_from_its_menu_and_its_badge_comes_by_itself(company, window):
    page = window.page
    page.goto("/runs/ticket-77")

    expect(page.locator("#invariants")).to_contain_text("as of v")
    page.locator("#actions").get_by_text("More").click()
    page.get_by_role("link", name="Tags and notes").click()
    page.get_by_label("Notes").fill("Called three times.")
    page.get_by_label("Add tags").fill("vip")
    page.get_by_label("Why").fill("they called again")
    page.get_by_role("button", name="Save").click()

    expect(page.locator("#head")).to_contain_text("Called three times.")
    expect(page.locator("#head")).to_contain_text("vip")
    assert window.faults == []


def test_the_search_on_top_leads_to_a_receipt(company, window):
    page = window.page
    page.goto("/system")
    expect(page.get_by_role("heading", name="Its own jobs")).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type("req-1")
    page.keyboard.press("Enter")

    page.wait_for_url("**/receipts?request_id=req-1")
    expect(page.get_by_text("Applied once")).to_be_visible()
    assert window.faults == []


def test_on_a_phone_the_other_places_are_behind_more_also_without_scripts(company, open_window):
    page = open_window("ana", "operator", java_script_enabled=False).page
    page.set_viewport_size({"width": 390, "height": 844})

    for name in ("Budgets", "Audit", "System"):
        more = page.locator(".places .menu")
        more.get_by_text("More").click()
        more.get_by_role("link", name=name).click()
        page.wait_for_url(f"**/{name.lower()}")
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
