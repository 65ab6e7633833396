"""A brake on a hot run over HTTP: 429 with Retry-After, shown in the run, over by itself."""

import json

import pytest

from agentstate.store.hot import HOT
from tests.api.asking import Api, new_key
from tests.store.asking import rows


@pytest.fixture(autouse=True)
def _nothing_remembered():
    HOT.forget()
    yield
    HOT.forget()


def brake(api, body=None):
    content = body or '{"per_second": 1, "seconds": 60, "reason": "it floods us"}'
    return api.send("PUT", "/runs/42/brake", content)


def lift(api, query="?reason=quiet"):
    return api.send("DELETE", f"/runs/42/brake{query}", content_type="")


def test_beyond_its_brake_a_run_answers_429_and_when_to_come_back(clock, api):
    api.create("42")
    answer = brake(api)
    assert (answer.status, answer["per_second"]) == (200, 1)
    assert answer.headers["ETag"] == '"v2"'
    assert api.append("42").status == 201

    hot = api.append("42")
    assert hot.refused == (429, "run-hot")
    assert (hot["retry"], hot.headers["Retry-After"]) == ("same-request", "1")
    assert hot["current"]["per_second"] == 1
    assert hot["current"]["until"] == answer["until"]
    clock.advance(seconds=1)
    HOT.forget()
    assert api.append("42").status == 201


def test_the_run_tells_its_brake_until_it_is_over(clock, api):
    assert api.create("42")["brake"] is None
    until = brake(api)["until"]
    assert api.get("/runs/42")["brake"] == {"per_second": 1, "until": until}
    clock.advance(seconds=60)
    assert api.get("/runs/42")["brake"] is None


def test_lifting_it_says_why_and_twice_is_harmless(api):
    api.create("42")
    brake(api)
    assert "per_second" not in lift(api).json
    again = lift(api)
    assert (again.status, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert api.get("/runs/42")["brake"] is None
    assert api.get("/runs/42/events?origin=store").json["last_seq"] == 3


def test_with_a_key_the_hot_answer_is_no_first_answer(clock, api):
    api.create("42")
    brake(api)
    api.append("42")
    assert api.append("42", Idempotency_Key="k").status == 429
    clock.advance(seconds=1)
    done = api.append("42", Idempotency_Key="k")
    assert (done.status, done.headers.get("Idempotent-Replayed")) == (201, None)
    assert api.append("42", Idempotency_Key="k").headers["Idempotent-Replayed"] == "true"


BAD = [
    ("{}", "per_second"),
    ('{"per_second": 1, "reason": "x"}', "seconds"),
    ('{"per_second": 1, "seconds": 1}', "reason"),
    ('{"per_second": 0, "seconds": 1, "reason": "x"}', "per_second"),
    ('{"per_second": 1.5, "seconds": 1, "reason": "x"}', "per_second"),
    ('{"per_second": true, "seconds": 1, "reason": "x"}', "per_second"),
    ('{"per_second": 100001, "seconds": 1, "reason": "x"}', "per_second"),
    ('{"per_second": 1, "seconds": 86401, "reason": "x"}', "seconds"),
    ('{"per_second": 1, "seconds": 1e2, "reason": "x"}', "seconds"),
    ('{"per_second": 1, "seconds": 1, "reason": ""}', "reason"),
    ('{"per_second": 1, "seconds": 1, "reason": "a\\nb"}', "reason"),
    ('{"per_second": 1, "seconds": 1, "reason": "\\u0000"}', "reason"),
    ('{"per_second": 1, "seconds": 1, "reason": "x", "more": 1}', "more"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_a_senseless_brake_is_refused_and_named(api, body, field):
    api.create("42")
    answer = brake(api, body)
    assert answer.status == 422
    assert answer["field"] == field
    assert rows("SELECT brake_until FROM agentstate_run") == [(None,)]


@pytest.mark.parametrize("query", ["", "?reason=", "?reason=a&reason=b", "?reason=x&why=y"])
def test_lifting_needs_one_reason(api, query):
    api.create("42")
    assert lift(api, query).status == 422


def test_unknown_ended_and_expired_runs_take_no_brake(clock, api):
    assert brake(api).refused == (404, "not-found")
    api.create("42", retain_seconds=5)
    api.move("cancelled")
    assert brake(api).refused == (409, "already-terminal")
    clock.advance(seconds=5)
    assert brake(api).refused == (410, "run-expired")


def test_a_write_that_ends_the_run_and_a_renewal_pass_the_brake(clock, api):
    api.create("42")
    token = api.hold("42")
    clock.advance(seconds=1)
    brake(api)
    api.append("42", Agentstate_Fence=token)
    assert api.append("42", Agentstate_Fence=token).status == 429
    assert api.post("/leases/run:42/renew", {"token": int(token)}).status == 200
    assert api.move("completed", Agentstate_Fence=token).status == 200


def test_a_key_that_only_operates_is_not_held_up(clock, api):
    operator = Api(new_key("ops", ("operate", "read")))
    api.create("42")
    brake(operator)
    for n in range(3):
        changed = operator.send("PATCH", "/runs/42", f'{{"tags_add": ["t{n}"]}}')
        assert changed.status == 200


def test_what_was_seen_of_the_brake_decides_if_it_is_said(api):
    api.create("42")
    sent = {"per_second": 5, "seconds": 60, "reason": "x"}
    first = brake(api, json.dumps(sent | {"expected_until": None}))
    assert first.status == 200
    stale = brake(api, json.dumps(sent | {"expected_until": None}))
    assert stale.refused == (412, "expectation-failed")
    assert stale["current"]["brake"] == {"per_second": 5, "until": first["until"]}
    assert stale["failed"] == [{"field": "brake.until", "wanted": None, "found": first["until"]}]
    second = brake(api, json.dumps(sent | {"expected_until": first["until"]}))
    assert second.status == 200

    assert lift(api, f"?reason=x&expected_until={first['until']}").status == 412
    assert lift(api, "?reason=x&expected_until=soon").status == 422
    for _ in range(2):
        assert lift(api, f"?reason=x&expected_until={second['until']}").status == 200


def test_a_signal_can_name_whom_it_is_for(api):
    api.create("42")
    body = {"signal": "pause", "reason": "x"}
    assert api.post("/runs/42/signals", body | {"expected_token": None}).status == 200
    token = int(api.hold("42"))
    other = api.post("/runs/42/signals", body | {"expected_token": None})
    assert other.refused == (412, "holder-changed")
    assert other["current"]["token"] == token
    assert api.post("/runs/42/signals", body | {"expected_token": token}).status == 200
    assert api.post("/runs/42/signals", body | {"expected_token": "1"}).status == 422
    assert api.post("/runs/42/signals", body).status == 200
