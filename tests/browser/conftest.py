"""A real browser on the product's own server. Needs Chromium; CI fails without it."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from agentstate.store.execute import moving_the_feed
from tests.api.serving import serving
from tests.dashboard.conftest import person
from tests.store.asking import Asking

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.browser)
            # A browser takes as long as ten tests without one: all of them are in the long set.
            if item.get_closest_marker("long") is None:
                item.add_marker(pytest.mark.long)
                item.add_marker(pytest.mark.many)


def chromium() -> str:
    """Where the browser is. Without one the tests are skipped, but never in CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None and os.environ.get("CI"):
        pytest.fail("no Chromium: the browser tests cannot run")
    if found is None:
        pytest.skip("no Chromium here")
    return found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread, which Django would take for async code.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    path = chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield launched
        # Django finds the connection that was used beside Playwright's loop only as long as there
        # is one; left open it would be counted, and keep the database from being dropped.
        connections.close_all()
        launched.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def store(transactional_db: None) -> Asking:
    """The store as one caller with every scope sees it."""
    return Asking()


@pytest.fixture
def site(transactional_db: None) -> Iterator[str]:
    """The address of the running product; its feed moves."""
    with moving_the_feed(), serving() as address:
        yield address


class Watched:
    """A browser window and everything that went wrong in it."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.page = context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)


@pytest.fixture
def open_window(browser: Browser, site: str) -> Iterator[Callable[..., Watched]]:
    """open_window("ana", "operator"): a window in which she is logged in, at the console."""
    windows: list[Watched] = []

    def make(name: str = "ana", role: str = "operator", **more: object) -> Watched:
        context = browser.new_context(
            base_url=site, viewport={"width": 1440, "height": 900}, **more
        )
        context.add_cookies([{"url": site, **session_of(person(name, role))}])
        window = Watched(context)
        windows.append(window)
        window.page.goto("/runs")
        return window

    yield make
    for window in windows:
        window.context.close()


def session_of(user: User) -> dict[str, str]:
    """The cookie of somebody who has logged in, without the two pages that this takes."""
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return {"name": name, "value": client.cookies[name].value}


def log_in(page: Page, name: str) -> None:
    """By the form, as people do."""
    page.goto("/login?next=/runs")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password", exact=True).fill(f"pass-{name}")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/runs")


@pytest.fixture
def window(open_window: Callable[..., Watched]) -> Watched:
    return open_window()
