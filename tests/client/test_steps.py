"""A finished step comes back from the log, in whichever attempt and for whichever worker."""

import threading

import pytest
from agentstate_client import (
    CancelRequested,
    Charge,
    Event,
    EventIdReuse,
    LeaseLost,
    NewBudget,
    NotAllowed,
    StopRequested,
)

from agentstate.store.callers import SYSTEM
from agentstate.store.keys import create_key


@pytest.fixture
def claimed(worker):
    """claimed("w-1"): the run, claimed by a worker of this name."""

    def claim(name, **more):
        client = worker(name, **more)
        (run,) = client.claim(ttl_seconds=60)
        return run

    worker("planner").create(task="audit", key="42", budgets=[NewBudget("tokens", cap=100)])
    return claim


def test_a_step_is_done_once_and_its_result_comes_back_from_the_log(claimed):
    done = []

    def fetch(url):
        done.append(url)
        return {"url": url, "pages": (1, 2)}

    first = claimed("w-1")
    result = first.step("fetch").run(fetch, "a")
    assert result == {"url": "a", "pages": [1, 2]}, "as the store has it, at once"
    assert first.step("fetch").run(fetch, "a") == result
    first.release()

    second = claimed("w-2")
    assert second.step("fetch").run(fetch, "b") == result
    assert done == ["a"]
    finished = [event for event in second.events() if event.type == "step.finished"]
    assert [(event.id, event.data) for event in finished] == [("step:fetch", result)]


def test_a_step_as_a_block_takes_its_counters_and_charges_along_once(claimed):
    run = claimed("w-1")
    with run.step("think") as step:
        assert not step.done
        step.finish("yes", add={"steps_done": 1}, spend=Charge("tokens", 7))
        assert (step.done, step.result) == (True, "yes")
    run.release()

    again = claimed("w-2")
    with again.step("think") as step:
        assert (step.done, step.result) == (True, "yes")
    record = again.read()
    assert (record.counters, record.budgets[0]["spent"]) == ({"steps_done": 1}, 7)


def test_a_step_that_raised_is_done_again(claimed):
    run = claimed("w-1")
    with pytest.raises(ZeroDivisionError):
        run.step("fetch").run(lambda: 1 / 0)
    assert run.step("fetch").run(lambda: 2) == 2


def test_a_step_left_without_finish_is_done_again(claimed):
    run = claimed("w-1")
    with run.step("fetch") as step:
        pass
    assert not step.done
    with pytest.raises(RuntimeError, match="not finished"):
        _ = step.result


def test_a_result_is_nobodys_to_change(claimed):
    run = claimed("w-1")
    kept = {"pages": [1]}
    with run.step("fetch") as step:
        step.finish(kept)
    kept["pages"].append(2)
    step.result["pages"].append(3)
    assert run.step("fetch").run(lambda: None) == {"pages": [1]}


def test_a_null_result_is_a_result(claimed):
    run = claimed("w-1")
    assert run.step("note").run(lambda: None) is None
    run.release()
    called = []
    assert claimed("w-2").step("note").run(called.append, 1) is None
    assert called == []


def test_before_it_is_read_a_step_does_not_say_whether_it_is_done(claimed):
    with pytest.raises(RuntimeError, match="read the step first"):
        _ = claimed("w-1").step("fetch").done


def test_a_step_is_finished_with_one_result(claimed):
    run = claimed("w-1")
    with run.step("a") as step:
        step.finish(1)
        assert step.finish(1).replayed
        with pytest.raises(EventIdReuse):
            step.finish(2)


def test_events_of_others_that_look_like_steps_are_none(claimed):
    run = claimed("w-1")
    run.append(Event("step.finished", 1, id="fetch"), Event("step.finished", 2))
    assert run.step("fetch").run(lambda: 3) == 3


def test_a_lost_answer_finishes_a_step_once(claimed, proxy):
    run = claimed("w-1", url=proxy.url)
    proxy.cut_answers("POST /api/v1/runs/42/events")
    assert run.step("fetch").run(lambda: 1) == 1
    assert proxy.cuts == 1
    assert [event.type for event in run.events()].count("step.finished") == 1


def test_a_new_step_is_a_checkpoint_and_a_finished_one_is_none(claimed):
    run, stopping = claimed("w-1"), threading.Event()
    run.step("a").run(lambda: 1)
    run.stop_with(stopping)
    stopping.set()
    assert run.step("a").run(lambda: 2) == 1
    with pytest.raises(StopRequested):
        run.step("b").run(lambda: 2)
    stopping.clear()
    run.lease.cancel_requested.set()
    with pytest.raises(CancelRequested):
        run.step("b").run(lambda: 2)


def test_who_was_overtaken_finishes_nothing(claimed):
    run = claimed("w-1")
    with run.step("a") as step:
        run.release()
        with pytest.raises(LeaseLost):
            step.finish(1)
    assert not step.done
    assert claimed("w-2").step("a").run(lambda: 2) == 2


def test_steps_need_the_payloads(claimed):
    run = claimed("w-1")
    run.step("a").run(lambda: 1)
    run.release()
    key = create_key(name="blind", scopes=("read", "write"), by=SYSTEM).text
    with pytest.raises(NotAllowed, match="payloads"):
        claimed("w-2", key=key).step("a").run(lambda: 2)
