"""API keys: a name is given once, and what a key may not do is written down."""

import pytest

from agentstate.store.callers import SYSTEM, Circumstances
from agentstate.store.commands import NoteRefused, Transition
from agentstate.store.errors import ExpectationFailed, Invalid, NotAllowed
from agentstate.store.execute import execute
from agentstate.store.keys import NewKey, create_key
from tests.store.asking import FLEET, VIEWER, at_once, results, rows


def test_of_many_who_give_one_name_at_once_one_does_and_the_others_are_told_so(transactional_db):
    outcomes = at_once(8, lambda n: create_key(name="x", scopes=["read"], by=SYSTEM))

    assert len(results(outcomes, NewKey)) == 1
    refused = results(outcomes, Invalid)
    assert [r.field for r in refused] == ["name"] * 7
    assert rows("SELECT count(*) FROM agentstate_apikey") == [(1,)]


@pytest.mark.parametrize("caller", [VIEWER, FLEET])
def test_a_call_without_its_scope_is_refused_and_written_down(store, caller):
    store.create("42")
    ask = NoteRefused(operation="append_events", scopes=("admin-of-none",), run="42")
    with pytest.raises(NotAllowed):
        store.as_caller(caller).ask(ask)

    assert rows(
        "SELECT f.code, f.operation, r.key, f.actor, f.request_id"
        " FROM agentstate_refusal f JOIN agentstate_run r ON r.id = f.run_id"
    ) == [("not-allowed", "append_events", "42", caller.principal, "req-1")]


def test_a_move_happens_only_if_all_that_is_expected_holds(store):
    store.create("42")
    with pytest.raises(ExpectationFailed) as refused:
        store.move("42", "running", expect={"owner": "w-1", "counters.n": {"gt": 1}})
    assert [one["field"] for one in refused.value.facts["failed"]] == ["owner", "counters.n"]
    assert rows("SELECT wanted->'expect' FROM agentstate_refusal")
    assert store.move("42", "running", expect={"status": "pending", "owner": None}).version == 2


def test_a_kept_answer_knows_the_request_that_it_answered(store):
    under = Circumstances(idempotency_key="k", fingerprint=b"x", request_id="req-7")
    store.create("42")
    execute(Transition(run="42", to="running"), by=FLEET, under=under)
    assert rows("SELECT key, request_id FROM agentstate_idempotencyrecord") == [("k", "req-7")]
