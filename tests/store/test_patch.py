"""Each field by its own policy, and expectations that say everything that does not hold."""

import pytest

from agentstate.store import audit
from agentstate.store.commands import Changed, Patch
from agentstate.store.errors import (
    AlreadyTerminal,
    ExpectationFailed,
    FenceRequired,
    Invalid,
    NotAllowed,
    StaleFence,
    VersionConflict,
)
from agentstate.store.payloads import RawJSON
from tests.store.asking import ANA, VIEWER, Asking, at_once, results, rows


@pytest.fixture
def change(store):
    store.create("42", attrs=RawJSON('{ "id": 1970670598291982290, "step": {"n": 1.0} }'))

    def change(**what):
        asking = what.pop("by", store)
        return asking.ask(Patch(run="42", **what))

    return change


def test_each_field_has_its_own_way(store, change):
    change(notes="first", add={"steps_done": 2}, tags_add=("b", "a"))
    change(notes="second", add={"steps_done": 3, "errors": 1}, tags_add=("c",), tags_remove=("a",))
    change(attrs={"step.n": RawJSON("2.50"), "model": RawJSON('"x"')})

    run = store.run("42")
    assert run.notes == "second"
    assert run.counters == {"steps_done": 5, "errors": 1}
    assert run.tags == ("b", "c")
    assert run.attrs == '{"id":1970670598291982290,"step":{"n":2.50},"model":"x"}'
    assert (run.version, run.last_seq) == (4, 4)
    assert store.types("42")[1:] == ["run.changed"] * 3
    assert audit.verify() == []


def test_every_clause_that_does_not_hold_is_told(store, change):
    with pytest.raises(ExpectationFailed) as refused:
        change(
            add={"n": 1},
            expect={
                "status": "running",
                "owner": None,
                "counters.steps_done": {"lt": 5},
                "attrs.step.n": {"gt": 1, "lt": 9},
                "attrs.gone": {"exists": False},
            },
        )
    assert refused.value.facts["failed"] == [
        {"field": "status", "wanted": "running", "found": "pending"},
        {"field": "counters.steps_done", "wanted": {"lt": 5}, "found": None},
        {"field": "attrs.step.n", "wanted": {"gt": 1, "lt": 9}, "found": 1.0},
    ]
    assert store.run("42").version == 1
    assert store.refusals() == ["expectation-failed"]
    assert rows("SELECT wanted -> 'columns' FROM agentstate_refusal") == [('["counters.n"]',)]


@pytest.mark.parametrize(
    "expect",
    [
        {"secret": 1}, {"counters.": 1}, {"attrs.a..b": 1}, {"status": {"like": "x"}},
        {"status": {}}, {"version": {"exists": 1}}, {"version": {"in": 3}}, [1], "x",
    ],
)  # fmt: skip
def test_a_clause_that_makes_no_sense_is_refused_before_the_database(change, expect):
    with pytest.raises(Invalid) as refused:
        change(add={"n": 1}, expect=expect)
    assert refused.value.field.startswith("expect")


def test_a_change_id_is_applied_once_also_when_the_change_was_made_anew(store, change):
    first = change(add={"steps_done": 1}, id="req-1")
    change(add={"steps_done": 10})
    again = change(add={"steps_done": 99}, id="req-1")

    assert again.replayed
    assert again.version == first.version
    assert store.run("42").counters == {"steps_done": 11}


def test_a_change_id_does_not_meet_an_event_id(store, change):
    from tests.store.asking import event

    store.append("42", [event(id="x")])
    assert not change(add={"n": 1}, id="x").replayed


def test_if_match_guards_the_whole_run(change):
    change(notes="a", if_match=1)
    with pytest.raises(VersionConflict):
        change(notes="b", if_match=1)


def test_an_operator_changes_tags_and_notes_without_a_token_and_nothing_else(store, change, clock):
    store.hold("42")
    ana = store.as_caller(ANA)
    change(by=ana, notes="seen by me", tags_add=("incident",))
    with pytest.raises(NotAllowed):
        change(by=ana, add={"n": 1})
    with pytest.raises(NotAllowed):
        change(by=store.as_caller(VIEWER), notes="x")
    with pytest.raises(FenceRequired):
        change(add={"n": 1})
    assert rows("SELECT actor, action FROM agentstate_operatoraction") == [
        ("person:ana", "run.changed")
    ]


def test_a_run_that_has_ended_takes_tags_and_notes_only(store, change, clock):
    lease = store.hold("42")
    store.move("42", "completed", fence=lease.token)
    change(by=store.as_caller(ANA), notes="post mortem", tags_add=("reviewed",))
    with pytest.raises(StaleFence):
        change(add={"n": 1}, fence=lease.token)
    assert store.run("42").notes == "post mortem"
    store.create("43")
    store.move("43", "cancelled")
    with pytest.raises(AlreadyTerminal):
        store.ask(Patch(run="43", add={"n": 1}))


def test_setting_inside_what_is_no_object_or_nothing_at_all_is_refused(change):
    with pytest.raises(Invalid):
        change(attrs={"id.x": RawJSON("1")})
    with pytest.raises(Invalid):
        change()
    with pytest.raises(Invalid):
        change(attrs={"a..b": RawJSON("1")})


def test_32_adders_and_one_guarded_writer_do_not_disturb_one_another(store, change):
    attempts = []

    def work(n):
        if n < 32:
            return [change(add={"steps_done": 1}) for _ in range(3)]
        for attempt in (1, 2):
            try:
                attempts.append(attempt)
                return [change(attrs={"phase": RawJSON('"b"')}, expect={"attrs.phase": None})]
            except ExpectationFailed:
                continue
        return []

    outcomes = at_once(33, work)

    assert all(results(done, Changed) for done in outcomes)
    assert attempts == [1]
    assert store.run("42").counters == {"steps_done": 96}
    assert audit.verify() == []


def test_a_hold_and_the_retention_can_be_expected(store):
    store.create("42")
    seen = {"hold": False, "retain_seconds": None}
    outcomes = at_once(
        2,
        lambda n: Asking(ANA).ask(
            Patch(run="42", **({"hold": True}, {"retain_seconds": 60})[n], expect=seen)
        ),
    )
    assert len(results(outcomes, Changed)) == len(results(outcomes, ExpectationFailed)) == 1
    kept = store.run("42")
    assert (kept.hold, kept.retain_seconds) in ((True, None), (False, 60))
