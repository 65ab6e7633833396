"""What goes wrong with one of a transaction, or with the connection under it, is its own affair."""

import pytest
from django.db import IntegrityError

from agentstate import store as the_store
from agentstate.store import Ask, Circumstances, audit
from agentstate.store.commands import (
    Append,
    Appended,
    Charge,
    NewBudget,
    Patch,
    Spend,
    Spent,
)
from agentstate.store.errors import IllegalTransition
from agentstate.store.execute import WRITES
from tests.faults.stepping import InLane
from tests.store.asking import FLEET, event, rows
from tests.store.waiting import wait_for


def test_a_composite_command_that_is_refused_in_its_middle_leaves_the_others_as_if_alone(store):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    doomed = Append(
        run="42",
        events=(event("doomed", id="e-9"), event("doomed")),
        add={"steps_done": 100},
        spend=(Charge(budget="tokens", amount=60, id="c-9"),),
        to="completed",  # of a pending run: found out last, when all else of it was decided
    )
    commands = [
        Append(run="42", events=(event("before"),), add={"steps_done": 1}),
        Spend(run="42", charge=Charge(budget="tokens", amount=30)),
        doomed,
        Spend(run="42", charge=Charge(budget="tokens", amount=70, id="c-9")),
        Append(run="42", events=(event("after", id="e-9"), event("then")), add={"steps_done": 1}),
        Patch(run="42", notes="done"),
    ]

    asks = [Ask(command=command, by=FLEET) for command in commands]
    # With a key it is no plain append, which would go before all others.
    keyed = Circumstances(idempotency_key="k", fingerprint=b"f")
    asks[4] = Ask(command=commands[4], by=FLEET, under=keyed)

    told = the_store.execute_all(asks)

    assert isinstance(told[2], IllegalTransition)
    assert (told[0].last_seq, told[4].first_seq, told[5].version) == (2, 3, 4)
    assert [told[n].spent for n in (1, 3)] == [30, 100]
    assert store.types("42") == ["run.created", "before", "after", "then", "run.changed"]
    assert store.run("42").counters == {"steps_done": 2}
    assert store.refusals() == ["illegal-transition"]
    assert audit.verify() == []


def with_a_charge(n: int) -> Ask:
    charge = Charge(budget="tokens", amount=1, id=f"c-{n}")
    return Ask(command=Append(run="42", events=(event(data=n),), spend=(charge,)), by=FLEET)


def gathered(first: InLane, asks: list[Ask], *, hold: bool = False) -> list[InLane]:
    """Those that came while `first` was at its COMMIT; they are one batch, the first leads it."""
    assert first.wait_until_at_commit()
    behind = []
    for ask in asks:
        behind.append(InLane(ask, hold=hold))
        wait_for(lambda: len(WRITES._waiting) == len(behind))
    first.end()
    return behind


@pytest.mark.parametrize("dies", ["before its COMMIT", "never"])
def test_the_leader_of_a_coalesced_batch_dies_and_each_of_it_is_written_once(store, dies):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    first = InLane(with_a_charge(0), hold=True)
    batch = gathered(first, [with_a_charge(n) for n in range(1, 10)], hold=True)
    leader = batch[0]
    assert leader.wait_until_at_commit()
    if dies != "never":
        leader.kill()
    told = [first.outcome, *(one.end() for one in batch)]

    assert all(isinstance(one, Appended) for one in told), told
    assert sorted(one.first_seq for one in told) == list(range(2, 12))
    assert rows("SELECT spent FROM agentstate_budget") == [(10,)]
    assert audit.verify() == []


def test_one_that_the_database_refuses_takes_no_other_of_its_batch_along(store):
    """A fault of ours, as none is known: a rule that lets through what a constraint does not."""
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    rows("ALTER TABLE agentstate_budgetentry ADD CONSTRAINT never_13 CHECK (amount <> 13)")
    try:
        first = InLane(with_a_charge(0), hold=True)
        charges = [Charge(budget="tokens", amount=amount) for amount in (2, 13, 3)]
        asks = [Ask(command=Spend(run="42", charge=charge), by=FLEET) for charge in charges]
        told = [one.end() for one in gathered(first, asks)]
    finally:
        rows("ALTER TABLE agentstate_budgetentry DROP CONSTRAINT never_13")

    assert [type(one) for one in told] == [Spent, IntegrityError, Spent]
    assert rows("SELECT spent FROM agentstate_budget") == [(6,)]
    assert audit.verify() == []
