"""When the answer to COMMIT is lost, only rows of our own prove that it happened."""

from importlib import import_module

from django.db import transaction

from agentstate.store.asks import Ask
from agentstate.store.claims import ClaimBatch
from agentstate.store.commands import AcquireLease, Append, ClaimRuns, RenewLease
from agentstate.store.renewals import RenewalBatch
from tests.store.asking import FLEET, event, rows

execute = import_module("agentstate.store.execute")


def ended(command, *, commit, make=execute._Batch):
    """What is said of a batch whose COMMIT was not answered, and which did or did not happen."""
    batch = make([Ask(command=command, by=FLEET)], "3s")
    with transaction.atomic():
        with batch.cursor() as cursor:
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


def test_a_claim_is_known_by_the_term_that_it_began(store):
    store.create("42")
    assert ended(ClaimRuns(owner="w-1"), commit=False, make=ClaimBatch) is None
    (done,) = ended(ClaimRuns(owner="w-1"), commit=True, make=ClaimBatch)
    assert [item.run for item in done.items] == ["42"]
    assert store.lease("run:42").token == done.items[0].token


def test_of_a_renewal_that_was_not_answered_the_outcome_is_unknown(store):
    store.create("42")
    renew = RenewLease(unit="run:42", token=store.acquire("run:42").token)
    (unknown,) = ended(renew, commit=True, make=RenewalBatch)
    assert unknown.code == "outcome-unknown"


def test_without_an_event_to_know_it_by_the_outcome_is_unknown(store):
    (unknown,) = ended(AcquireLease(unit="u-1", owner="w-1"), commit=False)
    assert unknown.code == "outcome-unknown"
