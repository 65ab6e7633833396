# Made from _async/transport.py by make_sync.py. Change it there.

"""Sends calls over HTTP, and sends them again where that is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import httpx

from agentstate_client import clock
from agentstate_client._sync.waiting import Flag, Home
from agentstate_client.calls import (
    Answer,
    Bearer,
    Departure,
    Guard,
    Request,
    address_of,
    base_of,
    headers_of,
    headers_of_all,
    is_local,
    is_settled,
    log,
    no_answer,
    parameters_of,
    read_answer,
    timeout_of,
)
from agentstate_client.errors import AgentStateError, ClientClosed, UnexpectedAnswer, Unsendable
from agentstate_client.retry import RetryPolicy
from agentstate_client.tracing import Attempts, carried, spanned


class Fence(Guard, Protocol):
    """The lease under which a call is made."""

    def wait_over(self, seconds: float) -> None:
        """Wait so long, or until the lease is over."""


@dataclass(frozen=True)
class Call(Request):
    """A request and the lease under which it is made."""

    fence: Fence | None = None


class Transport:
    """Sends calls with one API key to one address. Safe to use from many threads.

    worker: whose calls they are, for the server's log.
    timeout_seconds: for each step of an attempt (connecting at most 5 s, writing, each read).
    """

    def __init__(
        self, *, url: str, key: str, retry: RetryPolicy, timeout_seconds: float, worker: str = ""
    ) -> None:
        self.base = base_of(url)
        self.retry = retry
        self._timeout_seconds = timeout_seconds
        self._home = Home()
        self._closed = Flag()
        self._http = httpx.Client(
            auth=Bearer(key),
            headers=headers_of_all(worker),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            follow_redirects=False,
            # A proxy of the environment is for other machines; reading certificates takes time.
            trust_env=not is_local(self.base),
            verify=not (is_local(self.base) and self.base.scheme == "http"),
        )

    def close(self) -> None:
        """Send nothing more; a wait between two attempts ends at once."""
        self._closed.set()
        if self._home.is_here:  # in a forked child the sockets are still the parent's
            self._http.close()

    def send(self, call: Call) -> Answer:
        """Send a call until it is answered or the retry policy is used up.

        Raises Refused, Unreachable, UnexpectedAnswer, ClientClosed, and LeaseLost, without
        sending, once the lease of the call is over.
        """
        with spanned(call, self.base) as attempts:
            return self._send(call, attempts)

    def _send(self, call: Call, attempts: Attempts) -> Answer:
        policy = self.retry.within(call.total_seconds)
        started_at = clock.now()
        unknown_since: float | None = None
        while True:
            attempts.count += 1
            departure = Departure(call.fence)
            try:
                answer = self.send_once(call, departure, attempt=attempts.count)
            except AgentStateError as failure:
                if failure.outcome_unknown and unknown_since is None:
                    unknown_since = departure.sent_at
                failure.outcome_unknown = unknown_since is not None and not is_settled(failure)
                spent = clock.now() - started_at
                delay = policy.next_delay_seconds(attempts.count, spent, failure)
                if delay is None:
                    raise
                log.info("%s %s, attempt %d: %s", call.method, call.path, attempts.count, failure)
            else:
                return replace(answer, sent_at=unknown_since or answer.sent_at)
            self._wait(call, delay)

    def check(self) -> None:
        """Raises ClientClosed when nothing may be sent here, or not from here, any more."""
        if self._closed.is_set():
            raise ClientClosed("the client is closed: make another one")
        self._home.check()

    def send_once(
        self,
        call: Call,
        departure: Departure,
        *,
        attempt: int,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Send a call one time; `attempt` counts from 1. Raises what `send` does."""
        self.check()
        if call.fence is not None:
            call.fence.guard()  # no need to connect for what may not leave
        request = self._request(call, departure, attempt, timeout_seconds)
        try:
            response = self._http.send(request)
        except httpx.DecodingError as failure:
            raise UnexpectedAnswer(f"the answer cannot be read: {failure}") from failure
        except httpx.TransportError as failure:
            raise no_answer(call, departure, f"{type(failure).__name__}: {failure}") from failure
        except RuntimeError as failure:
            if not self._closed.is_set():
                raise
            # httpx's word for: somebody else closed it just now.
            raise ClientClosed("the client was closed") from failure
        finally:
            departure.forget_fence()
        return read_answer(call, departure, response)

    def _request(
        self, call: Call, departure: Departure, attempt: int, attempt_seconds: float | None
    ) -> httpx.Request:
        def watch(step: str, _details: Mapping[str, Any]) -> None:
            departure.note_step(step)

        timeout = timeout_of(
            call, client_seconds=self._timeout_seconds, attempt_seconds=attempt_seconds
        )
        try:
            return self._http.build_request(
                call.method,
                address_of(self.base, call),
                params=parameters_of(call),
                content=call.body,
                headers=carried() | headers_of(call, attempt, timeout),
                timeout=timeout,
                extensions={"trace": watch},
            )
        except httpx.InvalidURL as failure:
            raise Unsendable(f"no such address can be made: {failure}") from None

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until the client is closed."""
        self._closed.wait(seconds)

    def _wait(self, call: Call, seconds: float) -> None:
        if call.fence is None:
            self._closed.wait(seconds)
        else:
            call.fence.wait_over(seconds)
