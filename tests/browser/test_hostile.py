"""Hostile text in a real browser: it is shown, it sends nothing, and it breaks no layout."""

import pytest

from agentstate.store.commands import NewEvent
from agentstate.store.payloads import dump
from tests.store.asking import ANA

pytestmark = [pytest.mark.long, pytest.mark.many]

MARKUP = "<img src=/evil-image onerror=fetch('/evil')>"
HTMX = '"><b hx-get="/evil-htmx" hx-trigger="load">x</b>'
ADDRESSES = [
    "/runs",
    f"/runs?q={MARKUP}",
    "/runs/42",
    "/runs/42?event=4",
    "/runs/42?event=4&view=json",
    "/runs/42?event=5",
    "/runs/42?tab=ownership",
    "/runs/42?tab=audit",
    "/leases",
    "/leases/run:42",
    "/audit",
    f"/runs/{MARKUP}",
]


def test_the_browser_sends_nothing_because_of_a_text(store, clock, window):
    """Case O-22 (docs/cases.md)."""
    store.create("42", task=f"{MARKUP} {HTMX} \u202egnp.exe", tags=(HTMX[:60], "w" * 64))
    lease = store.hold("42", "w-1")
    payload = {MARKUP: HTMX, "text": f"{MARKUP}\n</script><script>fetch('/evil-script')</script>"}
    store.append("42", [NewEvent(type="x", data=dump(payload))], fence=lease.token)
    store.append("42", [NewEvent(type="y", data=dump("w" * 100_000))], fence=lease.token)
    clock.advance(seconds=100)
    store.as_caller(ANA).reclaim("run:42", token=lease.token, reason=f"{MARKUP} {HTMX}")

    for address in ADDRESSES:
        window.page.goto(address)
        window.page.wait_for_timeout(150)
        wide = window.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 1440, address

    evil = [url for url in window.requests if "evil" in url.split("?")[0].split("/runs/")[0]]
    assert evil == []
    assert [fault for fault in window.faults if "404" not in fault] == []


def test_what_comes_live_is_text_as_well(store, clock, window):
    """Case O-22 (docs/cases.md)."""
    store.create("42")
    window.page.goto("/runs/42")

    store.append("42", [NewEvent(type="z", data=dump({"out": MARKUP + HTMX}))])

    row = window.page.locator("#e-2")
    row.wait_for(timeout=10_000)
    assert "<img src=/evil-image" in row.inner_text()
    assert not [url for url in window.requests if "evil" in url]
