"""A run looked at closely: its timeline dragged over, its events narrowed, states compared."""

import pytest
from playwright.sync_api import expect

from agentstate.store.commands import NewEvent
from agentstate.store.payloads import dump
from tests.browser.scene import Scene
from tests.store.asking import ANA

pytestmark = [pytest.mark.long, pytest.mark.many]


def test_a_run_is_looked_at_closely_with_pointer_and_keys(store, clock, window):
    Scene(store, clock).takeover()
    page = window.page
    page.goto("/runs/checkout-42")

    # A drag over a timeline draws that part, with all of the run in small above it.
    page.locator("#live[data-state=live]").wait_for()
    page.locator("svg[data-knots]").wait_for()
    box = page.evaluate(
        "document.querySelector('svg[data-knots]').getBoundingClientRect().toJSON()"
    )
    height = box["y"] + box["height"] - 12
    page.mouse.move(box["x"] + box["width"] * 0.2, height)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, height, steps=3)
    assert float(page.locator(".brush").get_attribute("width")) > 100
    page.mouse.up()
    page.wait_for_url("**from=*to=*")
    expect(page.locator(".overview-window")).to_be_visible()

    for key, there in (
        ("}", "from="),
        ("+", "from="),
        ("0", "/runs/checkout-42"),
        ("g g", "gaps=1"),
    ):
        page.locator("#log").wait_for()
        with page.expect_navigation():
            for one in key.split(" "):
                page.keyboard.press(one)
        assert there in page.url, key
    expect(page.locator(".fold")).to_have_count(0)

    # Only what went wrong; then one of the events, and what it changed.
    page.goto("/runs/checkout-42")
    page.keyboard.press("w")
    page.wait_for_url("**origin=worker*")
    page.get_by_label("Search in events").fill("Kolkata")
    page.get_by_label("Search in events").press("Enter")
    page.wait_for_url("**find=Kolkata*")
    expect(page.locator("#events mark").first).to_have_text("Kolkata")
    page.locator("#events a").first.click()
    expect(page.locator("#pane mark").first).to_have_text("Kolkata", timeout=20_000)
    with page.expect_navigation():
        page.keyboard.press("d")
    expect(page.locator(".state .is-changed").first).to_be_visible()
    assert "tab=state" in page.url

    # Back at the events, a live one goes on as it was narrowed.
    page.goto("/runs/checkout-42?type=deploy")
    token = store.run("checkout-42").token
    store.append("checkout-42", [NewEvent(type="other"), NewEvent(type="deploy.done")], fence=token)
    expect(page.locator("#events tr")).to_have_count(1, timeout=10_000)
    assert window.faults == []


HOSTILE = (
    "<img src=/evil onerror=fetch('/evil')><svg onload=fetch('/evil')>"
    '"><b hx-get="/evil" hx-trigger="load">x</b>{{ 7|add:7 }}{% debug %}'
    "\x1b[31m\x1b]0;title\x07 \u202egnp.exe\u202c \u2066"
)
WIDE = "w" * 100_000


def plain(text: str, length: int) -> str:
    """What a name may hold of it."""
    return "".join(one if one.isprintable() else "-" for one in text)[:length]


def test_whatever_a_run_says_is_text_and_stays_in_its_place(store, clock, window):
    worker = plain(HOSTILE, 150)
    store.create("42", task=plain(HOSTILE, 400), tags=(plain(HOSTILE, 60), "t" * 64))
    lease = store.hold("42", "w" * 60)
    said = {plain(HOSTILE, 90): HOSTILE, "text": f"{HOSTILE}\n{WIDE}", "error": HOSTILE}
    store.append("42", [NewEvent(type="x", data=dump(said))], fence=lease.token)
    store.append("42", [NewEvent(type="y", data=dump([HOSTILE, WIDE[:9_000]]))], fence=lease.token)
    store.create("43", parent="42", fence=lease.token)
    clock.advance(seconds=100)
    store.as_caller(ANA).reclaim(
        "run:42", token=lease.token, owner="w" * 60, reason=plain(HOSTILE, 400)
    )
    page = window.page
    page.goto("/runs/42/edit")
    page.get_by_label("Notes").fill(f"{HOSTILE.replace(chr(7), '')}\n{WIDE[:9_000]}")
    page.get_by_label("Add tags").fill("u" * 64)
    page.get_by_label("Why").fill(plain(HOSTILE, 300))
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/runs/42")

    for query in (
        "", "?event=4", "?event=4&view=json", "?event=5", "?show=raw", "?show=compact&find=evil",
        "?errors=1", "?tab=state&with=1", "?tab=ownership", "?tab=audit", f"?find={worker}",
    ):  # fmt: skip
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"/runs/42{query}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (query, width)
    asked = [url for url in window.requests if "evil" in url.split("?")[0]]
    assert asked == []
    assert page.title().startswith("42")
    assert window.faults == []
