"""Where a drill is held: a site's API with an operator's key, its console as one who logged in.

What is looked at is what people and their alarms see: pages as HTML, `/api/v1/alerts`. Nothing here
reads the database.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from agentstate.supervisor import Child

POLL_SECONDS = 0.3
CALL_SECONDS = 30.0


class NotDone(Exception):
    """Something that the drill needs did not happen. The text says what."""


@dataclass(slots=True)
class Ground:
    """url, key: of the API, with the scopes read, payloads, write, operate, override. name,
    password: of a person who may look. background: Celery's processes, on a scratch site only.
    """

    url: str
    key: str = field(repr=False)
    name: str
    password: str = field(repr=False)
    background: tuple[Child, ...] = ()
    interrupted: Callable[[], bool] = lambda: False
    api: httpx.Client = field(init=False, repr=False)
    console: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        base = self.url.rstrip("/")
        self.api = httpx.Client(
            base_url=f"{base}/api/v1/",
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=CALL_SECONDS,
            trust_env=False,
        )
        self.console = httpx.Client(
            base_url=base, timeout=CALL_SECONDS, trust_env=False, follow_redirects=True
        )

    def log_in(self) -> None:
        """Raises NotDone when the console does not let the person in."""
        self.console.get("/login")
        forged = self.console.cookies.get("agentstate_csrf", "")
        self.console.post(
            "/login",
            data={
                "username": self.name,
                "password": self.password,
                "csrfmiddlewaretoken": self.hidden_token() or forged,
            },
            headers={"Referer": f"{self.url}/login"},
        )
        if "/login" in str(self.console.get("/leases").url):
            raise NotDone(f"the console does not let {self.name} in")

    def hidden_token(self) -> str:
        found = re.search(
            r'name="csrfmiddlewaretoken" value="([^"]+)"', self.console.get("/login").text
        )
        return found[1] if found else ""

    def ask(self, method: str, path: str, document: Any = None, **headers: str) -> Any:
        """What the API answers. Raises NotDone with its reason when it refuses."""
        if method != "GET":
            headers.setdefault("Idempotency-Key", secrets.token_hex(12))
        answer = self.api.request(method, path, json=document, headers=headers)
        if not answer.is_success:
            raise NotDone(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else None

    def refusal(self, method: str, path: str, document: Any) -> str:
        """The code with which the API refuses it; nothing when it does not."""
        headers = {"Idempotency-Key": secrets.token_hex(12)}
        answer = self.api.request(method, path, json=document, headers=headers)
        return "" if answer.is_success else str(answer.json().get("code"))

    def create(self, key: str, **more: Any) -> None:
        self.ask("POST", "runs", {"task": "A drill", "key": key, "tags": ["drill"], **more})

    def shows(self, page: str, part: str) -> bool:
        """Whether the page has it, as a regular expression over its HTML."""
        answer = self.console.get(page)
        return answer.is_success and re.search(part, answer.text, re.DOTALL) is not None

    def fires(self, *rules: str) -> bool:
        """Whether one of the alerts warns or worse."""
        found = self.ask("GET", "alerts")["items"]
        judged = {one["rule"]: one.get("judged") or one["state"] for one in found}
        return any(judged.get(rule) in ("warn", "alert") for rule in rules)

    def wait(self, what: Callable[[], Any], *, within_seconds: float) -> float | None:
        """How long it took until it was so; None when it was not in time."""
        began = time.monotonic()
        while time.monotonic() - began < within_seconds:
            if self.interrupted():
                raise KeyboardInterrupt
            try:
                if what():
                    return time.monotonic() - began
            except httpx.HTTPError:
                pass  # away for a moment; it is asked again
            time.sleep(POLL_SECONDS)
        return None

    def close(self) -> None:
        self.api.close()
        self.console.close()


def unit_of(run: str) -> str:
    return f"leases/{quote(f'run:{run}', safe=':')}"
