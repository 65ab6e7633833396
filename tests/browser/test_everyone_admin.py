"""Pages of one's own and of admins: nothing for axe to find, no fault under the policy, no sideways
scrolling. What everybody sees is in test_everyone.py, the admin itself in test_admin.py.
"""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from agentstate.store.callers import SYSTEM
from agentstate.store.commands import ChangeRule, PutRule
from agentstate.store.errors import Refusal
from agentstate.store.keys import create_key
from agentstate.store.made import Definition
from dashboard import first_run
from tests.browser.conftest import Watched
from tests.browser.test_everyone import found
from tests.dashboard.test_sign_in import code_of
from tests.store.asking import SENIOR, VIEWER
from tests.store.test_bulks import begin

pytestmark = [pytest.mark.long, pytest.mark.many]
THEMES = pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.deep)])
# What htmx says of a preview that was under way when the page was left.
LEFT = ("htmx:afterRequest", "htmx:sendAbort")
PICTURES = os.environ.get("AGENTSTATE_PICTURES_OF_ADMIN")

PAGES = {
    "keys": "/keys",
    "make a key": "/keys/-/new",
    "end a key": "/keys/fleet/revoke",
    "settings": "/settings",
    "quiet hours": "/settings/quiet",
    "account": "/account",
    "password": "/account/password",
    "link": "/people/root/link",
    "sign somebody out": "/people/root/sign-out",
    "alerts": "/alerts",
    "make a rule": "/alerts/-/rules/-/new",
    "a rule": "/alerts/-/rules/own-mine",
    "delete a rule": "/alerts/-/rules/own-mine/delete",
    "bounds": "/alerts/conflict-share/bounds?alert=30",
    "bulks": "/bulk",
    "new bulk": "/bulk/new?q=&kind=cancel",
    "a bulk": "/bulk/{bulk}",
    "stop a bulk": "/bulk/{bulk}/stop",
    "audit, filtered": "/audit?result=forbidden&kind=person&from=2026-01-01T00:00:00Z&text=wanted",
    "audit, none match": "/audit?actor=nobody",
    "audit, not understood": "/audit?from=yesterday",
    "run's audit": "/runs/checkout-42?tab=audit",
}


@pytest.fixture
def bulk(store):
    """The id of a bulk that waits, beside a key, a rule of somebody's own and a refused try."""
    for key in ("checkout-42", "ticket-77-with-a-long-name-that-has-to-be-broken-somewhere"):
        store.create(key)
        with pytest.raises(Refusal):
            store.as_caller(VIEWER).move(key, "cancelled", reason="I wanted to see what it does")
    create_key(name="fleet", scopes=("read", "write"), by=SYSTEM)
    watched = Definition(title="Fenced calls of w-3", metric="fenced", worker="w-3")
    values = {"warn": 5, "alert": 10, "reason": "w-3 again"}
    store.as_caller(SENIOR).ask(PutRule(rule="own-mine", version=0, definition=watched, **values))
    return begin(store, by=SENIOR).hex


class Walk:
    """What is wrong with the pages that were looked at, by name."""

    def __init__(self, page, theme):
        self.page, self.theme, self.bad = page, theme, {}

    def look(self, name):
        self.page.wait_for_load_state("load")
        wrong = found(self.page, self.theme)
        for width in (720, 390, 1440):
            self.page.set_viewport_size({"width": width, "height": 844})
            if PICTURES and width != 720:
                shown = Path(PICTURES) / f"{name.replace(' ', '-')}-{self.theme}-{width}.png"
                self.page.screenshot(path=shown, full_page=True)
            if self.page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(width)
        if wrong:
            self.bad[name] = wrong


@THEMES
def test_axe_finds_nothing_on_pages_of_ones_own_and_of_admins(bulk, store, open_window, theme):
    window = open_window("root", "admin", color_scheme=theme)
    page, walk = window.page, Walk(window.page, theme)
    for name, address in PAGES.items():
        page.goto(address.format(bulk=bulk))
        walk.look(name)

    page.goto("/alerts/overdue-runs/bounds")
    change = ChangeRule(rule="overdue-runs", version=0, warn=2, alert=7, reason="two are usual")
    store.as_caller(SENIOR).ask(change)
    page.get_by_label("Alerts from").fill("9")
    page.get_by_label("Why").fill("single ones can wait")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_text("What is different")).to_be_visible()
    walk.look("bounds, changed meanwhile")

    page.goto("/account/app")
    walk.look("is it you")
    page.get_by_label("Password", exact=True).fill("pass-root")
    page.get_by_role("button", name="Go on").click()
    secret = page.locator("#totp-secret").inner_text()
    walk.look("add an app")
    page.get_by_label("Code").fill("000000")
    page.get_by_role("button", name="Add it").click()
    walk.look("add an app, wrong")
    page.get_by_label("Code").fill(code_of(secret))
    page.get_by_role("button", name="Add it").click()
    page.wait_for_url("**/account/codes")
    walk.look("codes")
    parts = {"remove the app": "app/off", "new codes": "codes/new", "add a key": "keys/new"}
    for name, part in parts.items():
        page.goto(f"/account/{part}")
        walk.look(name)
    page.goto("/account")
    walk.look("account with an app")

    assert walk.bad == {}
    assert [
        fault for fault in window.faults if not fault.startswith(LEFT) and "409" not in fault
    ] == []


@THEMES
def test_axe_finds_nothing_on_the_page_that_makes_the_first_admin(browser, site, theme):
    first_run.make_code()
    window = Watched(browser.new_context(base_url=site, color_scheme=theme))
    page, walk = window.page, Walk(window.page, theme)
    page.goto("/setup")
    walk.look("setup")
    page.get_by_role("button", name="Become the admin").click()
    walk.look("setup, wrong")

    assert walk.bad == {}
    assert [fault for fault in window.faults if "422" not in fault] == []
    window.context.close()
