"""Hostile bodies for POST /traces: whatever comes, the answer is one of the protocol's."""

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentstate.store.models import Run
from agentstate.store.reads import run as read_run
from tests.api.asking import new_key

pytestmark = [pytest.mark.long, pytest.mark.many]

CASES = 150
ids = st.sampled_from(["", "00" * 8, "ab" * 8, "cd" * 8, "ef" * 16, "zz", "0" * 32, None, 7])
texts = st.text(max_size=12) | st.sampled_from(["\x00", "\ud800", "x" * 5000, "{[", "[[1]]"])
numbers = st.sampled_from(["0", "-1", "18446744073709551615", "1e3", 2**70, -5, 1.5, "x"])
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
names = st.sampled_from(
    [
        "gen_ai.operation.name", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
        "gen_ai.agent.name", "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.output.messages",
        "gen_ai.tool.call.arguments", "error.type", "x",
    ]
)  # fmt: skip
operations = st.sampled_from(["chat", "execute_tool", "invoke_agent", "", "x" * 300])
values = st.recursive(
    st.fixed_dictionaries({}, optional={"stringValue": texts | operations})
    | st.fixed_dictionaries({}, optional={"intValue": numbers, "boolValue": st.booleans()})
    | st.fixed_dictionaries({"doubleValue": st.sampled_from(["NaN", "Infinity", 1e308, "x"])})
    | st.fixed_dictionaries({"bytesValue": texts})
    | anything,
    lambda inner: st.fixed_dictionaries(
        {"arrayValue": st.fixed_dictionaries({"values": st.lists(inner, max_size=3)})}
    ),
    max_leaves=6,
)
pairs = st.lists(st.fixed_dictionaries({"key": names | texts, "value": values}), max_size=6)
spans = st.fixed_dictionaries(
    {"traceId": st.just("ef" * 16) | ids, "spanId": st.just("ab" * 8) | ids},
    optional={
        "parentSpanId": ids, "name": texts, "kind": numbers, "startTimeUnixNano": numbers,
        "endTimeUnixNano": numbers, "attributes": pairs, "traceState": texts,
        "status": st.fixed_dictionaries({}, optional={"code": numbers, "message": texts}),
        "events": st.lists(st.fixed_dictionaries({"name": texts, "attributes": pairs}), max_size=2),
        "links": st.lists(st.fixed_dictionaries({"traceId": ids, "spanId": ids}), max_size=2),
    },
)  # fmt: skip
batches = st.fixed_dictionaries(
    {"resourceSpans": st.lists(
        st.fixed_dictionaries(
            {"scopeSpans": st.lists(
                st.fixed_dictionaries({"spans": st.lists(spans | anything, max_size=4)}), max_size=2
            ) | anything},
            optional={"resource": st.fixed_dictionaries({"attributes": pairs})},
        ), max_size=2,
    ) | anything}
)  # fmt: skip


@pytest.fixture
def post(db):
    headers = {"Authorization": f"Bearer {new_key('fleet').text}"}
    client = Client(raise_request_exception=True)

    def send(body, type):
        return client.generic(
            "POST", "/api/v1/traces", body, type, headers=headers | {"Content-Type": type}
        )

    return send


def check(answer):
    assert answer.status_code in (200, 400, 413, 415), answer.content
    for key in Run.objects.values_list("key", flat=True):
        read_run(key)


@given(batches | anything)
@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
def test_no_json_makes_a_fault(post, body):
    check(post(json.dumps(body).encode("utf-8", "replace"), "application/json"))


@given(st.binary(max_size=200))
@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
def test_no_octets_make_a_fault(post, body):
    check(post(body, "application/x-protobuf"))
    check(post(body, "application/json"))


@given(st.data())
@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
def test_no_message_that_was_broken_on_the_way_makes_a_fault(post, data):
    whole = ExportTraceServiceRequest()
    span = whole.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = b"\x0f" * 16, b"\xab" * 8
    span.kind = data.draw(st.integers(-(2**31), 2**31 - 1))
    span.status.code = data.draw(st.integers(-(2**31), 2**31 - 1))
    span.start_time_unix_nano = data.draw(st.integers(0, 2**64 - 1))
    span.end_time_unix_nano = data.draw(st.integers(0, 2**64 - 1))
    one = span.attributes.add()
    one.key, one.value.int_value = (
        "gen_ai.usage.input_tokens",
        data.draw(st.integers(-(2**63), 2**63 - 1)),
    )
    value = span.attributes.add()
    value.key = "gen_ai.tool.name"
    inner = value.value
    for _ in range(data.draw(st.sampled_from([0, 5, 30, 60]))):
        inner = inner.array_value.values.add()
    inner.double_value = data.draw(st.floats())
    raw = bytearray(whole.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    check(post(bytes(raw), "application/x-protobuf"))


def test_a_deep_value_is_told_and_not_followed(post):
    value = {"stringValue": "x"}
    for _ in range(300):
        value = {"arrayValue": {"values": [value]}}
    span = {"traceId": "ef" * 16, "spanId": "ab" * 8,
            "attributes": [{"key": "gen_ai.tool.name", "value": value}]}  # fmt: skip
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    check(post(json.dumps(body).encode(), "application/json"))
    check(post(base64.b64decode("CgA="), "application/x-protobuf"))


def test_two_senders_of_the_same_spans_at_the_same_moment_write_each_once(transactional_db):
    """The unique index of event ids decides; whoever loses looks again which are there."""
    headers = {"Authorization": f"Bearer {new_key('fleet').text}"}
    pieces = [range(1, 40), range(20, 60), range(1, 60), range(59, 0, -1)]
    start = threading.Barrier(len(pieces))

    def send(numbers):
        spans = [
            {
                "traceId": "ef" * 16,
                "spanId": f"{number:016x}",
                "attributes": [
                    {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                    {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "10"}},
                ],
            }
            for number in numbers
        ]
        body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
        start.wait(timeout=60)
        try:
            answer = Client().post("/api/v1/traces", body, "application/json", headers=headers)
            return answer.status_code, answer.json()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(pieces)) as pool:
        answers = list(pool.map(send, pieces))

    assert answers == [(200, {})] * len(pieces)
    run = Run.objects.get()
    assert run.counters == {
        "spans": 59, "model_calls": 59, "input_tokens": 590, "tokens_spent": 590,
    }  # fmt: skip
    assert run.events.filter(origin="worker").count() == 59
