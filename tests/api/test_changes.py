"""Changing a run over HTTP: fields by their own rules, expectations, telemetry, signals."""

import json

import pytest

from tests.api.asking import Api, new_key
from tests.store.asking import at_once, rows

LONG = "1970670598291982290"


def patch(api, body, *, key="42", **headers):
    content = body if isinstance(body, str) else json.dumps(body)
    return api.send("PATCH", f"/runs/{key}", content, **headers)


def put(api, path, body, **headers):
    return api.send("PUT", path, json.dumps(body), **headers)


def test_each_field_changes_in_its_own_way(transactional_db, api):
    api.create("42", tags=["b"], attrs={"step": {"n": 1}})
    answer = patch(
        api,
        f'{{"set": {{"notes": "so far", "attrs.step.n": {LONG}, "attrs.model": 1.0}},'
        ' "add": {"steps_done": 2}, "tags_add": ["c"], "tags_remove": ["b"]}',
    )
    assert (answer.status, answer["version"], answer["last_seq"]) == (200, 2, 2)
    assert answer.headers["ETag"] == '"v2"'
    run = api.get("/runs/42")
    assert f'"attrs":{{"step":{{"n":{LONG}}},"model":1.0}}' in run.text
    assert (run["notes"], run["counters"], run["tags"]) == ("so far", {"steps_done": 2}, ["c"])
    assert api.get("/runs/42/verify")["sound"]


def test_all_attrs_are_replaced_to_the_letter(api):
    api.create("42", attrs={"old": 1})
    text = f'{{ "data": {LONG},  "f":0.10, "set": {{}} }}'
    assert patch(api, f'{{"replace": {text}}}').status == 200
    assert f'"attrs":{text}' in api.get("/runs/42").text


def test_hold_and_retention_may_change_after_the_end(api, with_scopes):
    api.create("42")
    api.move("cancelled")
    answer = patch(with_scopes("operate"), {"hold": True, "retain_seconds": 60, "tags_add": ["x"]})
    assert answer.status == 200
    run = api.get("/runs/42")
    assert (run["hold"], run["retain_seconds"], run["tags"]) == (True, 60, ["x"])
    assert run["expires_at"] is not None
    assert patch(api, {"add": {"n": 1}}).refused == (409, "already-terminal")


def test_a_change_that_was_overtaken_is_412_and_says_what_it_found(api):
    api.create("42")
    api.append("42")
    answer = patch(api, {"set": {"notes": "x"}}, If_Match='"v1"')
    assert answer.refused == (412, "version-conflict")
    assert (answer["retry"], answer["detail"]) == ("reread", "expected v1, found v2")
    assert answer["current"]["version"] == 2
    assert patch(api, {"set": {"notes": "x"}}, If_Match='"v2"').status == 200
    assert patch(api, {"set": {"notes": "x"}}, If_Match='"b3"')["field"] == "If-Match"


def test_every_clause_that_fails_is_told(api):
    api.create("42", attrs={"data": [1, 2]})
    expect = {
        "status": "running",
        "owner": None,
        "counters.steps_done": {"lt": 5},
        "attrs.data": {"contains": 2},
        "attrs.x": {"exists": False},
        "version": 7,
    }
    answer = patch(api, {"set": {"notes": "x"}, "expect": expect})
    assert answer.refused == (412, "expectation-failed")
    assert answer["failed"] == [
        {"field": "status", "wanted": "running", "found": "pending"},
        {"field": "counters.steps_done", "wanted": {"lt": 5}, "found": None},
        {"field": "version", "wanted": 7, "found": 1},
    ]
    good = {"status": "pending", "attrs.data": [1, 2], "counters.n": {"exists": False}}
    assert patch(api, {"set": {"notes": "x"}, "expect": good}).status == 200


def test_a_move_expects_too(api):
    api.create("42")
    answer = api.move("running", expect={"counters.n": {"ge": 1}, "status": "pending"})
    assert answer.refused == (412, "expectation-failed")
    assert [one["field"] for one in answer["failed"]] == ["counters.n"]
    assert api.move("running", expect={"owner": None, "token": None}).status == 200


def test_the_same_change_id_answers_the_first_version_whatever_the_rest_says(api):
    api.create("42")
    first = patch(api, {"add": {"n": 1}, "id": "c-1"}, If_Match='"v1"')
    api.append("42")
    again = patch(api, {"add": {"n": 5}, "id": "c-1"}, If_Match='"v1"')
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["Agentstate-Duplicate"] == "true"
    assert "Agentstate-Duplicate" not in first.headers
    assert (again.json, again.headers["ETag"]) == (first.json, '"v2"')
    assert api.get("/runs/42")["counters"] == {"n": 1}
    other = Api(new_key("other"))
    assert patch(other, {"add": {"n": 1}, "id": "c-1"}).json == first.json


def test_a_change_that_was_sent_twice_is_no_duplicate(api):
    api.create("42")
    first = patch(api, {"add": {"n": 1}, "id": "c-1"}, Idempotency_Key="k")
    again = patch(api, {"add": {"n": 1}, "id": "c-1"}, Idempotency_Key="k")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Agentstate-Duplicate" not in again.headers
    assert again.json == first.json


def test_a_late_worker_changes_nothing_at_all(api):
    """O-15: state, event and charge of one who was overtaken are refused as one whole."""
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    old = api.hold("42")
    seen = api.get("/runs/42")
    api.post("/leases/run:42/reclaim", {
        "expected_token": int(old), "expected_owner": "w-1", "reason": "stuck", "force": True,
    })  # fmt: skip
    new = api.hold("42", "w-2")
    assert patch(api, {"set": {"notes": "mine"}}, Agentstate_Fence=new).status == 200
    late = {"set": {"notes": "late"}}
    assert patch(api, late, Agentstate_Fence=old).refused == (409, "stale-fence")
    assert patch(api, {"add": {"n": 1}}).refused == (428, "fence-required")
    answer = api.append(
        "42", {"type": "late"}, spend={"budget": "tokens", "amount": 1},
        expected_seq=seen["last_seq"], Agentstate_Fence=old,
    )  # fmt: skip
    assert answer.refused == (409, "stale-fence")
    run = api.get("/runs/42")
    assert (run["notes"], run["budgets"][0]["spent"]) == ("mine", 0)
    codes = [code for (code,) in rows("SELECT code FROM agentstate_refusal ORDER BY id")]
    assert codes == ["stale-fence", "fence-required", "stale-fence"]


BAD = [
    ({}, "set"),
    ({"set": {}}, "set"),
    ({"expect": {"status": "running"}}, "set"),
    ({"set": []}, "set"),
    ({"set": {"attrs": {}}}, "set"),
    ({"set": {"attrs.": 1}}, "set"),
    ({"set": {"attrs.a..b": 1}}, "set"),
    ({"set": {"status": "failed"}}, "set"),
    ({"set": {"notes": 1}}, "set"),
    ({"set": {"notes": None}}, "set"),
    ({"set": {"notes": "x" * 10_001}}, "set"),
    ({"replace": []}, "replace"),
    ({"add": {"n": True}}, "add"),
    ({"add": {"n": 1.0}}, "add"),
    ({"add": {"n": 2**53}}, "add"),
    ({"tags_add": "x"}, "tags_add"),
    ({"hold": 1}, "hold"),
    ({"retain_seconds": -1}, "retain_seconds"),
    ({"hold": True, "expect": {"nothing": 1}}, "expect"),
    ({"hold": True, "expect": {"status": {"like": "x"}}}, "expect"),
    ({"hold": True, "expect": {"status": {}}}, "expect"),
    ({"hold": True, "expect": []}, "expect"),
    ({"hold": True, "id": ""}, "id"),
    ({"hold": True, "status": "failed"}, "status"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_a_bad_change_is_refused_with_field_and_rule(api, body, field):
    api.create("42")
    answer = patch(api, body)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == field
    assert api.get("/runs/42")["version"] == 1


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('{"set": {"notes": "a\\u0000"}}', "set.notes"),
        ('{"set": {"attrs.x": ["\\ud800"]}}', "set.attrs.x[0]"),
        ('{"replace": {"a\\u0000": 1}}', "replace"),
    ],
)
def test_text_that_cannot_be_stored_is_named(api, body, place):
    api.create("42")
    answer = patch(api, body)
    assert answer.refused == (422, "unstorable-text")
    assert place in answer["field"]


def test_a_change_of_a_run_that_is_not_there_makes_none(api):
    for answer in (
        patch(api, {"set": {"notes": "x"}}, If_Match='"v1"'),
        put(api, "/runs/42/telemetry", {"host": "h"}),
        api.post("/runs/42/signals", {"signal": "cancel", "reason": "x"}),
    ):
        assert answer.refused == (404, "not-found")
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


def test_one_of_many_guarded_changes_wins_and_adders_all_do(transactional_db):
    api = Api(new_key("fleet"))
    api.create("42")
    outcomes = at_once(8, lambda n: patch(Api(api.key), {"add": {"n": 1}}, If_Match='"v1"'))
    assert sorted(o.status for o in outcomes) == [200] + [412] * 7
    outcomes = at_once(8, lambda n: patch(Api(api.key), {"add": {"n": 1}}))
    assert {o.status for o in outcomes} == {200}
    assert api.get("/runs/42")["counters"] == {"n": 9}


# --- telemetry, signals --------------------------------------------------------------------------


def test_telemetry_is_the_newest_and_moves_nothing(api, with_scopes):
    api.create("42")
    assert api.get("/runs/42")["telemetry"] is None
    token = api.hold("42")
    before = api.get("/runs/42")
    put(api, "/runs/42/telemetry", {"host": "h-1", "model": "m"}, Agentstate_Fence=token)
    body = {"progress": {"step": 3}, "worker_time": "2026-03-12T09:40:00Z"}
    assert put(api, "/runs/42/telemetry", body, Agentstate_Fence=token).status == 200
    run = api.get("/runs/42")
    told = run["telemetry"]
    assert (told["host"], told["model"], told["token"]) == ("h-1", "m", int(token))
    assert '"progress":{"step": 3}' in run.text
    assert told["skew_ms"] is not None
    assert (run["version"], run["last_seq"]) == (before["version"], before["last_seq"])
    hidden = with_scopes("read").get("/runs/42")["telemetry"]
    assert ("progress" in hidden, hidden["progress_bytes"]) == (False, len('{"step": 3}'))


def test_telemetry_is_fenced(api):
    api.create("42")
    token = api.hold("42")
    assert put(api, "/runs/42/telemetry", {"host": "h"}).refused == (428, "fence-required")
    answer = put(api, "/runs/42/telemetry", {"host": "h"}, Agentstate_Fence=str(int(token) + 1))
    assert answer.refused == (409, "stale-fence")
    bad = put(api, "/runs/42/telemetry", {"host": 1}, Agentstate_Fence=token)
    assert (bad.status, bad["field"]) == (422, "host")


def test_a_signal_is_told_at_the_next_renewal(api):
    api.create("42")
    token = api.hold("42")
    answer = api.post("/runs/42/signals", {"signal": "pause", "reason": "look at it"})
    assert answer.status == 200
    renewed = api.post("/leases/run:42/renew", {"token": int(token)})
    (told,) = renewed["signals"]
    assert answer["signals"] == [told]
    assert (told["signal"], told["reason"], told["by"]) == ("pause", "look at it", "key:fleet")
    for body in (
        {"signal": "stop", "reason": "x"},
        {"signal": "pause"},
        {"signal": "pause", "reason": ""},
    ):
        assert api.post("/runs/42/signals", body).status == 422
