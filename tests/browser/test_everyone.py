"""For everyone: nothing for axe to find, no fault under the policy, no sideways scrolling."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.scene import Scene

PAGES = {
    "runs": "/runs",
    "runs, filtered": "/runs?q=status:running lease:lapsed tag:nightly",
    "runs, none match": "/runs?q=key:nothing",
    "runs, not understood": "/runs?q=colour:red",
    "run": "/runs/checkout-42",
    "event": "/runs/checkout-42?event=6",
    "event as JSON": "/runs/checkout-42?event=6&view=json",
    "ownership": "/runs/checkout-42?tab=ownership",
    "refused": "/runs/checkout-42?tab=refused",
    "budget": "/runs/checkout-42?tab=budget",
    "run's audit": "/runs/checkout-42?tab=audit",
    "cancel": "/runs/checkout-42/cancel",
    "leases": "/leases",
    "unit": "/leases/run:checkout-42",
    "reclaim a live one": "/leases/run:checkout-42/reclaim",
    "contention": "/contention",
    "audit": "/audit",
    "parts, overdue": "/runs?q=overdue:yes",
    "run with all": "/runs/ticket-77",
    "invariants": "/runs/ticket-77/invariants",
    "signal": "/runs/ticket-77/signal",
    "brake": "/runs/ticket-77/brake",
    "edit": "/runs/ticket-77/edit",
    "keep": "/runs/ticket-77/keep",
    "workers": "/workers",
    "drain": "/workers/w-4~beef/drain",
    "budgets": "/budgets",
    "shared budget": "/budgets/team-checkout",
    "a run's budget": "/runs/ticket-77/budgets/tokens",
    "cap": "/runs/ticket-77/budgets/tokens/cap?cap=200000",
    "receipts": "/receipts",
    "a receipt": "/receipts?request_id=req-1",
    "never seen": "/receipts?key=nothing",
    "system": "/system",
    "rules": "/system?show=rules",
    "unknown run": "/runs/checkout-4",
    "unknown address": "/nothing",
}

# The second theme differs in nothing but its colours: pages that have all of them.
DARK = ("runs, filtered", "runs, not understood", "event", "event as JSON", "ownership", "leases",
        "unit", "reclaim a live one", "contention", "run with all", "workers", "shared budget",
        "a receipt", "system", "rules")  # fmt: skip


@pytest.fixture
def scene(store, clock):
    scene = Scene(store, clock)
    scene.play(others=10)
    scene.company()
    return scene


def found(page, theme):
    options = {"resultTypes": ["violations"]}
    if theme == "dark":
        options["runOnly"] = ["color-contrast"]
    results = Axe().run(page, options=options).response["violations"]
    return [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in results]


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_breaks_the_policy(scene, open_window, theme):
    window = open_window("bo", "senior", color_scheme=theme)
    bad = {}
    for name, address in PAGES.items():
        window.page.goto(address)
        window.page.wait_for_load_state("load")
        window.page.evaluate() if False else None
        if violations := found(window.page, theme):
            bad[name] = violations
    window.context.clear_cookies()
    window.page.goto("/login?next=/leases")
    if violations := found(window.page, theme):
        bad["login"] = violations

    assert bad == {}
    told = [fault for fault in window.faults if "404" not in fault]
    assert told == []


@pytest.mark.long
@pytest.mark.many
def test_no_page_scrolls_sideways(scene, open_window):
    window = open_window("bo", "senior")
    too_wide = []

    for address in PAGES.values():
        window.page.goto(address)
        for width in (1440, 720, 390):
            window.page.set_viewport_size({"width": width, "height": 844})
            if window.page.evaluate("document.documentElement.scrollWidth") > width:
                too_wide.append((address, width))

    assert too_wide == []


def test_the_theme_is_chosen_at_once_and_kept(scene, window):
    page = window.page
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)

    page.get_by_label("Theme").click()
    page.get_by_role("button", name="Dark").click()

    dark = page.evaluate(background)
    assert dark != light
    page.goto("/leases")
    assert page.evaluate(background) == dark
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_keys_move_through_rows_and_a_sheet_lists_them(scene, window):
    page = window.page
    page.goto("/runs")

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.is-chosen")).to_have_count(1)
    second = page.locator("#rows tr").nth(1)
    expect(second).to_have_class("is-chosen")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("l")
    page.wait_for_url("**/leases")


def test_an_event_opens_beside_the_list_and_back_closes_it(scene, window):
    page = window.page
    page.goto("/runs/checkout-42")

    page.locator("#e-6 a").click()
    expect(page.locator("#pane")).to_contain_text("no. 6")
    assert "event=6" in page.url
    page.go_back()
    expect(page.locator("#pane [data-event]")).to_have_count(0)
    assert window.faults == []


def test_a_filter_narrows_the_list_and_stays_through_back_and_reload(scene, window):
    page = window.page
    page.goto("/runs")

    page.locator("#q").fill("worker:w-9")
    page.keyboard.press("Enter")
    expect(page.locator("#rows tr")).to_have_count(1)
    assert "q=worker" in page.url
    page.locator("#rows a").click()
    page.wait_for_url("**/runs/checkout-42")
    page.go_back()
    expect(page.locator("#q")).to_have_value("worker:w-9")
    page.reload()
    expect(page.locator("#rows tr")).to_have_count(1)
    page.get_by_label("Remove worker:w-9").click()
    expect(page.locator("#rows tr")).not_to_have_count(1)


@pytest.mark.long
@pytest.mark.many
def test_a_page_is_small(scene, window):
    sizes = []
    window.page.on("response", lambda answer: sizes.append(len(answer.body())))

    window.page.goto("/runs", wait_until="load")
    window.page.wait_for_timeout(300)

    assert sum(sizes) < 260_000
