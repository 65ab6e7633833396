"""Effects on the outside world: begun once, ended once, and told to whoever holds the run next."""

import json

import pytest

from agentstate.store import Ask, audit, execute_all, export, reads, repair, story
from agentstate.store.callers import PLAIN
from agentstate.store.commands import (
    Append,
    Batch,
    ClaimRuns,
    CreateRun,
    ImportedEvent,
    ImportRun,
    NewEvent,
)
from agentstate.store.effects import COUNTED_MAX, TOLD_MAX, Effect
from agentstate.store.errors import (
    BatchRefused,
    EventIdReuse,
    Invalid,
    PartialDuplicate,
    StaleFence,
)
from agentstate.store.payloads import RawJSON, dump
from tests.store.asking import FLEET, at_once, event, results, rows


def begun(key="mail", data=None, event_type="effect.begun"):
    return NewEvent(type=event_type, data=dump(data), effect=Effect(key=key, state="begun"))


def ended(key="mail", data=None):
    return NewEvent(type="effect.ended", data=dump(data), effect=Effect(key=key, state="ended"))


def open_keys(key="42"):
    page = reads.events(
        run_key=key, wanted=reads.EventFilter(beginning_open_effects=True), limit=500
    )
    return [e.event_id[1:] for e in page.items]


@pytest.fixture
def held(store, clock):
    """A run that w-1 has claimed; the lease lapses after 60 s."""
    store.create("42")
    return store.claim("w-1").items[0]


def test_what_was_begun_is_open_until_it_is_ended(store, held):
    store.append("42", [begun("mail"), begun("charge")], fence=held.token)
    assert open_keys() == ["mail", "charge"]
    assert reads.run("42").open_effects == 2

    store.append("42", [ended("mail")], fence=held.token)
    assert open_keys() == ["charge"]
    assert audit.verify() == []


def test_begun_and_ended_in_one_write_is_not_open(store, held):
    store.append("42", [begun(), ended()], fence=held.token)
    assert open_keys() == []
    assert audit.verify() == []


def test_neither_head_nor_status_follows_from_an_effect(store, held):
    before = store.run("42")
    store.append("42", [begun(event_type="run.completed")], fence=held.token)
    after = store.run("42")
    assert (after.status, after.counters) == (before.status, before.counters)
    assert after.version == before.version + 1


def test_the_next_holder_is_told_by_claim_what_was_begun_and_not_ended(store, held, clock):
    assert (held.open_effects, held.open_effects_count) == ((), 0)
    store.append("42", [begun("mail", {"to": "ana"}), begun("b"), ended("b")], fence=held.token)
    clock.advance(seconds=61)

    (claim,) = store.claim("w-2").items

    (told,) = claim.open_effects
    assert (told.key, told.type, told.token) == ("mail", "effect.begun", held.token)
    assert json.loads(told.data.text) == {"to": "ana"}
    assert claim.open_effects_count == 1


def test_and_by_acquire(store, held, clock):
    store.append("42", [begun()], fence=held.token)
    clock.advance(seconds=61)
    lease = store.acquire("run:42", owner="w-2")
    assert [e.key for e in lease.open_effects] == ["mail"]
    assert store.acquire("gpu-1", owner="w-2").open_effects is None


def test_a_repeated_claim_tells_the_same(store, held, clock):
    store.append("42", [begun("mail", {"n": 1.0}), begun("none")], fence=held.token)
    clock.advance(seconds=61)
    command = ClaimRuns(owner="w-2")
    first = store.ask(command, key="k")
    again = store.ask(command, key="k")
    assert again.replayed
    assert again.items[0].open_effects == first.items[0].open_effects


def test_the_next_holder_ends_what_another_began(store, held, clock):
    store.append("42", [begun()], fence=held.token)
    clock.advance(seconds=61)
    (claim,) = store.claim("w-2").items
    store.append("42", [ended(data={"found": True})], fence=claim.token)
    assert open_keys() == []
    with pytest.raises(StaleFence):
        store.append("42", [ended(data={"found": False})], fence=held.token)


def test_begun_twice_is_the_first_one_again(store, held):
    first = store.append("42", [begun(data=1)], fence=held.token)
    again = store.append("42", [begun(data=1)], fence=held.token)
    assert again.replayed
    assert again.first_seq == first.first_seq
    assert open_keys() == ["mail"]


def test_begun_again_after_it_has_ended_opens_nothing(store, held):
    store.append("42", [begun()], fence=held.token)
    store.append("42", [ended()], fence=held.token)
    assert store.append("42", [begun()], fence=held.token).replayed
    assert open_keys() == []


@pytest.mark.parametrize("make", [begun, ended])
def test_with_other_content_the_key_is_used_already(store, held, make):
    store.append("42", [begun()], fence=held.token)
    store.append("42", [ended()], fence=held.token)
    with pytest.raises(EventIdReuse) as refused:
        store.append("42", [make(data="another")], fence=held.token)
    assert refused.value.facts["effect"]["key"] == "mail"
    assert "mail has" in refused.value.detail


def test_known_and_new_ones_in_one_append_are_refused_whole(store, held):
    store.append("42", [begun("a")], fence=held.token)
    with pytest.raises(PartialDuplicate) as refused:
        store.append("42", [begun("a"), begun("b")], fence=held.token)
    assert refused.value.facts["known"] == [{"effect": {"key": "a", "state": "begun"}, "seq": 4}]
    assert open_keys() == ["a"]


def test_the_end_of_what_was_never_begun_is_refused(store, held):
    with pytest.raises(Invalid) as refused:
        store.append("42", [ended("ghost")], fence=held.token)
    assert refused.value.field == "effect"
    with pytest.raises(Invalid):
        store.append("42", [ended("late"), begun("late")], fence=held.token)
    assert store.run("42").last_seq == 3


def test_a_key_is_the_runs_own_and_no_event_id(store, held):
    store.create("43")
    store.append("43", [begun("mail")])
    store.append("42", [event(id="mail"), begun("mail")], fence=held.token)
    assert (open_keys("42"), open_keys("43")) == (["mail"], ["mail"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: NewEvent(type="x", id="e1", effect=Effect(key="a", state="begun")),
        lambda: Effect(key="", state="begun"),
        lambda: Effect(key="ä", state="begun"),
        lambda: Effect(key="a", state="over"),
        lambda: Effect(key="a", state=None),
        lambda: Append(run="42", events=(begun(), begun(data=2))),
        lambda: NewEvent(type="x", id="▶mail"),
    ],
)
def test_a_malformed_one_is_refused_before_the_store_looks(make):
    with pytest.raises(Invalid):
        make()


def test_a_run_may_begin_with_one(store, clock):
    store.create("42", status="pending", events=(begun(),))
    (claim,) = store.claim("w-1").items
    assert [e.key for e in claim.open_effects] == ["mail"]


def test_a_batch_sees_its_own_and_a_refused_one_leaves_none(store, held):
    def append(*events):
        return Append(run="42", events=events, fence=held.token)

    store.ask(Batch(operations=(append(begun("a")), append(ended("a")), append(begun("b")))))
    assert open_keys() == ["b"]
    spoiled = Batch(operations=(append(begun("c")), append(ended("ghost"))))
    asks = [Ask(command=c, by=FLEET, under=PLAIN) for c in (spoiled, append(ended("c")))]
    outcomes = execute_all(asks)
    assert [type(outcome) for outcome in outcomes] == [BatchRefused, Invalid]
    assert open_keys() == ["b"]
    assert audit.verify() == []


def test_of_two_who_end_it_at_once_one_does_and_the_other_is_told(store, held):
    store.append("42", [begun()], fence=held.token)
    outcomes = at_once(2, lambda n: store.append("42", [ended(data={"by": n})], fence=held.token))
    assert len(results(outcomes, EventIdReuse)) == 1
    assert open_keys() == []
    assert audit.verify() == []


def test_what_is_told_is_bounded_in_number_and_in_bytes(store, held, clock):
    for start in (0, 400, 800):
        more = [begun(f"e{n}") for n in range(start, start + 400)]
        store.append("42", more, fence=held.token)
    clock.advance(seconds=61)
    (claim,) = store.claim("w-2").items
    assert len(claim.open_effects) == TOLD_MAX
    assert claim.open_effects_count == COUNTED_MAX == reads.run("42").open_effects

    store.create("43")
    (big,) = store.claim("w-3").items
    store.append("43", [begun("a", 1), begun("b", "x" * 70_000), begun("c", 2)], fence=big.token)
    store.release("run:43", big.token)
    (claim,) = store.claim("w-4").items
    assert [(e.key, e.data and e.data.text) for e in claim.open_effects] == [
        ("a", "1"), ("b", None), ("c", None)]  # fmt: skip
    assert claim.open_effects[1].data_bytes == 70_002


def test_the_story_tells_each_and_the_head_counts_them(store, held):
    store.append("42", [event(id="e1"), begun(), ended(), begun("open")], fence=held.token)
    told = [json.loads(item.text) for item in story.story("42").items]
    of_worker = [(e["id"], e["effect"]) for e in told if e.get("origin") == "worker"]
    assert of_worker == [
        ("e1", None),
        (None, {"key": "mail", "state": "begun"}),
        (None, {"key": "mail", "state": "ended"}),
        (None, {"key": "open", "state": "begun"}),
    ]
    assert told[-1]["open_effects_count"] == 1


def test_an_exported_run_comes_back_with_them(store, held, clock):
    from tasks.archive import read_archive

    store.append("42", [begun("a"), begun("b", {"x": 1}), ended("a")], fence=held.token)
    text = "".join(export.export("42"))
    assert '"effect":{"key":"b","state":"begun"}' in text
    (history,) = read_archive(text=text.replace('"key":"42"', '"key":"43"'), name="x.jsonl")
    store.ask(history)

    assert open_keys("43") == ["b"]
    (claim,) = store.claim("w-2").items
    assert (claim.run, [e.key for e in claim.open_effects]) == ("43", ["b"])
    assert audit.verify() == []


def test_a_changed_run_comes_back_with_the_ids_of_its_changes(store, clock):
    from agentstate.store.commands import Patch
    from tasks.archive import read_archive

    store.create("42")
    store.ask(Patch(run="42", notes="seen", id="c1"))
    text = "".join(export.export("42"))
    (history,) = read_archive(text=text.replace('"key":"42"', '"key":"43"'), name="x.jsonl")
    store.ask(history)
    assert store.ask(Patch(run="43", notes="other", id="c1")).duplicate


@pytest.mark.parametrize(
    "more",
    [
        {"effect": Effect(key="a", state="ended")},
        {"effect": Effect(key="a", state="begun"), "origin": "store"},
        {"effect": Effect(key="a", state="begun"), "id": "e1"},
        {"id": "Δe1"},
    ],
)
def test_a_history_with_an_impossible_one_is_refused_whole(store, more):
    created = ImportedEvent(
        seq=1, version=1, type="run.created", origin="store", data=RawJSON('{"status":"pending"}')
    )
    usual = {"seq": 2, "version": 2, "type": "x", "origin": "worker"}

    def bring_in():
        history = (created, ImportedEvent(**usual | more))
        store.ask(ImportRun(key="42", task="t", status="pending", events=history))

    with pytest.raises(Invalid):
        bring_in()
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


@pytest.mark.damages
def test_a_difference_from_the_log_is_found_and_mended(store, held):
    store.append("42", [begun("a"), begun("b"), ended("b")], fence=held.token)
    rows("UPDATE agentstate_openeffect SET seq = seq + 1")
    found = audit.verify()
    assert [(d.check, d.what) for d in found] == [(audit.OPEN_EFFECTS, "42")] * 2
    assert {(d.expected, d.found) for d in found} == {
        ("an open effect of event 4", "none"), ("no open effect of event 5", "one")}  # fmt: skip

    assert repair.repair_projections() == 2
    assert audit.verify() == []
    assert open_keys() == ["a"]


def test_one_that_is_open_when_the_run_ends_stays_open(store, held):
    store.append("42", [begun()], to="completed", fence=held.token)
    assert reads.run("42").open_effects == 1
    assert audit.verify() == []


def test_a_run_that_nobody_held_has_them_too(store):
    store.ask(CreateRun(key="42", task="t", status="running"))
    store.append("42", [begun()])
    assert open_keys() == ["mail"]
