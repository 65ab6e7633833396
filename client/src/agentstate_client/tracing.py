"""Spans of OpenTelemetry, one for each call, when that is installed; else nothing.

A span is named for the call's method and address with the names taken out, as in
`POST /runs/{}/events`, and covers all its attempts. It never holds a payload or the API key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from agentstate_client.calls import Request
from agentstate_client.errors import AgentStateError, Refused
from agentstate_client.version import VERSION

try:
    from opentelemetry import propagate, trace
except ImportError:
    TRACER: Any = None
else:
    TRACER = trace.get_tracer("agentstate_client", VERSION)

# Each of these is followed by a name, but where the address ends with a verb.
COLLECTIONS = frozenset({"runs", "leases", "budgets", "reservations", "consumers", "workers"})
VERBS = ("/leases/claim", "/leases/renew")


class Attempts:
    """How often a call was sent; told to its span at the end."""

    count = 0


@contextmanager
def spanned(call: Request, base: httpx.URL) -> Iterator[Attempts]:
    """The span of a call; what is raised in it is on it, by its code."""
    attempts = Attempts()
    if TRACER is None:
        yield attempts
        return
    route = route_of(call.path)
    with TRACER.start_as_current_span(
        f"{call.method} {route}",
        kind=trace.SpanKind.CLIENT,
        attributes={
            "http.request.method": call.method,
            "url.template": route,
            "server.address": base.host,
            "server.port": base.port or (443 if base.scheme == "https" else 80),
            "agentstate.request_id": call.id,
        },
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield attempts
        except AgentStateError as failure:
            code = failure.code if isinstance(failure, Refused) else type(failure).__name__
            span.set_attribute("error.type", code)
            span.set_status(trace.StatusCode.ERROR, code)
            raise
        finally:
            span.set_attribute("http.request.resend_count", max(0, attempts.count - 1))


def carried() -> dict[str, str]:
    """The headers by which the server's span belongs to the caller's trace; none without one."""
    headers: dict[str, str] = {}
    if TRACER is not None:
        propagate.inject(headers)
    return headers


def route_of(path: str) -> str:
    """A call's path with {} for each name in it."""
    if path in VERBS:
        return path
    segments = path.split("/")
    for at in range(1, len(segments)):
        if segments[at - 1] in COLLECTIONS:
            segments[at] = "{}"
    return "/".join(segments)
