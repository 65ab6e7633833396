"""One call to the store: what is sent, and how its answer is read. Sends nothing by itself.

A call is made once and is the same each time it is sent: same body, same Idempotency-Key, same
request id; only Agentstate-Attempt counts up. A call under a lease is stopped at the last moment,
when its first byte is about to leave, if the lease is over by then. Both transports use this.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from agentstate_client import clock
from agentstate_client.errors import (
    SAME_REQUEST,
    AgentStateError,
    LeaseLost,
    Problem,
    Refused,
    StaleFence,
    UnexpectedAnswer,
    Unreachable,
    Unsendable,
    refusal,
)
from agentstate_client.version import VERSION

log = logging.getLogger("agentstate_client")

API, LIVE = "/api/v1", "/live/v1"
CONNECT_SECONDS = 5.0
# What a proxy, or a server that is going down, says in the store's place.
NO_ANSWER_STATUSES = frozenset({429, 502, 503, 504})


class Guard(Protocol):
    """The lease under which a call is made."""

    @property
    def token(self) -> int: ...

    def guard(self) -> None:
        """Raises LeaseLost when nothing may be written under it any more."""

    def note_refusal(self, refused: Refused) -> None:
        """The store said that the lease is over."""


@dataclass(frozen=True)
class Request:
    """A request, the same each time it is sent. path: below the API, percent-encoded.

    keyed: carries an Idempotency-Key. attempt_seconds, total_seconds: not to wait longer than this
    for one answer, and for all attempts together; None: what the client was told.
    wait_seconds: how long the server may wait before it answers; then the path is below /live/v1.
    attempts_before: of the same purpose, in calls before this one; counted in Agentstate-Attempt.
    is_last: no call of that purpose follows; says so in Agentstate-Attempts-Max.
    is_fence_inside: the token stands in the body, not in a header.
    """

    method: str
    path: str
    body: bytes | None = None
    query: Mapping[str, str | int | list[str]] = field(default_factory=dict)
    fence: Guard | None = None
    if_match: str | None = None
    keyed: bool = False
    attempt_seconds: float | None = None
    total_seconds: float | None = None
    wait_seconds: int | None = None
    attempts_before: int = 0
    is_last: bool = False
    is_fence_inside: bool = False
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class Answer:
    """A success. sent_at (client's clock): before the first attempt that may have had the effect
    sent its first byte. replayed: the first answer to this request, nothing was written now.
    duplicate: it was another request that had applied the change, under the same change id.
    """

    text: str
    sent_at: float
    replayed: bool = False
    duplicate: bool = False

    def document(self) -> dict[str, Any]:
        """The decoded body, new each time. Raises UnexpectedAnswer unless it is an object."""
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UnexpectedAnswer("the answer is not a JSON object: is this agentstate's address?")
        return found


def path_of(*segments: str) -> str:
    """A path of percent-encoded segments. Raises Unsendable for one that cannot be a name."""
    return "".join(f"/{_segment(name)}" for name in segments)


def _segment(name: str) -> str:
    # "." and ".." are resolved on the way and would become another address.
    if not isinstance(name, str) or not name.strip("."):
        raise Unsendable(f"{name!r} is not a name: letters, digits and . _ : @ ~ -")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise Unsendable(f"{name!a} is not a name: half a surrogate pair") from None


def is_local(base: httpx.URL) -> bool:
    return base.host in ("localhost", "127.0.0.1", "::1")


def address_of(base: httpx.URL, call: Request) -> httpx.URL:
    """Where a call goes: below /live/v1 when the server may wait before it answers."""
    root = base.path.rstrip("/")
    if call.wait_seconds is not None:
        root = root[: -len(API)] + LIVE
    return base.copy_with(raw_path=(root + call.path).encode())


def timeout_of(
    call: Request, *, client_seconds: float, attempt_seconds: float | None = None
) -> httpx.Timeout:
    """How long each step of one attempt may take. client_seconds: what the client was told."""
    usual = (attempt_seconds or client_seconds) + (call.wait_seconds or 0)
    limits = [s for s in (usual, call.attempt_seconds, call.total_seconds) if s is not None]
    seconds = min(limits)
    return httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))


class Departure:
    """Watches an attempt leave. sent_at: when its first byte was about to; None before.

    The HTTP library tells it of each step, where the sending is done, after the wait for a
    connection: the last moment to hold back a write whose lease ran out meanwhile.
    """

    def __init__(self, fence: Guard | None = None) -> None:
        self._fence = fence
        self.sent_at: float | None = None

    def note_step(self, step: str) -> None:
        """The attempt has come to this step. Raises LeaseLost when it may not go on."""
        if not step.endswith("send_request_headers.started"):
            return
        if self._fence is not None:
            self._fence.guard()
        if self.sent_at is None:
            self.sent_at = clock.now()

    def forget_fence(self) -> None:
        """The attempt is over: what the HTTP library keeps of it must not keep a lease alive."""
        self._fence = None


class Bearer(httpx.Auth):
    """Puts the key on a request; keeps it out of every repr."""

    def __init__(self, key: str) -> None:
        if not isinstance(key, str) or not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ValueError("key: printable ASCII characters without spaces")
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._key}"
        yield request


def base_of(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url.rstrip("/") + API)
    except (httpx.InvalidURL, AttributeError, TypeError):
        base = httpx.URL("")
    unusable = base.query or base.fragment or base.userinfo
    if base.scheme not in ("http", "https") or not base.host or unusable:
        raise ValueError("url: an http or https address, such as http://127.0.0.1:8000")
    return base


def parameters_of(call: Request) -> dict[str, str | int | list[str]] | None:
    """What follows the `?`. Raises Unsendable for a text that no address can hold."""
    waiting = {} if call.wait_seconds is None else {"wait": call.wait_seconds}
    for name, value in call.query.items():
        try:
            "".join(value if isinstance(value, list) else str(value)).encode()
        except UnicodeEncodeError:
            raise Unsendable(f"{name}: half a surrogate pair, which UTF-8 cannot carry") from None
    return {**call.query, **waiting} or None


_SHOWN = re.compile(r"[!-~]{1,200}")


def headers_of_all(worker: str) -> dict[str, str]:
    """What every call of a client says. worker: for the server's log; a name that no header can
    hold is left out, and refused where it counts."""
    named = {"Agentstate-Worker": worker} if _SHOWN.fullmatch(worker) else {}
    shown = {"Accept": "application/json", "User-Agent": f"agentstate-client/{VERSION}"}
    return shown | named


def headers_of(call: Request, attempt: int, timeout: httpx.Timeout) -> dict[str, str]:
    headers = {
        "X-Request-Id": call.id,
        "Agentstate-Attempt": str(call.attempts_before + attempt),
        "Agentstate-Deadline": str(max(1, int((timeout.read or 0) * 1000))),
    }
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    if call.is_last:
        headers["Agentstate-Attempts-Max"] = str(call.attempts_before + 1)
    if call.keyed:
        headers["Idempotency-Key"] = call.id
    if call.fence is not None and not call.is_fence_inside:
        headers["Agentstate-Fence"] = str(call.fence.token)
    if call.if_match is not None:
        headers["If-Match"] = call.if_match
    return headers


def read_answer(call: Request, departure: Departure, response: httpx.Response) -> Answer:
    if response.is_success:
        sent_at = departure.sent_at if departure.sent_at is not None else clock.now()
        replayed, duplicate = (
            name in response.headers for name in ("Idempotent-Replayed", "Agentstate-Duplicate")
        )
        return Answer(response.text, sent_at, replayed, duplicate)
    problem = _problem_of(response)
    if problem is None and response.status_code in NO_ANSWER_STATUSES:
        raise no_answer(call, departure, f"status {response.status_code}", response)
    if problem is None:
        raise _strange(call, response)
    refused = refusal(problem)
    if call.fence is not None and isinstance(refused, (StaleFence, LeaseLost)):
        call.fence.note_refusal(refused)
    raise refused


def _problem_of(response: httpx.Response) -> Problem | None:
    """The refusal in an answer; None when the answer is not one of agentstate's."""
    try:
        members = json.loads(response.text)
    except (ValueError, RecursionError):
        return None
    return Problem.read(
        members,
        status=response.status_code,
        request_id=response.headers.get("X-Request-Id"),
        retry_after_seconds=_retry_after_seconds(response),
    )


def is_settled(failure: AgentStateError) -> bool:
    """The store looked for an earlier attempt of the call, found none, and refused.

    It looks after it has checked the key and before anything else.
    """
    return (
        isinstance(failure, Refused)
        and failure.status not in (None, 401, 403, 500)
        and failure.retry != SAME_REQUEST
    )


def no_answer(
    call: Request, departure: Departure, what: str, response: httpx.Response | None = None
) -> Unreachable:
    return Unreachable(
        f"{call.method} {call.path}: no answer from the store ({what})",
        request_id=call.id,
        retry_after_seconds=None if response is None else _retry_after_seconds(response),
        outcome_unknown=call.method != "GET" and departure.sent_at is not None,
    )


def _strange(call: Request, response: httpx.Response) -> UnexpectedAnswer:
    strange = UnexpectedAnswer(
        f"{call.method} {call.path}: status {response.status_code} without a code of agentstate's",
        response.status_code,
    )
    strange.outcome_unknown = call.method != "GET" and response.is_server_error
    return strange


def _retry_after_seconds(response: httpx.Response) -> float | None:
    """Seconds, or a date as seen from the answer's own Date: never by this machine's clock."""
    value = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        asked = parsedate_to_datetime(value)
        said = parsedate_to_datetime(response.headers["Date"])
        return max(0.0, (asked - said).total_seconds())
    except (KeyError, TypeError, ValueError):
        return None
