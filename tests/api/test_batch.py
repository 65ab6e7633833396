"""Many operations in one request: all of them, or none and every reason."""

import json

import pytest

from tests.api.asking import Api, new_key
from tests.store.asking import at_once, rows

LONG = "1970670598291982290"


def batch(api, *operations, **headers):
    return api.post("/batch", {"operations": list(operations)}, **headers)


CREATE = {
    "op": "create", "key": "a", "task": "x", "status": "running",
    "budgets": [{"name": "tokens", "cap": 10}],
}  # fmt: skip
APPEND = {"op": "append", "run": "a", "events": [{"type": "step.done"}]}


def test_all_kinds_of_operations_go_in_order_in_one_transaction(api):
    api.post("/budgets", {"name": "fleet", "cap": 100})
    answer = batch(
        api,
        CREATE,
        APPEND | {"expected_seq": 1, "add": {"n": 1}},
        {"op": "patch", "run": "a", "set": {"attrs.x": 1}, "expect": {"version": 2}, "if_match": 2},
        {"op": "spend", "run": "a", "budget": "tokens", "amount": 4},
        {"op": "spend", "budget": "fleet", "amount": 5},
        {"op": "reserve", "run": "a", "budget": "tokens", "amount": 3, "id": "r-1"},
        {"op": "commit", "run": "a", "budget": "tokens", "id": "r-1", "amount": 2},
        {"op": "reserve", "budget": "fleet", "amount": 3, "id": "r-1"},
        {"op": "release", "budget": "fleet", "id": "r-1"},
        {"op": "check", "run": "a", "expect": {"counters.n": 1}, "expected_seq": 3},
        {"op": "transition", "run": "a", "to": "completed", "expect": {"status": "running"}},
    )
    assert answer.status == 200, answer.text
    results = answer["results"]
    assert [r.get("version") for r in results] == [1, 2, 3, 2, 2, 3, 4, 3, 4, 3, 4]
    assert results[3]["left"] == 6
    run = api.get("/runs/a")
    assert (run["status"], run["counters"], run["attrs"]) == ("completed", {"n": 1}, {"x": 1})
    assert (run["budgets"][0]["spent"], api.get("/budgets/fleet")["spent"]) == (6, 5)


def test_if_one_fails_nothing_is_written_and_each_failure_is_told(api):
    api.create("a")
    answer = batch(
        api,
        APPEND,
        {"op": "check", "run": "a", "if_match": 7},
        CREATE,
        APPEND | {"run": "nope"},
    )
    assert answer.refused == (409, "batch-refused")
    assert [(o["index"], o["code"]) for o in answer["operations"]] == [
        (1, "version-conflict"), (2, "exists"), (3, "not-found")]  # fmt: skip
    assert answer["operations"][0]["current"]["version"] == 2
    assert [o["retry"] for o in answer["operations"]] == ["reread", "never", "never"]
    assert api.get("/runs/a")["version"] == 1
    assert rows("SELECT code, operation FROM agentstate_refusal") == [("batch-refused", "batch")]


def test_payloads_come_back_to_the_letter(api):
    data = f'{{"id": {LONG},  "f":0.10, "set": {{"attrs": 1e0}}}}'
    sent = (
        f'{{"operations": [{{"op": "create", "key": "a", "task": "x", "attrs": {data}}},'
        f' {{"op": "append", "run": "a", "events": [{{"type": "t", "data": {data}}}]}},'
        f' {{"op": "patch", "run": "a", "set": {{"attrs.more": {data}}}}}]}}'
    )
    assert api.post("/batch", sent).status == 200
    assert f'"data":{data},' in api.get("/runs/a/events?type=t").text
    run = api.get("/runs/a").text
    assert f'"more":{data}' in run
    assert f'"id":{LONG}' in run


def test_the_same_key_answers_as_before_and_an_operation_may_have_been_done_alone(api):
    api.create("a")
    operation = APPEND | {"events": [{"type": "x", "id": "e-1"}]}
    first = batch(api, operation, {"op": "check", "run": "a"}, Idempotency_Key="k")
    again = batch(api, operation, {"op": "check", "run": "a"}, Idempotency_Key="k")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json == first.json
    assert batch(api, operation, Idempotency_Key="k").refused == (422, "idempotency-key-reuse")
    alone = batch(api, operation)
    assert "Idempotent-Replayed" not in alone.headers
    assert alone["results"][0]["replayed"] is True
    assert api.get("/runs/a")["last_seq"] == 2


def test_each_operation_has_its_own_token(api):
    for key in ("a", "b"):
        api.create(key)
    token = int(api.hold("a"))
    answer = batch(api, APPEND | {"fence": token}, APPEND | {"run": "b", "fence": token})
    assert [(o["index"], o["code"]) for o in answer["operations"]] == [(1, "stale-fence")]
    assert batch(api, APPEND | {"fence": token}, APPEND | {"run": "b"}).status == 200
    for header in ({"Agentstate_Fence": str(token)}, {"If_Match": '"v1"'}):
        assert batch(api, APPEND, **header).status == 422


BAD = [
    ([], "operations"),
    ([APPEND] * 101, "operations"),
    ([{"run": "a"}], "operations[0]"),
    ([{"op": "delete", "run": "a"}], "operations[0]"),
    ([APPEND, 7], "operations[1]"),
    ([APPEND, APPEND | {"op": ["append"]}], "operations[1]"),
    ([APPEND, APPEND | {"events": []}], "operations[1].events"),
    ([APPEND, APPEND | {"events": [{"type": "a"}, {"type": "1"}]}], "operations[1].events[1].type"),
    ([APPEND, APPEND | {"fence": "7"}], "operations[1].fence"),
    ([APPEND, APPEND | {"if_match": True}], "operations[1].if_match"),
    ([{"op": "create"}], "operations[0].task"),
    ([{"op": "check", "run": "a b"}], "operations[0].run"),
    ([{"op": "check"}], "operations[0].run"),
    ([{"op": "check", "run": "a", "amount": 1}], "operations[0].amount"),
    ([{"op": "spend", "run": "a", "budget": "t", "amount": 0}], "operations[0].amount"),
    ([{"op": "spend", "budget": "t", "amount": 1, "fence": 1}], "operations[0].fence"),
    ([APPEND, {"op": "patch", "run": "a"}], "operations[1].set"),
    ([{"op": "patch", "run": "a", "set": {"owner": 1}}], "operations[0].set"),
    ([{"op": "reserve", "budget": "t", "amount": 1, "id": "a/b"}], "operations[0].id"),
]


@pytest.mark.parametrize(("operations", "field"), BAD)
def test_a_bad_operation_is_named_with_its_number(api, operations, field):
    api.create("a")
    answer = batch(api, *operations)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == field
    assert answer["rule"]
    assert api.get("/runs/a")["version"] == 1


def test_text_that_cannot_be_stored_is_found_in_any_operation(api):
    sent = json.dumps({"operations": [APPEND, APPEND | {"events": [{"type": "a", "data": "\0"}]}]})
    answer = api.post("/batch", sent)
    assert answer.refused == (422, "unstorable-text")
    assert answer["field"] == "operations[1].events[0].data"


def test_batches_over_the_same_runs_in_any_order_all_succeed(transactional_db):
    api = Api(new_key("fleet"))
    names = [f"r{n}" for n in range(4)]
    for name in names:
        api.create(name)

    def work(n):
        turned = names[n:] + names[:n]
        return batch(Api(api.key), *(APPEND | {"run": name} for name in turned))

    assert {o.status for o in at_once(4, work)} == {200}
    assert {api.get(f"/runs/{name}")["last_seq"] for name in names} == {5}
