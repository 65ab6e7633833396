"""Alerts and contention for everybody: axe finds nothing, nothing scrolls sideways, no script."""

from datetime import timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe

from agentstate.store import alerts
from agentstate.store.minutes import TALLY
from tests.browser.scene import Scene
from tests.store.asking import rows

PAGES = ("/alerts", "/alerts/overdue-runs/acknowledge", "/contention")


@pytest.fixture
def scene(store, clock):
    """The small fleet, with a run past its deadline, and everything judged."""
    TALLY.forget()
    Scene(store, clock).play(others=10)
    deadline = clock.now + timedelta(seconds=1)
    store.create("checkout-regression-of-the-spring-2026-000042", deadline_at=deadline)
    clock.advance(seconds=5)
    TALLY.write()
    alerts.evaluate_all()


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_no_page_is_too_wide(scene, open_window, theme):
    window = open_window("bo", "senior", color_scheme=theme)
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
    alert.get_by_role("link", name="Overdue runs").click()
    page.wait_for_url("**/runs?q=overdue**")
