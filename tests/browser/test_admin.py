"""The admin and the audit in a real browser: under their policies, in both themes, on a phone."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from agentstate import store as door
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import ChangeAge
from agentstate.store.errors import Refusal
from agentstate.store.keys import create_key
from tests.store.asking import ANA, VIEWER
from tests.store.test_ages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.many]
PICTURES = os.environ.get("AGENTSTATE_PICTURES_OF_ADMIN")
PAGES = {
    "audit": "/audit", "audit-refused": "/audit?result=refused", "keys": "/keys",
    "key-new": "/keys/-/new", "link": "/people/root/link", "system": "/system",
    "retention": "/system/retention", "age": "/system/retention/refusals?days=9",
    "admin": "/admin/", "people": "/admin/auth/user/", "person-new": "/admin/auth/user/add/",
    "roles": "/admin/auth/group/", "runs": "/admin/agentstate/run/",
    "terms": "/admin/agentstate/leaseterm/", "refusals": "/admin/agentstate/refusal/",
    "views": "/admin/dashboard/savedview/",
}  # fmt: skip


@pytest.fixture
def some(store):
    for key in ("checkout-42", "ticket-77-with-a-long-name-that-has-to-be-broken-somewhere"):
        store.create(key)
        lease = store.hold(key, "w-3")
        with pytest.raises(Refusal):
            store.as_caller(ANA).reclaim(f"run:{key}", token=lease.token + 1, owner="w-3")
        with pytest.raises(Refusal):
            store.as_caller(VIEWER).move(key, "cancelled", reason="I wanted to see what it does")
        store.as_caller(ANA).move(key, "paused", reason="the supplier is away until the evening")
    door.record_refused_action(
        by=VIEWER, action="budget.cap-changed", thing="checkout-42/tokens", expected={"version": 3}
    )
    door.execute(ChangeAge(kind="refusals", version=0, days=12, reason="the disk is full"), by=ROOT)
    create_key(name="fleet", scopes=("read", "write"), by=SYSTEM)


def picture(page, name):
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1440), pytest.param("dark", 390, marks=pytest.mark.deep)]
)
def test_every_page_of_it_works_under_its_policy(some, open_window, theme, width):
    window = open_window("root", "admin", color_scheme=theme)
    page = window.page
    page.set_viewport_size({"width": width, "height": 900})
    for name, address in PAGES.items():
        page.goto(address)
        page.wait_for_load_state("networkidle")
        picture(page, f"{name}-{theme}-{width}")
        assert window.faults == [], name
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{name} is {wider} px too wide"

    page.goto("/admin/auth/user/add/")
    page.get_by_label("Name").fill("vi")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("A password is never shown")).to_be_visible()
    picture(page, f"person-{theme}-{width}")
    page.get_by_role("link", name="make a link").click()
    page.get_by_role("button", name="Make it").click()
    link = page.get_by_text("/password/").inner_text()
    page.context.clear_cookies()
    page.goto(link)
    picture(page, f"set-password-{theme}-{width}")
    page.get_by_label("Password", exact=True).fill("correct-horse-9")
    page.get_by_label("Again").fill("correct-horse-9")
    page.get_by_role("button", name="Set it").click()
    page.wait_for_url("**/login")
    assert window.faults == []
