"""The single table's rows, what became of a request, and runs that are late."""

from datetime import timedelta
from urllib.parse import quote

import pytest

from agentstate.store import audit
from tests.api.asking import Api, new_key
from tests.store.asking import rows


def keys(answer):
    return [item["sk"] for item in answer["items"]]


def items(api, pk, **more):
    query = "".join(f"&{name}={quote(str(value))}" for name, value in more.items())
    return api.get(f"/items?pk={quote(pk)}{query}")


@pytest.fixture
def run(api):
    api.create(
        "42",
        attrs={"n": 1},
        budgets=[{"name": "tokens", "cap": 500_000}, {"name": "calls", "cap": 10}],
        events=[{"type": "model.responded", "data": {"id": 1}}, {"type": "tool.returned"}],
    )
    return api


WHOLE = ["budget", "budget#calls", "evt#000001", "evt#000002", "evt#000003", "meta"]


def test_everything_about_a_run_comes_in_the_tables_order(run):
    story = run.get("/runs/42/story")
    assert (keys(story), story["as_of_seq"], story["next_seq"]) == (WHOLE, 3, None)
    first, last = story["items"][0], story["items"][-1]
    assert (first["pk"], first["cap"]) == ("run#42", 500_000)
    assert (last["task"], last["attrs"]) == ("audit checkout", {"n": 1})
    page = run.get("/runs/42/story?limit=2")
    assert (keys(page)[2:-1], page["next_seq"]) == (["evt#000001", "evt#000002"], 2)
    rest = run.get("/runs/42/story?after_seq=2&limit=2")
    assert (keys(rest)[2:-1], rest["next_seq"]) == (["evt#000003"], None)


def test_payloads_are_for_those_who_may_see_them(run, with_scopes):
    reader = with_scopes("read")
    for answer in (reader.get("/runs/42/story"), items(reader, "run#42")):
        event, head = answer["items"][3], answer["items"][-1]
        assert (event["data"], event["data_bytes"]) == (None, len('{"id": 1}'))
        assert (head["attrs"], head["attrs_bytes"]) == (None, len('{"n": 1}'))


def test_any_key_of_the_table_can_be_asked_for(run):
    run.acquire("7", "w-1")
    run.post("/budgets", {"name": "fleet", "cap": 5})
    assert keys(items(run, "run#42")) == WHOLE
    assert keys(items(run, "run#42", sk_prefix="evt#")) == WHOLE[2:5]
    page = items(run, "run#42", sk_prefix="evt#", limit=2)
    assert (keys(page), page["after"]) == (WHOLE[2:4], "evt#000002")
    assert keys(items(run, "run#42", sk_prefix="evt#", after="evt#000002")) == WHOLE[4:5]
    (lease,) = items(run, "unit#7", sk_prefix="lease")["items"]
    assert (lease["owner"], lease["pk"]) == ("w-1", "unit#7")
    assert items(run, "budget#fleet")["items"][0]["cap"] == 5
    for missing in ("run#43", "unit#none", "budget#none"):
        assert items(run, missing).refused == (404, "not-found")


@pytest.mark.parametrize(
    ("pk", "more", "field"),
    [
        ("42", {}, "pk"), ("job#42", {}, "pk"), ("run#", {}, "pk"), ("run#a b", {}, "pk"),
        ("run#\0", {}, "pk"), ("x" * 300, {}, "pk"), ("run#42", {"after": "evt#1"}, "after"),
        ("run#42", {"after": "budget#none"}, "after"), ("run#42", {"limit": 0}, "limit"),
        ("run#42", {"limit": 501}, "limit"), ("run#42", {"sk_prefix": "\0"}, "sk_prefix"),
    ],
)  # fmt: skip
def test_a_key_of_another_shape_is_refused(run, pk, more, field):
    answer = items(run, pk, **more)
    assert answer.status == 422, answer.text
    assert answer["field"] == field


def test_a_prefix_of_strange_digits_finds_nothing(run):
    assert items(run, "run#42", sk_prefix="evt#²")["items"] == []


# --- receipts ------------------------------------------------------------------------------------


def test_what_was_applied_says_where_and_how_often_it_was_answered_again(run):
    ask = {"events": [{"type": "a"}, {"type": "b"}], "spend": {"budget": "tokens", "amount": 3}}
    for n in range(3):
        run.post("/runs/42/events", ask, Idempotency_Key="k", X_Request_Id=f"try-{n}")
    receipt = run.get("/receipts?key=k")
    assert receipt["state"] == "applied"
    (kept,) = receipt["kept"]
    assert (kept["replays"], kept["code"], kept["request_id"]) == (2, None, "try-0")
    (wrote,) = receipt["writes"]
    assert (wrote["run"], wrote["first_seq"], wrote["last_seq"], wrote["version"]) == (
        "42", 4, 5, 2)  # fmt: skip
    assert wrote["types"] == ["a", "b"]
    (charged,) = receipt["charges"]
    assert (charged["budget"], charged["run"], charged["amount"]) == ("tokens", "42", 3)
    assert run.get("/receipts?request_id=try-0").json == receipt.json
    assert run.get("/receipts?request_id=try-1")["state"] == "unknown"


def test_what_was_refused_says_why(run):
    ask = {"amount": 11}
    run.post("/runs/42/budgets/calls/spend", ask, Idempotency_Key="k", X_Request_Id="try-0")
    for query in ("key=k", "request_id=try-0"):
        receipt = run.get(f"/receipts?{query}")
        assert receipt["state"] == "refused"
        assert receipt["kept"][0]["code"] == "budget-exhausted"
        (refused,) = receipt["refusals"]
        assert (refused["operation"], refused["budget"], refused["run"]) == ("spend", "calls", "42")


def test_what_left_no_trace_is_unknown(run):
    for query in ("key=never", "request_id=never"):
        receipt = run.get(f"/receipts?{query}").json
        assert receipt.pop("state") == "unknown"
        assert set(map(len, receipt.values())) == {0}


def test_a_receipt_by_key_is_for_the_one_who_sent_the_key(run):
    run.append("42", Idempotency_Key="k", X_Request_Id="same")
    other = Api(new_key("other"))
    assert other.get("/receipts?key=k")["state"] == "unknown"
    other.append("42", Idempotency_Key="k", X_Request_Id="same")
    (wrote,) = other.get("/receipts?key=k")["writes"]
    assert wrote["actor"] == "key:other"
    assert len(run.get("/receipts?request_id=same")["writes"]) == 2


def test_an_operators_reclaim_of_any_unit_is_found(api):
    token = api.acquire("u-1")["token"]
    ask = {"expected_token": token, "expected_owner": "w-1", "reason": "x", "force": True}
    api.post("/leases/u-1/reclaim", ask, X_Request_Id="r-1")
    (acted,) = api.get("/receipts?request_id=r-1")["actions"]
    assert (acted["action"], acted["object"]) == ("lease.reclaimed", "u-1")


@pytest.mark.parametrize("query", ["", "?key=a&request_id=b", "?key=", "?key=%00", "?key=a&key=b"])
def test_a_receipt_is_asked_for_in_one_way(api, query):
    assert api.get(f"/receipts{query}").status == 422


# --- runs that are late, and those that changed --------------------------------------------------


def listed(api, query):
    return sorted(item["key"] for item in api.get(f"/runs?{query}")["items"])


def test_overdue_runs_are_a_filter(clock):
    api = Api(new_key("fleet"))
    soon = (clock.now + timedelta(seconds=10)).isoformat().replace("+00:00", "Z")
    for key in ("late", "ended"):
        api.create(key, deadline_at=soon)
    api.create("free")
    api.move("cancelled", key="ended")
    assert listed(api, "overdue=true") == []
    clock.advance(seconds=10)
    assert listed(api, "overdue=true") == ["late"]
    assert listed(api, "overdue=false") == ["ended", "free"]
    assert listed(api, "overdue=false&status=pending") == ["free"]
    assert api.get("/runs?overdue=1")["field"] == "overdue"


def test_runs_that_changed_since_are_a_filter(clock):
    api = Api(new_key("fleet"))
    for key in ("a", "b"):
        api.create(key)
    clock.advance(seconds=5)
    seen = quote(api.get("/time")["now"])
    clock.advance(seconds=5)
    api.append("b")
    assert listed(api, f"updated_after={seen}") == ["b"]
    assert audit.verify() == []
    assert rows("SELECT count(*) FROM agentstate_refusal") == [(0,)]
