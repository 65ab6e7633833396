"""Leases against the real server and its real clock: short ttls, and what must not happen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import agentstate_client
import pytest
from agentstate_client import CancelRequested, Event, LeaseHeld, LeaseLost, NewBudget, Unreachable

from agentstate import store
from agentstate.store import reads
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import ReclaimLease, SignalRun
from tests.client.waiting import wait_for


def test_a_lease_is_kept_for_as_long_as_the_work_lasts_and_nobody_else_gets_it(worker):
    client, other = worker("w-1"), worker("w-2")
    with client.lease("u", ttl_seconds=1) as lease:
        refused = 0
        while reads.lease("u").lease.renewals < 9:
            with pytest.raises(LeaseHeld) as held:
                other.lease("u")
            assert held.value.owner == client.owner
            assert 0 < held.value.expires_in_ms <= 1000
            refused += 1
        assert refused > 9
        assert not lease.lost.is_set()
    with other.lease("u") as taken:
        assert taken.token > lease.token


def test_many_claimed_runs_are_kept_together(worker):
    client, other = worker("w-1"), worker("w-2")
    for n in range(12):
        client.create(task="t", key=f"r-{n}")
    runs = client.claim(limit=12, ttl_seconds=1)
    wait_for(lambda: all(reads.lease(run.lease.unit).lease.renewals >= 6 for run in runs))
    assert other.claim(limit=12) == []
    assert not any(run.lost.is_set() for run in runs)
    for run in runs:
        run.append(Event("step.done"))
        run.complete()


def test_completing_just_when_a_renewal_is_due_is_no_loss(worker, caplog):
    """Case O-08 (docs/cases.md)."""
    client = worker("w-1")
    for n in range(8):
        client.create(task="t", key=f"r-{n}")
    for run in client.claim(limit=8, ttl_seconds=1):
        with run:
            renewals = reads.lease(run.lease.unit).lease.renewals
            wait_for(lambda run=run, n=renewals: reads.lease(run.lease.unit).lease.renewals > n)
            run.complete()
        assert (run.lease.state, run.lost.is_set()) == ("ended", False)
    assert {client.run(f"r-{n}").read().status for n in range(8)} == {"completed"}
    assert caplog.text == ""


def test_an_operator_takes_a_live_lease_and_the_worker_learns_by_whom_and_why(worker):
    """Case O-03 (docs/cases.md)."""
    client = worker("w-1")
    client.create(task="t", key="42")
    (run,) = client.claim(ttl_seconds=6)
    store.execute(
        ReclaimLease(
            unit="run:42",
            expected_token=run.lease.token,
            expected_owner=client.owner,
            reason="stuck since noon",
            force=True,
        ),
        by=SYSTEM,
    )
    assert run.lost.wait(15)
    assert (run.lease.loss.reason, run.lease.loss.status) == ("reclaimed", 409)
    assert run.lease.loss.fact("why") == "stuck since noon"
    assert not run.lease.unreachable.is_set()
    with pytest.raises(LeaseLost):
        run.append(Event("late"))
    assert [e for e in run.events() if e.type == "late"] == []


def test_a_holder_that_is_asked_to_stop_hears_it_at_its_next_renewal_and_is_still_the_holder(
    worker,
):
    client = worker("w-1")
    client.create(task="t", key="42")
    (run,) = client.claim(ttl_seconds=1)
    run.checkpoint()
    for word, reason in (("pause", "look at it"), ("cancel", "wrong input")):
        store.execute(SignalRun(run="42", signal=word, reason=reason), by=SYSTEM)
    assert run.lease.cancel_requested.wait(5)
    with pytest.raises(CancelRequested) as asked:
        run.checkpoint()
    assert asked.value.reason == "wrong input"
    assert [(s.name, s.by) for s in run.lease.signals] == [
        ("pause", SYSTEM.principal),
        ("cancel", SYSTEM.principal),
    ]
    assert not run.lost.is_set()
    assert run.cancel({"after": 0}).status == "cancelled"


def test_a_worker_that_is_cut_off_stops_before_anybody_else_is_let_in(worker, proxy):
    """Case O-03 (docs/cases.md)."""
    client, other = worker("w-1", url=proxy.url, seconds=1), worker("w-2")
    client.create(task="t", key="42")
    (run,) = client.claim(ttl_seconds=2)
    proxy.silent.set()
    stopped_at: list[float] = []
    threading.Thread(
        target=lambda: (run.lost.wait(20), stopped_at.append(time.monotonic()))
    ).start()

    wait_for(lambda: other.claim(ttl_seconds=60))
    taken_at = time.monotonic()
    assert stopped_at
    assert stopped_at[0] < taken_at
    assert run.lease.unreachable.is_set()
    assert (run.lease.loss.reason, run.lease.loss.status) == ("deadline", None)

    proxy.silent.clear()
    for write in (lambda: run.append(Event("late")), run.complete):
        with pytest.raises(LeaseLost) as lost:
            write()
        assert lost.value.reason == "deadline"
    assert [e for e in run.events() if e.type == "late"] == []


def test_a_store_that_comes_back_in_time_costs_nothing(worker, proxy):
    client = worker("w-1", url=proxy.url, seconds=0.5)
    with client.lease("u", ttl_seconds=3) as lease:
        proxy.silent.set()
        assert lease.unreachable.wait(10)
        proxy.silent.clear()
        wait_for(lambda: not lease.unreachable.is_set())
        assert not lease.lost.is_set()


def test_a_write_that_nobody_answers_says_unreachable_and_not_lost(worker, proxy):
    client = worker("w-1", url=proxy.url, seconds=0.1)
    client.create(task="t", key="42")
    (run,) = client.claim(ttl_seconds=60)
    proxy.silent.set()
    with pytest.raises(Unreachable) as silent:
        run.append(Event("a"))
    assert silent.value.outcome_unknown
    assert not run.lost.is_set()


def test_the_next_holder_is_told_what_the_one_before_reported(worker):
    first, second = worker("w-1"), worker("w-2")
    first.create(task="t", key="42")
    (run,) = first.claim(ttl_seconds=1)
    run.checkpoint({"step": 12345678901234567890})
    wait_for(lambda: reads.lease("run:42").lease.progress)
    run.release()
    (again,) = second.claim()
    assert again.lease.found_progress.value() == {"step": 12345678901234567890}


WORKER = """
import sys
from agentstate_client import Client, Event, LeaseLost, StaleFence

client = Client(sys.argv[1], sys.stdin.readline().strip(), worker="frozen")
(run,) = client.claim(ttl_seconds=1)
print(run.lease.token, flush=True)
sys.stdin.readline()  # stopped here, for longer than the lease lives
for write in (lambda: run.append(Event("late")), lambda: run.budget("tokens").spend(1),
              run.complete):
    try:
        write()
        print("written", flush=True)
    except (LeaseLost, StaleFence) as refused:
        print(refused.code, run.lost.is_set(), flush=True)
"""


@pytest.fixture
def start_worker(live_server, api_key) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a worker in a process of its own, which can be stopped and made to go on."""
    source = str(Path(agentstate_client.__file__).parent.parent)
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, live_server.url],
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        started.append(process)
        process.stdin.write(f"{api_key}\n")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_slept_through_its_lease_writes_nothing_though_the_unit_is_free(
    worker, start_worker
):
    """Case O-01 (docs/cases.md)."""
    client = worker("w-2")
    made = client.create(task="t", key="42", budgets=[NewBudget("tokens", cap=10)])
    frozen = start_worker()
    token = int(frozen.stdout.readline())
    frozen.send_signal(signal.SIGSTOP)
    claimed: list[agentstate_client.Run] = []
    wait_for(lambda: claimed or claimed.extend(client.claim(ttl_seconds=60)))
    (run,) = claimed
    assert run.lease.token > token
    run.append(Event("mine"))
    run.release()

    frozen.send_signal(signal.SIGCONT)
    frozen.stdin.write("go on\n")
    assert [frozen.stdout.readline() for _ in range(3)] == ["lease-lost True\n"] * 3
    assert [e.type for e in made.events(origin="worker")] == ["mine"]
    assert made.read().budgets[0]["spent"] == 0
    (again,) = client.claim()
    assert again.lease.token > run.lease.token
