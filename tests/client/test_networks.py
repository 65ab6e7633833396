"""What a network does: answers get lost, requests arrive late. Once stays once."""

from __future__ import annotations

import logging

import pytest
from agentstate_client import (
    Charge,
    Event,
    Exists,
    LeaseHeld,
    NewBudget,
    SeqConflict,
    Unreachable,
)
from agentstate_client import RetryPolicy as Policy

from agentstate.store import reads
from tests.client.waiting import wait_for


def test_a_lost_answer_to_each_kind_of_write_is_no_second_effect(worker, proxy):
    """Case O-12 (docs/cases.md)."""
    client = worker("w-1", url=proxy.url)

    proxy.cut_answers("POST /api/v1/runs ")
    made = client.create(task="t", key="42", budgets=[NewBudget("tokens", cap=100)])
    assert (made.version, made.last_seq) == (1, 1)

    proxy.cut_answers("/leases/claim")
    (run,) = client.claim(ttl_seconds=60)
    assert run.attempt == 1

    proxy.cut_answers("/events")
    done = run.append(Event("step.done"), expected_seq=run.last_seq, spend=Charge("tokens", 5))
    assert done.replayed
    assert done.first_seq == run.last_seq

    proxy.cut_answers("/spend")
    charged = run.budget("tokens").spend(7)
    assert (charged.replayed, charged.spent) == (True, 12)

    proxy.cut_answers("/transitions")
    ended = run.complete({"ok": True})
    assert (ended.status, ended.replayed) == ("completed", True)

    assert proxy.cuts == 5
    record = run.read()
    assert (record.status, record.attempt, record.budgets[0]["spent"]) == ("completed", 1, 12)
    assert [e.type for e in run.events()] == [
        "run.created",
        "lease.acquired",
        "run.running",
        "step.done",
        "run.completed",
    ]


def test_a_lost_answer_to_acquire_gives_the_lease_that_is_really_held(worker, proxy):
    """Case O-12 (docs/cases.md)."""
    client, other = worker("w-1", url=proxy.url), worker("w-2")
    proxy.cut_answers("/acquire")
    with client.lease("u", ttl_seconds=60) as lease:
        assert reads.lease("u").lease.token == lease.token
        with pytest.raises(LeaseHeld) as held:
            other.lease("u")
        assert held.value.owner == client.owner
    assert proxy.cuts == 1


def test_a_lost_answer_to_a_release_is_a_release(worker, proxy):
    client, other = worker("w-1", url=proxy.url), worker("w-2")
    lease = client.lease("u")
    proxy.cut_answers("/release")
    lease.release()
    with other.lease("u") as taken:
        assert taken.token > lease.token


def test_lost_answers_to_renewals_lose_no_lease(worker, proxy):
    client = worker("w-1", url=proxy.url)
    with client.lease("u", ttl_seconds=2) as lease:
        proxy.cut_answers("/renew", times=2)
        wait_for(lambda: reads.lease("u").lease.renewals >= 4)
        assert not lease.lost.is_set()
    assert proxy.cuts == 2


def test_a_real_conflict_still_shows_after_a_lost_answer(worker, proxy):
    """Case O-12 (docs/cases.md)."""
    client, other = worker("w-1", url=proxy.url), worker("w-2")
    run = client.create(task="t", key="42")
    other.run("42").append(Event("other"))
    proxy.cut_answers("/events")
    with pytest.raises(SeqConflict) as conflict:
        run.append(Event("mine"), expected_seq=1)
    assert (conflict.value.last_seq, conflict.value.outcome_unknown) == (2, False)
    proxy.cut_answers("POST /api/v1/runs ")
    with pytest.raises(Exists):
        client.create(task="t", key="42")


def test_one_who_gives_up_says_that_it_may_have_happened(proxy, api_key, make_client):
    with make_client(proxy.url, api_key, retry=Policy(attempts=1)) as client:
        proxy.cut_answers("POST /api/v1/runs ")
        with pytest.raises(Unreachable) as silent:
            client.create(task="t", key="42")
        assert silent.value.outcome_unknown
        assert client.run("42").read().status == "pending"


@pytest.mark.parametrize("late", [True, False], ids=["request held up", "answer held up"])
def test_a_unit_that_was_released_stays_free_though_a_renewal_is_on_its_way(
    worker, proxy, caplog, late
):
    """Case O-02 (docs/cases.md)."""
    caplog.set_level(logging.INFO, "agentstate_client")
    client, other = worker("w-1", url=proxy.url), worker("w-2")
    for _ in range(2):
        let_go = proxy.hold("/u/renew") if late else proxy.hold_answers("/u/renew")
        lease = client.lease("u", ttl_seconds=3)  # an attempt to renew it lasts 0.85 s
        assert proxy.held.wait(10)
        renewing = client._renewals._threads
        lease.release()
        with other.lease("u", ttl_seconds=60) as taken:
            let_go()
            for thread in renewing:  # until it has heard what became of its renewal
                thread.join(10)
            assert reads.lease("u").lease.token == taken.token
        assert lease.state == "released"
    assert caplog.text == ""
