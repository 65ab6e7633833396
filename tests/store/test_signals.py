"""What an operator wants reaches the holder at its next renewal; what workers say of themselves."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from agentstate.store import audit
from agentstate.store.commands import (
    AnnounceWorker,
    CarryOutDeadlines,
    DrainWorker,
    NewBudget,
    Patch,
    PutTelemetry,
    Reserve,
    Signalled,
    SignalRun,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    FenceRequired,
    HolderChanged,
    Invalid,
    NotAllowed,
    RunExpired,
    StaleFence,
)
from agentstate.store.payloads import RawJSON
from tests.store.asking import ANA, VIEWER, Asking, at_once, results, rows


def said(renewed):
    return [(s.signal, s.reason, s.by) for s in renewed.signals]


def test_a_signal_is_told_at_every_renewal_until_it_is_over(store, clock):
    store.create("42")
    lease = store.hold("42")
    ana = store.as_caller(ANA)
    assert store.renew("run:42", lease.token).signals == ()

    ana.ask(SignalRun(run="42", signal="pause", reason="look at it"))
    ana.ask(SignalRun(run="42", signal="cancel", reason="runaway"))

    for _ in range(2):
        told = said(store.renew("run:42", lease.token))
        assert told == [
            ("pause", "look at it", "person:ana"), ("cancel", "runaway", "person:ana")]  # fmt: skip
    ana.ask(SignalRun(run="42", signal="resume", reason="fine"))
    assert [s for s, _, _ in said(store.renew("run:42", lease.token))] == ["cancel", "resume"]
    assert store.types("42")[-3:] == ["run.changed"] * 3
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(3,)]


def test_the_next_holder_is_told_what_was_meant_for_the_run_and_not_for_the_worker(store, clock):
    store.create("42")
    store.hold("42")
    for signal in ("pause", "drain"):
        store.as_caller(ANA).ask(SignalRun(run="42", signal=signal, reason="x"))
    clock.advance(seconds=61)
    second = store.acquire("run:42", "w-2")

    assert [s for s, _, _ in said(store.renew("run:42", second.token))] == ["pause"]


def test_who_may_not_operate_signals_nothing_and_an_ended_run_takes_none(store):
    store.create("42")
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).ask(SignalRun(run="42", signal="cancel", reason="x"))
    with pytest.raises(Invalid):
        SignalRun(run="42", signal="explode", reason="x")
    store.move("42", "cancelled")
    with pytest.raises(AlreadyTerminal):
        store.as_caller(ANA).ask(SignalRun(run="42", signal="cancel", reason="x"))


@pytest.mark.parametrize("named", ["w-1~aa", "w-1"])
def test_a_drained_worker_hears_of_it_when_it_renews_and_when_it_announces_itself(
    store, clock, named
):
    lease = store.acquire("u-1", "w-1~aa")
    store.ask(AnnounceWorker(worker="w-1~aa", version="1.2", host="box", slots=4))
    ana = store.as_caller(ANA)
    ana.ask(DrainWorker(worker=named, reason="deploy"))

    assert said(store.renew("u-1", lease.token)) == [("drain", "deploy", "person:ana")]
    assert said(store.ask(AnnounceWorker(worker="w-1~aa"))) == [("drain", "deploy", "person:ana")]
    ana.ask(DrainWorker(worker=named, reason="done", draining=False))
    assert store.renew("u-1", lease.token).signals == ()
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).ask(DrainWorker(worker=named, reason="x"))


def test_a_workers_clock_is_compared_and_shown_and_decides_nothing(store, clock):
    ahead = clock.now + timedelta(hours=1)
    seen = store.ask(AnnounceWorker(worker="w-1", version="1.2", worker_time=ahead))
    store.ask(AnnounceWorker(worker="w-1", slots=2))

    assert seen.now == clock.now
    assert rows("SELECT version, slots, skew_ms FROM agentstate_worker") == [("1.2", 2, None)]


def test_telemetry_is_the_newest_fenced_and_costs_no_version(store, clock):
    store.create("42")
    lease = store.hold("42")
    before = store.run("42")
    store.ask(PutTelemetry(run="42", host="box", model="m-1", fence=lease.token))
    store.ask(PutTelemetry(run="42", model="m-2", progress=RawJSON("[1.0]"), fence=lease.token))

    assert store.run("42") == before
    assert rows("SELECT host, model, progress::text FROM agentstate_telemetry") == [
        ("box", "m-2", "[1.0]")
    ]
    with pytest.raises(FenceRequired):
        store.ask(PutTelemetry(run="42", host="x"))
    with pytest.raises(StaleFence):
        store.ask(PutTelemetry(run="42", host="x", fence=lease.token - 1))


def test_deadlines_are_carried_out_as_their_policy_says(store, clock):
    due = clock.now + timedelta(seconds=30)
    for key, policy in (("f", "fail"), ("c", "cancel"), ("r", "report"), ("p", "fail")):
        store.create(
            key,
            deadline_at=due,
            deadline_policy=policy,
            budgets=(NewBudget(name="b", cap=10),),
        )
    lease = store.hold("f")
    store.ask(Reserve(run="f", budget="b", amount=10, id="h", fence=lease.token))
    assert store.ask(CarryOutDeadlines()).failed == 0
    clock.advance(seconds=30)

    done = [store.ask(CarryOutDeadlines()) for _ in range(2)]

    assert [(d.failed, d.cancelled) for d in done] == [(2, 1), (0, 0)]
    assert {k: store.run(k).status for k in "fcrp"} == {
        "f": "failed", "c": "cancelled", "r": "pending", "p": "failed"}  # fmt: skip
    assert rows("SELECT DISTINCT reserved FROM agentstate_budget") == [(0,)]
    with pytest.raises(StaleFence):
        store.append("f", fence=lease.token)
    assert audit.verify() == []


def test_deadline_sweeps_at_once_end_each_run_once(store, clock):
    for n in range(12):
        store.create(f"r{n}", deadline_at=clock.now, deadline_policy="cancel")
    at_once(4, lambda n: store.ask(CarryOutDeadlines()))
    assert (
        rows("SELECT count(*) FROM agentstate_event WHERE type = 'run.cancelled' GROUP BY run_id")
        == [(1,)] * 12
    )


def test_a_runs_retention_counts_from_its_end_and_can_be_held(store, clock):
    store.create("42", retain_seconds=60)
    clock.advance(days=400)
    store.append("42")
    store.move("42", "cancelled")
    ana = store.as_caller(ANA)
    clock.advance(seconds=59)
    ana.ask(Patch(run="42", notes="still there"))
    clock.advance(seconds=1)
    with pytest.raises(RunExpired):
        ana.ask(Patch(run="42", notes="too late"))

    store.create("43", retain_seconds=60)
    store.move("43", "cancelled")
    ana.ask(Patch(run="43", hold=True))
    clock.advance(days=1)
    ana.ask(Patch(run="43", tags_add=("evidence",), retain_seconds=2 * 86_400))
    ana.ask(Patch(run="43", hold=False))
    assert store.run("43").expires_at == clock.now + timedelta(days=1)
    assert audit.verify() == []


def test_a_signal_is_only_for_the_holder_that_the_operator_saw(store, clock):
    store.create("42")
    nobody = SignalRun(run="42", signal="pause", reason="x", expected_token=None)
    store.as_caller(ANA).ask(nobody)
    first = store.hold("42", ttl_seconds=5)
    clock.advance(seconds=6)
    second = store.acquire("run:42", "w-2")

    for seen in (None, first.token):
        with pytest.raises(HolderChanged) as refused:
            store.as_caller(ANA).ask(replace(nobody, signal="cancel", expected_token=seen))
        assert refused.value.current["owner"] == "w-2"
        assert refused.value.current["token"] == second.token
    assert [told.signal for told in store.renew("run:42", second.token).signals] == ["pause"]
    store.as_caller(ANA).ask(replace(nobody, signal="cancel", expected_token=second.token))
    (expected,) = rows(
        "SELECT expected FROM agentstate_operatoraction WHERE action = 'run.signalled-cancel'"
    )[0]
    assert json.loads(expected) == {"token": second.token}


def test_a_signal_and_a_release_at_once_are_in_one_order(store):
    for n in range(10):
        key = f"r-{n}"
        store.create(key)
        lease = store.hold(key)
        cancel = SignalRun(run=key, signal="cancel", reason="x", expected_token=lease.token)
        ways = (
            lambda cancel=cancel: Asking(ANA).ask(cancel),
            lambda key=key, lease=lease: store.release(f"run:{key}", lease.token),
        )
        outcomes = at_once(2, lambda n, ways=ways: ways[n]())

        told = results(outcomes, Signalled)
        assert len(told) + len(results(outcomes, HolderChanged)) == 1
        assert store.types(key)[-2:] == (
            ["run.changed", "lease.released"] if told else ["run.running", "lease.released"]
        )


@pytest.mark.parametrize("token", [0, -1, True, "1", 2**63])
def test_a_token_that_nobody_can_have_seen_is_refused(token):
    with pytest.raises(Invalid):
        SignalRun(run="42", signal="drain", reason="x", expected_token=token)
