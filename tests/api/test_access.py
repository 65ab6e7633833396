"""Who may call: keys, scopes, and where a key never shows up."""

import logging
import time
from datetime import timedelta

import pytest
from django.db import connection

from agentstate import store
from agentstate.store import keys, reads
from agentstate.store.callers import SCOPES
from agentstate.store.errors import Invalid, NotAllowed, NotFound
from tests.api.asking import Api, new_key
from tests.store.asking import VIEWER, rows


def test_without_a_key_nothing_but_health_time_and_problems_is_told(anonymous):
    for path in ("/runs", "/runs/42", "/leases", "/runs/42/events", "/leases/u-1"):
        answer = anonymous.get(path)
        assert answer.refused == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert anonymous.post("/runs", {"task": "x"}).status == 401
    assert anonymous.get("/time").status == 200
    assert anonymous.get("/problems/unauthenticated").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        "Bearer",
        "Bearer ",
        "Basic Zm9vOmJhcg==",
        "Bearer as_0_0",
        "Bearer " + "x" * 5_000,
        "Bearer as_" + "0" * 32 + "_" + "A" * 43,
        "as_" + "0" * 32 + "_" + "A" * 43,
        "Bearer ключ",
    ],
)
def test_what_is_no_valid_key_is_401(anonymous, sent):
    assert anonymous.get("/runs", Authorization=sent).refused == (401, "unauthenticated")


def test_a_key_with_another_secret_is_401(api):
    wrong = api.key.text[:-1] + ("A" if api.key.text[-1] != "A" else "B")
    assert api.get("/runs", Authorization=f"Bearer {wrong}").status == 401


def test_a_revoked_key_is_refused_from_the_next_call_on(api):
    assert api.get("/runs").status == 200
    keys.revoke_key(name="fleet", by=store.SYSTEM)
    answer = api.get("/runs")
    assert answer.refused == (401, "unauthenticated")
    assert "revoked" in answer["detail"]


def test_a_key_ends_when_the_databases_clock_says_so(clock):
    api = Api(new_key("short", expires_at=clock.now + timedelta(seconds=10)))
    assert api.get("/runs").status == 200
    clock.advance(seconds=10)
    assert api.get("/runs").status == 401


def test_the_last_use_is_written_down_once_a_minute(clock):
    api = Api(new_key("fleet"))

    def last_used():
        return rows("SELECT last_used_at FROM agentstate_apikey")[0][0]

    assert last_used() is None
    api.get("/runs")
    first = last_used()
    clock.advance(seconds=59)
    api.get("/runs")
    assert last_used() == first == clock.now - timedelta(seconds=59)
    clock.advance(seconds=2)
    api.get("/runs")
    assert last_used() == clock.now


def test_a_call_does_not_wait_for_another_that_marks_the_key(transactional_db, api):
    """Whoever holds the key's row, the call goes on, and leaves the mark to the other."""
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT FROM agentstate_apikey FOR UPDATE")
        assert api.get("/runs").status == 200
        other.rollback()
    finally:
        other.close()


SCOPED = [
    ("read", "GET", "/runs", None),
    ("read", "GET", "/runs/42", None),
    ("read", "GET", "/runs/42/events", None),
    ("read", "GET", "/runs/42/verify", None),
    ("read", "GET", "/runs/42/budgets", None),
    ("read", "GET", "/leases", None),
    ("read", "GET", "/leases/u-1", None),
    ("read", "GET", "/leases/u-1/terms", None),
    ("read", "GET", "/runs/42/story", None),
    ("read", "GET", "/runs/42/budgets/tokens/reservations", None),
    ("read", "GET", "/budgets", None),
    ("read", "GET", "/budgets/fleet/ledger", None),
    ("read", "GET", "/workers", None),
    ("read", "GET", "/items?pk=run%2342", None),
    ("read", "GET", "/receipts?key=k", None),
    ("read", "GET", "/runs/-/search?filter=lease:lapsed", None),
    ("read", "GET", "/contention", None),
    ("read", "GET", "/proposals", None),
    (
        "propose",
        "POST",
        "/leases/u-1/proposals",
        '{"expected_token": 1, "expected_owner": "w", "reason": "x"}',
    ),
    ("write", "PUT", "/runs/42/telemetry", '{"host": "h"}'),
    ("write", "POST", "/runs/42/budgets", '{"name": "b", "cap": 1}'),
    ("write", "POST", "/budgets", '{"name": "b", "cap": 1}'),
    ("write", "POST", "/budgets/b/spend", '{"amount": 1}'),
    ("write", "POST", "/budgets/b/reserve", '{"amount": 1, "id": "r"}'),
    ("write", "POST", "/budgets/b/reservations/r/commit", '{"amount": 1}'),
    ("write", "POST", "/budgets/b/reservations/r/release", "{}"),
    ("write", "POST", "/batch", '{"operations": [{"op": "check", "run": "42"}]}'),
    ("write", "PUT", "/workers/w-1", "{}"),
    ("operate", "POST", "/workers/w-1/drain", '{"reason": "x"}'),
    ("operate", "POST", "/runs/42/signals", '{"signal": "cancel", "reason": "x"}'),
    ("operate", "PUT", "/runs/42/brake", '{"per_second": 1, "seconds": 1, "reason": "x"}'),
    ("operate", "DELETE", "/runs/42/brake?reason=x", None),
    ("override", "PATCH", "/runs/42/budgets/tokens", '{"cap": 1, "reason": "x"}'),
    ("override", "PATCH", "/budgets/b", '{"cap": 1, "reason": "x"}'),
    ("write", "POST", "/runs", '{"task": "x"}'),
    ("write", "POST", "/runs/42/events", '{"events": [{"type": "a"}]}'),
    ("write", "POST", "/runs/42/budgets/tokens/spend", '{"amount": 1}'),
    ("write", "POST", "/leases/u-1/acquire", '{"owner": "w-1"}'),
    ("write", "POST", "/leases/u-1/renew", '{"token": 1}'),
    ("write", "POST", "/leases/u-1/release", '{"token": 1}'),
    ("write", "POST", "/leases/claim", '{"owner": "w-1"}'),
    ("write", "POST", "/leases/renew", '{"items": [{"unit": "u-1", "token": 1}]}'),
    (
        "operate",
        "POST",
        "/leases/u-1/reclaim",
        '{"expected_token": 1, "expected_owner": "w", "reason": "x"}',
    ),
]


def test_each_call_needs_its_scope_and_none_implies_another(with_scopes):
    """Case O-40 (docs/cases.md)."""
    scopes = ("read", "write", "propose", "operate", "override")
    of_one = {scope: with_scopes(scope) for scope in scopes}
    all_but = {scope: with_scopes(*[s for s in SCOPES if s != scope]) for scope in scopes}
    for scope, method, path, body in SCOPED:
        refused = all_but[scope].send(method, path, body)
        assert refused.refused == (403, "not-allowed"), (method, path)
        assert refused["scope"] == scope
        assert of_one[scope].send(method, path, body).status not in (401, 403), (method, path)


def test_a_move_without_a_token_takes_write_or_operate(api, with_scopes):
    api.create("42")
    answer = with_scopes("read").move("running")
    assert answer.refused == (403, "not-allowed")
    assert with_scopes("write").move("running").status == 200
    api.hold("42")
    assert with_scopes("write", name="w2").move("cancelled").status in (403, 428)
    assert with_scopes("operate").move("cancelled").status == 200


def test_each_try_without_the_scope_is_written_down(api, with_scopes):
    """O-36, O-40: who, what, which run or unit, under which request."""
    api.create("42")
    viewer = with_scopes("read", name="viewer")
    for method, path, body in (
        ("POST", "/runs/42/events", '{"events": [{"type": "a"}]}'),
        ("PATCH", "/runs/42", "not even JSON"),
        ("POST", "/leases/u-1/reclaim", "{}"),
        ("POST", "/runs/a b/events", "{}"),
        ("GET", "/runs/42/export", None),
    ):
        answer = viewer.send(method, path, body, X_Request_Id=f"{method}-{len(path)}")
        assert answer.refused == (403, "not-allowed"), path
    assert rows(
        "SELECT f.operation, r.key, f.unit, f.actor, f.request_id, f.wanted->>'scopes'"
        " FROM agentstate_refusal f LEFT JOIN agentstate_run r ON r.id = f.run_id"
        " WHERE f.code = 'not-allowed' ORDER BY f.id"
    ) == [
        ("append_events", "42", None, "key:viewer", "POST-15", '["write"]'),
        ("change_run", "42", None, "key:viewer", "PATCH-8", '["write", "operate"]'),
        ("reclaim_lease", None, "u-1", "key:viewer", "POST-19", '["operate"]'),
        ("append_events", None, None, "key:viewer", "POST-16", '["write"]'),
        ("export_run", "42", None, "key:viewer", "GET-15", '["payloads"]'),
    ]
    assert api.get("/runs/42")["version"] == 1


def test_a_cookie_lets_nobody_in(api):
    anonymous = Api(None)
    anonymous.client.cookies["agentstate_session"] = api.key.text
    anonymous.client.cookies["Authorization"] = f"Bearer {api.key.text}"
    assert anonymous.get("/runs").status == 401


def test_a_key_in_an_address_is_not_taken_and_its_owner_told_why(api, anonymous):
    """Case O-39 (docs/cases.md)."""
    for sent in (anonymous, api):
        answer = sent.get(f"/runs?key={api.key.text}")
        assert answer.refused == (401, "unauthenticated")
        assert "revoke this" in answer["detail"]
        assert api.key.text not in answer.text


def test_an_unknown_id_takes_the_same_steps_as_a_wrong_secret(api, anonymous, monkeypatch):
    compared = []
    compare = keys.hmac.compare_digest
    monkeypatch.setattr(
        keys.hmac, "compare_digest", lambda a, b: compared.append(1) or compare(a, b)
    )
    unknown = "as_" + "0" * 32 + "_" + "A" * 43
    wrong = api.key.text[:-1] + ("A" if api.key.text[-1] != "A" else "B")
    texts = {
        anonymous.get("/runs", Authorization=f"Bearer {k}")["detail"] for k in (unknown, wrong)
    }
    assert len(texts) == 1
    assert len(compared) == 2


def test_checking_a_key_takes_one_statement_and_no_slow_hash(api, django_assert_num_queries):
    keys.find_caller(api.key.text)
    with django_assert_num_queries(1):
        keys.find_caller(api.key.text)
    began = time.perf_counter()
    for _ in range(100):
        keys.digest_of(b"x" * keys.SALT_BYTES, api.key.text)
    assert time.perf_counter() - began < 0.1


def test_every_key_can_be_listed_without_what_lets_in(clock):
    api = Api(new_key("fleet", ("read", "write"), expires_at=clock.now + timedelta(seconds=10)))
    new_key("other")
    keys.revoke_key(name="other", by=store.SYSTEM, reason="lost")
    api.get("/runs")
    fleet, other = keys.every_key()
    assert (fleet.name, fleet.scopes, fleet.valid) == ("fleet", ("read", "write"), True)
    assert fleet.last_used_at == clock.now
    assert (other.valid, other.revoked_at) == (False, clock.now)
    clock.advance(seconds=10)
    assert not keys.every_key()[0].valid
    secret = api.key.text.split("_", 2)[2]
    assert secret[: -keys.HINT_CHARS] not in repr(fleet)


def test_a_key_is_nowhere_in_clear(api, anonymous, caplog, monkeypatch, capfd):
    """Neither in the log after every kind of failure, nor in the database, nor in a repr (O-39)."""
    caplog.set_level(logging.DEBUG)
    api.create("42")
    api.get("/runs/unknown")
    api.post("/runs", "{")
    api.get("/nowhere")
    api.get("/runs?wait=1")
    api.get(f"/runs?key={api.key.text}")
    anonymous.get("/runs", Authorization=f"Bearer {api.key.text}x")
    monkeypatch.setattr(reads, "run", lambda key: 1 / 0)
    assert api.get("/runs/42").status == 500

    secret = api.key.text.removeprefix(f"as_{api.key.id.hex}_")
    out = capfd.readouterr()
    told = caplog.text + out.out + out.err
    assert "failed" in told
    assert secret not in told
    assert secret not in repr(api.key)
    assert secret not in str(rows("SELECT k::text FROM agentstate_apikey k"))
    assert rows("SELECT hint FROM agentstate_apikey WHERE name = 'fleet'") == [(secret[-4:],)]


def test_a_key_is_made_by_an_admin_with_scopes_that_exist(transactional_db):
    with pytest.raises(NotAllowed):
        keys.create_key(name="x", scopes=["read"], by=VIEWER)
    for scopes in ([], ["read", "everything"]):
        with pytest.raises(Invalid):
            keys.create_key(name="x", scopes=scopes, by=store.SYSTEM)
    made = keys.create_key(name="x", scopes=["write", "read"], by=store.SYSTEM)
    assert made.scopes == ("read", "write")
    with pytest.raises(Invalid):
        keys.create_key(name="x", scopes=["read"], by=store.SYSTEM)
    with pytest.raises(NotFound):
        keys.revoke_key(name="y", by=store.SYSTEM)
