"""Leases over HTTP."""

from datetime import timedelta
from importlib import import_module
from itertools import pairwise

import pytest

from agentstate import store
from agentstate.store.commands import CarryOutDeadlines, RenewLease
from agentstate.store.rules import decide
from tests.api.asking import Api, new_key


def test_the_life_of_a_lease(api):
    got = api.acquire("u-1", "w-1", 60)
    assert got.status == 200
    assert got.json.keys() == {"unit", "owner", "token", "expires_at", "expires_in_ms", "at"}
    held = api.acquire("u-1", "w-1")
    assert held.refused == (423, "lease-held")
    assert (held["owner"], held["retry"]) == ("w-1", "later")
    assert 0 < held["expires_in_ms"] <= 60_000
    assert 59 <= int(held.headers["Retry-After"]) <= 60
    renewed = api.post("/leases/u-1/renew", {"token": got["token"], "ttl_seconds": 5})
    assert renewed["token"] == got["token"]
    assert 4_000 < renewed["expires_in_ms"] <= 5_000
    released = api.post("/leases/u-1/release", {"token": got["token"]})
    assert released.status == 200
    assert api.get("/leases/u-1")["state"] == "free"
    late = api.post("/leases/u-1/renew", {"token": got["token"]})
    assert late.refused == (409, "lease-lost")
    assert late["reason"] == "released"
    assert api.acquire("u-1", "w-2")["token"] > got["token"]


def test_a_lease_that_ran_out_is_lost_at_that_very_instant(clock):
    api = Api(new_key("fleet"))
    token = api.acquire("u-1", ttl_seconds=60)["token"]
    clock.advance(seconds=59.999999)
    assert api.get("/leases/u-1")["state"] == "live"
    clock.advance(seconds=0.000001)
    view = api.get("/leases/u-1")
    assert (view["state"], view["expires_in_ms"], view["owner"]) == ("lapsed", 0, "w-1")
    lost = api.post("/leases/u-1/renew", {"token": token})
    assert lost.refused == (409, "lease-lost")
    assert lost["reason"] == "expired"
    assert api.acquire("u-1", "w-2")["taken_from"] == "w-1"
    taken = api.post("/leases/u-1/renew", {"token": token})
    assert taken["reason"] == "taken"
    assert taken["current"]["owner"] == "w-2"


def test_retry_after_is_rounded_up(clock):
    api = Api(new_key("fleet"))
    api.acquire("u-1", ttl_seconds=10)
    clock.advance(seconds=8.999)
    assert api.acquire("u-1", "w-2").headers["Retry-After"] == "2"
    clock.advance(seconds=1)
    assert api.acquire("u-1", "w-2").headers["Retry-After"] == "1"


def test_a_token_counts_only_with_the_key_that_it_was_given_to(api, with_scopes):
    api.create("42")
    token = api.hold("42")
    other = with_scopes("write", "read", name="other")
    assert other.append("42", Agentstate_Fence=token).refused == (409, "stale-fence")
    assert other.post("/leases/run:42/renew", {"token": int(token)}).status == 409
    assert other.post("/leases/run:42/release", {"token": int(token)}).status == 409
    assert api.append("42", Agentstate_Fence=token).status == 201


@pytest.mark.parametrize("unit", ["claim", "renew"])
def test_reserved_words_are_not_units(api, unit):
    assert api.acquire(unit).refused == (422, "invalid")


def test_claiming_gives_each_run_to_one_worker_oldest_first(clock):
    api = Api(new_key("fleet"))
    for n in range(3):
        clock.advance(seconds=1)
        api.create(f"r-{n}", tags=["t"])
    first = api.post("/leases/claim", {"owner": "w-1", "limit": 2, "tag": "t"})
    assert [item["run"] for item in first["items"]] == ["r-0", "r-1"]
    item = first["items"][0]
    assert (item["status"], item["attempt"], item["unit"]) == ("running", 1, "run:r-0")
    assert item["expires_in_ms"] == 60_000
    assert "taken_from" not in item
    second = api.post("/leases/claim", {"owner": "w-2", "limit": 2})
    assert [item["run"] for item in second["items"]] == ["r-2"]
    assert api.post("/leases/claim", {"owner": "w-2"})["items"] == []


def test_a_claimed_run_brings_what_the_last_holder_told(clock):
    api = Api(new_key("fleet"))
    api.create("42")
    token = api.post("/leases/claim", {"owner": "w-1"})["items"][0]["token"]
    api.post("/leases/run:42/renew", f'{{"token": {token}, "progress": {{"step": 7.0}}}}')
    clock.advance(seconds=61)
    answer = api.post("/leases/claim", {"owner": "w-2"})
    assert answer["items"][0]["taken_from"] == "w-1"
    assert '"progress":{"step": 7.0}' in answer.text


def test_a_run_that_has_used_up_its_attempts_is_failed(clock):
    api = Api(new_key("fleet"))
    api.create("42", max_attempts=1)
    api.post("/leases/claim", {"owner": "w-1"})
    clock.advance(seconds=61)
    assert api.acquire("run:42", "w-2").refused == (409, "attempts-exhausted")
    assert api.post("/leases/claim", {"owner": "w-2"})["items"] == []
    assert api.get("/runs/42")["status"] == "failed"


def test_a_paused_run_is_not_given_out(api):
    api.create("42", status="running")
    api.move("paused")
    assert api.acquire("run:42").refused == (409, "paused")
    api.move("running")
    api.move("completed")
    assert api.acquire("run:42").refused == (409, "already-terminal")


def test_many_renewals_at_once_are_answered_one_by_one(api):
    tokens = {f"u-{n}": api.acquire(f"u-{n}")["token"] for n in range(3)}
    items = [{"unit": unit, "token": token} for unit, token in tokens.items()]
    items.insert(1, {"unit": "u-none", "token": 7})
    items.append({"unit": "u-0", "token": tokens["u-1"]})
    answer = api.post("/leases/renew", {"items": items, "ttl_seconds": 30})
    assert answer.status == 200
    told = answer["items"]
    assert [t.get("unit") or t["code"] for t in told] == [
        "u-0", "lease-lost", "u-1", "u-2", "lease-lost",
    ]  # fmt: skip
    assert told[1]["status"] == 409
    assert told[1]["retry"] == "never"
    assert told[0]["expires_in_ms"] <= 30_000
    for wrong in ([], items * 30, [{"unit": "u-0"}], [{"unit": "claim", "token": 1}]):
        assert api.post("/leases/renew", {"items": wrong}).refused == (422, "invalid")


def test_a_fault_with_one_renewal_leaves_the_others_alone(api, monkeypatch):
    tokens = {f"u-{n}": api.acquire(f"u-{n}")["token"] for n in range(3)}
    renew = decide._DECIDERS[RenewLease]

    def fail(ask, on):
        return 1 / 0 if ask.unit == "u-1" else renew(ask, on)

    monkeypatch.setitem(decide._DECIDERS, RenewLease, fail)
    # Each by its rule: nothing of the short way is one unit's alone.
    monkeypatch.setattr(import_module("agentstate.store.execute"), "SHORT_WAYS", ())
    items = [{"unit": unit, "token": token} for unit, token in tokens.items()]
    answer = api.post("/leases/renew", {"items": items})
    assert [told.get("unit") or told["code"] for told in answer["items"]] == [
        "u-0", "internal", "u-2"]  # fmt: skip


def test_an_operator_reclaims_what_was_seen_and_nothing_else(clock):
    api = Api(new_key("fleet"))
    api.create("42")
    token = int(api.hold("42", "w-1"))
    seen = {"expected_token": token, "expected_owner": "w-1", "reason": "stuck"}
    live = api.post("/leases/run:42/reclaim", seen)
    assert live.refused == (423, "lease-held")
    clock.advance(seconds=61)
    newer = api.acquire("run:42", "w-2")["token"]
    changed = api.post("/leases/run:42/reclaim", seen)
    assert changed.refused == (412, "holder-changed")
    assert changed["current"]["owner"] == "w-2"
    assert changed["retry"] == "reread"
    clock.advance(seconds=61)
    seen |= {"expected_token": newer, "expected_owner": "w-2", "hold_off_seconds": 30}
    done = api.post("/leases/run:42/reclaim", seen)
    assert done.status == 200
    assert done["token"] > newer == done["former_token"]
    assert api.acquire("run:42", "w-2").refused == (423, "lease-held")
    assert api.append("42", Agentstate_Fence=str(newer)).refused == (409, "stale-fence")
    lost = api.post("/leases/run:42/renew", {"token": newer})
    assert lost["reason"] == "reclaimed"
    assert lost["by"] == "key:fleet"
    assert lost["why"] == "stuck"


def test_taking_a_live_lease_needs_force_and_its_scope(api, with_scopes):
    token = api.acquire("u-1")["token"]
    seen = {"expected_token": token, "expected_owner": "w-1", "reason": "wrong one", "force": True}
    operator = with_scopes("operate")
    refused = operator.post("/leases/u-1/reclaim", seen)
    assert refused.refused == (403, "not-allowed")
    assert refused["scope"] == "override"
    assert api.get("/leases/u-1")["state"] == "live"
    assert api.post("/leases/u-1/reclaim", seen).status == 200
    assert api.get("/leases/u-1")["state"] == "free"


# --- lists ---------------------------------------------------------------------------------------


@pytest.fixture
def units(clock) -> Api:
    api = Api(new_key("fleet"))
    for n in range(5):
        api.acquire(f"u-{n}", owner=f"w-{n % 2}", ttl_seconds=10 if n < 2 else 100)
    api.post("/leases/u-4/release", {"token": api.get("/leases/u-4")["token"]})
    clock.advance(seconds=10)
    return api


def units_of(answer) -> list[str]:
    return [item["unit"] for item in answer["items"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["u-0", "u-1", "u-2", "u-3", "u-4"]),
        ("state=lapsed", ["u-0", "u-1"]),
        ("state=live", ["u-2", "u-3"]),
        ("state=free", ["u-4"]),
        ("owner=w-1", ["u-1", "u-3"]),
        ("owner=w-1&state=live", ["u-3"]),
        ("owner=nobody", []),
    ],
)
def test_leases_by_state_and_owner(units, query, found):
    answer = units.get(f"/leases?{query}")
    assert units_of(answer) == found
    assert answer["as_of"] == "2026-03-02T12:00:10.000000Z"
    for item in answer["items"]:
        assert item["expires_in_ms"] is None or item["expires_in_ms"] >= 0


def test_leases_in_pages_both_ways(units):
    first = units.get("/leases?limit=2")
    second = units.get(f"/leases?limit=2&cursor={first['next']}")
    third = units.get(f"/leases?limit=2&cursor={second['next']}")
    assert units_of(first) + units_of(second) + units_of(third) == [f"u-{n}" for n in range(5)]
    assert first["prev"] is None
    assert third["next"] is None
    assert units_of(units.get(f"/leases?limit=2&cursor={third['prev']}")) == units_of(second)
    assert units.get(f"/leases?limit=2&state=live&cursor={first['next']}")["field"] == "cursor"


def test_terms_never_overlap_and_go_on_where_the_page_ended(units):
    for owner in ("w-7", "w-8"):
        units.acquire("u-0", owner=owner)
        units.post("/leases/u-0/release", {"token": units.get("/leases/u-0")["token"]})
    terms = units.get("/leases/u-0/terms")["items"]
    assert [t["owner"] for t in terms] == ["w-8", "w-7", "w-0"]
    assert [t["ended"] for t in terms] == ["released", "released", "lapsed"]
    for later, earlier in pairwise(terms):
        assert later["starts_at"] >= earlier["ends_at"]
        assert later["token"] > earlier["token"]
    page = units.get("/leases/u-0/terms?limit=1")["items"]
    rest = units.get(f"/leases/u-0/terms?before={page[-1]['token']}")["items"]
    assert page + rest == terms
    assert units.get("/leases/never/terms").refused == (404, "not-found")
    assert units.get("/leases/u-0/terms?before=0")["field"] == "before"


def test_the_texts_own_lease_by_the_clock(clock):
    """t = 0, 10, 60, 70, 130, and a microsecond on either side of the expiry."""
    api, began = Api(new_key("fleet")), clock.now

    def at(seconds, microseconds=0):
        clock.set(began + timedelta(seconds=seconds, microseconds=microseconds))

    first = api.acquire("7", "A", 60)
    at(10)
    refused = api.acquire("7", "B", 60)
    assert refused.refused == (423, "lease-held")
    assert (refused["owner"], refused["expires_in_ms"]) == ("A", 50_000)
    at(60, -1)
    assert api.acquire("7", "B", 60).refused == (423, "lease-held")
    at(60)
    renewed = api.post("/leases/7/renew", {"token": first["token"], "ttl_seconds": 60})
    assert (renewed.refused, renewed["reason"]) == ((409, "lease-lost"), "expired")
    at(70)
    second = api.acquire("7", "B", 60)
    assert (second["taken_from"], second["token"] > first["token"]) == ("A", True)
    at(130, -1)
    assert api.get("/leases/7")["state"] == "live"
    at(130)
    assert api.get("/leases/7")["state"] == "lapsed"


@pytest.mark.parametrize(
    ("policy", "status"), [("fail", "failed"), ("cancel", "cancelled"), ("report", "running")]
)
def test_a_deadline_is_carried_out_as_its_policy_says(clock, policy, status):
    api = Api(new_key("fleet"))
    deadline = (clock.now + timedelta(seconds=30)).isoformat()
    api.create("42", status="running", deadline_at=deadline, deadline_policy=policy)
    clock.advance(seconds=29)
    store.execute(CarryOutDeadlines(limit=10), by=store.SWEEP)
    assert api.get("/runs/42")["status"] == "running"
    assert api.get("/runs?overdue=true")["items"] == []
    clock.advance(seconds=1)
    overdue = [run["key"] for run in api.get("/runs?overdue=true")["items"]]
    store.execute(CarryOutDeadlines(limit=10), by=store.SWEEP)
    assert overdue == ["42"]
    assert api.get("/runs/42")["status"] == status


def test_what_may_be_done_is_told_by_scope_and_by_how_it_stands(clock):
    fleet, operator = Api(new_key("fleet")), Api(new_key("ops", ["read", "operate"]))
    senior = Api(new_key("boss", ["read", "operate", "override"]))
    fleet.post("/runs", {"key": "42", "task": "audit"})
    fleet.acquire("run:42", "w-1", 60)

    def reclaim(api):
        (item,) = api.get("/leases/run:42/actions")["items"]
        return item

    assert reclaim(senior) == {"action": "reclaim", "allowed": True, "why": None, "needs": None}
    assert reclaim(operator)["needs"] == "override"
    assert "live" in reclaim(operator)["why"]
    clock.advance(seconds=61)
    assert reclaim(operator)["allowed"] is True
    told = {item["action"]: item for item in operator.get("/runs/42/actions")["items"]}
    assert told["reclaim"]["allowed"] is True
    assert told["cancel"]["allowed"] is True
    assert (told["resume"]["allowed"], told["resume"]["needs"]) == (False, None)
    assert told["resume"]["why"] == "not from pending"
    reader = Api(new_key("eye", ["read"])).get("/runs/42/actions")["items"]
    assert {item["needs"] for item in reader} == {"operate", None}
    assert operator.get("/runs/none/actions").refused == (404, "not-found")
    assert operator.get("/leases/never/actions").refused == (404, "not-found")


@pytest.mark.parametrize("size", [16 * 1024 + 1, 1024 * 1024, 1024 * 1024 + 1])
def test_progress_that_is_too_large_is_told_its_own_limit_whatever_its_size(api, size):
    """S-121 (docs/sweeps.md): beyond 1 MiB that was told as the limit."""
    token = api.acquire("u-1")["token"]
    answer = api.post("/leases/u-1/renew", {"token": token, "progress": "x" * (size - 2)})
    assert answer.refused == (413, "payload-too-large")
    assert (answer["limit"], answer["actual"], answer["field"]) == (16 * 1024, size, "progress")
    fits = api.post("/leases/u-1/renew", {"token": token, "progress": "x" * (16 * 1024 - 2)})
    assert fits.status == 200
