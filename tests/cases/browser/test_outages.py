"""A site that is away for a while, behind a proxy that answers for it."""

import time

import pytest
from playwright.sync_api import expect

from tests.cases.processes import Gateway

# Long enough for the pauses between polls to be half a minute by then, whatever chance adds.
AWAY_MS, SOON_MS = 40_000, 10_000


@pytest.fixture
def gateway(site):
    between = Gateway(site)
    yield between
    between.close()


def test_an_open_page_goes_on_soon_after_a_503_by_itself(store, window, gateway):
    """O-31: whatever the pauses between polls had become, and it says meanwhile that it is old."""
    store.create("42")
    page = window.page
    page.goto(f"{gateway.url}/runs/42")
    chip = page.locator("#live")
    expect(chip).to_have_attribute("data-state", "live")

    began = time.monotonic()
    gateway.go_away()
    expect(page.locator("#live-text")).to_contain_text(" s", timeout=AWAY_MS)
    assert chip.get_attribute("data-state") in ("stale", "off")
    expect(page.locator("#e-1")).to_be_attached()
    page.wait_for_timeout(max(0, AWAY_MS - (time.monotonic() - began) * 1000))
    store.append("42")
    gateway.away.clear()

    expect(page.locator("#e-2")).to_be_attached(timeout=SOON_MS)
    expect(chip).to_have_attribute("data-state", "live", timeout=SOON_MS)


def test_a_page_whose_stream_is_refused_asks_more_and_more_seldom(store, window):
    """S-308 (docs/sweeps.md): each page asked again each second, for hours."""
    store.create("42")
    page = window.page
    page.route("**/live/console*", lambda route: route.fulfill(status=429))
    with page.expect_request("**/live/console*"):
        page.goto("/runs/42")
    began = time.monotonic()
    for _ in range(4):
        with page.expect_request("**/live/console*", timeout=20_000):
            pass

    assert time.monotonic() - began > 8  # 13 s, less a fifth
