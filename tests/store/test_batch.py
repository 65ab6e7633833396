"""Many operations, one transaction: all of them, or none and every reason."""

import pytest

from agentstate.store import Ask, audit, execute_all
from agentstate.store.callers import PLAIN
from agentstate.store.commands import (
    Append,
    Batch,
    Charge,
    Check,
    CreateRun,
    NewBudget,
    Patch,
    Reserve,
    Spend,
    Transition,
)
from agentstate.store.errors import BatchRefused, Invalid
from agentstate.store.execute import ROLLED_BACK
from tests.store.asking import FLEET, at_once, event, results, rows


def batch(store, *operations, key=None):
    return store.ask(Batch(operations=operations), key=key)


def test_each_operation_sees_what_the_ones_before_it_did(store):
    done = batch(
        store,
        CreateRun(key="a", task="x", status="running", budgets=(NewBudget(name="b", cap=10),)),
        Append(run="a", events=(event(),), expected_seq=1),
        Patch(run="a", add={"n": 1}, expect={"version": 2}),
        Spend(run="a", charge=Charge(budget="b", amount=4)),
        Check(run="a", expect={"counters.n": 1}),
        Transition(run="a", to="completed"),
    )

    assert [type(r).__name__ for r in done.results] == [
        "RunCreated", "Appended", "Changed", "Spent", "Checked", "Moved"]  # fmt: skip
    assert store.types("a") == ["run.created", "step.done", "run.changed", "run.completed"]
    assert audit.verify() == []


def test_one_failing_of_three_writes_nothing_and_every_failure_is_told(store):
    store.create("a")
    with pytest.raises(BatchRefused) as refused:
        batch(
            store,
            Append(run="a", events=(event(),)),
            Check(run="a", if_match=7),
            CreateRun(key="a", task="again"),
            Append(run="nope", events=(event(),)),
        )

    told = refused.value.facts["operations"]
    assert [(one["index"], one["code"]) for one in told] == [
        (1, "version-conflict"), (2, "exists"), (3, "not-found")]  # fmt: skip
    assert told[0]["detail"] == "expected v7, found v2"
    assert store.run("a").version == 1
    assert store.refusals() == ["batch-refused"]


def test_a_repeated_batch_gets_its_first_answer(store):
    store.create("a")
    operations = (Append(run="a", events=(event(),)), Check(run="a"))
    first = batch(store, *operations, key="k")
    again = batch(store, *operations, key="k")

    assert again.replayed
    assert again.results[0].first_seq == first.results[0].first_seq
    assert again.results[1].version == 2
    assert store.run("a").last_seq == 2


def test_batches_over_the_same_runs_in_any_order_do_not_deadlock(store):
    """Case O-41 (docs/cases.md)."""
    keys = [f"r{n}" for n in range(6)]
    for key in keys:
        store.create(key)

    def work(n):
        turned = keys[n:] + keys[:n]
        for _ in range(4):
            ask = Batch(operations=tuple(Append(run=key, events=(event(),)) for key in turned))
            # Not through the lanes, where they would go together.
            (outcome,) = execute_all([Ask(command=ask, by=FLEET)])
            if isinstance(outcome, Exception):
                raise outcome

    before = ROLLED_BACK["deadlock detected"]
    outcomes = at_once(6, work)

    assert results(outcomes, Exception) == []
    # Not even one that is tried again unseen.
    assert ROLLED_BACK["deadlock detected"] == before
    assert rows("SELECT DISTINCT last_seq FROM agentstate_run") == [(25,)]
    assert audit.verify() == []


def test_a_batch_has_1_to_100_operations():
    for operations in ((), (Check(run="a"),) * 101):
        with pytest.raises(Invalid):
            Batch(operations=operations)


def test_what_a_refused_batch_decided_is_known_to_no_later_command_of_its_transaction(store):
    """In one transaction with a repetition that stands alone: that one is written."""
    store.create("a", budgets=(NewBudget(name="b", cap=10),))
    wanted = Append(run="a", events=(event(id="e1"),))
    charge = Spend(run="a", charge=Charge(budget="b", amount=4, id="c1"))
    hold = Reserve(run="a", budget="b", amount=3, id="h1")
    refused_batch = Batch(operations=(wanted, charge, hold, Check(run="a", if_match=99)))
    asks = [Ask(command=c, by=FLEET, under=PLAIN) for c in (refused_batch, wanted, charge, hold)]

    refused, appended, spent, reserved = execute_all(asks)

    assert isinstance(refused, BatchRefused)
    assert [one.replayed for one in (appended, spent, reserved)] == [False, False, False]
    assert [e.event_id for e in store.events("a")][-1] == "e1"
    assert rows("SELECT spent, reserved FROM agentstate_budget") == [(4, 3)]
    assert audit.verify() == []
