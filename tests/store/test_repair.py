"""Projections are made again from the log and the ledger, and from nothing else."""

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from agentstate.store import audit, repair
from agentstate.store.commands import NewBudget
from tests.store.asking import event, rows

WRONG = {
    "head": """UPDATE agentstate_run SET status = 'paused', counters = '{"steps_done": 9}',
        version = 99""",
    "budget": "UPDATE agentstate_budget SET spent = 1, entries = 1",
    "holder": "UPDATE agentstate_run SET owner = 'w-9'",
}


@pytest.fixture
def busy(store, clock):
    for key in ("a", "b"):
        store.create(key, budgets=(NewBudget(name="budget", cap=100),))
        lease = store.hold(key)
        store.append(key, [event()], add={"steps_done": 2}, fence=lease.token)
        store.spend(key, 30, fence=lease.token)
    return store


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("run", [None, "a"])
def test_what_was_derived_is_derived_again(busy, what, run):
    right = [busy.run(key) for key in ("a", "b")]
    rows(WRONG[what] + ("" if run is None else _only(what)))
    assert audit.verify(run=run)

    assert repair.repair_projections(run=run) > 0

    assert audit.verify() == []
    assert [busy.run(key) for key in ("a", "b")] == right
    assert repair.repair_projections(run=run) == 0


def _only(what):
    run_id = "(SELECT id FROM agentstate_run WHERE key = 'a')"
    return f" WHERE run_id = {run_id}" if what == "budget" else " WHERE key = 'a'"


def test_the_command_says_what_holds_and_ends_with_1_when_something_does_not(busy, capsys):
    call_command("verify")
    assert "holds   numbers without a hole" in capsys.readouterr().out
    rows(WRONG["head"])
    with pytest.raises(CommandError, match="differences"):
        call_command("verify", run="a")
    out = capsys.readouterr().out
    assert "status from the events: a: expected running, found paused" in out
    call_command("verify", repair_projections=True)
    assert "2 rows were made again" in capsys.readouterr().out
    with pytest.raises(CommandError, match="no run nope"):
        call_command("verify", run="nope")


@pytest.mark.damages
def test_a_hole_in_the_log_is_not_papered_over(busy):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE agentstate_event DISABLE TRIGGER USER")
        cursor.execute("DELETE FROM agentstate_event WHERE seq = 2")
        cursor.execute("ALTER TABLE agentstate_event ENABLE TRIGGER USER")
    repair.repair_projections()
    assert {d.check for d in audit.verify()} >= {"numbers without a hole"}
