"""Workers: what becomes of a run by what its function does, and how a worker comes to its end."""

import json
import logging
import threading

import httpx
import pytest
from agentstate_client import NotAllowed
from blocking import Blocking

from agentstate import store
from agentstate.store import reads
from agentstate.store.callers import SCOPES, SYSTEM, Caller
from agentstate.store.commands import SignalRun, Transition
from agentstate.store.keys import create_key
from tests.client.waiting import wait_for

OPERATOR = Caller(kind="person", name="ana", scopes=frozenset(SCOPES))


def carrying(client, function, **options):
    """Have a client's worker carry out runs by `function`, which is given them as sync ones."""
    if type(client) is not Blocking:
        client.worker(**options)(function)
        return

    async def carry_out(run):
        loop = client._loop
        return await loop.loop.run_in_executor(None, function, Blocking(loop, run))

    client.worker(**options)(carry_out)


def status(key):
    return reads.run(key).run.status


def result(key):
    return reads.run(key).run.result


@pytest.fixture
def planned(worker):
    """planned("a", "b"): runs that wait."""

    def plan(*keys, task="audit", **more):
        for key in keys:
            worker("planner").create(task=task, key=key, **more)

    return plan


def raising(error):
    def work(run):
        raise error

    return work


def test_what_it_returns_completes_the_run(worker, planned):
    planned("a", "b")
    planned("c", task="another")
    client = worker("w-1")
    carrying(client, lambda run: {"key": run.key}, task="audit", concurrency=2)
    client.work(until_idle=True)
    assert [status(key) for key in ("a", "b", "c")] == ["completed", "completed", "pending"]
    assert result("b") == '{"key":"b"}'


def test_an_error_fails_the_run_and_is_kept_with_it(worker, planned, caplog):
    # A report with half a pair of surrogates in its log cannot be sent to the main test process.
    caplog.set_level(logging.CRITICAL, logger="agentstate_client")
    planned("a")
    client = worker("w-1")
    carrying(client, raising(ValueError("no such \x00 page \ud800")))
    client.work(until_idle=True)
    assert status("a") == "failed"
    assert json.loads(result("a")) == {
        "error": "ValueError",
        "detail": "no such \ufffd page \ufffd",
    }


def test_an_error_that_may_pass_gives_it_back_until_its_attempts_are_used_up(worker, planned):
    planned("a", max_attempts=3)
    client, attempts = worker("w-1"), []

    def work(run):
        attempts.append(run.attempt)
        raise ConnectionError("not now")

    carrying(client, work, retry_on=(ConnectionError,))
    client.work(until_idle=True)
    assert attempts == [1, 2, 3]
    assert status("a") == "failed"


def test_what_it_returned_that_cannot_be_kept_fails_the_run(worker, planned):
    planned("a")
    client = worker("w-1")
    carrying(client, lambda run: {"when": object()})
    client.work(until_idle=True)
    assert status("a") == "failed"
    assert '"error":"Unsendable"' in result("a")


def test_a_function_may_end_the_run_or_give_it_back_by_itself(worker, planned):
    planned("a", "b")
    client, seen = worker("w-1"), []

    def work(run):
        seen.append(run.key)
        if run.key == "a":
            run.fail("by hand")
        elif seen.count("b") == 1:
            run.release()
        return "by itself"

    carrying(client, work)
    client.work(until_idle=True)
    assert (status("a"), result("a")) == ("failed", '"by hand"')
    assert (status("b"), result("b"), seen.count("b")) == ("completed", '"by itself"', 2)


def test_told_to_cancel_it_cancels_at_the_next_step(worker, planned):
    planned("a")
    client = worker("w-1")

    def work(run):
        ask = SignalRun(run="a", signal="cancel", reason="not needed")
        store.execute(ask, by=OPERATOR)
        wait_for(run.lease.cancel_requested.is_set)
        run.step("next").run(lambda: None)

    carrying(client, work, ttl_seconds=6)
    client.work(until_idle=True)
    assert (status("a"), result("a")) == ("cancelled", '{"reason":"not needed"}')


def test_a_run_that_was_paused_meanwhile_is_given_back_and_completes_later(worker, planned):
    planned("a")
    client, attempts = worker("w-1"), []

    def work(run):
        attempts.append(run.attempt)
        run.step("long").run(lambda: 1)
        if len(attempts) == 1:
            store.execute(Transition(run="a", to="paused", reason="wait"), by=OPERATOR)
        return "done"

    carrying(client, work)
    client.work(until_idle=True)
    assert (status("a"), reads.lease("run:a").lease.token) == ("paused", None)
    store.execute(Transition(run="a", to="running", reason="go on"), by=OPERATOR)
    client.work(until_idle=True)
    assert (status("a"), attempts) == ("completed", [1, 2])


class Busy:
    """Work that is held up until it is let go on."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.raised = []

    def __call__(self, run):
        self.begun.set()
        assert self.go_on.wait(60)
        try:
            run.step("rest").run(lambda: None)
        except Exception as told:
            self.raised.append(type(told).__name__)
            raise


@pytest.fixture
def busy():
    """Let go on at the end of the test at the latest."""
    work = Busy()
    yield work
    work.go_on.set()


class Working:
    """A client's `work` in a thread of its own."""

    def __init__(self, client, **options):
        self.thread = threading.Thread(target=client.work, kwargs=options, daemon=True)
        self.thread.start()

    def ends(self):
        self.thread.join(60)
        return not self.thread.is_alive()


def test_stopped_it_lets_the_step_end_and_gives_the_run_back(worker, planned, busy):
    planned("a", "b")
    client = worker("w-1")
    carrying(client, busy)
    working = Working(client, drain_seconds=60)
    assert busy.begun.wait(60)
    client.stop()
    busy.go_on.set()
    assert working.ends()
    assert busy.raised == ["StopRequested"]
    assert (status("a"), reads.lease("run:a").lease.token, status("b")) == (
        "running", None, "pending")  # fmt: skip


def test_what_does_not_end_in_time_is_given_back_and_writes_nothing_more(worker, planned, busy):
    planned("a")
    client = worker("w-1")
    carrying(client, busy)
    working = Working(client, drain_seconds=0.2)
    assert busy.begun.wait(60)
    client.stop()
    assert working.ends()
    (again,) = worker("w-2").claim(ttl_seconds=60)
    busy.go_on.set()
    wait_for(lambda: busy.raised or type(client) is Blocking)
    assert busy.raised in (["LeaseLost"], ["StopRequested"], [])
    assert again.complete().status == "completed"
    assert [e.type for e in again.events()].count("step.finished") == 0


def test_drained_by_an_operator_it_finishes_what_it_holds_and_takes_nothing_more(
    worker, planned, busy, monkeypatch, live_server, api_key
):
    monkeypatch.setattr("agentstate_client._sync.workers.ANNOUNCE_EVERY_SECONDS", 0.1)
    monkeypatch.setattr("agentstate_client._async.workers.ANNOUNCE_EVERY_SECONDS", 0.1)
    planned("a", "b")
    client = worker("w-1")
    carrying(client, busy)
    working = Working(client)
    assert busy.begun.wait(60)
    seen = httpx.get(
        f"{live_server.url}/api/v1/workers", headers={"Authorization": f"Bearer {api_key}"}
    ).json()["items"]
    assert [(one["worker"], one["slots"]) for one in seen] == [(client.owner, 1)]
    httpx.post(
        f"{live_server.url}/api/v1/workers/w-1/drain",
        headers={"Authorization": f"Bearer {api_key}"},
        json={"reason": "deploy"},
    ).raise_for_status()
    wait_for(lambda: client._workers._is_drained)
    busy.go_on.set()
    assert working.ends()
    assert (status("a"), status("b")) == ("completed", "pending")


def test_a_key_that_may_not_claim_is_told_and_not_asked_for_ever(worker):
    key = create_key(name="reader", scopes=("read",), by=SYSTEM).text
    client = worker("w-1", key=key)
    carrying(client, lambda run: None)
    with pytest.raises(NotAllowed):
        client.work()


def test_without_a_function_or_twice_at_once_it_does_not_work(worker, planned, busy):
    planned("a")
    client = worker("w-1")
    with pytest.raises(RuntimeError, match="no function"):
        client.work()
    with pytest.raises(ValueError, match="concurrency"):
        client.worker(concurrency=0)(print)
    carrying(client, busy)
    working = Working(client)
    assert busy.begun.wait(60)
    with pytest.raises(RuntimeError, match="already"):
        client.work()
    client.stop()
    busy.go_on.set()
    assert working.ends()
