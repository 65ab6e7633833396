"""The calls that workers make all the time, answered on the event loop, in front of Django.

Django and ninja take longer over such a call than the store does over the write. So the bridge
offers it here first: the same endpoint (a `Write`, writes.py), its schema, its parsers and checks,
without a thread of its own, and everything that came meanwhile as one batch (store/aio.py).

Only what is in good order is done here. Whatever is not, from a key that is unknown to a header
that nobody expects, is left alone before anything was done, and goes the long way, where it is told
what is wrong with it: refusals of the request have one home. What the store refuses is told by
`door.py` here, too. docs/decisions/0031-on-the-loop.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple, get_args, get_type_hints

from asgiref.typing import HTTPScope
from django.conf import settings
from django.db import close_old_connections
from django.http import HttpResponse
from django.urls import resolve
from pydantic import TypeAdapter

from agentstate import logs, metrics
from agentstate.admission import Kind, kind_of
from agentstate.api import pacing
from agentstate.api.access import sent_key
from agentstate.api.bodies import PAYLOADS
from agentstate.api.door import answer_to
from agentstate.api.urls import api
from agentstate.api.writes import Write
from agentstate.middleware import SHORT_HEADERS
from agentstate.request_ids import request_id_of
from agentstate.store import aio, payloads
from agentstate.store.asks import OF_LEASES, Ask, Outcome, weight
from agentstate.store.callers import Caller
from agentstate.store.commands import Result
from agentstate.store.errors import OutcomeUnknown, Refusal
from agentstate.store.execute import execute_all, try_together
from agentstate.store.hot import HOT
from agentstate.store.keys import Unauthenticated, find_callers
from agentstate.store.spent import Spent

# Operations of the API whose endpoint returns a Write.
CALLS = (
    "append_events",
    "renew_lease",
    "spend",
    "claim_runs",
    "acquire_lease",
    "release_lease",
    "spend_shared",
)
# The headers that a call may have here; others mean nothing to it, and those that could be taken
# for one of these (an underscore, a second time) go the long way.
_KNOWN = {
    b"authorization": "HTTP_AUTHORIZATION",
    b"content-type": "CONTENT_TYPE",
    b"content-length": "CONTENT_LENGTH",
    b"idempotency-key": "HTTP_IDEMPOTENCY_KEY",
    b"if-match": "HTTP_IF_MATCH",
    b"agentstate-fence": "HTTP_AGENTSTATE_FENCE",
    b"agentstate-attempt": "HTTP_AGENTSTATE_ATTEMPT",
    b"agentstate-attempts-max": "HTTP_AGENTSTATE_ATTEMPTS_MAX",
    b"agentstate-deadline": "HTTP_AGENTSTATE_DEADLINE",
    b"x-request-id": "HTTP_X_REQUEST_ID",
    b"agentstate-worker": "HTTP_AGENTSTATE_WORKER",
    b"traceparent": "HTTP_TRACEPARENT",
}
_UNUSUAL = frozenset({b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"})
_ALWAYS = "".join(
    f"{name.lower()}: {value}\r\n"
    for name, value in (SHORT_HEADERS | {"Cache-Control": "no-store"}).items()
)
_PLACE = re.compile(r"\{(\w+)\}")

# (status, the head's lines, body)
type Written = tuple[int, bytes, bytes]
type Then = Callable[[Written | aio.Late | None], None]
type InThread = Callable[[Callable[[], Outcome]], Awaitable[Outcome]]


class Match(NamedTuple):
    """Where the request's address leads, as Django's own tells it."""

    route: str
    kwargs: dict[str, Any]


@dataclass(slots=True, eq=False)
class Request:
    """What the endpoints, `door.py` and the log need of one."""

    method: str
    path: str
    META: dict[str, Any]
    request_id: str
    resolver_match: Match
    body_text: str = ""
    caller: Caller | None = None
    pace: pacing.Pace | None = None
    environ: dict[str, Any] = field(default_factory=dict)


class Call:
    """One operation: its address, its parameters, its body, and who may call it."""

    def __init__(self, template: str, operation: Any) -> None:
        view = operation.view_func.writes
        hints = get_type_hints(view, include_extras=True)
        model, _ = get_args(hints["ask"])
        self.view: Callable[..., Write] = view
        self.read_body = model.model_validate
        self.scopes = frozenset(chain(*(auth.scopes for auth in operation.auth_callbacks)))
        self.pattern = re.compile(_PLACE.sub(r"([^/%]+)", template).encode())
        self.parameters = [
            (name, TypeAdapter(hints[name]).validate_python) for name in _PLACE.findall(template)
        ]
        self.route = resolve(_PLACE.sub("x", template)).route
        # What it is for, whatever its body says; None: that decides.
        path = _PLACE.sub("x", template)
        kind = kind_of("POST", path, b"")
        self.kind = kind if kind is kind_of("POST", path) else None


@cache
def calls() -> tuple[Call, ...]:
    """Those of CALLS, from what ninja knows of them."""
    found = {
        operation.operation_id: Call(f"/api/v1{prefix}{path}", operation)
        for prefix, router, *_ in api._routers
        for path, of_path in router.path_operations.items()
        for operation in of_path.operations
        if operation.operation_id in CALLS
    }
    return tuple(found[name] for name in CALLS)


@dataclass(slots=True, eq=False)
class _Item:
    """A call on its way to its outcome. ask: once it is known who calls."""

    call: Call
    request: Request
    key: str
    wanted: Write
    began: float
    ask: Ask | None = None

    def do_alone(self) -> Outcome:
        """By itself, in a thread that keeps its connection: its batch was rolled back."""
        assert self.ask is not None
        close_old_connections()
        try:
            return execute_all([self.ask])[0]
        except Exception as failed:
            return failed
        finally:
            close_old_connections()


# It goes the long way: nothing was done.
_THE_LONG_WAY = object()
type _Found = Outcome | object | None


def find(scope: HTTPScope) -> tuple[Call, Sequence[bytes]] | None:
    """The call of a request's head, and its parameters as they stand in the address."""
    if scope["method"] != "POST" or scope["query_string"] or settings.TRACES:
        return None  # spans are made on the long way
    path = scope.get("raw_path") or b""
    for call in calls():
        match = call.pattern.fullmatch(path)
        if match:
            return call, match.groups()
    return None


def kind(found: tuple[Call, Sequence[bytes]], scope: HTTPScope, body: bytes) -> Kind:
    """What the request is for."""
    return found[0].kind or kind_of("POST", scope["path"], body)


def begin(
    found: tuple[Call, Sequence[bytes]],
    scope: HTTPScope,
    body: bytes,
    *,
    came_at: float,
    longest_wait_seconds: float,
    in_thread: InThread,
    then: Then,
) -> bool:
    """Take a request that is there as a whole; False: it goes the long way.

    `then` is called on the loop, once, later: with (status, the head's lines, body), with None when
    nothing was done and it goes the long way, or with aio.Late. came_at: when its head was there,
    by monotonic(); longest_wait_seconds: from now until it has to begin.
    """
    item = _read(found, scope, body, came_at)
    if item is None:
        return False
    command = item.wanted.command
    lanes = _LEASES if isinstance(command, OF_LEASES) else _WRITES
    size, wait_seconds = weight(command), item.wanted.under.wait_seconds(longest_wait_seconds)

    def done(outcome: _Found, failed: Exception | None, parts: Spent) -> None:
        if isinstance(failed, aio.Late) or outcome is _THE_LONG_WAY:
            then(failed)  # type: ignore[arg-type]
        elif failed is None and outcome is None:
            task = asyncio.ensure_future(_alone(item, in_thread, then, parts))
            _TASKS.add(task)
            task.add_done_callback(_TASKS.discard)
        else:
            then(_written(item, failed or outcome, parts))

    lanes.here().put(item, weight=size, wait_seconds=wait_seconds, then=done)
    return True


async def _alone(item: _Item, in_thread: InThread, then: Then, parts: Spent) -> None:
    """Of one whose batch the database rolled back."""
    try:
        outcome = await in_thread(item.do_alone)
    except Exception as failed:
        outcome = failed
    then(_written(item, outcome, parts))


def _written(item: _Item, outcome: _Found, parts: Spent) -> Written:
    """The answer, and what `/metrics` and the log tell of it."""
    before = logs.REQUEST.set(item.request)  # type: ignore[arg-type]
    try:
        return _answered(item, outcome, parts)
    except Exception as failed:  # nobody else would answer; door.py logs it
        return _answered(item, failed, parts)
    finally:
        logs.REQUEST.reset(before)


def _answered(item: _Item, outcome: _Found, parts: Spent) -> Written:
    request = item.request
    if isinstance(outcome, aio.Unknown):
        outcome = OutcomeUnknown("its batch is still being written", retry_after_ms=1_000)
    if isinstance(outcome, Result):
        status, text, told = item.wanted.answer(outcome)
        body = text.encode()
    else:
        assert isinstance(outcome, Exception)
        status, body, told = _refused(request, outcome)
    if request.pace is not None:
        told |= request.pace.headers
    total = perf_counter() - item.began
    metrics.note_request(
        method="POST", route=item.call.route, status=status, spent=parts, total_seconds=total
    )
    logs.note_answer(method=request.method, status=status, seconds=total)
    lines = "".join([f"{name.lower()}: {value}\r\n" for name, value in told.items()])
    head = (
        f"{_ALWAYS}x-request-id: {request.request_id}\r\nserver-timing: {parts.told(total)}\r\n"
        f"content-length: {len(body)}\r\n{lines}"
    )
    return status, head.encode("latin-1"), body


def _read(
    found: tuple[Call, Sequence[bytes]], scope: HTTPScope, body: bytes, came_at: float
) -> _Item | None:
    """What the request asks for; None when anything about it is not as it should be."""
    began = perf_counter()
    call, parts = found
    meta = _meta(scope)
    if meta is None:
        return None
    request = Request(
        method="POST",
        path=scope["path"],
        META=meta | {"agentstate.came_at": came_at},
        request_id=request_id_of(meta.get("HTTP_X_REQUEST_ID", "")),
        resolver_match=Match(call.route, {}),
    )
    try:
        request.body_text = body.decode()
        ask = call.read_body(payloads.parse(request.body_text, raw=PAYLOADS))
        named = {
            name: read(part.decode())
            for (name, read), part in zip(call.parameters, parts, strict=True)
        }
        request.resolver_match.kwargs.update(named)
        wanted = call.view(request, **named, ask=ask)
        return _Item(call, request, sent_key(request), wanted, began)  # type: ignore[arg-type]
    except Exception:  # whatever it is, the long way tells it, and logs what is a fault of ours
        return None


def _meta(scope: HTTPScope) -> dict[str, Any] | None:
    meta: dict[str, Any] = {}
    for raw, value in scope["headers"]:
        name = _KNOWN.get(raw)
        if name is not None:
            if name in meta:
                return None
            meta[name] = value.decode("latin-1")
        elif b"_" in raw or raw in _UNUSUAL:
            return None
    is_plain = meta.get("CONTENT_TYPE") == "application/json" and "CONTENT_LENGTH" in meta
    return meta if is_plain else None


_TASKS: set[asyncio.Future[None]] = set()


def _together(items: Sequence[_Item]) -> list[_Found]:
    """In the lane's thread: who calls, then all that they may do as one batch."""
    callers = find_callers({item.key for item in items})
    found: list[_Found] = [None] * len(items)
    asks: list[Ask] = []
    places: list[int] = []
    for n, item in enumerate(items):
        caller = callers[item.key]
        if isinstance(caller, Unauthenticated) or not (caller.scopes & item.call.scopes):
            found[n] = _THE_LONG_WAY
            continue
        item.request.caller = caller
        item.ask = Ask(command=item.wanted.command, by=caller, under=item.wanted.under)
        refused = _paced(item, caller) or HOT.refusal_of(item.ask)
        if refused is not None:
            found[n] = refused
        else:
            asks.append(item.ask)
            places.append(n)
    if asks:
        for n, outcome in zip(places, try_together(asks), strict=True):
            found[n] = outcome
    return found


def _paced(item: _Item, caller: Caller) -> Refusal | None:
    try:
        pacing.pace(item.request, caller)  # type: ignore[arg-type]
    except Refusal as refused:
        return refused
    return None


def _refused(request: Request, raised: Exception) -> tuple[int, bytes, dict[str, str]]:
    response: HttpResponse = answer_to(request, raised)  # type: ignore[arg-type]
    return response.status_code, response.content, dict(response.items())


class OnTheLoop:
    """What the bridge offers each request to."""

    find = staticmethod(find)
    kind = staticmethod(kind)
    begin = staticmethod(begin)


SHORTCUT = OnTheLoop()
_WRITES = aio.LoopLanes(_together, name="api-writes")
_LEASES = aio.LoopLanes(_together, name="api-leases")


async def end() -> None:
    """End the threads that belong to the running loop."""
    await _WRITES.end()
    await _LEASES.end()
