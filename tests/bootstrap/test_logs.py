"""What is in the log, what never is, and that nobody writes a line in another's name."""

import json
import logging
import time

import pytest
from django.conf import settings
from django.http import HttpRequest
from django.urls import resolve
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentstate import env, logs, tracing
from tests.api.asking import Api, new_key

KEY = "as_" + "ab" * 16 + "_" + "c" * 43
SECRETS = {
    f"Authorization: Bearer {KEY}": KEY,
    f"no key {KEY[:35]}": KEY[:35],
    "connection to postgresql://app:hunter2-long@db/x failed": "hunter2-long",
    "host=db password='it\\'s long' dbname=x": "s long",
    "host=db password=hunter2 dbname=x": "hunter2",
    "amqp://u:p%40ss-word@mq//": "p%40ss-word",
    "Authorization: Basic dXNlcjpwYXNzd29yZA==": "dXNlcjpwYXNzd29yZA==",
    "Cookie: agentstate_session=abcdefghijkl; x=1": "abcdefghijkl",
    "POST body client_secret=s3cr3t-value&a=b": "s3cr3t-value",
    "id eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl": "eyJzdWIiOiIxIn0",
    f"SECRET_KEY {settings.SECRET_KEY}": settings.SECRET_KEY,
    f"{'x' * 3_990}{KEY}": KEY[:20],
    # As callers, libraries and stacks write it.
    "{'name': 'ada', 'password': 'correct horse'}": "correct horse",
    '{"client_secret": "a \\"quoted\\" one"}': "quoted",
    "<QueryDict: {'csrfmiddlewaretoken': ['x'], 'new_password1': ['battery staple']}>": "staple",
    "SMTPAuthenticationError: user ada, password: battery": "battery",
    "AGENTSTATE_SECRET_KEY=abcdef-ghijkl is too short": "abcdef-ghijkl",
    "connection to postgresql://app:p@ss/w:rd@db:5432/x failed": "ss/w:rd",
    "redis://:onlyapassword@cache:6379/0": "onlyapassword",
    "Set-Cookie: agentstate_session=abc; HttpOnly": "abc;",
    "cookie: a=b; agentstate_csrf=ghijklmnop; c=d": "ghijklmnop",
    "otpauth://totp/agentstate:ada?secret=JBSWY3DPEHPK3PXP&issuer=x": "JBSWY3DPEHPK3PXP",
    "X-Api-Key: 0123456789abcdef": "0123456789abcdef",
    "refresh_token=1//0abcdefghij": "0abcdefghij",
}
HARMLESS = (
    "run 42: the token 17 was superseded by 18",
    "https://agents.example.org/runs/42?q=status:failed",
    "secrets are taken out; see docs/hardening.md#secrets",
    "the password was changed",
    "GET /api/v1/runs/a:b@c",
    "fence=813 unit=run:42 owner=w-1@host:8000",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_left_as_it_is(text):
    assert logs.clean_text(text) == text


def test_a_long_text_is_looked_through_in_no_time():
    text = ("password" * 20 + "secret_" * 20 + "://a:" + "b" * 50 + "'\"\\" * 9) * 200
    began = time.process_time()
    logs.clean_text(text, logs.TRACE_CHARS)
    assert time.process_time() - began < 1


def write(style, message, *arguments, error=None, **extra):
    """What a handler of this style would write for an entry."""
    found = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("ours", logging.ERROR, "x.py", 1, message, arguments, found)
    record.__dict__.update(extra)
    return logs.formatter(style=style).format(record)


def raised(text):
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize("style", ["json", "line"])
@pytest.mark.parametrize("text", SECRETS, ids=range(len(SECRETS)))
def test_no_secret_is_written_wherever_it_stands(style, text):
    """Case O-39 (docs/cases.md)."""
    secret = SECRETS[text]
    assert secret in text
    assert secret not in write(style, text)
    assert secret not in write(style, "failed: %s", text)
    assert secret not in write(style, "failed", error=raised(text))


HOSTILE = "a\n2026-01-01T00:00:00Z ERROR ours: forged\r\x1b[2J\u202e\u2028\x00\ud800"


def test_one_entry_is_one_line_of_json_whatever_callers_send():
    text = write("json", "run %s", HOSTILE, error=raised(HOSTILE))
    assert len(text.splitlines()) == 1
    found = json.loads(text)
    assert (found["level"], found["logger"]) == ("error", "ours")
    assert found["event"].startswith("run a\n2026")  # as data it is harmless
    for value in found.values():
        assert not set(str(value)) & set("\r\x1b\x00\u202e\u2028")
    assert list(found)[:4] == ["at", "level", "logger", "event"]
    text.encode()


def test_nobody_writes_a_line_in_anothers_name_for_people():
    text = write("line", "run %s", HOSTILE, error=raised(HOSTILE))
    first, *others = text.split("\n")
    assert " ERROR ours: run a\\n2026" in first
    assert all(line.startswith("    ") for line in others)
    assert not set(text) & set("\r\x1b\x00\u202e\u2028")
    text.encode()


def test_what_is_endless_is_cut():
    assert len(write("json", "x" * 10**6)) < 2 * logs.TEXT_CHARS
    assert len(write("line", "e", error=raised("y" * 10**6))) < 2 * logs.TRACE_CHARS


def test_members_that_are_named_for_a_secret_are_hidden():
    entry = {"event": {"password": "a", "list": [{"api_key": "b"}], "fence": 7}}
    assert logs.clean(None, "", entry)["event"] == {
        "password": "[hidden]", "list": [{"api_key": "[hidden]"}], "fence": 7,
    }  # fmt: skip


def test_an_entry_of_a_request_has_its_ids():
    request = HttpRequest()
    request.META |= {
        "HTTP_TRACEPARENT": f"00-{'ab' * 16}-{'cd' * 8}-01",
        "HTTP_AGENTSTATE_WORKER": "auditor~1f3c",
        "HTTP_AGENTSTATE_FENCE": "813",
    }
    request.request_id = "r-1"
    request.resolver_match = resolve("/api/v1/runs/42/events")
    before = logs.REQUEST.set(request)
    try:
        with logs.of_task("tasks.move", "t-1"):
            found = json.loads(write("json", "x"))
    finally:
        logs.REQUEST.reset(before)
    told = {name: found[name] for name in ("request_id", "run", "worker", "fence", "trace_id")}
    assert told == {
        "request_id": "r-1", "run": "42", "worker": "auditor~1f3c", "fence": "813",
        "trace_id": "ab" * 16,
    }  # fmt: skip
    assert (found["task"], found["task_id"]) == ("tasks.move", "t-1")
    assert "run=42" in write("line", "x") or logs.REQUEST.get() is None


@pytest.mark.parametrize(
    "sent", ["", "x", f"00-{'0' * 32}-{'cd' * 8}-01", f"00-{'AB' * 16}-{'cd' * 8}-01", "é" * 55]
)
def test_what_is_no_trace_is_no_trace(sent):
    request = HttpRequest()
    request.META["HTTP_TRACEPARENT"] = sent
    assert logs.trace_of(request) == ""


def test_a_request_is_logged_when_that_is_asked_for_and_its_key_never(db, settings, caplog):
    key = new_key("fleet")
    api = Api(key)
    caplog.set_level(logging.INFO, logger="agentstate.logs")
    caplog.handler.setFormatter(logs.formatter(style="json"))
    api.create("42")
    assert caplog.text == ""
    settings.LOG_REQUESTS = True
    api.get("/runs/42", X_Request_Id="mine")
    (line,) = [one for one in caplog.text.splitlines() if '"answered"' in one]
    found = json.loads(line)
    assert (found["request_id"], found["run"], found["status"]) == ("mine", "42", 200)
    assert (found["caller"], found["method"]) == ("key:fleet", "GET")
    assert found["ms"] > 0
    assert key.text not in caplog.text
    assert logs.REQUEST.get() is None


# --- traces -------------------------------------------------------------------------------------


def test_a_request_and_a_task_are_spans_without_anything_secret(db, settings, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("test"))
    key = new_key("fleet")
    Api(key).create("42")
    assert exporter.get_finished_spans() == ()
    settings.TRACES = True
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    Api(key).append("42", Traceparent=parent)
    tracing.begin_task("tasks.move", "t-1")
    tracing.end_task("FAILURE")
    asked, task = exporter.get_finished_spans()
    assert asked.name == "POST api/v1/runs/<key>/events"
    assert f"{asked.context.trace_id:032x}" == "ab" * 16
    assert f"{asked.parent.span_id:016x}" == "cd" * 8
    assert asked.attributes["agentstate.run"] == "42"
    assert asked.attributes["http.response.status_code"] == 201
    assert asked.attributes["agentstate.db_ms"] >= 0
    assert key.text not in asked.to_json()
    assert (task.name, task.status.is_ok) == ("tasks.move", False)
    provider.shutdown()


def test_traces_are_refused_where_the_packages_are_missing(monkeypatch):
    monkeypatch.setenv("AGENTSTATE_TRACES", "yes")
    monkeypatch.setattr(env, "_is_there", lambda module: False)
    with pytest.raises(env.BadSetting, match="opentelemetry-exporter-otlp-proto-http are missing"):
        env.traces("AGENTSTATE_TRACES")
    monkeypatch.setenv("AGENTSTATE_TRACES", "no")
    assert env.traces("AGENTSTATE_TRACES") is False
