"""A run's log: numbers without a hole, conditional appends, ids, versions and moves."""

import pytest

from agentstate.store import audit
from agentstate.store.commands import Charge, NewBudget, NewEvent
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    EventIdReuse,
    Exists,
    FenceRequired,
    IllegalTransition,
    Invalid,
    NotAllowed,
    NotFound,
    PartialDuplicate,
    SeqConflict,
    StaleFence,
    VersionConflict,
)
from agentstate.store.payloads import RawJSON
from tests.store.asking import ANA, OTHER_FLEET, VIEWER, event, rows


def test_a_run_is_born_with_its_events_budgets_and_version_1(store):
    made = store.create("42", events=(event("plan.made"),), budgets=(NewBudget(name="b", cap=9),))

    assert (made.version, made.last_seq) == (1, 2)
    assert store.types("42") == ["run.created", "plan.made"]
    assert {e.version for e in store.events("42")} == {1}
    assert rows("SELECT name, cap, spent FROM agentstate_budget") == [("b", 9, 0)]
    assert audit.verify() == []


def test_a_key_is_made_when_none_is_given_and_a_known_one_is_refused(store):
    from agentstate.store.commands import CreateRun

    assert store.ask(CreateRun(task="x")).run.startswith("r-")
    store.create("42")
    with pytest.raises(Exists) as refused:
        store.create("42", task="other")
    assert refused.value.current["version"] == 1
    assert store.run("42").task == "audit checkout"


def test_the_texts_own_scenario_two_workers_race_for_seq_5(store):
    store.create("42", events=tuple(event() for _ in range(3)))

    a = store.append("42", [event("tool.called")], expected_seq=4)
    with pytest.raises(SeqConflict) as refused:
        store.append("42", [event("tool.called")], expected_seq=4)
    retried = store.append("42", [event("tool.called")], expected_seq=5)

    assert a.last_seq == 5
    assert refused.value.facts["last_seq"] == 5
    assert retried.last_seq == 6


@pytest.mark.parametrize("expected", [0, 2, 999])
def test_an_expected_number_that_is_not_the_last_writes_nothing(store, expected):
    store.create("42")
    with pytest.raises(SeqConflict):
        store.append("42", expected_seq=expected)
    assert store.run("42").last_seq == 1


def test_a_batch_is_numbered_without_a_hole_and_raises_the_version_once(store):
    store.create("42")
    done = store.append("42", [event(data=n) for n in range(500)])

    assert (done.first_seq, done.last_seq, done.version) == (2, 501, 2)
    assert [e.seq for e in store.events("42")] == list(range(1, 502))


def test_payloads_come_back_to_the_letter(store):
    texts = [
        '{"id": 1970670598291982290,"max":9223372036854775807, "f":0.10, "e":1e21}',
        r'"\u00e9 \/ \ud83d\ude00"',
        '{"b":1,\n "a":[ ]}',
        "123456789012345678901234567890.50",
        '"line\\u2028\\nid: 999999"',
    ]
    store.create("42")
    store.append("42", [NewEvent(type="x", data=RawJSON(text)) for text in texts])

    assert [e.data for e in store.events("42")[1:]] == texts


def test_events_cannot_be_changed_or_deleted_whoever_tries(store):
    from django.db import IntegrityError

    store.create("42")
    for statement in ("UPDATE agentstate_event SET type = 'x'", "DELETE FROM agentstate_event"):
        with pytest.raises(IntegrityError, match="append-only"):
            rows(statement)
    assert store.types("42") == ["run.created"]


def test_repeating_a_batch_with_ids_appends_nothing_and_answers_as_before(store):
    store.create("42")
    batch = [event("a", {"n": 1}, id="e1"), event("b", id="e2")]
    first = store.append("42", batch)
    store.append("42", [event("c")])

    again = store.append("42", batch)
    at_right_seq = store.append("42", batch[1:], expected_seq=4)

    assert again.replayed
    assert at_right_seq.replayed
    assert (again.first_seq, again.last_seq, again.version) == (2, 3, first.version)
    assert at_right_seq.first_seq == 3
    assert store.run("42").last_seq == 4


def test_part_of_a_batch_known_is_refused_whole(store):
    store.create("42")
    store.append("42", [event(id="e1")])
    with pytest.raises(PartialDuplicate) as refused:
        store.append("42", [event(id="e1"), event(id="e2")])
    assert refused.value.facts["known"] == [{"id": "e1", "seq": 2}]
    assert store.run("42").last_seq == 2


def test_an_event_id_with_other_content_is_refused(store):
    store.create("42")
    store.append("42", [event("a", {"n": 1}, id="e1")])
    for other in (event("a", {"n": 2}, id="e1"), event("b", {"n": 1}, id="e1")):
        with pytest.raises(EventIdReuse):
            store.append("42", [other])
    same = NewEvent(type="a", data=RawJSON('{ "n" : 1 }'), id="e1")
    assert store.append("42", [same]).replayed


def test_an_overtaken_worker_gets_its_own_write_confirmed_but_never_anothers(store, clock):
    store.create("42")
    first = store.hold("42", "w-1")
    store.append("42", [event(id="mine")], fence=first.token)
    clock.advance(seconds=61)
    second = store.hold("42", "w-2")
    store.append("42", [event(id="theirs")], fence=second.token)

    assert store.append("42", [event(id="mine")], fence=first.token).replayed
    with pytest.raises(StaleFence):
        store.append("42", [event(id="theirs")], fence=first.token)
    assert store.append("42", [event(id="mine")], fence=second.token).replayed


def test_if_match_guards_the_version(store):
    store.create("42")
    store.append("42", if_match=1)
    with pytest.raises(VersionConflict) as refused:
        store.append("42", if_match=1)
    assert refused.value.detail == "expected v1, found v2"


def test_a_finished_step_is_one_write(store):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    lease = store.hold("42")

    done = store.append(
        "42",
        [event("step.done")],
        add={"steps_done": 1},
        spend=(Charge(budget="tokens", amount=40),),
        to="completed",
        fence=lease.token,
    )

    run = store.run("42")
    assert run.counters == {"steps_done": 1}
    assert done.spent[0].left == 60
    assert (done.status, run.status, run.token) == ("completed", "completed", None)
    assert store.types("42")[-2:] == ["step.done", "run.completed"]
    assert audit.verify() == []


def test_a_composite_write_that_is_refused_in_its_middle_leaves_nothing(store):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    before = store.run("42")
    with pytest.raises(BudgetExhausted):
        store.append("42", add={"n": 1}, spend=(Charge(budget="tokens", amount=101),))
    with pytest.raises(IllegalTransition):
        store.append("42", spend=(Charge(budget="tokens", amount=1),), to="completed")

    assert store.run("42") == before
    assert rows("SELECT spent FROM agentstate_budget") == [(0,)]
    assert store.refusals() == ["budget-exhausted", "illegal-transition"]


def test_moves_follow_the_table_and_terminal_states_absorb(store):
    store.create("42")
    with pytest.raises(IllegalTransition) as refused:
        store.move("42", "completed")
    assert refused.value.facts["allowed"] == ["running", "cancelled"]
    store.move("42", "running", from_status="pending")
    store.move("42", "failed", result={"why": "x"})

    with pytest.raises(AlreadyTerminal) as ended:
        store.move("42", "completed")
    with pytest.raises(AlreadyTerminal):
        store.append("42")
    assert ended.value.current["status"] == "failed"
    assert store.types("42")[-1] == "run.failed"


def test_the_same_terminal_move_by_its_own_token_is_a_replay(store, clock):
    store.create("42")
    lease = store.hold("42")
    first = store.move("42", "completed", fence=lease.token, result={"ok": True})

    again = store.move("42", "completed", fence=lease.token, result={"ok": True})

    assert again.replayed
    assert again.version == first.version
    with pytest.raises(StaleFence):
        store.move("42", "completed", fence=lease.token, result={"ok": False})
    with pytest.raises(StaleFence):
        store.move("42", "failed", fence=lease.token)
    assert store.types("42").count("run.completed") == 1


def test_a_force_cancelled_run_stays_cancelled_and_its_worker_writes_nothing_more(store, clock):
    store.create("42")
    lease = store.hold("42")
    store.as_caller(ANA).move("42", "cancelled", reason="runaway")

    for late in (
        lambda: store.append("42", fence=lease.token),
        lambda: store.move("42", "completed", fence=lease.token),
    ):
        with pytest.raises(StaleFence) as refused:
            late()
        assert refused.value.current["status"] == "cancelled"
    assert store.run("42").status == "cancelled"
    assert rows("SELECT actor, action, reason FROM agentstate_operatoraction") == [
        ("person:ana", "run.cancelled", "runaway")
    ]


def test_without_a_token_an_operator_may_cancel_pause_and_resume_only(store, clock):
    store.create("42")
    store.hold("42")
    ana = store.as_caller(ANA)
    ana.move("42", "paused")
    ana.move("42", "running")
    for to in ("completed", "failed", "pending"):
        with pytest.raises(NotAllowed):
            ana.move("42", to)
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).move("42", "cancelled")
    with pytest.raises(FenceRequired):
        ana.append("42")


def test_a_child_of_a_leased_parent_needs_the_parents_token(store, clock):
    store.create("42")
    lease = store.hold("42")
    with pytest.raises(FenceRequired):
        store.create("42.1", parent="42")
    with pytest.raises(StaleFence):
        store.as_caller(OTHER_FLEET).create("42.1", parent="42", fence=lease.token)
    store.create("42.1", parent="42", fence=lease.token)
    assert store.run("42.1").parent_id == store.run("42").id


def test_a_result_belongs_to_a_terminal_move(store):
    store.create("42")
    with pytest.raises(Invalid):
        store.move("42", "running", result={"ok": True})


def test_writing_to_an_unknown_run_creates_nothing(store):
    for ask in (lambda: store.append("no"), lambda: store.move("no", "running")):
        with pytest.raises(NotFound):
            ask()
    assert rows("SELECT key FROM agentstate_run") == []
    assert store.refusals() == []


def test_a_missing_partition_is_made_when_an_event_needs_it(store, clock):
    clock.set(clock.now.replace(year=2031))
    store.create("42")
    store.append("42")
    assert store.types("42") == ["run.created", "step.done"]


@pytest.mark.parametrize(("status", "to"), [("paused", "paused"), ("running", "running")])
def test_an_operator_is_told_that_there_is_no_such_move_and_not_to_bring_a_token(store, status, to):
    store.create("42")
    lease = store.hold("42")
    if status == "paused":
        store.move("42", "paused", fence=lease.token)
    with pytest.raises(IllegalTransition):
        store.as_caller(ANA).move("42", to)
    with pytest.raises(FenceRequired):
        store.move("42", "failed")
