"""Once: a repeated request has one effect and gets the first answer."""

import pytest

from agentstate import store as the_store
from agentstate.store.callers import Circumstances
from agentstate.store.commands import Append, ClaimRuns, CreateRun, NewBudget, Spend
from agentstate.store.errors import (
    BudgetExhausted,
    Exists,
    IdempotencyInFlight,
    IdempotencyKeyReuse,
    LeaseLost,
    SeqConflict,
)
from tests.store.asking import FLEET, at_once, event, results, rows


def test_the_second_request_gets_the_first_answer_and_writes_nothing(store):
    """Case O-09 (docs/cases.md)."""
    store.create("42")
    ask = Append(run="42", events=(event(),))
    first = store.ask(ask, key="k1")
    again = store.ask(ask, key="k1")

    assert again.replayed
    assert not first.replayed
    assert (again.first_seq, again.version, again.at) == (first.first_seq, first.version, first.at)
    assert store.run("42").last_seq == 2
    assert rows("SELECT replays FROM agentstate_idempotencyrecord") == [(1,)]


def test_a_key_used_for_another_request_is_refused(store):
    store.create("42")
    ask = Append(run="42", events=(event(),))
    store.ask(ask, key="k1", fingerprint=b"one")
    with pytest.raises(IdempotencyKeyReuse):
        store.ask(ask, key="k1", fingerprint=b"two")
    assert store.run("42").last_seq == 2


def test_keys_of_two_callers_are_two_keys(store):
    from tests.store.asking import OTHER_FLEET

    store.create("42")
    ask = Append(run="42", events=(event(),))
    store.ask(ask, key="k1")
    assert not store.as_caller(OTHER_FLEET).ask(ask, key="k1").replayed


def test_some_refusals_are_kept_and_all_else_is_decided_anew(store):
    store.create("42", budgets=(NewBudget(name="budget", cap=5),))
    from agentstate.store.commands import Charge

    spend = Spend(run="42", charge=Charge(budget="budget", amount=6))
    for _ in range(2):
        with pytest.raises(BudgetExhausted) as kept:
            store.ask(spend, key="broke")
    assert kept.value.replayed
    assert kept.value.facts["asked"] == 6
    with pytest.raises(Exists):
        store.ask(CreateRun(key="42", task="x"), key="there")
    with pytest.raises(Exists) as replayed:
        store.ask(CreateRun(key="42", task="x"), key="there")
    assert replayed.value.replayed

    ask = Append(run="42", events=(event(),), expected_seq=2)
    with pytest.raises(SeqConflict):
        store.ask(ask, key="late")
    store.append("42")
    assert not store.ask(ask, key="late").replayed


def test_an_answer_is_kept_for_a_day(store, clock):
    store.create("42")
    ask = Append(run="42", events=(event(),))
    store.ask(ask, key="k1")
    clock.advance(hours=24)

    assert not store.ask(ask, key="k1").replayed
    assert store.run("42").last_seq == 3


def test_a_replayed_grant_says_how_long_it_still_lasts_or_that_it_is_over(store, clock):
    store.create("42")
    ask = ClaimRuns(owner="w-1", ttl_seconds=60)
    (first,) = store.ask(ask, key="k1").items
    clock.advance(seconds=20)

    (again,) = store.ask(ask, key="k1").items

    assert (again.token, again.expires_in_ms) == (first.token, 40_000)
    clock.advance(seconds=40)
    with pytest.raises(LeaseLost) as lost:
        store.ask(ask, key="k1")
    assert lost.value.facts["reason"] == "expired"
    store.reclaim(first.unit, token=first.token, reason="frozen")
    with pytest.raises(LeaseLost) as lost:
        store.ask(ask, key="k1")
    assert (lost.value.facts["reason"], lost.value.facts["why"]) == ("reclaimed", "frozen")


def test_two_commands_with_one_key_in_a_batch_have_one_effect(store):
    store.create("42")
    under = Circumstances(idempotency_key="k1", fingerprint=b"f")
    ask = the_store.Ask(command=Append(run="42", events=(event(),)), by=FLEET, under=under)

    first, second = the_store.execute_all([ask, ask])

    assert second.replayed
    assert second.first_seq == first.first_seq
    assert store.run("42").last_seq == 2


def test_fifty_duplicates_at_once_make_one_run(store):
    ask = CreateRun(task="x")
    outcomes = at_once(20, lambda n: store.ask(ask, key="same"))

    made = [o for o in outcomes if not isinstance(o, Exception)]
    assert {o.run for o in made} == {made[0].run}
    assert len(made) + len(results(outcomes, IdempotencyInFlight)) == 20
    assert rows("SELECT count(*) FROM agentstate_run") == [(1,)]
    assert store.ask(ask, key="same").replayed
