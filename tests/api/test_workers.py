"""Workers over HTTP: what they say of themselves, and asking one to stop taking work."""

import json

import pytest

HEADERS = {"Idempotency_Key": "ignored"}


def announce(api, name, body=None, **headers):
    return api.send("PUT", f"/workers/{name}", json.dumps(body or {}), **headers)


def test_a_worker_is_answered_with_the_databases_clock_and_is_listed(api):
    said = {"version": "1.2", "host": "h-1", "slots": 4, "worker_time": "2026-03-12T09:40:00Z"}
    seen = announce(api, "w-1~07fe", said)
    assert (seen.status, seen["worker"], seen["signals"]) == (200, "w-1~07fe", [])
    assert seen["now"].endswith("Z")
    api.create("42")
    api.hold("42", "w-1~07fe")
    (worker,) = api.get("/workers")["items"]
    assert (worker["version"], worker["host"], worker["slots"]) == ("1.2", "h-1", 4)
    assert (worker["units"], worker["principal"], worker["drain_at"]) == (1, "key:fleet", None)
    assert isinstance(worker["skew_ms"], int)


def test_saying_it_again_is_never_a_replay(api):
    for slots in (1, 2):
        answer = announce(api, "w-1", {"slots": slots}, **HEADERS)
        assert "Idempotent-Replayed" not in answer.headers
    assert api.get("/workers")["items"][0]["slots"] == 2


def test_a_drain_is_told_to_the_worker_until_it_is_taken_back(api, with_scopes):
    announce(api, "w-1~07fe")
    lease = api.acquire("u-1", "w-1~07fe")
    operator = with_scopes("operate")
    assert operator.post("/workers/w-1/drain", {"reason": "new release"})["draining"] is True
    for signals in (
        announce(api, "w-1~07fe")["signals"],
        api.post("/leases/u-1/renew", {"token": lease["token"]})["signals"],
    ):
        assert [(s["signal"], s["reason"], s["by"]) for s in signals] == [
            ("drain", "new release", "key:operate")]  # fmt: skip
    operator.post("/workers/w-1/drain", {"reason": "done", "draining": False})
    assert announce(api, "w-1~07fe")["signals"] == []


def test_workers_are_paged_by_name(api):
    for n in range(5):
        announce(api, f"w-{n}")
    first = api.get("/workers?limit=2")
    second = api.get(f"/workers?limit=2&cursor={first['next']}")
    assert [w["worker"] for w in second["items"]] == ["w-2", "w-3"]
    assert api.get(f"/workers?cursor={second['prev']}&limit=2")["items"] == first["items"]
    assert api.get(f"/budgets?cursor={first['next']}").refused == (422, "invalid")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"slots": -1}, "slots"), ({"slots": True}, "slots"), ({"slots": 1_000_001}, "slots"),
        ({"version": ""}, "version"), ({"host": "a\nb"}, "host"), ({"host": "x" * 201}, "host"),
        ({"worker_time": "yesterday"}, "worker_time"), ({"worker_time": 1}, "worker_time"),
        ({"worker_time": "2026-03-12T09:40:00"}, "worker_time"), ({"pid": 1}, "pid"),
    ],
)  # fmt: skip
def test_a_worker_that_says_what_cannot_be_is_refused(api, body, field):
    answer = announce(api, "w-1", body)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == field
    assert api.get("/workers")["items"] == []


def test_names_and_reasons_have_rules(api):
    assert announce(api, "-w")["field"] == "name"
    assert api.post("/workers/w-1/drain", {})["field"] == "reason"
    assert api.post("/workers/w-1/drain", {"reason": "x", "draining": 1})["field"] == "draining"
