"""What an open page costs: statements per refresh, who asks included, against how often it asks.

A page may cost one small statement a second and viewer, whether something changed or not. How often
a part is asked for stands in the page itself; so this walks all pages with live parts, does what
changes them, counts, and adds up. Nothing is shared here: it is the only viewer of its process.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client
from django.test.signals import template_rendered
from django.test.utils import CaptureQueriesContext

from agentstate.caching import CACHES_OF, copies
from agentstate.store.commands import AnnounceWorker, CreateBulk, Picked
from agentstate.store.errors import LeaseHeld
from agentstate.store.models import Lease, Run
from tests.browser.scene import Scene
from tests.store.asking import SENIOR, event

# Each with what stands in its address; what it shows is made by `Scene`.
PAGES = {
    "Now": "/",
    "Runs": "/runs",
    "Runs, filtered": "/runs?q=task:issue",
    "Run": "/runs/ticket-77",
    "Run, state": "/runs/ticket-77?tab=state",
    "Run, errors only": "/runs/ticket-77?errors=1",
    "Run, a closeup": "/runs/ticket-77?from=2026-03-02T12:49:00Z&to=2026-03-02T12:50:00Z",
    "Leases": "/leases",
    "Lease": "/leases/run:ticket-77",
    "Lease, taken over": "/leases/run:checkout-42",
    "Lease of no run": "/leases/mailbox:support@example.org",
    "Reclaim": "/leases/run:ticket-77/reclaim",
    "Reclaim of no run": "/leases/mailbox:support@example.org/reclaim",
    "Workers": "/workers",
    "Contention": "/contention",
    "Budgets": "/budgets",
    "Budget of a run": "/runs/ticket-77/budgets/tokens",
    "Budget": "/budgets/company",
    "Bulks": "/bulk",
    "Bulk": "/bulk/{bulk}",
    "Alerts": "/alerts",
    "Targets": "/alerts/-/targets",
    "Audit": "/audit",
    "System": "/system",
}
# It tells how long its own reads take.
NEVER_THE_SAME = ("System",)
LIVE_PART = re.compile(r"<[^>]*\sdata-live=\"[^>]*>")
ATTRIBUTE = re.compile(r'\s(data-live[\w-]*|id)(?:="([^"]*)")?')
# BEGIN and the like read nothing, and a time limit is only taken back in a test's own transaction.
CONTROL = (
    "BEGIN",
    "COMMIT",
    "SAVEPOINT",
    "RELEASE",
    "SELECT set_config('statement_timeout', '0', true)",
)
# What a refresh takes from a copy that nothing ends before its age, beside what it reads.
COPIES = {"Runs": "tally", "Runs, filtered": "filtered"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a page that is refreshed, as the page says it. every: seconds between two polls;
    gap: on the average at least between two refreshes when hints come; None: it gets none."""

    address: str
    target: str
    every: float
    gap: float | None

    def headers(self, page: str) -> dict[str, str]:
        shown = f"http://testserver{page}"
        return {"HX-Request": "true", "HX-Target": self.target, "HX-Current-URL": shown}


def parts(text: str) -> Iterator[Part]:
    for tag in LIVE_PART.findall(text):
        said = {name: html.unescape(value) for name, value in ATTRIBUTE.findall(tag)}
        address = said["data-live"]
        if "data-live-beside" in said:  # the timeline comes along, and is not asked for by itself
            assert said["data-live-beside"] == "#timeline"
            address += f"{'&' if '?' in address else '?'}drawn=1"
        elif "/timeline" in address and "data-live-beside=" in text:
            continue
        if "data-live-after" in said:
            last = re.search(r'id="events"[^>]*data-last="(\d+)"', text)
            address += f"&after={last[1]}" if last else ""
        if rows := said.get("data-live-rows"):
            assert rows == "#rows"
            keys = re.findall(r'<tr[^>]*\sdata-key="([^"]*)"', text)
            address += "".join(f"&key={key}" for key in keys)
        gap = float(said.get("data-live-gap", 1)) if "data-live-stream" in said else None
        every = float(said.get("data-live-every", 5))
        yield Part(address=address, target=said.get("data-live-as", ""), every=every, gap=gap)


def count(client: Client, part: Part, page: str, tag: str = "") -> tuple[int, str, int]:
    """How many statements one refresh takes; its tag and its status."""
    headers = part.headers(page) | ({"If-None-Match": tag} if tag else {})
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(part.address, headers=headers)
    reads = [one["sql"] for one in asked if not one["sql"].startswith(CONTROL)]
    return len(reads), answer.headers.get("ETag", ""), answer.status_code


@pytest.fixture
def scene(store, still_clock):
    scene = Scene(store, still_clock)
    scene.play(others=12)
    scene.company()
    return scene


@pytest.fixture
def open_page(scene, operator):
    """The text of a page as it is opened, and its address."""
    bulk = begin_bulk(scene.store)

    def open_one(name: str) -> tuple[str, str]:
        address = PAGES[name].format(bulk=bulk)
        answer = operator.get(address)
        assert answer.status_code == 200, address
        return answer.text, address

    return open_one


def begin_bulk(store) -> str:
    """The number of one that is at work."""
    run = Run.objects.get(key="ticket-77")
    picked = (Picked(run=run.key, status=run.status, owner=run.owner, token=run.token),)
    asked = CreateBulk(
        kind="tag", picked=picked, seen_at=run.updated_at, shown=1, tags=("x",), reason="r"
    )
    return store.as_caller(SENIOR).ask(asked).bulk.hex


def change(scene: Scene) -> None:
    """Something of everything: events, a status, a renewal, a refusal, a heartbeat, a charge."""
    store, clock = scene.store, scene.clock
    clock.advance(seconds=1)
    lease = held("run:ticket-77")
    store.append("ticket-77", [event()], fence=lease.token)
    store.renew("run:ticket-77", lease.token, ttl_seconds=3_600)
    store.spend("ticket-77", 1, budget="tokens", fence=lease.token)
    store.create(f"fresh-{clock.now.timestamp()}", task="triage issue 1")
    store.ask(AnnounceWorker(worker="w-4~beef", version="1.4.2", host="node-a", slots=4))
    for unit in ("run:ticket-77", "mailbox:support@example.org"):
        with suppress(LeaseHeld):
            store.acquire(unit, f"w-{clock.now.timestamp()}")


def held(unit: str) -> Lease:
    return Lease.objects.get(unit=unit)


def test_no_page_costs_more_than_a_statement_a_second(scene, open_page, operator):
    rendered: set[str] = set()

    def note(template, **_named):
        rendered.add(template.name)

    template_rendered.connect(note)
    told, over = [], []
    try:
        for name in PAGES:
            text, page = open_page(name)
            live = list(parts(text))
            assert live, name
            unchanged = changed = 0.0
            for part in live:
                copies.empty()
                first, tag, _ = count(operator, part, page)
                same, _, status = count(operator, part, page, tag)
                if name in COPIES:
                    shared = (first - same) / CACHES_OF[COPIES[name]].ttl_seconds
                    unchanged, changed = unchanged + shared, changed + shared
                change(scene)
                fresh, _, fresh_status = count(operator, part, page, tag)
                assert status == HTTPStatus.NOT_MODIFIED or name in NEVER_THE_SAME, name
                unchanged += same / part.every
                changed += fresh / (part.every if part.gap is None else part.gap)
                told.append(
                    f"| {name} | {same} ({status}) | {fresh} ({fresh_status}) |"
                    f" {part.every:g}{'' if part.gap is None else f', {part.gap:g}'} |"
                )
            told.append(f"| **{name}** | {unchanged:.2f} | {changed:.2f} | a second |")
            if max(unchanged, changed) > 1.0001:
                over.append(f"{name}: {unchanged:.2f} unchanged, {changed:.2f} changed")
    finally:
        template_rendered.disconnect(note)
        print("\n".join(told))
    assert over == []
    assert set(templates_with_live_parts()) <= rendered


def templates_with_live_parts() -> Iterator[str]:
    root = Path(django_settings.BASE_DIR) / "templates"
    for path in root.rglob("*.html"):
        if re.search(r'\sdata-live="', path.read_text()):
            yield str(path.relative_to(root))
