"""Amounts: whole numbers of the smallest unit, the same digits wherever they are shown."""

import re

from agentstate_client import BudgetExhausted, NewBudget

from tests.dashboard.reading import Page

LARGEST = 2**53 - 1


def test_an_amount_has_the_same_digits_in_api_client_and_console(worker, log_in):
    """O-17: the largest there is, which no float would keep next to its neighbour."""
    client = worker("w-1")
    client.create(task="t", key="42", budgets=[NewBudget("usd", cap=LARGEST, unit="usd_micros")])
    (run,) = client.claim()
    spent = run.budget("usd").spend(LARGEST - 1)
    assert spent.spent == LARGEST - 1

    assert run.read().budgets[0]["spent"] == LARGEST - 1
    page = Page(log_in("vi", "viewer").get("/runs/42/budgets/usd"))
    digits = re.sub(r"(?<=\d)[,\u202f\u00a0 ](?=\d)", "", page.text)
    assert str(LARGEST - 1) in digits
    assert str(LARGEST) in digits
    run.budget("usd").spend(1)
    try:
        run.budget("usd").spend(1)
    except BudgetExhausted as refused:
        assert (refused.spent, refused.cap) == (LARGEST, LARGEST)
    else:
        raise AssertionError("more than the cap was admitted")
