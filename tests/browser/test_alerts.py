"""Alerts and contention for everybody: axe finds nothing, nothing scrolls sideways, no script."""

from datetime import timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe

from agentstate.store import alerts, deliveries, targets
from agentstate.store.callers import SYSTEM
from agentstate.store.delivering import Answer
from agentstate.store.minutes import TALLY
from tests.browser.scene import Scene
from tests.store.asking import rows

TARGETS = "/alerts/-/targets"
PAGES = (
    "/alerts",
    "/alerts/overdue-runs/acknowledge",
    "/alerts/overdue-runs/snooze",
    "/contention",
    TARGETS,
    f"{TARGETS}/-/new",
    f"{TARGETS}/ops-on-call-webhook-of-the-whole-platform",
    f"{TARGETS}/ops-on-call-webhook-of-the-whole-platform/change",
    f"{TARGETS}/ops-on-call-webhook-of-the-whole-platform/delete",
)


@pytest.fixture
def scene(store, clock):
    """The small fleet, with a run past its deadline, and everything judged."""
    TALLY.forget()
    Scene(store, clock).play(others=10)
    deadline = clock.now + timedelta(seconds=1)
    store.create("checkout-regression-of-the-spring-2026-000042", deadline_at=deadline)
    clock.advance(seconds=5)
    TALLY.write()
    targets.create_target(
        name="ops-on-call-webhook-of-the-whole-platform",
        kind="webhook",
        address="https://hooks.example.org/agentstate",
        hint="https://hooks.example.org/…",
        by=SYSTEM,
    )
    alerts.evaluate_all()
    for claim in deliveries.claim(limit=20):
        deliveries.settle(claim, Answer(arrived=False, text="no " * 100, status=500))


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.deep)])
def test_axe_finds_nothing_and_no_page_is_too_wide(scene, open_window, theme):
    window = open_window("bo", "admin", color_scheme=theme)
    page = window.page
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for address in PAGES:
            page.goto(address)
            page.wait_for_load_state("load")
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found] == []
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert window.faults == []


@pytest.mark.long
@pytest.mark.many
def test_an_alert_is_acknowledged_and_leads_to_what_it_is_about(scene, open_window):
    page = open_window("ana", "operator").page
    page.goto("/alerts")
    alert = page.get_by_role("article", name="Overdue runs")
    alert.get_by_role("link", name="Acknowledge").click()
    page.get_by_label("Why").fill("the owner is asked")
    page.get_by_role("button", name="Acknowledge").click()
    page.wait_for_url("**/alerts")
    assert alert.get_by_text("Acknowledged by ana").is_visible()
    assert rows("SELECT acknowledged_why FROM agentstate_alert WHERE rule = 'overdue-runs'") == [
        ("the owner is asked",)
    ]
    alert.get_by_role("link", name="Overdue runs", exact=True).click()
    page.wait_for_url("**/runs?q=overdue**")


@pytest.mark.long
@pytest.mark.many
def test_a_target_is_added_tried_and_seen_in_the_log(scene, open_window):
    window = open_window("ada", "admin")
    page = window.page
    page.goto("/alerts")
    page.get_by_role("link", name="of 1 on").click()
    page.get_by_role("link", name="Add a target").click()
    page.get_by_role("textbox", name="Name").fill("pager")
    page.get_by_role("textbox", name="Address").fill("https://hooks.example.org/pager?key=4711")
    page.get_by_label("alerts only").check()
    page.get_by_role("button", name="Add it").click()
    assert page.get_by_text("whsec_").is_visible()
    page.get_by_role("link", name="Go to pager").click()
    page.get_by_role("button", name="Send a test").click()
    page.wait_for_url("**/targets/pager")
    assert page.get_by_role("cell", name="waiting").is_visible()
    assert targets.find("pager").least == "alert"
    assert window.faults == []
