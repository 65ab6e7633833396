"""Bad input gets a 4xx with a reason, at once, and changes nothing (O-04, O-10, O-18, O-20)."""

import io
import json
import time

import pytest
from django.core.handlers.wsgi import WSGIRequest

from agentstate.api.bodies import read_text
from agentstate.store.payloads import Malformed
from tests.api.asking import Api, new_key
from tests.store.asking import rows

BIG = 4 * 1024 * 1024


def event(data: str) -> str:
    return f'{{"events": [{{"type": "a", "data": {data}}}]}}'


MALFORMED = [
    "", " ", "{", "nul", "{'a': 1}", '{"a": 1,}', '{"a" 1}', "[1", '{"a": 01}', '{"a": 1} x',
    '{"a": "\x01"}', '{"a": "\\x"}', "\ufeff{}", '{"a": .5}', '{"a": +1}', "{task: 1}",
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED)
def test_what_is_not_json_is_400(api, body):
    answer = api.post("/runs", body, Content_Type="application/json")
    assert answer.refused == (400, "malformed")
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


@pytest.mark.parametrize("body", ["null", "[]", '"text"', "1", "true", "[{}]"])
def test_what_is_not_an_object_is_422(api, body):
    answer = api.post("/runs", body)
    assert answer.refused == (422, "invalid")
    assert (answer["field"], answer["rule"]) == ("body", "a JSON object")


@pytest.mark.parametrize("raw", [b'{"task": "\xff"}', b'{"task": "\xed\xa0\x80"}', b"\xfe\xff"])
def test_bytes_that_are_not_utf8_are_400(api, raw):
    assert api.post("/runs", raw).refused == (400, "malformed")


@pytest.mark.parametrize(
    "sent",
    ["text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/json; charset=latin-1", "application/jsonx", "application/problem+json"],
)  # fmt: skip
def test_another_content_type_is_415(api, sent):
    answer = api.send("POST", "/runs", '{"task": "x"}', content_type=sent)
    assert answer.refused == (415, "malformed")


@pytest.mark.parametrize(
    "sent",
    ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'],
)
def test_json_with_a_charset_is_json(api, sent):
    assert api.send("POST", "/runs", '{"task": "x"}', content_type=sent).status == 201


def test_a_compressed_body_is_415(api):
    assert api.post("/runs", '{"task": "x"}', Content_Encoding="gzip").status == 415


def test_a_body_that_is_too_large_is_413_and_says_how_large_it_may_be(api):
    answer = api.post("/runs", json.dumps({"task": "x" * BIG}))
    assert answer.refused == (413, "payload-too-large")
    assert answer["limit"] == BIG
    assert answer["actual"] > BIG


TOO_MANY = [
    ('{"task": "x", ' + ", ".join(f'"u{n}": 1' for n in range(300_000)) + "}", "body", "names"),
    ('{"task": "x", "tags": [' + "1," * 1_900_000 + "1]}", "tags", "elements"),
    ('{"task": "x", "events": [' + "{}," * 1_300_000 + "{}]}", "events", "elements"),
    (
        '{"task": "x", "budgets": [' + ",".join(["[" + "1," * 9_000 + "1]"] * 30) + "]}",
        "body",
        "values",
    ),
]


@pytest.mark.parametrize(("body", "field", "what"), TOO_MANY, ids=["a", "b", "c", "d"])
def test_more_than_anybody_can_mean_is_refused_before_it_costs_anything(api, body, field, what):
    began = time.process_time()
    answer = api.post("/runs", body)
    assert time.process_time() - began < 2
    assert answer.refused == (422, "invalid")
    assert answer["field"] == field
    assert what in answer["rule"]


def test_of_many_broken_rules_twenty_are_told_and_the_others_counted(api):
    answer = api.post("/runs", {"task": "x"} | {f"u{n}": 1 for n in range(900)})
    assert answer.refused == (422, "invalid")
    assert (len(answer["errors"]), answer["errors_left_out"]) == (20, 880)
    assert len(answer.text) < 4_000


def test_a_payload_that_is_too_large_is_413_and_names_it(api):
    api.create("42")
    answer = api.post("/runs/42/events", event(json.dumps("x" * 1024 * 1024)))
    assert answer.refused == (413, "payload-too-large")
    assert answer["limit"] == 1024 * 1024
    assert answer["actual"] == 1024 * 1024 + 2
    assert answer["field"] == "events[0].data"
    assert api.post("/runs/42/events", event(json.dumps("x" * (1024 * 1024 - 2)))).status == 201


NUL = "\\u0000"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (event(f'{{"out": "a{NUL}b"}}'), "events[0].data.out"),
        (event(f'{{"a{NUL}": 1}}'), "events[0].data"),
        (event(f'[1, {{"deep": ["x", "{NUL}"]}}]'), "events[0].data[1].deep[1]"),
        (event('"\\ud83d"'), "events[0].data"),
        (event('"\\ude00 \\ud83d"'), "events[0].data"),
        (f'{{"events": [{{"type": "a{NUL}"}}]}}', "events[0].type"),
        (f'{{"events": [{{"type": "a", "id": "{NUL}"}}]}}', "events[0].id"),
        (f'{{"{NUL}": 1}}', ""),
    ],
)
def test_text_that_cannot_be_stored_is_refused_with_its_place(api, body, place):
    api.create("42")
    answer = api.post("/runs/42/events", body)
    assert answer.refused == (422, "unstorable-text")
    assert place in answer["field"]
    assert api.get("/runs/42")["last_seq"] == 1


def test_one_bad_event_of_ten_is_named_and_none_is_lost_without_a_word(api):
    api.create("42")
    events = [{"type": "a", "data": {"n": n}} for n in range(10)]
    events[7]["data"]["n"] = "a\0b"
    answer = api.append("42", *events)
    assert answer.refused == (422, "unstorable-text")
    assert answer["field"] == "events[7].data.n"
    assert api.get("/runs/42")["last_seq"] == 1
    del events[7]
    assert api.append("42", *events).status == 201


@pytest.mark.parametrize("field", ["task", "key", "tags", "notes"])
def test_nul_in_any_other_text_is_refused(api, field):
    value = ["a\0b"] if field == "tags" else "a\0b"
    answer = api.post("/runs", {"task": "x", field: value})
    assert answer.status == 422


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ("NaN", 422), ("Infinity", 422), ("-Infinity", 422), ("1e999", 422), ("-1e999", 422),
        ("-0", 201), ("1e308", 201), ("0.1", 201), ("1e-400", 201), ('{"a": 1, "a": 2}', 422),
        ('{"a": {"b": 1, "b": 1}}', 422), ("1" * 1000, 201), ("1" * 1001, 422),
        ("[" * 63 + "]" * 63, 201), ("[" * 64 + "]" * 64, 201), ("[" * 65 + "]" * 65, 422),
        ("[" * 1000 + "]" * 1000, 422), ("[" * 20000 + "]" * 20000, 422),
        ('{"a":' * 20000 + "1" + "}" * 20000, 422),
    ],
)  # fmt: skip
def test_odd_json_is_taken_within_written_limits_or_refused(api, data, status):
    api.create("42")
    began = time.monotonic()
    answer = api.post("/runs/42/events", event(data))
    assert time.monotonic() - began < 1
    assert answer.status == status, answer.text[:500]
    if status == 201:
        assert f'"data":{data},' in api.get("/runs/42/events?type=a").text
    else:  # by us and with its place, not by the database
        assert answer["field"].startswith("events[0].data")


def test_an_array_of_a_hundred_thousand_numbers_is_taken(api):
    api.create("42")
    data = "[" + ",".join(["1234567"] * 100_000) + "]"
    assert api.post("/runs/42/events", event(data)).status == 201


def test_a_body_that_is_nested_too_deep_outside_a_payload_is_refused(api):
    assert api.post("/runs", '{"task": ' + "[" * 20_000 + "]" * 20_000 + "}").status == 422
    assert api.post("/runs", "[" * 20_000).status in (400, 422)


TTLS = [
    0, -1, 0.4, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 86_400 * 10**9, 86_401, 1e308, "60", True,
    None, 60.0, [], {}, [60],
]  # fmt: skip


@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("call", ["acquire", "renew", "claim"])
def test_a_ttl_outside_its_range_is_refused_with_the_range(api, call, ttl):
    token = api.acquire("u-1")["token"]
    path, ask = {
        "acquire": ("/leases/u-2/acquire", {"owner": "w-1"}),
        "renew": ("/leases/u-1/renew", {"token": token}),
        "claim": ("/leases/claim", {"owner": "w-1"}),
    }[call]
    answer = api.post(path, {**ask, "ttl_seconds": ttl})
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "ttl_seconds"
    assert "1" in answer["rule"]
    assert "86400" in answer["rule"]
    assert api.get("/leases/u-2").status == 404


def test_a_ttl_that_is_nan_is_refused(api):
    answer = api.post("/leases/u-1/acquire", '{"owner": "w-1", "ttl_seconds": NaN}')
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "ttl_seconds"


@pytest.mark.parametrize("ttl", [1, 60, 86_400])
def test_a_ttl_in_its_range_is_what_is_stored(clock, ttl):
    api = Api(new_key("fleet"))
    answer = api.acquire("u-1", ttl_seconds=ttl)
    assert answer["expires_in_ms"] == ttl * 1000
    assert answer["expires_at"] == api.get("/leases/u-1")["expires_at"]
    stored = rows("SELECT extract(epoch FROM expires_at - agentstate_now()) FROM agentstate_lease")
    assert stored == [(ttl,)]


def test_a_missing_ttl_is_the_documented_default(api):
    assert 59_000 < api.post("/leases/u-1/acquire", {"owner": "w-1"})["expires_in_ms"] <= 60_000


AMOUNTS = [0, -1, 0.5, "0.10", "1", True, None, 2**53, 2**53 + 1, 2**63, 1e3, [], {}]


@pytest.mark.parametrize("amount", AMOUNTS)
def test_an_amount_that_is_no_whole_number_in_range_is_refused(api, amount):
    """Case O-17 (docs/cases.md)."""
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    answer = api.post("/runs/42/budgets/tokens/spend", {"amount": amount})
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "amount"
    assert str(2**53 - 1) in answer["rule"]
    assert api.get("/runs/42/budgets/tokens")["spent"] == 0


@pytest.mark.parametrize("literal", ["1e-400", "0.0000001", "1E2", "-0", "1.0"])
def test_an_amount_as_an_odd_literal_is_refused(api, literal):
    """Case O-17 (docs/cases.md)."""
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    answer = api.post("/runs/42/budgets/tokens/spend", f'{{"amount": {literal}}}')
    assert answer.refused == (422, "invalid")


def test_the_largest_amounts_keep_their_digits(api):
    largest = 2**53 - 1
    api.create("42", budgets=[{"name": "tokens", "cap": largest}])
    assert api.post("/runs/42/budgets/tokens/spend", {"amount": largest})["spent"] == largest
    assert f'"spent":{largest}' in api.get("/runs/42/budgets/tokens").text
    refused = api.post("/runs/42/budgets/tokens/spend", {"amount": 1})
    assert refused.refused == (402, "budget-exhausted")


FIELDS = [
    ({"task": "x", "more": 1}, "more", "no such field"),
    ({}, "task", "required"),
    ({"task": ""}, "task", "1 to 500"),
    ({"task": "x" * 501}, "task", "1 to 500"),
    ({"task": " x"}, "task", "no space"),
    ({"task": "a\nb"}, "task", "control"),
    ({"task": 7}, "task", "a text"),
    ({"task": "x", "key": "a/b"}, "key", "letters"),
    ({"task": "x", "key": "x" * 197}, "key", "196"),
    ({"task": "x", "status": "completed"}, "status", "pending"),
    ({"task": "x", "tags": ["a"] * 3 + [""]}, "tags", "1 to 64"),
    ({"task": "x", "tags": [str(n) for n in range(51)]}, "tags", "at most 50"),
    ({"task": "x", "tags": "a"}, "tags", "list"),
    ({"task": "x", "attrs": []}, "attrs", "a JSON object"),
    ({"task": "x", "attrs": "{}"}, "attrs", "a JSON object"),
    ({"task": "x", "max_attempts": 0}, "max_attempts", "1 to 1000000"),
    ({"task": "x", "max_attempts": True}, "max_attempts", "1 to 1000000"),
    ({"task": "x", "retain_seconds": -1}, "retain_seconds", "0 to"),
    ({"task": "x", "deadline_at": "tomorrow"}, "deadline_at", "RFC 3339"),
    ({"task": "x", "deadline_at": "2026-03-12"}, "deadline_at", "RFC 3339"),
    ({"task": "x", "deadline_at": "2026-03-12T09:40:00"}, "deadline_at", "RFC 3339"),
    ({"task": "x", "deadline_at": "2026-02-30T09:40:00Z"}, "deadline_at", "RFC 3339"),
    ({"task": "x", "deadline_at": "0001-01-01T00:00:00+23:59"}, "deadline_at", "RFC 3339"),
    ({"task": "x", "deadline_at": 1_700_000_000}, "deadline_at", "RFC 3339"),
    ({"task": "x", "deadline_policy": "panic"}, "deadline_policy", "report"),
    ({"task": "x", "budgets": {}}, "budgets", "a list"),
    ({"task": "x", "budgets": [{"name": "t"}]}, "budgets[0].cap", "required"),
    ({"task": "x", "budgets": [{"name": "t", "cap": -1}]}, "budgets[0].cap", "0 to"),
    ({"task": "x", "budgets": [{"name": "t", "cap": 1}] * 2}, "budgets", "once"),
    ({"task": "x", "budgets": [7]}, "budgets[0]", "a JSON object"),
    ({"task": "x", "events": [{"data": 1}]}, "events[0].type", "required"),
    ({"task": "x", "events": [{"type": "1a"}]}, "events[0].type", "first a letter"),
    ({"task": "x", "events": [{"type": "a", "x": 1}]}, "events[0].x", "no such field"),
    ({"task": "x", "events": [{"type": "a"}] * 501}, "events", "500"),
    ({"task": "x", "events": [{"type": "a", "id": "i"}] * 2}, "events[].id", "once"),
    ({"task": "x", "events": [{"type": "a", "id": "é"}]}, "events[0].id", "ASCII"),
]


@pytest.mark.parametrize(("body", "field", "rule"), FIELDS)
def test_a_field_that_breaks_its_rule_is_named_with_the_rule(api, body, field, rule):
    answer = api.post("/runs", body)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == field
    assert rule in answer["rule"]
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


def test_all_fields_that_break_a_rule_are_listed(api):
    answer = api.post("/runs", {"task": "", "key": "/", "events": [{"type": "a"}, {"type": ""}]})
    assert [e["field"] for e in answer["errors"]] == ["task", "key", "events[1].type"]


def test_null_is_the_same_as_left_out_where_nothing_is_meant(api):
    body = {"task": "x", "key": None, "parent": None, "deadline_at": None, "attrs": None}
    assert api.post("/runs", body).status == 422
    del body["attrs"]
    assert api.post("/runs", body).status == 201


def test_a_counter_may_have_any_name_that_is_one(api):
    api.create("42")
    for name in ("data", "attrs", "result", "progress", "tokens.spent"):
        assert api.append("42", add={name: 2}).status == 201
    counters = api.get("/runs/42")["counters"]
    assert counters == dict.fromkeys(counters, 2)
    assert len(counters) == 5
    answer = api.append("42", add={"a": "1"})
    assert answer["field"] == "add"
    assert answer["rule"].startswith("a: a whole number")


def test_true_is_not_one_and_text_is_no_flag(api):
    token = api.acquire("u-1")["token"]
    ask = {"expected_token": token, "expected_owner": "w-1", "reason": "x"}
    for force in (1, "true", "yes", None):
        answer = api.post("/leases/u-1/reclaim", {**ask, "force": force})
        assert answer.refused == (422, "invalid")
        assert answer["field"] == "force"


def test_a_body_that_ended_too_soon_is_malformed():
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "500",
        "wsgi.input": io.BytesIO(b'{"task": "x"}'),
    }
    with pytest.raises(Malformed, match="after 13 of 500 bytes"):
        read_text(WSGIRequest(environ))
