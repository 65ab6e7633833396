"""Effects: the intent before, the outcome after, one key for all attempts, and nothing in doubt."""

import pytest
from agentstate_client import Event, EventIdReuse, LeaseLost

from agentstate.store import audit


@pytest.fixture
def claimed(worker):
    """claimed("w-1"): the run, claimed by a worker of this name."""

    def claim(name, **more):
        (run,) = worker(name, **more).claim(ttl_seconds=60)
        return run

    worker("planner").create(task="audit", key="42")
    return claim


def written(run):
    return [
        (event.type, event.effect, event.effect_state, event.data)
        for event in run.events(origin="worker")
    ]


def left_open(run, name, data=None):
    """The effect, begun and then cut short by an error, which goes on to the caller."""
    kept = []

    def do_it():
        with run.effect(name, data) as effect:
            kept.extend((effect, effect.in_doubt))
            raise OSError("cut")

    with pytest.raises(OSError, match="cut"):
        do_it()
    return kept


def test_the_intent_is_there_before_and_the_outcome_after(claimed):
    run = claimed("w-1")
    with run.effect("invoice", {"to": "ana"}) as effect:
        assert (effect.in_doubt, effect.done) == (False, False)
        assert written(run) == [("effect.begun", "invoice", "begun", {"to": "ana"})]
        effect.outcome({"id": 7})
        assert effect.result == {"id": 7}
    assert written(run)[1:] == [("effect.ended", "invoice", "ended", {"id": 7})]
    run.release()
    assert claimed("w-2").open_effects == []


def test_a_block_that_ends_well_is_an_outcome_by_itself(claimed):
    run = claimed("w-1")
    with run.effect("ping") as effect:
        pass
    assert (effect.done, effect.result) == (True, None)


def test_an_error_leaves_it_open_and_the_next_holder_settles_it_under_the_same_key(claimed):
    first = claimed("w-1")
    effect, _ = left_open(first, "invoice", {"to": "ana"})
    key = effect.key
    first.release()

    second = claimed("w-2")
    (found,) = second.open_effects
    assert (found.name, found.key, found.data) == ("invoice", key, {"to": "ana"})
    assert (found.in_doubt, found.done) == (True, False)
    assert [one.key for one in second.read_open_effects()] == [key]
    found.outcome({"found": True})
    assert (second.open_effects, second.read_open_effects()) == ([], [])
    with second.effect("invoice", {"to": "somebody else"}) as again:
        assert (again.done, again.result, again.key) == (True, {"found": True}, key)
    assert len(written(second)) == 2
    assert audit.verify() == []


def test_a_block_in_doubt_says_so_and_may_do_it_again_with_the_same_key(claimed):
    first = claimed("w-1")
    before, _ = left_open(first, "pay")
    first.release()

    second = claimed("w-2")
    with second.effect("pay") as effect:
        assert effect.in_doubt
        assert effect.key == before.key
    assert effect.done
    assert not effect.in_doubt


def test_entered_again_by_the_same_holder_it_is_in_doubt_too(claimed):
    run = claimed("w-1")
    assert [left_open(run, "pay")[1] for _ in range(2)] == [False, True]


def test_a_lost_answer_to_the_intent_is_no_doubt(claimed, proxy):
    run = claimed("w-1", url=proxy.url)
    proxy.cut_answers("POST /api/v1/runs/42/events")
    with run.effect("pay") as effect:
        assert not effect.in_doubt
    assert proxy.cuts == 1
    assert len(written(run)) == 2


def test_keys_differ_between_effects_and_between_runs(claimed, worker):
    run = claimed("w-1")
    other = worker("w-1").create(task="audit", key="43", status="running")
    keys = set()
    for one, name in ((run, "a"), (run, "b"), (other, "a")):
        with one.effect(name) as effect:
            keys.add(effect.key)
    assert len(keys) == 3


def test_there_is_no_key_before_it_is_begun_and_no_result_before_it_is_done(claimed):
    effect = claimed("w-1").effect("pay")
    with pytest.raises(RuntimeError, match="begin"):
        _ = effect.key
    with pytest.raises(RuntimeError, match="no outcome"):
        _ = effect.result


def test_an_outcome_is_written_once(claimed):
    run = claimed("w-1")
    with run.effect("pay") as effect:
        effect.outcome(1)
        effect.outcome(1)
        with pytest.raises(EventIdReuse):
            effect.outcome(2)
    assert effect.result == 1


def test_who_lost_the_run_writes_no_outcome(claimed):
    run = claimed("w-1")
    with pytest.raises(LeaseLost), run.effect("pay"):
        run.release()
    assert [one.name for one in claimed("w-2").open_effects] == ["pay"]


def test_large_intents_are_told_without_their_data_and_read_with_it(claimed):
    run = claimed("w-1")
    large = "x" * 70_000
    for name, data in (("a", 1), ("b", large), ("c", None)):
        left_open(run, name, data)
    run.release()
    second = claimed("w-2")
    assert [(one.name, one.data) for one in second.open_effects] == [
        ("a", 1), ("b", None), ("c", None)]  # fmt: skip
    assert [one.data for one in second.read_open_effects()] == [1, large, None]


def test_an_effect_may_be_written_by_hand(claimed):
    run = claimed("w-1")
    run.append(Event("mail.wanted", 1, effect="mail", effect_state="begun"))
    run.release()
    second = claimed("w-2")
    assert [one.name for one in second.open_effects] == ["mail"]
    second.append(Event("mail.sent", effect="mail", effect_state="ended"))
    assert second.read_open_effects() == []
