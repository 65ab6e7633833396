"""One span for each call, when OpenTelemetry is there; nothing at all when it is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from scripted_peer import KEY, Peer, Reply, appended, problem, run_script

from agentstate_client import Client, Event, SeqConflict, Unreachable, tracing
from agentstate_client.tracing import route_of

EVENTS = "/runs/42/events"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "TRACER", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    (span,) = spans.get_finished_spans()
    return span


def test_a_call_is_a_span_with_its_address_and_its_attempts(
    peer: Peer, client: Client, spans: InMemorySpanExporter
) -> None:
    peer.says(EVENTS, problem(503, "unavailable", "same-request"), appended())
    client.run("42").append(Event("a", {"secret": "of the run"}))
    span = only(spans)
    assert span.attributes is not None
    assert (span.name, span.kind) == ("POST /runs/{}/events", SpanKind.CLIENT)
    assert span.attributes["http.request.resend_count"] == 1
    assert span.attributes["server.address"] == "127.0.0.1"
    assert span.attributes["agentstate.request_id"] == peer.to(EVENTS)[0].headers["X-Request-Id"]
    assert span.status.status_code == StatusCode.UNSET
    for sent in peer.to(EVENTS):  # so the server's span is a part of this one
        assert sent.headers["traceparent"].split("-")[1:3] == [
            f"{span.context.trace_id:032x}",
            f"{span.context.span_id:016x}",
        ]
        assert sent.headers["Agentstate-Worker"] == client.owner
    assert "secret" not in span.to_json()
    assert KEY not in span.to_json()


@pytest.mark.parametrize(
    ("reply", "error", "code"),
    [
        (problem(412, "seq-conflict", "reread"), SeqConflict, "seq-conflict"),
        (Reply(cut=True), Unreachable, "Unreachable"),
    ],
)
def test_what_went_wrong_is_on_the_span(
    peer: Peer,
    client: Client,
    spans: InMemorySpanExporter,
    reply: Reply,
    error: type[Exception],
    code: str,
) -> None:
    peer.says(EVENTS, reply)
    with pytest.raises(error):
        client.run("42").append(Event("a"))
    span = only(spans)
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.status.status_code) == (code, StatusCode.ERROR)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/runs", "/runs"),
        ("/runs/runs/events", "/runs/{}/events"),
        (
            "/runs/42/budgets/tokens/reservations/h/commit",
            "/runs/{}/budgets/{}/reservations/{}/commit",
        ),
        ("/leases/claim", "/leases/claim"),
        ("/leases/run%3A42/renew", "/leases/{}/renew"),
        ("/feed/consumers/billing", "/feed/consumers/{}"),
    ],
)
def test_a_route_has_no_names_in_it(path: str, route: str) -> None:
    assert route_of(path) == route


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from agentstate_client import Client, Event, tracing
assert tracing.TRACER is None
print(Client(sys.argv[1], "k").run("42").append(Event("a")).first_seq)
"""


def test_without_it_nothing_is_missing(peer: Peer) -> None:
    peer.says(EVENTS, appended())
    done = run_script(WITHOUT, peer.url)
    assert (done.stdout, done.stderr) == ("3\n", "")
