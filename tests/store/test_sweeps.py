"""Sweeps only tell: bounded, once however many, never about what somebody took meanwhile; and
without any sweep nothing that is decided is different."""

from contextlib import suppress
from datetime import timedelta

import pytest

from agentstate.store.commands import (
    Acquired,
    CarryOutDeadlines,
    DropDeadHolds,
    NewBudget,
    Reserve,
)
from agentstate.store.errors import AlreadyTerminal, AttemptsExhausted, StaleFence
from tests.store.asking import at_once, results, rows


def held_runs(store, count):
    for n in range(count):
        store.create(f"r-{n}")
        store.hold(f"r-{n}")
    return [f"r-{n}" for n in range(count)]


def test_a_pass_is_bounded_and_the_next_goes_on(store, clock):
    held_runs(store, 25)
    clock.advance(seconds=61)

    assert [store.sweep(limit=10) for _ in range(4)] == [10, 10, 5, 0]


def test_a_pass_of_each_other_sweep_is_bounded_too(store, clock):
    due = clock.now + timedelta(seconds=5)
    for n in range(5):
        budgets = (NewBudget(name="b", cap=10),)
        store.create(f"r-{n}", deadline_at=due, deadline_policy="cancel", budgets=budgets)
        store.ask(Reserve(run=f"r-{n}", budget="b", amount=10, id="h", ttl_seconds=5))
    clock.advance(seconds=6)

    assert [store.ask(DropDeadHolds(limit=2)).holds for _ in range(4)] == [2, 2, 1, 0]
    ended = [store.ask(CarryOutDeadlines(limit=2)) for _ in range(4)]
    assert [done.cancelled for done in ended] == [2, 2, 1, 0]


def test_a_lease_that_is_taken_while_sweeps_run_is_told_of_before_or_never(store, clock):
    keys = held_runs(store, 24)
    clock.advance(seconds=61)

    def work(n):
        if n < 3:
            return store.sweep()
        return [store.acquire(f"run:{key}", f"w-{n}") for key in keys[n - 3 :: 5]]

    taken = [lease for found in results(at_once(8, work), list) for lease in found]

    assert len(taken) == 24
    assert all(isinstance(lease, Acquired) for lease in taken)
    for key in keys:
        types = store.types(key)
        assert types.count("lease.lapsed") <= 1
        if "lease.lapsed" in types:
            assert types[types.index("lease.lapsed") :] == ["lease.lapsed", "lease.acquired"]
        assert types[-1] == "lease.acquired"
    assert store.sweep() == 0


def test_a_run_that_ends_while_deadlines_are_carried_out_ends_once(store, clock):
    due = clock.now + timedelta(seconds=5)
    for n in range(20):
        store.create(f"r-{n}", deadline_at=due, deadline_policy="fail")
    clock.advance(seconds=6)

    def work(n):
        if n < 3:
            return store.ask(CarryOutDeadlines())
        for key in range(n - 3, 20, 5):
            with suppress(AlreadyTerminal):
                store.move(f"r-{key}", "cancelled")
        return None

    at_once(8, work)

    ends = "type IN ('run.failed', 'run.cancelled')"
    counts = rows(f"SELECT count(*) FROM agentstate_event WHERE {ends} GROUP BY run_id")
    assert counts == [(1,)] * 20
    assert store.ask(CarryOutDeadlines()).failed == 0


def test_without_any_sweep_everything_is_decided_as_with_it(store, clock):
    store.create("42", budgets=(NewBudget(name="b", cap=10),), max_attempts=2)
    first = store.hold("42")
    store.ask(Reserve(run="42", budget="b", amount=10, id="h", ttl_seconds=5, fence=first.token))
    clock.advance(seconds=61)

    (second,) = store.claim("w-2").items
    assert second.token > first.token
    with pytest.raises(StaleFence):
        store.append("42", fence=first.token)
    store.spend("42", 10, budget="b", fence=second.token)  # the dead hold makes room
    clock.advance(seconds=61)

    assert store.claim("w-3").items == ()
    assert store.run("42").status == "failed"
    assert rows("SELECT result ->> 'code' FROM agentstate_run") == [(AttemptsExhausted.code,)]
    assert "lease.lapsed" not in store.types("42")
