"""Real connections at the same moment: one winner, and the losers are told who it is."""

from collections import Counter
from itertools import chain

import pytest
from django.db import connection, transaction

from agentstate.store import audit
from agentstate.store.commands import (
    Acquired,
    Appended,
    Moved,
    NewBudget,
    RenewLease,
    RunCreated,
    Spent,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    Exists,
    LeaseHeld,
    LeaseLost,
    SeqConflict,
    StaleFence,
)
from tests.store.asking import ANA, Asking, at_once, event, results, rows
from tests.store.waiting import wait_until_blocked


def test_twenty_acquire_one_new_unit_and_one_gets_it(store):
    for round_number in range(5):
        unit = f"u-{round_number}"
        outcomes = at_once(20, lambda n, unit=unit: store.acquire(unit, f"w-{n}"))

        (winner,) = results(outcomes, Acquired)
        losers = results(outcomes, LeaseHeld)
        assert len(losers) == 19
        assert {r.facts["owner"] for r in losers} == {winner.owner}
        assert store.lease(unit).token == winner.token


def test_two_append_seq_5_and_one_gets_it(store):
    store.create("42", events=tuple(event() for _ in range(3)))
    for last in range(4, 14):
        outcomes = at_once(
            2, lambda n, last=last: store.append("42", [event(data=n)], expected_seq=last)
        )
        assert len(results(outcomes, Appended)) == 1
        (refused,) = results(outcomes, SeqConflict)
        assert refused.facts["last_seq"] == last + 1


def test_twenty_create_one_run_and_one_made_it(store):
    for round_number in range(5):
        key = f"r-{round_number}"
        outcomes = at_once(20, lambda n, key=key: store.create(key, task=f"by {n}"))
        assert len(results(outcomes, RunCreated)) == 1
        assert len(results(outcomes, Exists)) == 19
    assert audit.verify() == []


def test_many_writers_on_one_run_are_all_numbered_without_a_hole(store):
    store.create("42")
    outcomes = at_once(16, lambda n: [store.append("42", [event(data=n)]) for _ in range(10)])

    numbers = sorted(done.first_seq for done in chain.from_iterable(outcomes))
    assert numbers == list(range(2, 162))
    assert store.run("42").version == 161
    assert audit.verify() == []


def test_a_cap_raced_by_a_hundred_admits_exactly_what_fits(store):
    store.create("42", budgets=(NewBudget(name="budget", cap=37),))

    def five(n):
        done = []
        for _ in range(5):
            try:
                done.append(store.spend("42", 1))
            except BudgetExhausted as refused:
                done.append(refused)
        return done

    outcomes = list(chain.from_iterable(at_once(20, five)))

    assert len(results(outcomes, Spent)) == 37
    assert len(results(outcomes, BudgetExhausted)) == 63
    assert rows("SELECT spent FROM agentstate_budget") == [(37,)]
    assert audit.verify() == []


def test_claims_at_once_never_give_one_run_to_two(store):
    for n in range(30):
        store.create(f"r-{n:02}")
    outcomes = at_once(10, lambda n: store.claim(f"w-{n}", limit=3).items)

    given = Counter(claim.run for items in outcomes for claim in items)
    assert set(given.values()) == {1}
    assert len(given) == 30


def test_cancel_racing_complete_has_one_winner(store):
    for n in range(10):
        key = f"r-{n}"
        store.create(key)
        lease = store.hold(key)
        cancel = lambda key=key: store.as_caller(ANA).move(key, "cancelled")  # noqa: E731
        complete = lambda key=key, t=lease.token: store.move(key, "completed", fence=t)  # noqa: E731
        outcomes = at_once(2, lambda n, ways=(cancel, complete): ways[n]())

        (won,) = results(outcomes, Moved)
        assert len(results(outcomes, (AlreadyTerminal, StaleFence))) == 1
        ends = [t for t in store.types(key) if t in ("run.cancelled", "run.completed")]
        assert ends == [f"run.{won.status}"]


def test_sweeps_at_once_note_each_lapse_once(store, clock):
    for n in range(40):
        store.create(f"r-{n}")
        store.hold(f"r-{n}")
    clock.advance(seconds=61)

    noted = at_once(4, lambda n: store.sweep())

    assert sum(noted) == 40
    assert (
        rows("SELECT count(*) FROM agentstate_event WHERE type = 'lease.lapsed' GROUP BY run_id")
        == [(1,)] * 40
    )


# With a key it goes the long way.
@pytest.mark.parametrize("key", [None, "again"], ids=["short", "long"])
@pytest.mark.parametrize("unit", ["run:42", "unit-7"])
def test_a_renewal_that_waits_past_the_expiry_behind_a_mere_lock_has_lost(store, clock, unit, key):
    """PostgreSQL does not look at a WHERE again when the row was only locked: so we look after."""
    store.create("42")
    lease = store.acquire(unit, ttl_seconds=60)
    lost = _while_locked(
        "SELECT FROM agentstate_lease WHERE unit = %s FOR UPDATE",
        unit,
        lambda: Asking().ask(RenewLease(unit=unit, token=lease.token), key=key),
        meanwhile=lambda: clock.advance(seconds=61),
    )

    assert isinstance(lost, LeaseLost)
    assert lost.facts["reason"] == "expired"
    assert store.lease(unit).expires_at == lease.expires_at


def test_an_acquire_that_waits_for_a_lock_decides_by_the_time_after_it(store, clock):
    lease = store.acquire("unit-7", "A", ttl_seconds=60)
    taken = _while_locked(
        "SELECT FROM agentstate_lease WHERE unit = %s FOR UPDATE",
        "unit-7",
        lambda: Asking().acquire("unit-7", "B"),
        meanwhile=lambda: clock.advance(seconds=60),
    )

    assert isinstance(taken, Acquired)
    assert taken.token > lease.token
    assert taken.at == clock.now


def test_a_role_that_waited_is_compared_with_what_was_committed_meanwhile(store):
    """Of what else a locking statement reads, PostgreSQL shows what was there before it waited."""
    from django.contrib.auth.models import Group, User

    from agentstate.store.people import SetRole

    ana = User.objects.create(username="ana")
    ana.groups.set([Group.objects.get(name="viewer")])
    done = _while_locked(
        "SELECT FROM auth_user WHERE username = %s FOR NO KEY UPDATE",
        "ana",
        lambda: Asking().ask(SetRole(person="ana", role="viewer")),
        meanwhile=lambda: ana.groups.set([Group.objects.get(name="admin")]),
    )

    assert (done.before, done.role) == ("admin", "viewer")
    assert [group.name for group in ana.groups.all()] == ["viewer"]


def _while_locked(statement, value, ask, *, meanwhile):
    """Hold a row's lock on one connection, let another wait for it, do something, let go."""
    from threading import Thread

    outcome = []

    def other():
        try:
            outcome.append(ask())
        except Exception as refused:
            outcome.append(refused)
        finally:
            connection.close()

    thread = Thread(target=other)
    with transaction.atomic():
        rows(statement, value)
        thread.start()
        wait_until_blocked()
        meanwhile_elsewhere(meanwhile)
    thread.join(timeout=30)
    return outcome[0]


def meanwhile_elsewhere(change):
    """On a connection of its own, so that it commits at once."""
    from threading import Thread

    def run():
        try:
            change()
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    thread.join(timeout=30)


def test_a_batch_of_many_runs_does_not_deadlock_with_itself(store):
    from random import Random

    from agentstate import store as the_store
    from agentstate.store.commands import Append
    from tests.store.asking import FLEET

    keys = [f"r-{n}" for n in range(8)]
    for key in keys:
        store.create(key)

    def write(n):
        order = Random(n)
        for _ in range(5):
            order.shuffle(keys_of := list(keys))
            asks = [
                the_store.Ask(command=Append(run=key, events=(event(),)), by=FLEET)
                for key in keys_of
            ]
            assert all(isinstance(o, Appended) for o in the_store.execute_all(asks))

    assert at_once(8, write) == [None] * 8
    assert {store.run(key).last_seq for key in keys} == {41}
