"""OpenTelemetry in and out over HTTP: what arrives, what is answered, and that nothing doubles."""

import gzip
import json
import re
from pathlib import Path

import pytest
from django.test import Client
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from agentstate.otlp import encoding, ending
from agentstate.store.models import Event, Run
from agentstate.store.payloads import PAYLOAD_BYTES_MAX
from tests.api.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "opentelemetry.md"
TRACE, OTHER = "5b8efff798038103d269b633813fc60c", "0af7651916cd43dd8448eb211c80319c"
KEY = f"otel-{TRACE}"
SECOND = 1_000_000_000
BEGAN = 1_772_600_767 * SECOND
MESSAGES = [{"role": "assistant", "parts": [{"type": "text", "content": "It is late."}]}]


def attributes(values):
    return encoding._pairs(values)


def span(number, parent=0, *, trace=TRACE, ends=1, error="", **values):
    """A span of the trace as JSON; values: its attributes, with _ for the dots after gen_ai."""
    named = {n.replace("__", "."): v for n, v in values.items()}
    status = {"code": 2, "message": error} if error else {}
    return {
        "traceId": trace.upper(),
        "spanId": f"{number:016X}",
        **({"parentSpanId": f"{parent:016x}"} if parent else {}),
        "name": f"span {number}",
        "kind": 1,
        "startTimeUnixNano": str(BEGAN + number),
        "endTimeUnixNano": str(BEGAN + ends * SECOND),
        "attributes": attributes(named),
        "status": status,
    }


def chat(number, parent=1, **more):
    values = {
        "gen_ai__operation.name": "chat",
        "gen_ai__request.model": "large-2",
        "gen_ai__usage.input_tokens": 700,
        "gen_ai__usage.output_tokens": 112,
        "gen_ai__output.messages": json.dumps(MESSAGES),
    }
    return span(number, parent, **(values | more))


def tool(number, parent=1, **more):
    values = {
        "gen_ai__operation.name": "execute_tool",
        "gen_ai__tool.name": "date",
        "gen_ai__tool.call.id": "c1",
        "gen_ai__tool.call.arguments": '{"utc": true}',
        "gen_ai__tool.call.result": "04:06",
    }
    return span(number, parent, **(values | more))


def agent(number=1, parent=0, **more):
    values = {
        "gen_ai__operation.name": "invoke_agent",
        "gen_ai__agent.name": "clock-mender",
        "gen_ai__conversation.id": "conv-7",
    }
    return span(number, parent, **(values | more))


def batch(*spans, service="clocks"):
    resource = {"attributes": attributes({"service.name": service})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def packed(told) -> bytes:
    """The same in protobuf."""
    told = json.loads(json.dumps(told))
    encoding._rewrite_ids(told)
    return json_format.ParseDict(told, ExportTraceServiceRequest()).SerializeToString()


class Otlp:
    """What an exporter does, without its threads."""

    def __init__(self, api):
        self.client, self.headers = Client(), {"Authorization": f"Bearer {api.key.text}"}

    def post(self, body, content_type="application/json", **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = self.headers | {name.replace("_", "-"): v for name, v in headers.items()}
        return self.client.post("/api/v1/traces", raw, content_type, headers=sent)

    def send(self, *spans):
        """A batch that is taken; its partial success, {} without one."""
        answer = self.post(batch(*spans))
        assert answer.status_code == 200, answer.content
        return answer.json().get("partialSuccess", {})


@pytest.fixture
def otlp(api):
    return Otlp(api)


def events(key=KEY):
    found = Event.objects.filter(run__key=key, origin="worker").order_by("seq")
    return [(one.type, json.loads(one.data)) for one in found]


def types(key=KEY):
    return [type for type, _ in events(key)]


def test_an_agent_that_is_instrumented_shows_up_without_our_client(otlp, api):
    assert otlp.send(chat(2), tool(3), agent()) == {}

    run = api.get(f"/runs/{KEY}").json
    assert (run["status"], run["owner"], run["tags"]) == ("running", None, ["clock-mender", "otel"])
    assert run["task"] == "clock-mender, trace 5b8efff7"
    assert run["attrs"]["conversation"] == "conv-7"
    assert run["attrs"]["service"] == "clocks"
    assert run["attrs"]["trace"]["root"] == {
        "span": "0000000000000001", "name": "span 1", "failed": False
    }  # fmt: skip
    assert run["counters"] == {
        "spans": 3, "model_calls": 1, "tool_calls": 1,
        "input_tokens": 700, "output_tokens": 112, "tokens_spent": 812,
    }  # fmt: skip
    assert types() == ["model.responded", "tool.called", "tool.returned", "agent.finished"]
    told = dict(events())
    assert told["model.responded"]["response"] == "It is late."
    assert told["model.responded"]["output"] == MESSAGES
    assert told["tool.called"] == {
        "tool": "date", "tool_call_id": "c1", "arguments": {"utc": True}
    }  # fmt: skip
    assert told["tool.returned"]["observation"] == "04:06"
    assert told["agent.finished"]["span"]["started_at"] == "2026-03-04T05:06:07.000000001Z"


def test_a_batch_that_is_sent_again_doubles_nothing_in_any_pieces_and_order(otlp, api):
    otlp.send(agent(), tool(3))
    otlp.send(chat(2))
    before = api.get(f"/runs/{KEY}").json

    otlp.send(chat(2), tool(3), agent(), chat(2))
    otlp.send(tool(3))

    assert api.get(f"/runs/{KEY}").json["counters"] == before["counters"]
    assert api.get(f"/runs/{KEY}")["version"] == before["version"]
    assert len(types()) == 4
    assert Run.objects.count() == 1


def test_spans_of_nothing_about_agents_are_counted_and_told(otlp):
    other = span(9, 1, http__method="GET")

    told = otlp.send(other, chat(2))

    assert told["rejectedSpans"] == "1"
    assert "1 spans have no attribute gen_ai.*" in told["errorMessage"]
    assert types() == ["model.responded"]
    assert otlp.send(span(5, trace=OTHER))["rejectedSpans"] == "1"
    assert not Run.objects.filter(key=f"otel-{OTHER}").exists()
    # One that has no parent ends its trace, whatever it is about.
    otlp.send(span(1))
    assert Run.objects.get(key=KEY).attrs.count('"root"') == 1


def test_an_error_is_told_with_its_kind(otlp):
    failed = {"error__type": "timeout"}
    otlp.send(chat(2, error="took too long", **failed), tool(3, error="no such tool"))

    found = dict(events())
    assert found["model.failed"]["error"] == {"type": "timeout", "message": "took too long"}
    assert found["tool.failed"]["error"]["message"] == "no such tool"
    assert Run.objects.get(key=KEY).counters["errors"] == 2


def test_a_run_ends_when_its_trace_is_quiet_and_what_comes_later_is_kept_beside_it(clock, api):
    otlp = Otlp(api)
    otlp.send(chat(2))
    otlp.send(agent())
    bounds = {"quiet_seconds": 60, "idle_seconds": 3600}
    assert ending.end_quiet(**bounds) == 0
    clock.advance(seconds=61)
    assert ending.end_quiet(**bounds) == 1
    assert Run.objects.get(key=KEY).status == "completed"

    otlp.send(chat(2), tool(3))  # one is known, the other is late

    assert types() == ["model.responded", "agent.finished"]
    assert types(f"{KEY}~2") == ["tool.called", "tool.returned"]
    otlp.send(tool(3))
    assert len(types(f"{KEY}~2")) == 2
    clock.advance(seconds=61)
    assert ending.end_quiet(**bounds) == 0  # its root is in the other part
    clock.advance(seconds=3600)
    assert ending.end_quiet(**bounds) == 1


@pytest.mark.parametrize(
    ("spans", "status"),
    [
        ([chat(2)], "failed"),
        ([chat(3, 2), agent(2, 1)], "completed"),
        ([agent(2, 1, error="out of tokens")], "failed"),
    ],
)
def test_a_trace_without_its_root_ends_after_an_hour(clock, api, spans, status):
    Otlp(api).send(*spans)
    clock.advance(seconds=3_599)
    assert ending.end_quiet(quiet_seconds=60, idle_seconds=3600) == 0
    clock.advance(seconds=2)
    assert ending.end_quiet(quiet_seconds=60, idle_seconds=3600) == 1
    assert Run.objects.get(key=KEY).status == status


def test_a_value_that_no_event_holds_is_told_by_its_size(otlp):
    large = "x" * (PAYLOAD_BYTES_MAX + 1)

    told = otlp.send(chat(2, gen_ai__prompt=large))

    assert told == {"errorMessage": "1 values are too large for an event, and are kept as their"
                                    " size and SHA-256"}  # fmt: skip
    ((_, data),) = events()
    assert data["attributes"]["gen_ai.prompt"]["left_out"]["bytes"] == len(large) + 2
    assert data["usage"]["tokens"] == 812


def test_what_no_text_of_ours_can_hold_is_told_otherwise(otlp):
    deep = "[" * 300 + "]" * 300
    otlp.send(
        tool(3, gen_ai__tool__call__result="a\x00b", note=2.5, **{"gen_ai__tool.name": "d\x00"})
    )
    otlp.send(chat(4, **{"gen_ai__output.messages": deep}))

    found = dict(events())
    assert found["tool.called"]["tool"] == "d\ufffd"
    assert found["model.responded"]["output"] == deep


@pytest.mark.parametrize("ids", [{"traceId": "00" * 16}, {"spanId": "xyz"}, {"spanId": "ab" * 7}])
def test_a_span_without_ids_is_rejected_and_the_others_are_taken(otlp, ids):
    told = otlp.send({**chat(2), **ids}, tool(3))

    assert told["rejectedSpans"] == "1"
    assert "a trace id has 16 bytes" in told["errorMessage"]
    assert types() == ["tool.called", "tool.returned"]


def test_both_encodings_and_gzip_are_taken_and_answered_alike(otlp):
    raw = packed(batch(chat(2), span(9, 1)))

    answer = otlp.post(gzip.compress(raw), "application/x-protobuf", Content_Encoding="gzip")

    assert (answer.status_code, answer["Content-Type"]) == (200, "application/x-protobuf")
    told = ExportTraceServiceResponse.FromString(answer.content)
    assert told.partial_success.rejected_spans == 1
    assert types() == ["model.responded"]
    answer = otlp.post(b"\n\x00", "application/x-protobuf")
    assert (answer.status_code, answer.content) == (200, b"")
    assert otlp.post({}).json() == {}


@pytest.mark.parametrize(
    ("body", "type", "headers", "status", "says"),
    [
        (b"\xff\xff", "application/x-protobuf", {}, 400, "no ExportTraceServiceRequest"),
        (b"{", "application/json", {}, 400, "not JSON"),
        (b'{"resourceSpans": 7}', "application/json", {}, 400, "ExportTraceServiceRequest"),
        (b"[]", "application/json", {}, 400, "malformed: the body is not JSON of this shape"),
        (b"x", "text/plain", {}, 415, "application/x-protobuf or application/json"),
        (b"x", "application/json", {"Content_Encoding": "br"}, 415, "gzip"),
        (b"x" * 9, "application/x-protobuf", {"Content_Encoding": "gzip"}, 400, "not gzip"),
        (
            gzip.compress(b"{}")[:-9], "application/json", {"Content_Encoding": "gzip"}, 400,
            "ends too early",
        ),
        (
            gzip.compress(b" " * (encoding.BYTES_MAX + 1)), "application/json",
            {"Content_Encoding": "gzip"}, 413, "unpacked",
        ),
        (b"{}", "application/json", {"Authorization": "Bearer x"}, 401, "unauthenticated"),
        (b"x", "application/x-protobuf", {"Authorization": "Bearer x"}, 401, "unauthenticated"),
    ],
    ids=map(str, range(11)),  # those of octets would be long, and of each process its own
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_as_the_protocol_says(
    otlp, body, type, headers, status, says
):
    answer = otlp.post(body, type, **headers)

    assert answer.status_code == status
    if type == "application/x-protobuf":
        assert answer["Content-Type"] == type
        assert says in Status.FromString(answer.content).message
    else:
        assert answer["Content-Type"] == "application/json"
        assert says in answer.json()["message"]
    assert not Run.objects.exists()


def test_a_key_that_only_reads_sends_no_spans(with_scopes):
    answer = Otlp(with_scopes("read")).post(batch(chat(2)))

    assert answer.status_code == 403
    assert answer.json()["code"] == "not-allowed"


def test_a_trace_goes_out_as_it_came_in_and_is_known(otlp, api):
    sent = [chat(2), tool(3), agent(note=[1, {"a": 2.5}])]
    otlp.send(*sent)

    told = api.get(f"/runs/{KEY}/trace").json

    (scope,) = told["resourceSpans"][0]["scopeSpans"]
    back = {one["spanId"]: one for one in scope["spans"]}
    for one in sent:
        found = back[one["spanId"].lower()]
        for name in ("name", "kind", "startTimeUnixNano", "endTimeUnixNano"):
            assert found[name] == one[name]
        assert found["traceId"] == TRACE
        assert {a["key"] for a in found["attributes"]} == {a["key"] for a in one["attributes"]}
    answer = otlp.post(told)
    assert answer.json() == {}
    assert len(types()) == 4


def test_any_run_goes_out_as_a_trace_and_comes_in_as_one(otlp, api):
    api.create("42", events=[{"type": "task.given", "data": {"task": "audit"}}])
    token = api.hold("42")
    for body in (
        {"type": "model.responded", "data": {"model": "m", "usage": {"input_tokens": 5}}},
        {"type": "tool.called", "data": {"tool": "grep"}},
        {"type": "tool.returned", "data": {"output": "ok"}},
        {"type": "pay", "effect": {"key": "p-1", "state": "begun"}},
        {"type": "paid", "effect": {"key": "p-1", "state": "ended"}},
    ):
        assert api.append("42", body, Agentstate_Fence=token).status == 201
    api.move("completed", result={"ok": True}, Agentstate_Fence=token)

    told = api.get("/runs/42/trace").json

    spans = told["resourceSpans"][0]["scopeSpans"][0]["spans"]
    names = [one["name"] for one in spans]
    assert names[0] == "invoke_agent 42"
    assert {"chat m", "execute_tool grep", "effect pay"} <= set(names)
    (term,) = [one for one in spans if one["name"].startswith("term ")]
    by_name = {one["name"]: one for one in spans}
    assert by_name["chat m"]["parentSpanId"] == term["spanId"]
    assert term["parentSpanId"] == spans[0]["spanId"]
    assert spans[0]["status"]["code"] == 1
    assert api.get("/runs/42/trace").json == told  # the same ids each time
    answer = otlp.post(packed(told), "application/x-protobuf")
    assert answer.status_code == 200
    (key,) = Run.objects.exclude(key="42").values_list("key", flat=True)
    assert key == f"otel-{spans[0]['traceId']}"
    assert set(types(key)) == {"agent.finished", "model.responded", "tool.called", "tool.returned"}


def test_a_trace_needs_payloads_too(api, with_scopes):
    api.create("42")
    assert with_scopes("read").get("/runs/42/trace").refused == (403, "not-allowed")
    assert with_scopes("read", "payloads").get("/runs/42/trace").status == 200
    assert api.get("/runs/none/trace").refused == (404, "not-found")


def test_what_the_page_says_is_all_that_an_sdk_needs(transactional_db, api, monkeypatch):
    """The real exporter against the real server, set up by the page's own variables and code."""
    page = PAGE.read_text()
    code = page.split("```python\n")[1].split("```")[0]
    with serving() as url:
        for name, value in re.findall(r'^export (\w+)="?([^"\n]*)"?$', page, re.MULTILINE):
            value = value.replace("https://agentstate.example.org", url)
            monkeypatch.setenv(name, value.replace("$AGENTSTATE_API_KEY", api.key.text))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        names = {}
        exec(compile(code, str(PAGE), "exec"), names)

    trace = f"{names['agent'].get_span_context().trace_id:032x}"
    assert types(f"otel-{trace}") == [
        "model.responded", "tool.called", "tool.returned", "agent.finished"
    ]  # fmt: skip
    run = Run.objects.get(key=f"otel-{trace}")
    assert (run.counters["tokens_spent"], run.task) == (812, f"clock-mender, trace {trace[:8]}")


def test_a_name_of_any_length_refuses_nothing(otlp, api):
    """S-111 (docs/sweeps.md): after the spans were written the batch was refused with 413."""
    long = agent() | {"name": "n" * (PAYLOAD_BYTES_MAX + 1)}
    assert otlp.send(chat(2), long, chat(3, trace=OTHER)) == {}
    assert types() == ["model.responded", "agent.finished"]
    assert len(api.get(f"/runs/{KEY}")["attrs"]["trace"]["root"]["name"]) == 200
    assert types(f"otel-{OTHER}") == ["model.responded"]


@pytest.mark.parametrize("name", ["\u3164", "\u2800", "\ufe0f", "\u200b"])
def test_an_agent_whose_name_nobody_can_see_is_taken_without_it(otlp, api, name):
    """S-111: its spans were rejected, for a tag that was made of the name."""
    assert otlp.send(agent(gen_ai__agent__name=name)) == {}
    run = api.get(f"/runs/{KEY}").json
    assert (run["task"], run["tags"]) == ("An agent, trace 5b8efff7", ["otel"])


def test_a_name_twice_is_refused_and_none_of_the_two_is_lost_without_a_word(otlp):
    """S-112 (docs/sweeps.md): the first list was dropped and the answer was 200."""
    one, two = (json.dumps(batch(chat(n)))[1:-1] for n in (2, 3))
    answer = otlp.post(f"{{{one},{two}}}".encode())
    assert answer.status_code == 400
    assert "the same name twice in one object ('resourceSpans')" in answer.json()["message"]
    assert not Run.objects.exists()


def test_a_body_of_very_many_gzips_is_refused_before_it_costs_much(otlp):
    """S-113 (docs/sweeps.md): 100,000 empty ones took two seconds, and four times as many more than
    four times as long."""
    body = gzip.compress(json.dumps(batch(chat(2))).encode())
    one = gzip.compress(b"")
    few = otlp.post(one * (encoding.MEMBERS_MAX - 1) + body, Content_Encoding="gzip")
    many = otlp.post(one * encoding.MEMBERS_MAX + body, Content_Encoding="gzip")
    assert (few.status_code, many.status_code) == (200, 413)
    assert many.json()["limit"] == encoding.MEMBERS_MAX
