"""The examples of OpenAPI and of the problem pages, carried out in their order on the real server.

With AGENTSTATE_RECORD=1 what is answered is written down anew, to agentstate/api/examples.json. The
clock is set and tokens are counted from one number, so that the answers are the same each time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from django.conf import settings
from django.db import connection
from django.urls import resolve

from agentstate import prepare
from agentstate.api import examples, shortcuts
from agentstate.api.examples import Example
from agentstate.api.problems import kinds
from agentstate.api.runs import LINES
from agentstate.store import alerts, deliveries, errors, feed, reads, upkeep
from agentstate.store.delivering import Answer
from agentstate.store.minutes import TALLY
from tests.api.asking import BASE, _operations, new_key
from tests.api.serving import serving

FIRST_TOKEN = 812
# The headers that tell something, of a request and of an answer.
SENT = ("Idempotency-Key", "Agentstate-Fence", "If-Match")
TOLD = ("ETag", "Location", "Idempotent-Replayed", "Agentstate-Duplicate", "Retry-After")
# Their answers have times and sizes that were measured: only their shape is compared.
MEASURED = ("list_alerts", "read_contention", "read_rates")
# Ids and secrets that are made at random.
# Ids, secrets, and cursors, which are signed with the site's own key.
MADE = re.compile(r'(msg_|whsec_|proposal=|"(?:next|prev|cursor|proposal)": ")[A-Za-z0-9+/=:_-]+')


class Story:
    """Calls in order. Headers are named as they are sent."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.written: list[dict[str, Any]] = []

    def call(self, summary: str, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """An example of a call that is carried out."""
        return self._shown(None, summary, method, path, body, **more)

    def refused(
        self, code: str, summary: str, method: str, path: str, body: Any = None, **more: Any
    ) -> None:
        """An example of a refusal."""
        self._shown(code, summary, method, path, body, **more)

    def lead(self, method: str, path: str, body: Any = None, **headers: Any) -> Any:
        """What only leads to the next example."""
        _, answer, told = self._send(method, path, body, None, headers)
        assert answer.is_success, answer.text
        return told

    def _shown(
        self,
        code: str | None,
        summary: str,
        method: str,
        path: str,
        body: Any,
        *,
        content: str | None = None,
        **headers: Any,
    ) -> Any:
        request, answer, told = self._send(method, path, body, content, headers)
        assert (answer.is_success, told["code"] if code else None) == (not code, code), answer.text
        self.written.append(written(summary, code, request, answer, told))
        return told

    def _send(
        self, method: str, path: str, body: Any, content: str | None, headers: dict[str, Any]
    ) -> tuple[httpx.Request, httpx.Response, Any]:
        """content: a body that is no JSON. An empty Authorization: none."""
        text = content if content is not None else None if body is None else json.dumps(body)
        sent = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        sent["X-Request-Id"] = f"example-{len(self.written) + 1}"
        if text is not None:
            sent["Content-Type"] = "application/json"
        request = self.client.build_request(method, BASE + path, content=text, headers=sent)
        if not request.headers["Authorization"]:
            del request.headers["Authorization"]
        answer = self.client.send(request)
        lines = answer.headers["Content-Type"] == LINES
        return request, answer, answer.text if lines else answer.json()


def written(
    summary: str, code: str | None, request: httpx.Request, answer: httpx.Response, told: Any
) -> dict[str, Any]:
    """An example's members, as examples.json has them."""
    path = request.url.raw_path.decode()
    match = resolve(unquote(request.url.path))
    parameters = {**match.kwargs, **dict(request.url.params)}
    sent = {n: request.headers[n] for n in SENT if n in request.headers}
    return {
        "operation": _operations()[request.method, match.route].operation_id,
        "name": code or slug(summary),
        "summary": summary,
        "method": request.method,
        "path": path,
        "parameters": parameters | sent,
        "sent": body_of(request),
        "status": answer.status_code,
        "headers": {name: answer.headers[name] for name in TOLD if name in answer.headers},
        "answer": told,
        "code": code,
    }


def body_of(request: httpx.Request) -> Any:
    """As JSON; as text when it is none; None without."""
    text = request.content.decode()
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def slug(summary: str) -> str:
    words = "".join(c if c.isalnum() else " " for c in summary.lower()).split()
    return "-".join(words)


@contextmanager
def raising(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: Exception) -> Any:
    def fail(*args: Any, **more: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(where, name, fail)
        yield


@pytest.fixture
def queues(transactional_db: None) -> Iterator[None]:
    """The broker's tables, for whoever asks whether it is ready."""
    parts = settings.DATABASE_PARTS | {"dbname": connection.settings_dict["NAME"]}
    with prepare.connect(parts) as session:
        prepare.install_queues(session)
        yield
        session.execute("DROP SCHEMA pgmq CASCADE")


@pytest.fixture
def story(queues: None, clock: Any) -> Iterator[Story]:
    TALLY.forget()
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SEQUENCE agentstate_fence RESTART WITH {FIRST_TOKEN}")
    key = new_key("fleet")
    with (
        serving() as address,
        httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {key.text}"}, timeout=30
        ) as client,
    ):
        yield Story(client)


def move_all() -> None:
    while feed.move():
        pass


def tell(story: Story, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run from its making to its end, then everything that can be refused."""
    the_store_itself(story)
    token = a_run_is_worked_on(story)
    its_money(story, token)
    what_is_seen(story)
    shared_money(story)
    operators(story, clock, token)
    many_at_once(story)
    everything_that_happened(story, clock)
    refusals_of_shape(story)
    refusals_of_a_run(story)
    refusals_of_leases(story, clock)
    refusals_of_money(story)
    refusals_of_repeating(story)
    what_is_over(story, clock)
    faults(story, monkeypatch)
    spans_of_an_agent(story)


def spans_of_an_agent(story: Story) -> None:
    trace = "5b8efff798038103d269b633813fc60c"
    values = {
        "gen_ai.operation.name": {"stringValue": "chat"},
        "gen_ai.request.model": {"stringValue": "large-2"},
        "gen_ai.usage.input_tokens": {"intValue": "700"},
        "gen_ai.usage.output_tokens": {"intValue": "112"},
    }
    span = {
        "traceId": trace,
        "spanId": "eee19b7ec3c1b174",
        "name": "chat large-2",
        "kind": 3,
        "startTimeUnixNano": "1772452800000000000",
        "endTimeUnixNano": "1772452801500000000",
        "attributes": [{"key": name, "value": value} for name, value in values.items()],
    }
    sent = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    story.call("A span of an agent, as an SDK sends it", "POST", "/traces", sent)
    story.call("The same run as spans", "GET", f"/runs/otel-{trace}/trace")


def the_store_itself(story: Story) -> None:
    story.call("The database's clock", "GET", "/time")
    story.call("The process answers", "GET", "/health/live")
    story.call("Requests can be served", "GET", "/health/ready")
    for name in upkeep.JOBS:
        with upkeep.beat(name) as this:
            this.behind = 0
    story.call("Our own jobs are on time", "GET", "/health/jobs")


def a_run_is_worked_on(story: Story) -> int:
    story.call(
        "A budget that many runs share",
        "POST",
        "/budgets",
        {"name": "fleet", "cap": 5_000_000, "unit": "tokens"},
        Idempotency_Key="open-fleet",
    )
    story.call(
        "A run with a budget of its own below it",
        "POST",
        "/runs",
        {
            "key": "42",
            "task": "audit checkout",
            "tags": ["nightly"],
            "attrs": {"repo": "shop"},
            "budgets": [{"name": "tokens", "cap": 100_000, "parent": "fleet"}],
        },
        Idempotency_Key="make-42",
    )
    story.call(
        "The same request again",
        "POST",
        "/runs",
        {
            "key": "42",
            "task": "audit checkout",
            "tags": ["nightly"],
            "attrs": {"repo": "shop"},
            "budgets": [{"name": "tokens", "cap": 100_000, "parent": "fleet"}],
        },
        Idempotency_Key="make-42",
    )
    story.call(
        "A worker process says that it is there",
        "PUT",
        "/workers/w-3~07fe",
        {"version": "1.4.0", "host": "rack-2", "slots": 8, "worker_time": "2026-03-02T12:00:01Z"},
    )
    token: int = story.call(
        "Take the run", "POST", "/leases/run:42/acquire", {"owner": "w-3~07fe", "ttl_seconds": 60}
    )["token"]
    story.call(
        "Begin",
        "POST",
        "/runs/42/transitions",
        {"to": "running", "from": "pending"},
        Agentstate_Fence=token,
        If_Match='"v2"',
    )
    story.call(
        "A step is done, in one write",
        "POST",
        "/runs/42/events",
        {
            "expected_seq": 3,
            "add": {"steps_done": 1},
            "events": [
                {"type": "tool.called", "id": "s1-call", "data": {"tool": "grep"}},
                {"type": "tool.returned", "id": "s1-back", "data": {"lines": 12}},
            ],
            "spend": {"budget": "tokens", "amount": 1_200, "id": "s1"},
        },
        Agentstate_Fence=token,
    )
    story.call(
        "The same events again",
        "POST",
        "/runs/42/events",
        {
            "expected_seq": 3,
            "add": {"steps_done": 1},
            "events": [
                {"type": "tool.called", "id": "s1-call", "data": {"tool": "grep"}},
                {"type": "tool.returned", "id": "s1-back", "data": {"lines": 12}},
            ],
            "spend": {"budget": "tokens", "amount": 1_200, "id": "s1"},
        },
        Agentstate_Fence=token,
    )
    story.call(
        "What the holder says of itself",
        "PUT",
        "/runs/42/telemetry",
        {
            "host": "rack-2",
            "model": "m-large",
            "progress": {"step": 1},
            "worker_time": "2026-03-02T12:00:01Z",
        },
        Agentstate_Fence=token,
    )
    story.call(
        "Change fields, guarded by one of them",
        "PATCH",
        "/runs/42",
        {
            "set": {"notes": "the cart first", "attrs.step.n": 1},
            "add": {"tool_calls": 1},
            "tags_add": ["cart"],
            "expect": {"counters.steps_done": {"lt": 5}},
            "id": "note-1",
        },
        Agentstate_Fence=token,
    )
    story.call(
        "Keep the run",
        "POST",
        "/leases/run:42/renew",
        {"token": token, "ttl_seconds": 60, "progress": {"step": 2}},
    )
    story.call(
        "Keep several units",
        "POST",
        "/leases/renew",
        {"items": [{"unit": "run:42", "token": token}, {"unit": "run:41", "token": 7}]},
    )
    return token


def its_money(story: Story, token: int) -> None:
    story.call(
        "Open another budget of the run",
        "POST",
        "/runs/42/budgets",
        {"name": "calls", "cap": 20, "unit": "calls"},
        Agentstate_Fence=token,
    )
    story.call(
        "Charge it",
        "POST",
        "/runs/42/budgets/calls/spend",
        {"amount": 1, "id": "s1", "note": "grep"},
        Agentstate_Fence=token,
    )
    story.call(
        "Hold an amount before it is used",
        "POST",
        "/runs/42/budgets/tokens/reserve",
        {"amount": 8_000, "id": "s2", "ttl_seconds": 120},
        Agentstate_Fence=token,
    )
    story.call(
        "What was really used",
        "POST",
        "/runs/42/budgets/tokens/reservations/s2/commit",
        {"amount": 6_310},
        Agentstate_Fence=token,
    )
    story.lead(
        "POST",
        "/runs/42/budgets/tokens/reserve",
        {"amount": 8_000, "id": "s3", "ttl_seconds": 120},
        Agentstate_Fence=token,
    )
    story.call(
        "Give it back unused",
        "POST",
        "/runs/42/budgets/tokens/reservations/s3/release",
        {},
        Agentstate_Fence=token,
    )
    story.call("A run's budgets", "GET", "/runs/42/budgets")
    story.call("One budget", "GET", "/runs/42/budgets/tokens")
    story.call("What was reserved", "GET", "/runs/42/budgets/tokens/reservations?state=committed")
    story.call("A budget's ledger", "GET", "/runs/42/budgets/tokens/ledger?after=1&limit=2")
    story.call(
        "A higher cap",
        "PATCH",
        "/runs/42/budgets/calls",
        {"cap": 40, "reason": "the cart is larger than we thought"},
        If_Match='"b2"',
    )


def what_is_seen(story: Story) -> None:
    story.call("Runs that are at work", "GET", "/runs?status=running&order=newest&limit=1")
    story.call("One run", "GET", "/runs/42")
    story.call("Its events", "GET", "/runs/42/events?after=3&limit=2")
    story.call("What may be done to it", "GET", "/runs/42/actions")
    story.call("Everything about it", "GET", "/runs/42/story?after_seq=4&limit=2")
    story.call("The same as rows", "GET", "/items?pk=run%2342&sk_prefix=evt%23&limit=2")
    story.call("All of it, as lines", "GET", "/runs/42/export")
    story.call("Derive everything again", "GET", "/runs/42/verify")
    story.call("What became of a request", "GET", "/receipts?key=make-42")
    story.call("Who holds what", "GET", "/leases?state=live")
    story.call("One unit", "GET", "/leases/run:42")
    story.call("Who had it", "GET", "/leases/run:42/terms")
    story.call("What may be done to it", "GET", "/leases/run:42/actions")


def shared_money(story: Story) -> None:
    story.call(
        "Charge a shared budget", "POST", "/budgets/fleet/spend", {"amount": 500, "id": "tax-1"}
    )
    story.call(
        "Hold an amount of it",
        "POST",
        "/budgets/fleet/reserve",
        {"amount": 1_000, "id": "hold-1", "ttl_seconds": 300},
    )
    story.call(
        "What was used of it", "POST", "/budgets/fleet/reservations/hold-1/commit", {"amount": 900}
    )
    story.lead(
        "POST", "/budgets/fleet/reserve", {"amount": 1_000, "id": "hold-2", "ttl_seconds": 300}
    )
    story.call("Give that back", "POST", "/budgets/fleet/reservations/hold-2/release", {})
    story.call("Shared budgets", "GET", "/budgets?limit=10")
    story.call("One shared budget", "GET", "/budgets/fleet")
    story.call("What was reserved of it", "GET", "/budgets/fleet/reservations?limit=1")
    story.call("Its ledger", "GET", "/budgets/fleet/ledger?limit=2")
    story.call(
        "A lower cap for all",
        "PATCH",
        "/budgets/fleet",
        {"cap": 4_000_000, "reason": "end of the quarter"},
        If_Match='"b11"',
    )


def operators(story: Story, clock: Any, token: int) -> None:
    story.call(
        "Tell the holder to drain",
        "POST",
        "/runs/42/signals",
        {"signal": "drain", "reason": "rack-2 is going down", "expected_token": token},
    )
    story.call(
        "Hold the writers back",
        "PUT",
        "/runs/42/brake",
        {"per_second": 5, "seconds": 600, "reason": "three writers at once"},
    )
    story.call("Let them go", "DELETE", "/runs/42/brake?reason=it+is+calm+again")
    story.call(
        "Ask a worker to take nothing more",
        "POST",
        "/workers/w-3~07fe/drain",
        {"reason": "rack-2 is going down"},
    )
    story.call("Workers", "GET", "/workers")
    clock.advance(seconds=61)
    story.call(
        "Ask a person to free a unit whose holder is silent",
        "POST",
        "/leases/run:42/proposals",
        {"expected_token": token, "expected_owner": "w-3~07fe", "reason": "silent for a minute"},
    )
    story.call("What a person has to decide on", "GET", "/proposals")
    story.call("What is stuck", "GET", "/runs/-/search?filter=lease%3Alapsed&limit=1")
    story.call(
        "Free a unit whose holder is silent",
        "POST",
        "/leases/run:42/reclaim",
        {"expected_token": token, "expected_owner": "w-3~07fe", "reason": "rack-2 is down"},
    )
    claimed = story.call(
        "Take whatever waits",
        "POST",
        "/leases/claim",
        {"owner": "w-4~11aa", "ttl_seconds": 60, "task": "audit checkout", "limit": 5},
    )
    token = claimed["items"][0]["token"]
    story.call("Give it back", "POST", "/leases/run:42/release", {"token": token})
    token = story.lead("POST", "/leases/run:42/acquire", {"owner": "w-4~11aa"})["token"]
    story.call(
        "It is done",
        "POST",
        "/runs/42/transitions",
        {"to": "completed", "result": {"findings": 3}},
        Agentstate_Fence=token,
    )


def many_at_once(story: Story) -> None:
    story.call(
        "Two runs, if the fleet's budget allows the charge",
        "POST",
        "/batch",
        {
            "operations": [
                {"op": "create", "key": "43", "task": "audit cart"},
                {"op": "create", "key": "44", "task": "audit search"},
                {"op": "spend", "budget": "fleet", "amount": 10, "id": "tax-2"},
                {"op": "check", "run": "42", "expect": {"status": "completed"}},
            ]
        },
        Idempotency_Key="two-runs",
    )


def everything_that_happened(story: Story, clock: Any) -> None:
    move_all()
    position = story.call("Changes of runs", "GET", "/feed?types=run.*&limit=4")["position"]
    story.call(
        "A consumer says how far it is", "PUT", "/feed/consumers/billing", {"position": position}
    )
    story.call("Who reads the feed", "GET", "/feed/consumers")
    story.call("One consumer", "GET", "/feed/consumers/billing")
    TALLY.write()
    story.call(
        "Conflicts by operation",
        "GET",
        "/rates?by=operation&limit=2&since=2026-03-02T12:00:00Z&until=2026-03-02T12:01:00Z",
    )
    story.call(
        "Who met whom",
        "GET",
        "/contention?limit=2&since=2026-03-02T12:00:00Z&until=2026-03-02T12:01:00Z",
    )
    deadline = (clock.now + timedelta(seconds=5)).isoformat()
    story.lead("POST", "/runs", {"key": "late", "task": "x", "deadline_at": deadline})
    clock.advance(seconds=6)
    alerts.evaluate_all()
    story.call("Alerts", "GET", "/alerts")
    story.call(
        "Somebody is at it",
        "POST",
        "/alerts/overdue-runs/acknowledge",
        {"version": 1, "reason": "the supplier is slow today"},
    )
    story.call(
        "Nobody is told for two hours",
        "POST",
        "/alerts/overdue-runs/snooze",
        {"version": 1, "seconds": 7_200, "reason": "known until noon"},
    )
    story.call("Rules and their bounds", "GET", "/alerts/rules")
    story.call(
        "What other bounds would have said", "GET", "/alerts/rules/overdue-runs/preview?alert=5"
    )
    story.call(
        "One that is late wakes nobody",
        "PATCH",
        "/alerts/rules/overdue-runs",
        {"version": 0, "warn": 1, "alert": 5, "reason": "single ones are looked at in the morning"},
    )
    targets_of_alerts(story)


def targets_of_alerts(story: Story) -> None:
    story.call(
        "A webhook is told of alerts",
        "POST",
        "/alert-targets",
        {
            "name": "on-call",
            "kind": "webhook",
            "address": "https://hooks.example.org/agentstate?team=4711",
            "least": "alert",
        },
    )
    story.call("Where alerts are told", "GET", "/alert-targets")
    story.call("A test is sent", "POST", "/alert-targets/on-call/test", {})
    story.call(
        "Its receiver gets another secret",
        "POST",
        "/alert-targets/on-call/rotate",
        {"version": 1, "reason": "the old one was in a chat"},
    )
    (claim,) = deliveries.claim(limit=5)
    deliveries.settle(claim, Answer(arrived=True, text="thanks", status=200, took_ms=41))
    log = story.call("What was told", "GET", "/deliveries?target=on-call")
    told = log["items"][0]["id"]
    story.call("A message is sent again", "POST", f"/deliveries/{told}/resend", {})
    story.call(
        "Off for the night",
        "PATCH",
        "/alert-targets/on-call",
        {"version": 2, "enabled": False, "reason": "maintenance until six"},
    )
    story.call(
        "A target goes",
        "POST",
        "/alert-targets/on-call/delete",
        {"version": 3, "reason": "another address"},
    )


def refusals_of_shape(story: Story) -> None:
    story.refused(
        "malformed", "A comma too many", "POST", "/runs", content='{"task": "audit checkout",}'
    )
    story.refused("unauthenticated", "Without a key", "GET", "/runs", Authorization="")
    reader = new_key("reader", ["read"])
    story.refused(
        "not-allowed",
        "A key that may only read",
        "POST",
        "/runs",
        {"task": "audit checkout"},
        Authorization=f"Bearer {reader.text}",
    )
    story.refused("not-found", "A run that nobody made", "GET", "/runs/no-such-run")
    story.refused(
        "payload-too-large",
        "An event that is too large",
        "POST",
        "/runs/43/events",
        {"events": [{"type": "a", "data": "x" * (1024 * 1024)}]},
    )
    story.refused(
        "invalid",
        "Two fields that break a rule",
        "POST",
        "/leases/run:43/acquire",
        {"owner": "w 3", "ttl_seconds": 0},
    )
    story.refused(
        "unstorable-text",
        "U+0000 in a payload",
        "POST",
        "/runs/43/events",
        {"events": [{"type": "tool.returned", "data": {"text": "a\x00b"}}]},
    )


def refusals_of_a_run(story: Story) -> None:
    story.refused(
        "exists", "A key that is taken", "POST", "/runs", {"key": "43", "task": "audit checkout"}
    )
    story.lead("POST", "/runs", {"key": "40", "task": "audit returns"})
    story.lead("POST", "/runs/40/transitions", {"to": "cancelled"})
    story.refused(
        "already-terminal",
        "A run that has ended",
        "POST",
        "/runs/40/transitions",
        {"to": "running"},
    )
    story.refused(
        "illegal-transition", "No such move", "POST", "/runs/43/transitions", {"to": "completed"}
    )
    story.refused(
        "version-conflict",
        "Somebody wrote first",
        "POST",
        "/runs/43/transitions",
        {"to": "running"},
        If_Match='"v7"',
    )
    story.refused(
        "seq-conflict",
        "Somebody appended first",
        "POST",
        "/runs/43/events",
        {"expected_seq": 4, "events": [{"type": "note.taken"}]},
    )
    story.refused(
        "expectation-failed",
        "Two clauses do not hold",
        "PATCH",
        "/runs/43",
        {
            "add": {"steps_done": 1},
            "expect": {"status": "running", "counters.steps_done": {"lt": 0}},
        },
    )
    story.lead("POST", "/runs/43/events", {"events": [{"type": "a", "id": "e-1"}]})
    story.refused(
        "partial-duplicate",
        "One id is known and one is not",
        "POST",
        "/runs/43/events",
        {"events": [{"type": "a", "id": "e-1"}, {"type": "b", "id": "e-2"}]},
    )
    story.refused(
        "event-id-reuse",
        "An id with another content",
        "POST",
        "/runs/43/events",
        {"events": [{"type": "b", "id": "e-1"}]},
    )
    story.refused(
        "batch-refused",
        "One of two operations fails",
        "POST",
        "/batch",
        {
            "operations": [
                {"op": "append", "run": "43", "events": [{"type": "a"}]},
                {"op": "check", "run": "42", "expect": {"status": "failed"}},
            ]
        },
    )
    story.lead("PUT", "/runs/43/brake", {"per_second": 1, "seconds": 60, "reason": "a loop"})
    story.refused(
        "run-hot",
        "Faster than the brake allows",
        "POST",
        "/runs/43/events",
        {"events": [{"type": "a"}]},
    )


def refusals_of_leases(story: Story, clock: Any) -> None:
    first = story.lead("POST", "/leases/run:44/acquire", {"owner": "w-5~90b2"})["token"]
    story.refused(
        "fence-required",
        "Without a token, on a run that was leased",
        "POST",
        "/runs/44/events",
        {"events": [{"type": "tool.returned"}]},
    )
    story.refused(
        "lease-held", "Somebody holds it", "POST", "/leases/run:44/acquire", {"owner": "w-6~c001"}
    )
    clock.advance(seconds=61)
    second = story.lead("POST", "/leases/run:44/acquire", {"owner": "w-6~c001"})["token"]
    story.refused(
        "stale-fence",
        "Its holder slept through its lease",
        "POST",
        "/runs/44/events",
        {"events": [{"type": "tool.returned"}]},
        Agentstate_Fence=first,
    )
    story.refused(
        "lease-lost", "Too late to renew", "POST", "/leases/run:44/renew", {"token": first}
    )
    story.refused(
        "holder-changed",
        "Another holder than the operator saw",
        "POST",
        "/leases/run:44/reclaim",
        {"expected_token": first, "expected_owner": "w-5~90b2", "reason": "it is silent"},
    )
    story.lead("POST", "/runs/44/transitions", {"to": "running"}, Agentstate_Fence=second)
    story.lead("POST", "/runs/44/transitions", {"to": "paused"}, Agentstate_Fence=second)
    story.lead("POST", "/leases/run:44/release", {"token": second})
    story.refused(
        "paused", "A run that is paused", "POST", "/leases/run:44/acquire", {"owner": "w-6~c001"}
    )
    story.lead("POST", "/runs", {"key": "45", "task": "audit login", "max_attempts": 1})
    claim = {"owner": "w-6~c001", "task": "audit login"}
    token = story.lead("POST", "/leases/claim", claim)["items"][0]["token"]
    story.lead("POST", "/leases/run:45/release", {"token": token})
    story.refused(
        "attempts-exhausted",
        "It has been started often enough",
        "POST",
        "/leases/run:45/acquire",
        {"owner": "w-6~c001"},
    )


def refusals_of_money(story: Story) -> None:
    story.lead(
        "POST", "/runs", {"key": "46", "task": "x", "budgets": [{"name": "tokens", "cap": 100}]}
    )
    story.lead("POST", "/runs/46/budgets/tokens/reserve", {"amount": 60, "id": "h"})
    story.refused(
        "budget-exhausted",
        "More than is left",
        "POST",
        "/runs/46/budgets/tokens/spend",
        {"amount": 60, "id": "s9"},
    )
    story.refused(
        "cap-below-use",
        "A cap below what is used",
        "PATCH",
        "/runs/46/budgets/tokens",
        {"cap": 50, "reason": "too dear"},
    )
    story.lead("POST", "/runs/46/budgets/tokens/reservations/h/commit", {"amount": 55})
    story.refused(
        "reservation-settled",
        "It was settled with another amount",
        "POST",
        "/runs/46/budgets/tokens/reservations/h/commit",
        {"amount": 60},
    )


def refusals_of_repeating(story: Story) -> None:
    story.refused(
        "idempotency-key-reuse",
        "The key of another request",
        "POST",
        "/runs",
        {"key": "47", "task": "audit returns"},
        Idempotency_Key="make-42",
    )
    lock = "hashtextextended(%s, 7205)"
    name = "key:fleet\x1fmake-48"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_advisory_lock({lock})", [name])
        story.refused(
            "idempotency-in-flight",
            "The first one is still at work",
            "POST",
            "/runs",
            {"key": "48", "task": "audit cart"},
            Idempotency_Key="make-48",
        )
        cursor.execute(f"SELECT pg_advisory_unlock({lock})", [name])


def what_is_over(story: Story, clock: Any) -> None:
    story.lead("POST", "/runs", {"key": "49", "task": "x", "retain_seconds": 60})
    story.lead("POST", "/runs/49/transitions", {"to": "cancelled"})
    clock.advance(seconds=61)
    story.refused("run-expired", "It was kept for a minute", "GET", "/runs/49")
    move_all()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM agentstate_feed WHERE position <= 5")
    story.refused("cursor-expired", "A consumer that was away too long", "GET", "/feed?after=2")


def faults(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can bring these about on purpose; each is raised where it is raised in earnest."""
    appended = ("POST", "/runs/43/events", {"events": [{"type": "a", "id": "e-7"}]})
    with raising(
        monkeypatch, shortcuts, "try_together", errors.OutcomeUnknown(retry_after_ms=1_000)
    ):
        story.refused("outcome-unknown", "The connection broke during COMMIT", *appended)
    gone = errors.Unavailable("the database cannot be reached or is busy")
    with raising(monkeypatch, shortcuts, "try_together", gone):
        story.refused("unavailable", "The database is away", *appended)
    with raising(monkeypatch, shortcuts, "try_together", errors.Overloaded()):
        story.refused("overloaded", "More requests than can be answered in time", *appended)
    often = errors.RateLimited(
        "this key may call 50 times a second", retry_after_ms=1_000, per_second=50
    )
    with raising(monkeypatch, shortcuts, "try_together", often):
        story.refused("rate-limited", "More calls than the site allows this key", *appended)
    with raising(monkeypatch, reads, "run", ZeroDivisionError("ours")):
        story.refused("internal", "A fault of ours", "GET", "/runs/43")


def test_every_example_is_what_the_server_answers(story, clock, monkeypatch):
    tell(story, clock, monkeypatch)
    if os.environ.get("AGENTSTATE_RECORD"):
        record(story.written)
    found = json.loads(examples.PATH.read_text(encoding="utf-8"))
    told = json.loads(json.dumps(shortened(story.written)))
    again = "record them again: AGENTSTATE_RECORD=1 pytest tests/api/test_examples.py"
    for now, before in zip(told, found, strict=False):
        assert masked(now) == masked(before), again
    assert len(told) == len(found), again


def record(written: list[dict[str, Any]]) -> None:
    text = json.dumps(shortened(written), indent=1, ensure_ascii=False)
    examples.PATH.write_text(text + "\n", encoding="utf-8")


def shortened(value: Any) -> Any:
    """Without the megabyte of the example that is too large."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value]
    if isinstance(value, str) and len(value) > 100_000:
        return f"{value[:40]}… ({len(value)} characters)"
    return value


def masked(example: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one time to the next."""
    if example["operation"] in MEASURED:
        return example | {"answer": shape(example["answer"])}
    plain: dict[str, Any] = json.loads(MADE.sub(r"\1…", json.dumps(example)))
    return plain


def shape(value: Any) -> Any:
    """The names in it; of a list, those of its items. Facts are other ones for each rule."""
    if isinstance(value, dict):
        return {n: "…" if n == "facts" else shape(inner) for n, inner in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(shape(inner), sort_keys=True) for inner in value})
    return "…"


def test_every_operation_has_an_example():
    carried_out = {one.operation for one in examples.all_examples() if one.code is None}
    assert {operation.operation_id for operation in _operations().values()} == carried_out


def test_every_code_has_an_example():
    assert {kind.code for kind in kinds()} == {one.code for one in examples.all_examples()} - {None}


def test_examples_of_one_call_have_different_names():
    names = [(one.operation, one.name) for one in examples.all_examples() if one.code is None]
    assert len(set(names)) == len(names)
    assert all(isinstance(one, Example) and one.summary for one in examples.all_examples())
