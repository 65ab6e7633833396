"""A whole site of its own, as `./run` starts it, with a browser in it."""

from __future__ import annotations

import json
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext

from tests.bootstrap.conftest import eventually
from tests.bootstrap.sites import Site, begin, end, run, wait_for_start
from tests.browser.conftest import Watched


@contextmanager
def site_of(*arguments: str) -> Iterator[Site]:
    """`./run` with these arguments, on a free port, in a folder that is gone afterwards."""
    # Below /tmp itself: the path of PostgreSQL's socket may not be long.
    with tempfile.TemporaryDirectory(prefix="agentstate-") as folder:
        site = begin(Path(folder) / "home", *arguments, "--port", "0")
        try:
            wait_for_start(site)
            yield site
        finally:
            end(site)


def log_in(site: Site, context: BrowserContext, *, name: str, password: str) -> Watched:
    """A window in which somebody is logged in."""
    context.set_default_timeout(60_000)
    window = Watched(context)
    window.page.goto(f"{site.url}/login?next=/runs")
    window.page.get_by_label("Name").fill(name)
    window.page.get_by_label("Password", exact=True).fill(password)
    window.page.get_by_role("button", name="Sign in").click()
    window.page.wait_for_url("**/runs")
    return window


def make_person(site: Site, name: str, role: str) -> str:
    """The password of somebody new."""
    made = run(site.home, "user", "--name", name, "--role", role)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def make_key(site: Site) -> str:
    made = run(site.home, "key", "--name", "fleet", "--scope", "read", "--scope", "write")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def demo_login(site: Site) -> tuple[str, str]:
    """The name and password that a demo prints."""
    found = re.search(r"Log in as +(\S+) +(?:password )?(\S+)", site.said())
    assert found, site.said()
    return found[1], found[2]


class Fleet:
    """A worker with one run, that sends a write again until it was answered."""

    def __init__(self, site: Site, key: str) -> None:
        self.site, self.key, self.run, self.token, self.last = site, key, "", 0, 0

    def begin(self, run: str) -> int:
        """Create the run and hold it; the number of its last event."""
        self.run = run
        self._post("runs", {"key": run, "task": "audit checkout"})
        lease = self._post(f"leases/run:{run}/acquire", {"owner": "w-1", "ttl_seconds": 3600})
        self.token, self.last = lease["token"], lease["last_seq"]
        return self.last

    def write(self, count: int) -> int:
        """So many events more, one by one, whatever is restarted meanwhile; the last one's number.

        Each has its own key, so that a write whose answer was lost is not done twice.
        """
        for _ in range(count):
            body = {"events": [{"type": "step.done"}]}
            told = eventually(lambda: self._try(body), within_seconds=90)  # noqa: B023
            self.last = told["last_seq"]
        return self.last

    def _try(self, body: object) -> Any:
        try:
            return self._post(
                f"runs/{self.run}/events",
                body,
                {"Agentstate-Fence": str(self.token), "Idempotency-Key": f"k-{self.last}"},
            )
        except urllib.error.HTTPError as refused:
            assert refused.code >= 500, refused.read().decode()
        except OSError:
            pass
        return None

    def _post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Any:
        asked = urllib.request.Request(
            f"{self.site.url}/api/v1/{path}",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            | (headers or {}),
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)
