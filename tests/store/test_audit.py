"""What must never happen is seen when it does: each check meets a store that was tampered with."""

import pytest

from agentstate.store import audit
from agentstate.store.commands import NewBudget
from agentstate.store.errors import NotFound
from tests.store.asking import event, rows


@pytest.fixture
def busy(store, clock):
    """A run with events, a budget and two terms of ownership."""
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    first = store.hold("42", "w-1")
    store.append("42", [event()], add={"steps_done": 1}, fence=first.token)
    clock.advance(seconds=61)
    second = store.hold("42", "w-2")
    store.spend("42", 10, fence=second.token)
    store.append("42", [event()], add={"steps_done": 2}, fence=second.token)
    assert audit.verify() == []
    return store


TAMPERED = {
    "numbers without a hole": "UPDATE agentstate_event SET seq = 99 WHERE seq = 4",
    "version of the last event": "UPDATE agentstate_run SET version = version + 1",
    "spent is the sum of the ledger": "UPDATE agentstate_budget SET spent = 11",
    "within the cap, or flagged": "UPDATE agentstate_budget SET cap = 5",
    "terms never overlap": (
        "UPDATE agentstate_leaseterm SET held = tstzrange(lower(held), 'infinity')"
    ),
    "tokens only grow": "UPDATE agentstate_leaseterm SET token = -token",
    "nothing from an overtaken worker": (
        "UPDATE agentstate_event SET token = token - 1 WHERE seq ="
        " (SELECT last_seq FROM agentstate_run)"
    ),
    "run and lease agree on the holder": "UPDATE agentstate_lease SET owner = 'w-9'",
    "status from the events": "UPDATE agentstate_run SET status = 'paused'",
    "counters from the events": """UPDATE agentstate_run SET counters = '{"steps_done": 4}'""",
}
UNGUARD = """
ALTER TABLE agentstate_event DISABLE TRIGGER USER;
ALTER TABLE agentstate_budget DROP CONSTRAINT budget_within_cap_or_overdrawn;
ALTER TABLE agentstate_leaseterm DROP CONSTRAINT lease_terms_never_overlap;
"""


@pytest.mark.parametrize("check", TAMPERED)
def test_a_tampered_store_is_reported(busy, check):
    from django.db import connection, transaction

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(UNGUARD)
            cursor.execute(TAMPERED[check])
        found = audit.differences()
        transaction.set_rollback(True)

    assert check in {difference.check for difference in found}
    assert audit.verify() == []


def test_one_run_can_be_verified_and_an_unknown_one_is_not_found(busy):
    assert audit.verify_run("42") == []
    with pytest.raises(NotFound):
        audit.verify_run("43")


@pytest.mark.damages
def test_the_feed_is_verified_too(busy):
    from agentstate.store import feed

    feed.move()
    assert audit.verify() == []
    rows("DELETE FROM agentstate_feed WHERE position = 2")
    assert {d.check for d in audit.verify()} == {"feed without a hole", "feed in every run's order"}
