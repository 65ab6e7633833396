"""Signing in as people do: a key, an app, the first admin; with nothing for axe to find."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from dashboard import first_run
from tests.browser.conftest import Watched
from tests.dashboard.conftest import person
from tests.dashboard.test_sign_in import code_of

pytestmark = [pytest.mark.long, pytest.mark.many]

NEEDS_HOST = "localhost"  # a security key belongs to a host by name


def add_authenticator(page: Page) -> None:
    """A security key that is always plugged in and touched."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    options = {"protocol": "ctap2", "transport": "usb", "hasUserVerification": True,
               "isUserVerified": True, "automaticPresenceSimulation": True}  # fmt: skip
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})


def look(page: Page) -> None:
    """Nothing for axe to find, in both themes; nothing wider than a phone."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(250)  # the colours go over
        found = Axe().run(page, options={"resultTypes": ["violations"]})
        assert found.violations_count == 0, found.generate_report()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1440, "height": 900})


def test_a_person_adds_a_key_and_an_app_and_signs_in_with_each(browser, site):
    person("ana", "operator")
    there = site.replace("127.0.0.1", NEEDS_HOST)
    window = Watched(browser.new_context(base_url=there))
    page = window.page
    page.goto("/login?next=/account")
    look(page)
    sign_in(page)
    page.wait_for_url("**/account")
    look(page)
    add_authenticator(page)

    page.locator("li").filter(has_text="Security key").get_by_role("link", name="Add").click()
    page.get_by_label("Password", exact=True).fill("pass-ana")
    look(page)
    page.get_by_role("button", name="Go on").click()
    page.get_by_label("Name").fill("the blue one")
    look(page)
    page.get_by_role("button", name="Add it").click()
    expect(page.get_by_text("shown this once")).to_be_visible()
    look(page)
    page.get_by_role("link", name="I have kept them").click()
    expect(page.get_by_text("the blue one")).to_be_visible()

    page.locator("li").filter(has_text="Authenticator app").get_by_role("link", name="Add").click()
    secret = page.locator("#totp-secret").inner_text()
    look(page)
    page.get_by_label("Code").fill(code_of(secret))
    page.get_by_role("button", name="Add it").click()
    page.wait_for_url("**/account")

    page.get_by_role("button", name="Sign out everywhere").click()
    page.wait_for_url("**/login")
    sign_in(page)
    expect(page.get_by_role("heading", name="Second step")).to_be_visible()
    look(page)
    page.get_by_role("button", name="Use a security key").click()
    page.wait_for_url(re.compile(f"{there}/$"))

    page.goto("/account")
    page.get_by_role("button", name="Sign out everywhere").click()
    sign_in(page)
    page.get_by_label("Code").fill(code_of(secret, steps=1))
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url(re.compile(f"{there}/$"))
    assert window.faults == []
    window.context.close()


def sign_in(page: Page) -> None:
    page.get_by_label("Name").fill("ana")
    page.get_by_label("Password", exact=True).fill("pass-ana")
    page.get_by_role("button", name="Sign in").click()


def test_the_first_admin_is_made_without_scripts(browser, site):
    code = first_run.make_code()
    context = browser.new_context(base_url=site, java_script_enabled=False)
    page = context.new_page()
    page.goto("/login")
    page.get_by_role("link", name="Make the first one").click()
    page.get_by_label("Code").fill("wrong")
    page.get_by_label("Name").fill("ada")
    for label in ("Password", "Password again"):
        page.get_by_label(label, exact=True).fill("correct-horse-1")
    page.get_by_role("button", name="Become the admin").click()
    expect(page.get_by_text("not the code that the last start printed")).to_be_visible()
    page.get_by_label("Code").fill(code)
    for label in ("Password", "Password again"):
        page.get_by_label(label, exact=True).fill("correct-horse-1")
    page.get_by_role("button", name="Become the admin").click()
    expect(page.get_by_text("You are the first admin")).to_be_visible()
    context.close()
