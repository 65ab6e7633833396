"""A budget's chart: read at a glance, dragged over, and the same by two times without scripts."""

import pytest
from playwright.sync_api import expect

from agentstate.store.commands import AnnounceWorker, ChangeCap
from tests.browser.scene import Scene
from tests.store.asking import SENIOR

BUDGET = "/runs/ticket-77/budgets/tokens"
PART = "2026-03-02 12:00 to 12:05"


@pytest.fixture
def company(store, clock):
    Scene(store, clock).company()
    change = ChangeCap(run="ticket-77", budget="tokens", cap=95_000, reason="it is worth it")
    store.as_caller(SENIOR).ask(change)
    store.ask(AnnounceWorker(worker="w-4~beef", version="1.5.0"))
    clock.advance(minutes=2)
    return clock


def drag(page, chart, start, end):
    box = chart.bounding_box()
    y = box["y"] + box["height"] * 0.7
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=3)
    assert float(page.locator(".chart .brush").get_attribute("width")) > 50
    page.mouse.up()


def test_a_chart_is_dragged_over_and_the_part_is_in_the_address(company, open_window):
    window = open_window("bo", "senior")
    page = window.page
    page.goto(BUDGET)
    chart = page.locator("svg.chart")
    expect(page.get_by_role("heading", name="The last 60 min", exact=True)).to_be_visible()
    expect(chart.locator(".happened-action")).to_have_count(1)
    expect(chart.locator(".happened-deploy")).to_have_count(2)

    # The last eight of sixty minutes, which hold the whole story.
    drag(page, chart, 0.85, 0.975)
    page.wait_for_url("**from=*to=*#course-title")
    expect(page.get_by_role("heading", name="2026-03-02 11:5")).to_have_count(2)
    part = page.url

    # The same part again by its address, and on by keys.
    page.goto(part)
    expect(page.locator("#ledger-title + span")).to_contain_text("alone")
    with page.expect_navigation():
        page.keyboard.press("<")
    assert page.url != part
    with page.expect_navigation():
        page.keyboard.press("u")
    expect(page.get_by_label("New cap")).to_be_visible()
    assert window.faults == []


def test_without_scripts_two_times_draw_the_same_part_and_another_cap_is_replayed(
    company, open_window
):
    page = open_window("ana", "operator", java_script_enabled=False).page
    page.goto(BUDGET)

    page.get_by_label("From, UTC").fill("2026-03-02 12:00")
    page.get_by_label("to", exact=True).fill("2026-03-02 12:05")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name=PART, exact=True)).to_be_visible()

    page.get_by_label("What would another cap have let through?").fill("200 000")
    page.get_by_role("button", name="Replay").click()
    expect(
        page.get_by_text("1 of the 1 refused charge would have been let through")
    ).to_be_visible()
    expect(page.get_by_role("heading", name=PART, exact=True)).to_be_visible()
    page.get_by_text("As a table").click()
    expect(page.get_by_role("cell", name="bo: budget.cap-changed ticket-77/tokens")).to_be_visible()


@pytest.mark.parametrize(
    "colours", ["light", pytest.param("dark", marks=pytest.mark.deep), "forced"]
)
def test_lines_and_marks_differ_without_colour(company, open_window, colours):
    more = {"forced_colors": "active"} if colours == "forced" else {"color_scheme": colours}
    page = open_window("bo", "senior", **more).page
    page.goto(BUDGET)
    told = page.evaluate(
        """() => {
            const style = (name) => getComputedStyle(document.querySelector(name));
            const [used, cap] = [style(".course .used"), style(".course .cap")];
            return {
                used: used.strokeDasharray, cap: cap.strokeDasharray,
                action: style(".happened-action line").strokeDasharray,
                deploy: style(".happened-deploy line").strokeDasharray,
                ground: style(".panel").backgroundColor, line: used.stroke, bound: cap.stroke,
            };
        }"""
    )
    assert told["used"] == "none"
    assert len({told["cap"], told["action"], told["deploy"], "none"}) == 4
    assert told["ground"] not in (told["line"], told["bound"])
    for name in ("used", "cap", "refused", "operator action", "new version"):
        expect(page.locator(".swatches").get_by_text(name, exact=True)).to_be_visible()
