"""Amounts: whole numbers of the smallest unit, the same digits wherever they are shown."""

import re

import pytest
from agentstate_client import BudgetExhausted, NewBudget

from agentstate.store import reads
from dashboard.queries import budgets
from tests.dashboard.reading import Page
from tests.store.asking import rows

LARGEST = 2**53 - 1
# 1,024 more of `s0`, each with the line that opened it: as asked for one by one, but in no time.
COPIES = """
WITH made AS (
    INSERT INTO agentstate_budget SELECT (jsonb_populate_record(b,
        jsonb_build_object('id', gen_random_uuid(), 'name', 's' || n))).*
    FROM agentstate_budget b, generate_series(1, 1024) AS n WHERE b.name = 's0' RETURNING id
), lines AS (
    INSERT INTO agentstate_budgetentry SELECT (jsonb_populate_record(e,
        jsonb_build_object('budget_id', made.id))).*
    FROM made, agentstate_budgetentry e JOIN agentstate_budget b ON b.id = e.budget_id
    WHERE b.name = 's0' RETURNING 1
) SELECT count(*) FROM lines
"""


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


def test_what_is_committed_stays_within_what_is_counted_with(store, api, viewer):
    """S-601: a dozen commits far beyond their holds, and lists failed: the sum left 64 bits."""
    api.post("/budgets", {"name": "team", "cap": 100})
    api.post("/budgets", {"name": "hot", "cap": 100, "slots": 4})
    api.create("42", budgets=[{"name": "usd", "cap": 100, "parent": "team"}])
    api.create("43", budgets=[{"name": "usd", "cap": 100, "parent": "hot"}])
    for key in ("42", "43"):
        at = f"/runs/{key}/budgets/usd"
        for number in range(3):
            held = api.post(f"{at}/reserve", {"amount": 2, "id": f"h{number}"})
            assert held.status == 200
        done = api.post(f"{at}/reservations/h0/commit", {"amount": LARGEST - 10})
        assert (done["overdrawn"], done["spent"]) == (True, LARGEST - 10)

        refused = api.post(f"{at}/reservations/h1/commit", {"amount": 9})
        assert (refused.refused, refused["field"]) == ((422, "invalid"), "amount")
        assert f"at most 8: what {'team' if key == '42' else 'hot'} has used" in refused["detail"]
        done = api.post(f"{at}/reservations/h1/commit", {"amount": 8})
        assert (done["spent"], done["reserved"]) == (LARGEST - 2, 2)
        assert api.post(f"{at}/reservations/h2/commit", {"amount": 2})["spent"] == LARGEST

    assert Page(viewer.get("/runs", {"q": "budget:>100%"})).rows() == ["43", "42"]
    for page in ("/budgets", "/budgets/hot", "/now"):
        assert "could not be read" not in Page(viewer.get(page)).text


@pytest.mark.long
@pytest.mark.many
def test_caps_below_a_budget_may_add_up_to_more_than_any_number_of_the_database(api, viewer):
    """S-602: the page could not be read: 1,025 caps of the largest size are beyond 64 bits."""
    for name, parent in (("all", None), ("s0", "all")):
        api.post("/budgets", {"name": name, "cap": LARGEST, "parent": parent})
    rows(COPIES)
    for page in ("/budgets", "/budgets/all"):
        assert "could not be read" not in Page(viewer.get(page)).text
    (line,) = (one for one in budgets.read_shared(now=reads.now()).lines if one.depth == 0)
    assert (line.shared.count, line.shared.cap) == (1_025, 1_025 * LARGEST)
