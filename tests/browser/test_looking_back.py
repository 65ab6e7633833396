"""Looking back: a run as it was, step by step; and its bundle, taken away and opened again."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from agentstate.store.payloads import moment
from tests.browser.scene import Scene

# Colours on their way from one theme to the other are neither's.
SETTLED = """Promise.all(document.getAnimations()
    .filter((one) => one instanceof CSSTransition).map((one) => one.finished.catch(() => null)))"""


@pytest.fixture
def scene(store, clock):
    scene = Scene(store, clock)
    scene.play(others=2)
    scene.company()
    return scene


def look(page, bad, name):
    page.wait_for_load_state("load")
    options = {"resultTypes": ["violations"]}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.evaluate(SETTLED)
        found = Axe().run(page, options=options).response["violations"]
        bad += [(name, theme, v["id"], [n["html"][:160] for n in v["nodes"]][:3]) for v in found]
        options = {"resultTypes": ["violations"], "runOnly": ["color-contrast"]}
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        if page.evaluate("document.documentElement.scrollWidth") > width:
            bad.append((name, "too wide", width))
    page.emulate_media(color_scheme="light")


@pytest.mark.long
@pytest.mark.many
def test_a_run_is_looked_at_as_it_was_and_its_bundle_is_opened(scene, open_window, tmp_path):
    window = open_window("ana", "operator")
    page, bad = window.page, []
    page.goto("/runs/checkout-42?event=14")
    page.get_by_role("link", name="the page as of here").click()
    page.wait_for_url("**/runs/checkout-42?asof=e14")
    banner = page.get_by_role("region", name="As of a moment")
    expect(banner).to_contain_text("after event 14 of 39")
    expect(page.get_by_role("link", name="Reclaim")).to_have_count(0)
    look(page, bad, "run")
    window.requests.clear()
    page.keyboard.press("]")
    page.wait_for_url("**/runs/checkout-42?asof=e15")
    expect(page.locator("#head")).to_contain_text("lapsed")
    banner.get_by_label("As of").fill("e17")
    banner.get_by_role("button", name="Go").click()
    expect(page.locator("#head")).to_contain_text("w-9~c41a")
    page.get_by_role("link", name="Ownership").click()
    terms = page.get_by_role("table", name="Terms of ownership")
    expect(terms.get_by_role("row", name="w-3~07fe")).to_contain_text("reclaimed")
    assert "asof=e17" in page.url
    assert [url for url in window.requests if "/refresh" in url or "/live/" in url] == []
    banner.get_by_role("link", name="Back to now").click()
    expect(banner).to_have_count(0)

    then = moment(scene.clock.now)
    for name, address in {
        "unit": "/leases/run:checkout-42?asof=e20",
        "budget": f"/runs/ticket-77/budgets/tokens?asof={then}",
        "not then": "/runs/checkout-42?asof=e999",
        "open": "/bundles",
        "receipt": "/receipts?request_id=req-1",
    }.items():
        page.goto(address)
        look(page, bad, name)

    page.goto("/runs/checkout-42")
    page.locator("#actions summary").click()
    page.get_by_role("link", name="Incident bundle").click()
    look(page, bad, "ask")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "incident-checkout-42.jsonl"
    page.get_by_role("link", name="open a bundle").click()
    page.get_by_label("The bundle").set_input_files(file)
    page.get_by_role("button", name="Open it").click()
    expect(page.get_by_role("status").first).to_contain_text("Whole:")
    page.get_by_role("row", name="tool.called").first.locator("summary").first.click()
    expect(page.locator("details[open] .json").first).to_be_visible()
    look(page, bad, "opened")

    file.write_bytes(
        file.read_bytes().replace(b"frozen since the deploy", b"fine since the deploy")
    )
    page.get_by_label("Open another bundle").set_input_files(file)
    page.get_by_role("button", name="Open it").click()
    expect(page.get_by_role("status").first).to_contain_text("Changed at line")
    look(page, bad, "changed")

    assert bad == []
    assert [fault for fault in window.faults if "404" not in fault] == []
