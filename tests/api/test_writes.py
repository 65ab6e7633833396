"""Once: idempotency keys over HTTP (O-10), attempts, and what a refusal leaves behind."""

import pytest
from django.db import connection

from agentstate.store import rowsql
from tests.api.asking import Api, new_key
from tests.store.asking import rows

SPEND = "/runs/{}/budgets/tokens/spend"


@pytest.fixture
def spender(api):
    for key in ("r-1", "r-2"):
        api.create(key, budgets=[{"name": "tokens", "cap": 1_000}])
    return api


def test_a_repeated_request_gets_the_first_answer(spender):
    first = spender.post(SPEND.format("r-1"), '{"amount": 10, "note": "x"}', Idempotency_Key="k")
    again = spender.post(
        SPEND.format("r-1"), '{ "note" : "\\u0078", "amount":10 }', Idempotency_Key="k"
    )
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again.status, again.json) == (first.status, first.json)
    assert spender.get("/runs/r-1/budgets/tokens")["spent"] == 10


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SPEND.format("r-1"), '{"amount": 20}'),
        (SPEND.format("r-2"), '{"amount": 10}'),
        (SPEND.format("r-1"), '{"amount": 10, "note": ""}'),
        ("/runs/r-1/events", '{"events": [{"type": "a"}]}'),
    ],
)
def test_a_key_with_another_request_is_refused_and_changes_nothing(spender, path, body):
    spender.post(SPEND.format("r-1"), '{"amount": 10}', Idempotency_Key="k")
    answer = spender.post(path, body, Idempotency_Key="k")
    assert answer.refused == (422, "idempotency-key-reuse")
    assert spender.get("/runs/r-1/budgets/tokens")["spent"] == 10
    assert spender.get("/runs/r-2/budgets/tokens")["spent"] == 0


def test_numbers_that_look_alike_are_not_the_same_request(api):
    api.create("42")
    body = '{{"events": [{{"type": "a", "data": {}}}]}}'
    assert api.post("/runs/42/events", body.format("1"), Idempotency_Key="k").status == 201
    for other in ("1.0", "1e0"):
        answer = api.post("/runs/42/events", body.format(other), Idempotency_Key="k")
        assert answer.refused == (422, "idempotency-key-reuse")


@pytest.mark.parametrize("key", ["x", "k" * 200, "a b", "!~", '"quoted"', "0197-7a:b/c"])
def test_good_keys(spender, key):
    path = SPEND.format("r-1")
    assert spender.post(path, {"amount": 1}, Idempotency_Key=key).status == 200
    again = spender.post(path, {"amount": 1}, Idempotency_Key=key)
    assert again.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("key", ["", "k" * 201, "k" * 300, "\u00e9", "a\x7f", " a", "a "])
def test_bad_keys_are_refused_with_the_rule(spender, key):
    answer = spender.post(SPEND.format("r-1"), {"amount": 1}, Idempotency_Key=key)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "Idempotency-Key"
    assert "characters" in answer["rule"]
    assert spender.get("/runs/r-1/budgets/tokens")["spent"] == 0


def test_a_request_whose_first_try_still_runs_is_told_to_come_again(transactional_db):
    api = Api(new_key("fleet"))
    api.create("42")
    first_try = connection.copy()
    try:
        first_try.set_autocommit(False)
        with first_try.cursor() as cursor:
            cursor.execute(rowsql.TRY_LOCKS, [["key:fleet\x1fk"]])
        answer = api.append("42", Idempotency_Key="k")
        assert answer.refused == (409, "idempotency-in-flight")
        assert (answer["retry"], answer.headers["Retry-After"]) == ("same-request", "1")
        first_try.rollback()
    finally:
        first_try.close()
    assert api.append("42", Idempotency_Key="k").status == 201


def test_a_key_belongs_to_the_api_key_that_sent_it(spender, with_scopes):
    other = with_scopes("write", "read", name="other")
    for caller in (spender, other):
        answer = caller.post(SPEND.format("r-1"), {"amount": 1}, Idempotency_Key="k")
        assert "Idempotent-Replayed" not in answer.headers
    assert spender.get("/runs/r-1/budgets/tokens")["spent"] == 2


def test_a_repeated_create_answers_as_the_first_however_far_the_run_has_come(api):
    body = {"task": "x", "attrs": {"n": 1}, "budgets": [{"name": "tokens", "cap": 5}]}
    first = api.post("/runs", body, Idempotency_Key="k")
    api.append(first["key"])
    api.hold(first["key"])
    again = api.post("/runs", body, Idempotency_Key="k")
    assert (again.status, again.text) == (201, first.text)
    assert again.headers["ETag"] == '"v1"'
    assert again.headers["Idempotent-Replayed"] == "true"
    assert rows("SELECT count(*) FROM agentstate_run") == [(1,)]


def test_kept_refusals_are_replayed_and_the_others_decided_anew(spender):
    path = SPEND.format("r-1")
    broke = spender.post(path, {"amount": 1_001}, Idempotency_Key="a")
    again = spender.post(path, {"amount": 1_001}, Idempotency_Key="a")
    assert broke.status == again.status == 402
    assert again.headers["Idempotent-Replayed"] == "true"
    assert {k: v for k, v in again.json.items() if k != "request_id"} == {
        k: v for k, v in broke.json.items() if k != "request_id"
    }
    body = '{"events": [{"type": "a"}], "expected_seq": 2}'
    assert spender.post("/runs/r-1/events", body, Idempotency_Key="b").status == 412
    spender.append("r-1")
    assert spender.post("/runs/r-1/events", body, Idempotency_Key="b").status == 201


def test_renew_and_release_ignore_a_key(api):
    token = api.acquire("u-1")["token"]
    for _ in range(2):
        renewed = api.post("/leases/u-1/renew", {"token": token}, Idempotency_Key="k")
        assert renewed.status == 200
        assert "Idempotent-Replayed" not in renewed.headers
    assert rows("SELECT count(*) FROM agentstate_idempotencyrecord") == [(0,)]
    assert api.post("/leases/u-1/release", {"token": token}, Idempotency_Key="k").status == 200
    again = api.post("/leases/u-1/release", {"token": token}, Idempotency_Key="k2")
    assert again.status == 200
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_replayed_claim_hands_over_the_last_holders_words_to_the_letter(clock):
    api = Api(new_key("fleet"))
    api.create("42")
    token = api.post("/leases/claim", {"owner": "w-1"})["items"][0]["token"]
    raw = '{"b": 1.50, "a": 1e2, "n": 12345678901234567890}'
    api.post("/leases/run:42/renew", f'{{"token": {token}, "progress": {raw}}}')
    clock.advance(seconds=61)
    first = api.post("/leases/claim", {"owner": "w-2"}, Idempotency_Key="k")
    again = api.post("/leases/claim", {"owner": "w-2"}, Idempotency_Key="k")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert f'"progress":{raw}' in first.text
    assert again.text == first.text


def test_a_replayed_grant_says_how_long_it_still_lasts(clock):
    api = Api(new_key("fleet"))
    ask = {"owner": "w-1", "ttl_seconds": 60}
    first = api.post("/leases/u-1/acquire", ask, Idempotency_Key="k")
    clock.advance(seconds=20)
    again = api.post("/leases/u-1/acquire", ask, Idempotency_Key="k")
    assert (again["token"], again["expires_in_ms"]) == (first["token"], 40_000)
    clock.advance(seconds=41)
    assert api.post("/leases/u-1/acquire", ask, Idempotency_Key="k").refused == (409, "lease-lost")


@pytest.mark.parametrize("sent", ["0", "-1", "x", "", "1.5", "9" * 19, "1000001"])
def test_an_attempt_that_is_no_count_is_refused(api, sent):
    api.create("42")
    answer = api.append("42", Agentstate_Attempt=sent)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "Agentstate-Attempt"


def test_a_refusal_is_kept_with_who_what_and_which_request(api):
    api.create("42")
    answer = api.append(
        "42", expected_seq=9, Agentstate_Attempt="3", X_Request_Id="req-9", Idempotency_Key="k"
    )
    assert answer.status == 412
    assert rows("SELECT code, operation, actor, request_id, attempt FROM agentstate_refusal") == [
        ("seq-conflict", "append", "key:fleet", "req-9", 3)
    ]


def test_the_request_id_is_written_beside_the_events(api):
    api.create("42")
    api.append("42", X_Request_Id="req-5")
    assert api.events()[-1]["request_id"] == "req-5"
