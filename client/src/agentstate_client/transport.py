"""One call to the store over HTTP: sent, repeated where that is right, and its answer read.

A call is made once (`Call`) and is the same each time it is sent: same body, same
Idempotency-Key, same request id; only Agentstate-Attempt counts up. A call under a lease is
stopped at the last moment, when its first byte is about to leave, if the lease is over by then.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Generator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from agentstate_client import clock
from agentstate_client.errors import (
    SAME_REQUEST,
    AgentStateError,
    ClientClosed,
    LeaseLost,
    Problem,
    Refused,
    StaleFence,
    UnexpectedAnswer,
    Unreachable,
    Unsendable,
    refusal,
)
from agentstate_client.retry import RetryPolicy
from agentstate_client.version import VERSION

log = logging.getLogger("agentstate_client")

API, LIVE = "/api/v1", "/live/v1"
CONNECT_SECONDS = 5.0
# What a proxy, or a server that is going down, says in the store's place.
NO_ANSWER_STATUSES = frozenset({429, 502, 503, 504})


class Fence(Protocol):
    """The lease under which a call is made."""

    @property
    def token(self) -> int: ...

    def guard(self) -> None:
        """Raises LeaseLost when nothing may be written under it any more."""

    def note_refusal(self, refused: Refused) -> None:
        """The store said that the lease is over."""

    def wait_over(self, seconds: float) -> None:
        """Wait so long, or until the lease is over."""


@dataclass(frozen=True)
class Call:
    """A request, the same each time it is sent. path: below the API, percent-encoded.

    keyed: carries an Idempotency-Key. attempt_seconds, total_seconds: not to wait longer than this
    for one answer, and for all attempts together; None: what the client was told.
    wait_seconds: how long the server may wait before it answers; then the path is below /live/v1.
    attempts_before: of the same purpose, in calls before this one; counted in Agentstate-Attempt.
    is_last: no call of that purpose follows; says so in Agentstate-Attempts-Max.
    """

    method: str
    path: str
    body: bytes | None = None
    query: Mapping[str, str | int | list[str]] = field(default_factory=dict)
    fence: Fence | None = None
    if_match: str | None = None
    keyed: bool = False
    attempt_seconds: float | None = None
    total_seconds: float | None = None
    wait_seconds: int | None = None
    attempts_before: int = 0
    is_last: bool = False
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


class Transport:
    """Sends calls with one API key to one address. Safe to use from many threads.

    timeout_seconds: for each step of an attempt (connecting at most 5 s, writing, each read).
    """

    def __init__(self, *, url: str, key: str, retry: RetryPolicy, timeout_seconds: float) -> None:
        self.base = _base_of(url)
        self._auth = _Bearer(key)
        self.retry = retry
        self._timeout_seconds = timeout_seconds
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._http = httpx.Client(
            auth=self._auth,
            headers={"Accept": "application/json", "User-Agent": f"agentstate-client/{VERSION}"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            follow_redirects=False,
            # A proxy of the environment is for other machines; reading certificates takes time.
            trust_env=not self._is_local(),
            verify=not (self._is_local() and self.base.scheme == "http"),
        )

    def _is_local(self) -> bool:
        return self.base.host in ("localhost", "127.0.0.1", "::1")

    def another(self) -> Transport:
        """The same address and key, with connections of its own."""
        other = copy(self)
        other._open()
        return other

    def close(self) -> None:
        """Send nothing more; a wait between two attempts ends at once."""
        self._closed.set()
        if os.getpid() == self._pid:  # in a forked child the sockets are still the parent's
            self._http.close()

    def send(self, call: Call) -> Answer:
        """Send a call until it is answered or the retry policy is used up.

        Raises Refused, Unreachable, UnexpectedAnswer, ClientClosed, and LeaseLost, without
        sending, once the lease of the call is over.
        """
        policy = self.retry.within(call.total_seconds)
        started_at = clock.now()
        unknown_since: float | None = None
        attempt = 1
        while True:
            departure = Departure(call.fence)
            try:
                answer = self.send_once(call, departure, attempt=attempt)
            except AgentStateError as failure:
                if failure.outcome_unknown and unknown_since is None:
                    unknown_since = departure.sent_at
                failure.outcome_unknown = unknown_since is not None and not _is_settled(failure)
                delay = policy.next_delay_seconds(attempt, clock.now() - started_at, failure)
                if delay is None:
                    raise
                log.info("%s %s, attempt %d: %s", call.method, call.path, attempt, failure)
            else:
                return replace(answer, sent_at=unknown_since or answer.sent_at)
            self._wait(call, delay)
            attempt += 1

    def send_once(
        self,
        call: Call,
        departure: Departure,
        *,
        attempt: int,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Send a call one time; `attempt` counts from 1. Raises what `send` does."""
        if self._closed.is_set() or os.getpid() != self._pid:
            raise ClientClosed("the client is closed, or was made before a fork: make another one")
        if call.fence is not None:
            call.fence.guard()  # no need to connect for what may not leave
        timeout = (timeout_seconds or self._timeout_seconds) + (call.wait_seconds or 0)
        limits = [s for s in (timeout, call.attempt_seconds, call.total_seconds) if s is not None]
        request = self._request(call, departure, attempt, min(limits))
        try:
            response = self._http.send(request)
        except httpx.DecodingError as failure:
            raise UnexpectedAnswer(f"the answer cannot be read: {failure}") from failure
        except httpx.TransportError as failure:
            raise _no_answer(call, departure, f"{type(failure).__name__}: {failure}") from failure
        except RuntimeError as failure:
            if not self._closed.is_set():
                raise
            # httpx's word for: another thread closed it just now.
            raise ClientClosed("the client was closed") from failure
        finally:
            departure.forget_fence()
        return _read(call, departure, response)

    def _request(
        self, call: Call, departure: Departure, attempt: int, timeout_seconds: float
    ) -> httpx.Request:
        try:
            return self._http.build_request(
                call.method,
                self.base.copy_with(raw_path=(self._root_of(call) + call.path).encode()),
                params=_parameters(call),
                content=call.body,
                headers=_headers(call, attempt, timeout_seconds),
                timeout=httpx.Timeout(
                    timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)
                ),
                extensions={"trace": departure},
            )
        except httpx.InvalidURL as failure:
            raise Unsendable(f"no such address can be made: {failure}") from None

    def _root_of(self, call: Call) -> str:
        root = self.base.path.rstrip("/")
        return root if call.wait_seconds is None else root[: -len(API)] + LIVE

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until the client is closed."""
        self._closed.wait(seconds)

    def _wait(self, call: Call, seconds: float) -> None:
        if call.fence is None:
            self._closed.wait(seconds)
        else:
            call.fence.wait_over(seconds)


class Departure:
    """Watches an attempt leave. sent_at: when its first byte was about to; None before.

    The HTTP library calls it at each step, in the thread that sends, after the wait for a
    connection: the last moment to hold back a write whose lease ran out meanwhile.
    """

    def __init__(self, fence: Fence | None = None) -> None:
        self._fence = fence
        self.sent_at: float | None = None

    def __call__(self, step: str, _details: Mapping[str, Any]) -> None:
        if not step.endswith("send_request_headers.started"):
            return
        if self._fence is not None:
            self._fence.guard()
        if self.sent_at is None:
            self.sent_at = clock.now()

    def forget_fence(self) -> None:
        """The attempt is over: what the HTTP library keeps of it must not keep a lease alive."""
        self._fence = None


class _Bearer(httpx.Auth):
    """Puts the key on a request; keeps it out of every repr."""

    def __init__(self, key: str) -> None:
        if not isinstance(key, str) or not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ValueError("key: printable ASCII characters without spaces")
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._key}"
        yield request


def _base_of(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url.rstrip("/") + API)
    except (httpx.InvalidURL, AttributeError, TypeError):
        base = httpx.URL("")
    unusable = base.query or base.fragment or base.userinfo
    if base.scheme not in ("http", "https") or not base.host or unusable:
        raise ValueError("url: an http or https address, such as http://127.0.0.1:8000")
    return base


def _parameters(call: Call) -> dict[str, str | int | list[str]] | None:
    waiting = {} if call.wait_seconds is None else {"wait": call.wait_seconds}
    return {**call.query, **waiting} or None


def _headers(call: Call, attempt: int, timeout_seconds: float) -> dict[str, str]:
    headers = {
        "X-Request-Id": call.id,
        "Agentstate-Attempt": str(call.attempts_before + attempt),
        "Agentstate-Deadline": str(max(1, int(timeout_seconds * 1000))),
    }
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    if call.is_last:
        headers["Agentstate-Attempts-Max"] = str(call.attempts_before + 1)
    if call.keyed:
        headers["Idempotency-Key"] = call.id
    if call.fence is not None:
        headers["Agentstate-Fence"] = str(call.fence.token)
    if call.if_match is not None:
        headers["If-Match"] = call.if_match
    return headers


def _read(call: Call, departure: Departure, response: httpx.Response) -> Answer:
    if response.is_success:
        sent_at = departure.sent_at if departure.sent_at is not None else clock.now()
        replayed, duplicate = (
            name in response.headers for name in ("Idempotent-Replayed", "Agentstate-Duplicate")
        )
        return Answer(response.text, sent_at, replayed, duplicate)
    problem = _problem_of(response)
    if problem is None and response.status_code in NO_ANSWER_STATUSES:
        raise _no_answer(call, departure, f"status {response.status_code}", response)
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


def _is_settled(failure: AgentStateError) -> bool:
    """The store looked for an earlier attempt of the call, found none, and refused.

    It looks after it has checked the key and before anything else.
    """
    return (
        isinstance(failure, Refused)
        and failure.status not in (None, 401, 403, 500)
        and failure.retry != SAME_REQUEST
    )


def _no_answer(
    call: Call, departure: Departure, what: str, response: httpx.Response | None = None
) -> Unreachable:
    return Unreachable(
        f"{call.method} {call.path}: no answer from the store ({what})",
        request_id=call.id,
        retry_after_seconds=None if response is None else _retry_after_seconds(response),
        outcome_unknown=call.method != "GET" and departure.sent_at is not None,
    )


def _strange(call: Call, response: httpx.Response) -> UnexpectedAnswer:
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
