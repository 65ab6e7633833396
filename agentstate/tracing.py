"""Spans of OpenTelemetry: one for each request and one for each task. Off unless AGENTSTATE_TRACES.

A request that says where it belongs (`traceparent`) goes on in its caller's trace, which the log
tells as `trace_id` with or without spans. A span has a route, never an address; names of runs are
in it, as they are in the log; no payload, no key, no text of an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentstate import __version__, logs
from agentstate.store.spent import Spent

SERVICE = "agentstate"
_OPEN_TASK: ContextVar[Any] = ContextVar("span of the task", default=None)


@contextmanager
def spanned(request: HttpRequest, spent: Spent) -> Iterator[Any]:
    """The span of a request, or None. spent: where its time went, told at its end."""
    if not settings.TRACES:
        yield None
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    names = ("traceparent", "tracestate")
    sent = {name: request.META.get(f"HTTP_{name.upper()}", "") for name in names}
    with tracer().start_as_current_span(
        str(request.method),
        context=extract({name: value for name, value in sent.items() if value}),
        kind=SpanKind.SERVER,
        record_exception=False,
        set_status_on_exception=False,  # its text may be somebody's
    ) as span:
        yield span
        for part in ("queue", "lock", "db", "commit"):
            span.set_attribute(f"agentstate.{part}_ms", round(getattr(spent, part) * 1000, 3))


def note(span: Any, response: HttpResponseBase) -> None:
    """Say what was answered. Of a stream the span ends when it begins."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    request = logs.REQUEST.get()
    found = logs.ids_of(request) if request is not None else {}
    if request is not None:
        span.update_name(f"{request.method} {found.get('route', 'nowhere')}")
        span.set_attribute("http.request.method", str(request.method))
    span.set_attribute("http.response.status_code", response.status_code)
    kept = {"route": "http.route", "request_id": "agentstate.request_id", "run": "agentstate.run",
            "unit": "agentstate.unit", "worker": "agentstate.worker"}  # fmt: skip
    for name, attribute in kept.items():
        if name in found:
            span.set_attribute(attribute, logs.clean_text(found[name], 300))
    if response.status_code >= 500:
        span.set_status(StatusCode.ERROR)


def begin_task(name: str, task_id: str) -> None:
    """The span of a task; it is the one that is open until `end_task`."""
    if settings.TRACES:
        from opentelemetry.trace import SpanKind

        span = tracer().start_span(name, kind=SpanKind.CONSUMER)
        span.set_attribute("agentstate.task_id", task_id)
        _OPEN_TASK.set(span)


def end_task(state: str | None) -> None:
    span = _OPEN_TASK.get()
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    if state != "SUCCESS":
        span.set_status(StatusCode.ERROR, state or "")
    span.end()
    _OPEN_TASK.set(None)


@cache
def tracer() -> Any:
    """Made at the first span: a process that was forked since has a sender of its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    told = {"service.name": SERVICE, "service.version": __version__,
            "agentstate.process": settings.AGENTSTATE_PROCESS}  # fmt: skip
    provider = TracerProvider(resource=Resource.create(told))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer(SERVICE, __version__)
