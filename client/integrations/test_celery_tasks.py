"""What a task under a lease does when nobody harms it: retries, cancels, budgets, keys, eagerly."""

from __future__ import annotations

import pytest
from conftest import operate

from agentstate_client import BudgetExhausted, LeaseHeld
from agentstate_client.durable import CallEnded

WAIT_SECONDS = 120


def test_celerys_own_retry_goes_on_behind_the_finished_steps(sending):
    sent = sending("trying", 2)
    assert sent.get(WAIT_SECONDS) == 2
    assert sending.did == ["fetched first"]
    record = sending.run_of(sent)
    assert (record.status, record.attempt, record.result) == ("completed", 3, 2)


def test_what_fails_has_failed_and_a_second_message_does_not_begin_it_anew(sending):
    sent = sending("report", None)
    with pytest.raises(TypeError):
        sent.get(WAIT_SECONDS)
    assert sending.run_of(sent).status == "failed"
    sending("report", ["a"], task_id=sent.id)
    sending.says(f"celery-{sent.id} is failed, and Celery knows it")
    sent.forget()
    again = sending("report", ["a"], task_id=sent.id)
    with pytest.raises(CallEnded) as ended:
        again.get(WAIT_SECONDS)
    assert (ended.value.status, ended.value.result["error"]) == ("failed", "TypeError")
    assert sending.did == []


def test_a_cap_that_is_used_up_fails_the_task_and_nothing_is_charged_beyond_it(sending):
    sent = sending("report", [f"p{number}" for number in range(11)])
    with pytest.raises(BudgetExhausted) as refused:
        sent.get(WAIT_SECONDS)
    assert (refused.value.budget, refused.value.cap, refused.value.spent) == ("tokens", 100, 100)
    record = sending.run_of(sent)
    assert (record.status, record.result["error"]) == ("failed", "BudgetExhausted")
    assert record.budgets[0]["spent"] == 100


@pytest.mark.parametrize("task", ["report", "trying_always"])
def test_an_operators_cancel_ends_the_task_before_its_next_step(sending, agentstate_clock, task):
    first, more = ("a", [["a", "b"]]) if task == "report" else ("first", [])
    sending.hold(first)
    sent = sending(task, *more)
    sending.who_is_in(first)
    # A signal reaches the holder with its next renewal; without one the cancel is at once.
    operate(sending.server, f"runs/celery-{sent.id}/transitions", {"to": "cancelled"})
    sending.go(first)
    with pytest.raises(CallEnded) as ended:
        sent.get(WAIT_SECONDS)
    assert ended.value.status == "cancelled"
    assert sending.did == [f"fetched {first}"]


def test_a_paused_run_is_gone_on_with_when_it_is_resumed(sending):
    sending.hold("b")
    sent = sending("report", ["a", "b"])
    sending.who_is_in("b")
    operate(sending.server, f"runs/celery-{sent.id}/transitions", {"to": "paused"})
    sending.go("b")
    sending.asked_again(sent)  # it cannot be completed while it is paused
    assert sending.run_of(sent).status == "paused"
    operate(sending.server, f"runs/celery-{sent.id}/transitions", {"to": "running"})
    assert sent.get(WAIT_SECONDS) == ["a", "b"]
    assert sending.did == ["fetched a", "fetched b"]


def test_a_key_of_ones_own_makes_two_messages_one_call(sending):
    assert sending("pay", 7, 100).get(WAIT_SECONDS) == 100
    assert sending("pay", 7, 100).get(WAIT_SECONDS) == 100
    with pytest.raises(ValueError, match="the run order-7 is another call"):
        sending("pay", 7, 250).get(WAIT_SECONDS)
    assert sending.did == ["paid 100"]


def test_an_id_that_is_no_key_and_a_run_that_tells_of_its_message(sending):
    odd = "übung/1 " + "x" * 300
    assert sending("report", ["a"], task_id=odd).get(WAIT_SECONDS) == ["a"]
    plain = sending("report", ["a"], argsrepr="(hidden)")
    plain.get(WAIT_SECONDS)
    told = sending.run_of(plain).attrs["celery"]
    assert told == {"task_id": plain.id, "arguments": "(hidden)", "named": "{}"}


def test_called_directly_it_is_a_plain_function_and_eagerly_a_run(
    sending, celery_environment, monkeypatch
):
    import celery_app

    with pytest.raises(RuntimeError, match="no run"):
        celery_app.report(str(sending.folder), ["a"])
    for name in ("AGENTSTATE_URL", "AGENTSTATE_KEY"):
        monkeypatch.setenv(name, celery_environment[name])
    done = celery_app.report.apply((str(sending.folder), ["a"]))
    assert done.get() == ["a"]
    assert sending.run_of(done).status == "completed"
    run = sending.server.client("other").create(task="x", key="celery-held").acquire()
    with run, pytest.raises(LeaseHeld):
        celery_app.report.apply((str(sending.folder), ["a"]), task_id="held", throw=True)
    assert sending.did == ["fetched a", "fetched a"]
