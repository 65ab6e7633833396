"""A sweep that found something to do finds out, under the lock, that it has been overtaken."""

from datetime import timedelta

import pytest

from agentstate.store import Ask, audit
from agentstate.store.commands import (
    CarryOutDeadlines,
    ClaimRuns,
    NoteLapsed,
    ReclaimLease,
    RenewLease,
    Transition,
)
from agentstate.store.rows import unit_of
from tests.faults.stepping import Stepped
from tests.store.asking import ANA, FLEET

DUE = {
    "a deadline that fails it": CarryOutDeadlines(),
    "a claim that finds its attempts used up": ClaimRuns(owner="w-9", limit=5, ttl_seconds=60),
    "a note that its lease lapsed": NoteLapsed(limit=10),
}


@pytest.fixture
def overdue(store, clock):
    """A run that all of them would end or touch: its lease is over, and so is its time."""
    deadline_at = clock.now + timedelta(seconds=30)
    store.create("42", deadline_at=deadline_at, deadline_policy="fail", max_attempts=1)
    lease = store.hold("42")
    clock.advance(seconds=61)
    return lease


@pytest.mark.parametrize("name", DUE)
def test_a_run_whose_worker_completed_it_first_stays_completed(store, overdue, name):
    """Case O-07 (docs/cases.md)."""
    complete = Transition(run="42", to="completed", fence=overdue.token)
    worker = Stepped(Ask(command=complete, by=FLEET), hold=True)
    assert worker.wait_until_at_commit()
    sweep = Stepped(Ask(command=DUE[name], by=FLEET))
    sweep.wait_until_blocked_or_done()

    assert worker.end().status == "completed"
    assert not isinstance(sweep.end(), Exception)
    assert store.run("42").status == "completed"
    assert [kind for kind in store.types("42") if kind in ("run.failed", "lease.lapsed")] == []
    assert audit.verify() == []


@pytest.mark.parametrize("name", list(DUE)[:2])
def test_a_worker_that_comes_second_is_told_and_changes_nothing(store, overdue, name):
    sweep = Stepped(Ask(command=DUE[name], by=FLEET), hold=True)
    assert sweep.wait_until_at_commit()
    complete = Transition(run="42", to="completed", fence=overdue.token)
    worker = Stepped(Ask(command=complete, by=FLEET))
    assert worker.wait_until_blocked_or_done()
    sweep.end()

    assert isinstance(worker.end(), Exception)
    assert store.run("42").status == "failed"
    assert audit.verify() == []


def test_an_operator_who_reclaims_what_was_renewed_meanwhile_takes_nothing(store):
    """Between looking and taking the holder showed that it lives."""
    store.create("42")
    lease = store.hold("42")
    renew = RenewLease(unit=unit_of("42"), token=lease.token, ttl_seconds=60)
    worker = Stepped(Ask(command=renew, by=FLEET), hold=True)
    assert worker.wait_until_at_commit()
    reclaim = ReclaimLease(
        unit=unit_of("42"), expected_token=lease.token, expected_owner="w-1", reason="frozen"
    )
    operator = Stepped(Ask(command=reclaim, by=ANA))
    operator.wait_until_blocked_or_done()
    worker.end()

    assert operator.end().code == "lease-held"
    assert store.run("42").token == lease.token


def test_a_lease_whose_renewal_is_on_its_way_is_not_noted_as_lapsed(store, clock):
    """It was decided in time, and is committed when its old time is over already."""
    store.create("42")
    lease = store.hold("42", ttl_seconds=60)
    clock.advance(seconds=59)
    renew = RenewLease(unit=unit_of("42"), token=lease.token, ttl_seconds=60)
    worker = Stepped(Ask(command=renew, by=FLEET), hold=True)
    assert worker.wait_until_at_commit()
    clock.advance(seconds=2)
    sweep = Stepped(Ask(command=NoteLapsed(limit=10), by=FLEET))
    sweep.wait_until_blocked_or_done()

    assert not isinstance(worker.end(), Exception)
    assert sweep.end().lapsed == 0
    assert store.sweep() == 0
    assert "lease.lapsed" not in store.types("42")
    assert store.lease(unit_of("42")).expires_at == clock.now + timedelta(seconds=58)
