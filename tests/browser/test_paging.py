"""Pages of a list in a browser: turned by hand, by keyboard, back and forward (docs/sweeps.md)."""

import pytest
from playwright.sync_api import expect


@pytest.fixture
def runs(store, clock):
    """110 runs: three pages."""
    for number in range(110):
        clock.advance(seconds=1)
        store.create(f"job-{number:03}")


def test_a_page_that_is_turned_begins_at_its_top_and_can_be_turned_on(runs, window):
    """S-707: one stood at its end, far below its first rows, and the focus was lost."""
    page = window.page
    page.goto("/runs?q=")
    rows = page.locator("#rows tr")
    page.get_by_role("link", name="Older").focus()
    for first, last in (("job-059", "job-010"), ("job-009", "job-000")):
        page.keyboard.press("Enter")
        expect(rows.first).to_have_id(f"run-{first}", timeout=20_000)
        expect(rows.last).to_have_id(f"run-{last}")
        page.wait_for_function("window.scrollY === 0", timeout=20_000)
        expect(rows.first).to_be_in_viewport()
        if last != "job-000":
            expect(page.get_by_role("link", name="Older")).to_be_focused()
    page.go_back()
    expect(rows.first).to_have_id("run-job-059", timeout=20_000)
    page.go_back()
    expect(rows.first).to_have_id("run-job-109", timeout=20_000)
    page.go_forward()
    expect(rows.first).to_have_id("run-job-059", timeout=20_000)
    assert window.faults == []


def test_two_clicks_in_a_row_turn_one_page(runs, window):
    """Sweep Paging, a second time: it did not fall."""
    page = window.page
    page.goto("/runs?q=")
    page.get_by_role("link", name="Older").dblclick()
    rows = page.locator("#rows tr")
    expect(rows.first).to_have_id("run-job-059", timeout=20_000)
    page.go_back()
    expect(rows.first).to_have_id("run-job-109", timeout=20_000)
    assert window.faults == []
