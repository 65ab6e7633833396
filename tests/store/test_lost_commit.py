"""When the answer to COMMIT is lost, only rows of our own prove that it happened."""

from importlib import import_module

from django.db import transaction

from agentstate.store import flights, rowsql
from agentstate.store.asks import Ask
from agentstate.store.commands import AcquireLease, Append
from tests.store.asking import FLEET, event, rows

execute = import_module("agentstate.store.execute")


def ended(command, *, commit):
    """What is said of a batch whose COMMIT was not answered, and which did or did not happen."""
    batch = execute._Batch([Ask(command=command, by=FLEET)], "3s")
    with transaction.atomic():
        with flights.cursor(rowsql.PREPARED) as cursor:
            batch.run(cursor)
        transaction.set_rollback(not commit)
    if not commit:
        # As after a crash: the id was given out again, and somebody else's commit has it now.
        with transaction.atomic():
            (batch.xact_id,) = rows("SELECT pg_current_xact_id()::text")[0]
    return execute._ask_how_it_ended(batch)


def test_what_was_committed_gets_its_decided_answer(store):
    store.create("42")
    (done,) = ended(Append(run="42", events=(event(),)), commit=True)
    assert (done.first_seq, store.run("42").last_seq) == (2, 2)


def test_an_id_that_somebody_elses_commit_has_is_no_proof(store):
    store.create("42")
    assert ended(Append(run="42", events=(event(),)), commit=False) is None
    assert store.run("42").last_seq == 1


def test_without_an_event_to_know_it_by_the_outcome_is_unknown(store):
    (unknown,) = ended(AcquireLease(unit="u-1", owner="w-1"), commit=False)
    assert unknown.code == "outcome-unknown"
