"""Leases and what becomes of runs whose worker is gone, over HTTP."""

import pytest

from agentstate.store.models import Event, Worker
from tasks import upkeep
from tests.api.asking import Api, new_key
from tests.dashboard.reading import Page
from tests.store.asking import at_once


@pytest.fixture
def fleet(clock):
    """The API, under a clock that the test moves."""
    return Api(new_key("fleet"))


def test_a_former_holder_gets_nothing_though_nobody_holds_the_unit_now(fleet, clock):
    """O-01: exclusion was broken once, so only a new acquire with a greater token goes on."""
    fleet.create("42")
    first = fleet.hold("42", "w-1", ttl_seconds=2)
    clock.advance(seconds=3)
    second = fleet.hold("42", "w-2", ttl_seconds=2)
    assert fleet.append("42", Agentstate_Fence=second).status == 201
    assert fleet.post("/leases/run:42/release", {"token": int(second)}).status == 200
    before = fleet.get("/runs/42").json

    renewed = fleet.post("/leases/run:42/renew", {"token": int(first), "ttl_seconds": 60})
    assert renewed.refused == (409, "lease-lost")
    assert fleet.append("42", Agentstate_Fence=first).refused == (409, "stale-fence")
    assert fleet.move("completed", Agentstate_Fence=first).refused == (409, "stale-fence")

    assert fleet.get("/runs/42").json == before
    assert int(fleet.hold("42", "w-1")) > int(second) > int(first)


TTLS = [0, -1, 0.4, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 86_400 * 10**9, 1e308, "60", True]


@pytest.mark.parametrize("ttl", TTLS)
def test_every_ttl_is_checked_wherever_one_is_taken(api, ttl):
    """O-04: beside acquire, renew and claim also renewals of many, holds, and parts of a batch."""
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    held = {"amount": 1, "id": "h-1", "ttl_seconds": ttl}
    part = {"op": "reserve", "run": "42", "budget": "tokens", **held}
    asks = (
        ("/leases/renew", {"items": [{"unit": "u-1", "token": 1}], "ttl_seconds": ttl}),
        ("/runs/42/budgets/tokens/reserve", held),
        ("/batch", {"operations": [part]}),
    )
    for path, ask in asks:
        answer = api.post(path, ask)
        assert answer.refused == (422, "invalid"), path
        assert answer["field"].endswith("ttl_seconds")
        assert "86400" in answer["rule"]
    assert api.get("/runs/42/budgets/tokens")["reserved"] == 0


def test_a_dead_workers_run_is_found_by_its_lease_alone(fleet, clock, log_in):
    """O-06: with the worker's row gone, and of a holder that never had one."""
    fleet.send("PUT", "/workers/w-1", '{"version": "1"}')
    for key, owner in (("r-1", "w-1"), ("r-2", "never-seen")):
        fleet.create(key)
        fleet.hold(key, owner, ttl_seconds=5)
    Worker.objects.all().delete()
    clock.advance(seconds=6)
    upkeep.note_lapsed_leases()

    lapsed = fleet.get("/leases?state=lapsed")["items"]
    assert {lease["unit"] for lease in lapsed} == {"run:r-1", "run:r-2"}
    assert Event.objects.filter(type="lease.lapsed").count() == 2
    page = Page(log_in("vi", "viewer").get("/leases"))
    assert {"run:r-1", "run:r-2"} == set(page.rows("u-"))
    claimed = fleet.post("/leases/claim", {"owner": "w-2", "limit": 9})["items"]
    assert {item["run"] for item in claimed} == {"r-1", "r-2"}
    assert fleet.get("/leases?state=lapsed")["items"] == []


def test_sweeps_at_once_and_again_tell_of_each_lapse_once(fleet, clock):
    """O-07: two over a hundred expired runs, then five in a row."""
    for n in range(100):
        fleet.create(f"r-{n:03}")
    claimed = fleet.post("/leases/claim", {"owner": "w-1", "limit": 100, "ttl_seconds": 5})
    assert len(claimed["items"]) == 100
    clock.advance(seconds=6)
    at_once(2, lambda _: upkeep.note_lapsed_leases())
    for _ in range(5):
        upkeep.note_lapsed_leases()

    told = Event.objects.filter(type="lease.lapsed").values_list("run__key", flat=True)
    assert sorted(told) == [f"r-{n:03}" for n in range(100)]
    assert {run["status"] for run in fleet.get("/runs?limit=100")["items"]} == {"running"}
