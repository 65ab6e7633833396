"""A cap is a cap."""

import pytest

from agentstate.store import audit
from agentstate.store.commands import Charge, CreateBudget, NewBudget
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    EventIdReuse,
    Invalid,
    NotFound,
)
from tests.store.asking import rows


@pytest.fixture
def run(store):
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    return "42"


def test_what_fits_is_admitted_to_the_last_unit_and_no_further(store, run):
    store.spend(run, 60)
    last = store.spend(run, 40)
    with pytest.raises(BudgetExhausted) as refused:
        store.spend(run, 1)

    assert (last.spent, last.left, last.version) == (100, 0, 3)
    facts = refused.value.facts
    assert (facts["budget"], facts["cap"], facts["spent"], facts["asked"]) == (
        "budget",
        100,
        100,
        1,
    )
    assert rows("SELECT kind, amount, spent FROM agentstate_budgetentry ORDER BY n") == [
        ("open", 100, 0),
        ("spend", 60, 60),
        ("spend", 40, 40),
    ]
    assert audit.verify() == []


def test_a_charge_with_an_id_is_made_once(store, run):
    first = store.spend(run, 10, id="c1")
    again = store.spend(run, 10, id="c1")
    with pytest.raises(EventIdReuse):
        store.spend(run, 11, id="c1")

    assert again.replayed
    assert again.entry == first.entry
    assert again.spent == 10


def test_two_budgets_of_a_run_below_one_may_have_charges_of_one_id(store):
    """An id is one budget's: the ledger above has both charges."""
    store.ask(CreateBudget(run=None, budget=NewBudget(name="fleet", cap=100)))
    own = tuple(NewBudget(name=name, cap=50, parent="fleet") for name in "xy")
    store.create("42", budgets=own)
    first = [store.spend("42", 1, budget=name, id="c1") for name in "xy"]
    again = [store.spend("42", 1, budget=name, id="c1") for name in "xy"]
    both = tuple(Charge(budget=name, amount=2, id="c2") for name in "xy")
    store.append("42", spend=both)

    assert [done.replayed for done in first + again] == [False, False, True, True]
    assert rows("SELECT name, spent FROM agentstate_budget ORDER BY name") == [
        ("fleet", 6), ("x", 3), ("y", 3)]  # fmt: skip
    assert audit.verify() == []


@pytest.mark.parametrize("amount", [0, -1, 2**53, 1.5, True, "10", None])
def test_an_amount_is_a_whole_number_from_1_to_2_to_the_53(store, run, amount):
    with pytest.raises(Invalid) as refused:
        store.spend(run, amount)
    assert refused.value.field == "amount"


def test_the_largest_amounts_are_exact(store):
    store.create("42", budgets=(NewBudget(name="budget", cap=2**53 - 1),))
    store.spend("42", 2**53 - 2)
    assert store.spend("42", 1).spent == 2**53 - 1


def test_an_unknown_budget_and_an_ended_run_take_no_charge(store, run):
    with pytest.raises(NotFound):
        store.spend(run, 1, budget="other")
    store.move(run, "cancelled")
    with pytest.raises(AlreadyTerminal):
        store.spend(run, 1)


def test_the_database_itself_refuses_to_pass_the_cap(store, run):
    from django.db import IntegrityError

    with pytest.raises(IntegrityError, match="budget_within_cap_or_overdrawn"):
        rows("UPDATE agentstate_budget SET spent = 101")
