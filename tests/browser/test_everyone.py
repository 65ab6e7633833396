"""For everyone: nothing for axe to find, no fault under the policy, no sideways scrolling."""

from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import resolve
from playwright.sync_api import expect

from dashboard.queries import leases, workers
from dashboard.queries.clock import TooSlow
from dashboard.shortcuts import sections_for
from dashboard.views import system
from tests.browser.scene import Scene

PAGES = {
    "runs": "/runs",
    "runs, filtered": "/runs?q=status:running lease:lapsed tag:nightly",
    "runs, none match": "/runs?q=key:nothing",
    "runs, not understood": "/runs?q=colour:red",
    "runs, every field": "/runs/-/filter?q=status:running",
    "runs, columns": "/runs?q=&columns=tags,conflicts,deadline,age",
    "views": "/runs/-/views?q=status:running",
    "jump": "/jump?to=inv",
    "jump, unknown": "/jump?to=nothing-of-this",
    "run": "/runs/checkout-42",
    "event": "/runs/checkout-42?event=6",
    "event as JSON": "/runs/checkout-42?event=6&view=json",
    "events, compact": "/runs/checkout-42?show=compact&errors=1",
    "events, raw": "/runs/checkout-42?show=raw&find=Kolkata&event=6",
    "closeup": "/runs/checkout-42?from=2026-03-02T12:40:00Z&gaps=1",
    "state": "/runs/checkout-42?tab=state",
    "difference": "/runs/checkout-42?tab=state&seq=20&with=2",
    "ownership": "/runs/checkout-42?tab=ownership",
    "refused": "/runs/checkout-42?tab=refused",
    "budget": "/runs/checkout-42?tab=budget",
    "run's audit": "/runs/checkout-42?tab=audit",
    "cancel": "/runs/checkout-42/cancel",
    "leases": "/leases",
    "unit": "/leases/run:checkout-42",
    "reclaim a live one": "/leases/run:checkout-42/reclaim",
    "contention": "/contention",
    "make a rule": "/alerts/-/rules/-/new",
    "settings": "/settings",
    "quiet hours": "/settings/quiet",
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
    "bulks": "/bulk",
    "new bulk": "/bulk/new?q=&kind=cancel",
    "receipts": "/receipts",
    "a receipt": "/receipts?request_id=req-1",
    "never seen": "/receipts?key=nothing",
    "system": "/system",
    "rules": "/system?show=rules",
    "unknown run": "/runs/checkout-4",
    "unknown address": "/nothing",
}

# The second theme differs in nothing but its colours: pages that have all of them.
DARK = ("runs, filtered", "runs, not understood", "event", "event as JSON", "difference",
        "events, raw", "ownership", "leases",
        "unit", "reclaim a live one", "contention", "run with all", "workers", "shared budget",
        "new bulk",
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
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.deep)])
def test_axe_finds_nothing_and_nothing_breaks_the_policy(scene, open_window, theme):
    window = open_window("bo", "senior", color_scheme=theme)
    bad = {}
    for name, address in PAGES.items():
        window.page.goto(address)
        window.page.wait_for_load_state("load")
        if violations := found(window.page, theme):
            bad[name] = violations
    window.context.clear_cookies()
    window.page.goto("/login?next=/leases")
    if violations := found(window.page, theme):
        bad["login"] = violations

    assert bad == {}
    told = [fault for fault in window.faults if "404" not in fault]
    assert told == []


# What nobody sees every day: nothing there, a field that is wrong, a panel that failed.
EMPTY = ("/runs", "/leases", "/leases?only=late", "/workers", "/contention", "/budgets", "/alerts",
         "/audit", "/system", "/receipts")  # fmt: skip
ASKING = {
    "/leases/run:checkout-42/reclaim": "Reclaim from",
    "/workers/w-4~beef/drain": "Drain",
    "/runs/ticket-77/pause": "Pause",
    "/runs/ticket-77/signal": "Signal",
    "/runs/ticket-77/edit": "Save",
}
FAILING = {
    "/leases": (leases, "read_board"),
    "/workers": (workers, "read_page"),
}


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.deep)])
def test_axe_finds_nothing_where_nothing_is_or_something_failed(
    store, clock, open_window, theme, monkeypatch
):
    window = open_window("bo", "senior", color_scheme=theme)
    page, bad = window.page, {}

    def look(name):
        page.wait_for_load_state("load")
        if violations := found(page, theme):
            bad[name] = violations

    for address in EMPTY:
        page.goto(address)
        look(f"{address}, empty")
    Scene(store, clock).play(others=2)
    Scene(store, clock).company()
    for address, button in ASKING.items():
        page.goto(address)
        page.locator("main form").evaluate_all(
            "forms => forms.forEach(f => { f.noValidate = true })"
        )
        page.get_by_role("button", name=button).last.click()
        told = page.locator("[aria-invalid=true], [role=alert]").first
        expect(told).to_be_visible(timeout=30_000)
        look(f"{address}, wrong")
    for address, (module, name) in FAILING.items():
        monkeypatch.setattr(module, name, too_slow)
        page.goto(address)
        expect(page.locator(".panel-failed").first).to_be_visible()
        look(f"{address}, failed")
    monkeypatch.setitem(system.PANELS, "partitions", too_slow)
    page.goto("/system")
    look("/system, failed")
    page.keyboard.press("?")
    look("the sheet of keys")
    page.locator("[data-live]").evaluate_all("all => all.forEach(r => r.classList.add('is-stale'))")
    page.keyboard.press("Escape")
    look("cut off")

    assert bad == {}


def too_slow(*_given, **_named):
    raise TooSlow


def keys_of(page):
    named = "all => all.map((one) => one.dataset.hot)"
    return set(page.locator("main [data-hot]").evaluate_all(named))


def told_keys(address):
    """What the sheet says of the keys of a page; of two in a row each is one."""
    name = resolve(urlsplit(address).path).url_name if address != "/nothing" else ""
    sections = [s for s in sections_for(name or "") if name in s.pages or not s.pages]
    ways = [way for s in sections for keys in s.keys for way in keys.split(", ")]
    return {key for way in ways for key in (way.replace(" ", ""), *way.split(" "))}


@pytest.mark.long
@pytest.mark.many
def test_no_page_scrolls_sideways_and_its_keys_are_on_the_sheet(scene, open_window):
    """1440 px are a desk, 720 the same at 200 % zoom, 390 a phone."""
    window = open_window("bo", "senior")
    too_wide = []

    for address in PAGES.values():
        window.page.goto(address)
        for width in (1440, 720, 390):
            window.page.set_viewport_size({"width": width, "height": 844})
            if window.page.evaluate("document.documentElement.scrollWidth") > width:
                too_wide.append((address, width))
        assert keys_of(window.page) <= told_keys(address), address

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
    """Case O-29 (docs/cases.md)."""
    page = window.page
    page.goto("/runs")

    page.locator("#q").fill("worker:w-9")
    page.keyboard.press("Enter")
    expect(page.locator("#rows tr")).to_have_count(1)
    assert "q=worker" in page.url
    page.locator("#rows a").click()
    page.wait_for_url("**/runs/checkout-42?list=worker*")
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
