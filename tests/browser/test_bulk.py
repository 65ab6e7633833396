"""Many runs at once, from the ticks to the last outcome, watched while it is worked off."""

import pytest
from playwright.sync_api import expect

from agentstate.store import bulks


@pytest.mark.long
@pytest.mark.many
def test_ticked_runs_are_tried_dry_begun_watched_and_stopped(store, open_window):
    for number in range(45):
        store.create(f"job-{number:02}", task="say hello")
    window = open_window(role="operator")
    page = window.page
    page.get_by_label("Select all on this page").check()
    page.get_by_label("Select job-44").uncheck()
    page.locator("#selection").get_by_role("button", name="Bulk…").click()
    expect(page.get_by_text("44 runs that you picked")).to_be_visible(timeout=20_000)
    page.get_by_label("Cancel").check()
    page.get_by_role("button", name="See what it would do").click()
    expect(page.get_by_text("44, all that you picked")).to_be_visible(timeout=20_000)
    store.move("job-07", "cancelled")
    page.get_by_label("Why").fill("a bad deploy")
    page.get_by_role("button", name="Cancel 44 runs").dblclick()
    expect(page.locator("h1")).to_contain_text("44 picked", timeout=20_000)
    assert page.locator("#bulk").get_attribute("data-live-every") == "6"

    # It moves by itself, and in the place that it has.
    claim = bulks.claim()
    bulks.step(claim)
    expect(page.locator("#bulk")).to_contain_text("20 of 44", timeout=20_000)
    page.locator("h1").click()
    page.keyboard.press("s")
    expect(page.locator("h1")).to_contain_text("Stop it?", timeout=20_000)
    page.get_by_label("Why").fill("the wrong ones")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#bulk")).to_contain_text("24 had no turn", timeout=20_000)
    assert bulks.step(claim) is None
    page.get_by_role("link", name="Done").click()
    expect(page.locator("#item-1")).to_contain_text("cancelled", timeout=20_000)
    page.go_back()
    page.keyboard.press("g")
    page.keyboard.press("u")
    expect(page.locator(".bulks tbody tr")).to_have_count(1, timeout=20_000)
    assert window.faults == []
