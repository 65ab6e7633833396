"""Real workers of Celery on a real broker: killed, stopped, overtaken, given a message twice."""

from __future__ import annotations

import os
import signal

import pytest
from celery.exceptions import TimeLimitExceeded
from conftest import LONG_TTL, CeleryWorker, operate

from agentstate_client import AttemptsExhausted

WAIT_SECONDS = 120
PAGES = ["a", "b", "c"]
# What it writes down when nothing happens to it.
WHOLE = ["fetched a", "fetched b", "fetched c"]


def spent(record):
    return record.budgets[0]["spent"]


def test_a_process_killed_in_a_step_is_followed_by_one_that_goes_on_with_it(
    sending, agentstate_clock
):
    sending.hold("b")
    sent = sending("report", PAGES)
    os.kill(sending.who_is_in("b"), signal.SIGKILL)
    # The worker gives the message back at once; the lease of the dead is still there.
    sending.asked_again(sent)
    sending.go("b")
    agentstate_clock.advance(seconds=LONG_TTL + 1)

    assert sent.get(WAIT_SECONDS) == PAGES
    assert sending.did == WHOLE
    record = sending.run_of(sent)
    assert (record.status, record.attempt, spent(record)) == ("completed", 2, 30)


def test_a_worker_killed_with_all_its_processes_is_followed_by_another_worker(
    sending, agentstate_clock, celery_environment, tmp_path
):
    environment = celery_environment | {"VISIBILITY_SECONDS": "1"}
    first = CeleryWorker("celery_app", "dies1", environment, tmp_path, processes=1)
    second = None
    try:
        first.ready()
        sending.hold("b")
        sent = sending("report", PAGES, queue="dies")
        sending.who_is_in("b")
        first.kill()
        sending.go("b")
        agentstate_clock.advance(seconds=LONG_TTL + 1)
        # What Redis has not heard of for a second it gives to the next one that comes.
        second = CeleryWorker("celery_app", "dies2", environment, tmp_path, processes=1).ready()
        assert sent.get(WAIT_SECONDS) == PAGES
    finally:
        first.kill()
        if second is not None:
            second.kill()
    assert sending.did == WHOLE
    record = sending.run_of(sent)
    assert (record.attempt, spent(record)) == (2, 30)


def test_a_second_delivery_waits_for_the_first_and_finds_it_done(sending):
    sending.hold("b")
    sent = sending("report", PAGES)
    sending.who_is_in("b")
    again = sending("report", PAGES, task_id=sent.id)
    sending.asked_again(sent)
    sending.go("b")

    assert sent.get(WAIT_SECONDS) == again.get(WAIT_SECONDS) == PAGES
    sending.says(f"celery-{sent.id} is completed, and Celery knows it")
    assert sending.did == WHOLE
    assert sending.run_of(sent).attempt == 1


def test_many_deliveries_of_a_message_are_not_as_many_that_ask_again(sending):
    held = sending.server.client("other").create(task="x", key="celery-often").acquire()
    with held:
        for _ in range(12):
            sent = sending("trying_always", task_id="often")
        sending.says("celery-often is asked for again already", times=10)
        # One of each process of the worker goes on asking.
        assert sending.worker.text.count("celery-often is asked for again in 1.0 s") == 2
    assert sent.get(WAIT_SECONDS) == "done"
    assert sending.did == ["fetched first", "fetched second"]


def test_who_was_stopped_and_overtaken_writes_nothing_when_it_wakes_up(sending, agentstate_clock):
    sending.hold("b")
    chained = (sending.signature("report", PAGES) | sending.signature("after")).apply_async()
    sent = chained.parent
    stopped = sending.who_is_in("b")
    os.kill(stopped, signal.SIGSTOP)
    try:
        agentstate_clock.advance(seconds=LONG_TTL + 1)
        sending.send_again(chained, PAGES)
        sending.who_is_in("b", times=2)
        sending.go("b")
        assert chained.get(WAIT_SECONDS) == len(PAGES)
        written = sending.events_of(sent)
    finally:
        os.kill(stopped, signal.SIGCONT)
    # It fetches the page that it was at, and learns from the store that it is not its any more.
    sending.did_times("fetched b", 2)
    sending.says(f"celery-{sent.id} is completed, and Celery knows it")

    assert sending.events_of(sent) == written
    assert sending.did == [*WHOLE, "fetched after", "fetched b"]
    assert (spent(sending.run_of(sent)), sent.state) == (30, "SUCCESS")


def test_what_is_delivered_once_more_after_its_end_does_nothing(sending):
    chained = (sending.signature("report", PAGES) | sending.signature("after")).apply_async()
    assert chained.get(WAIT_SECONDS) == 3
    sending.send_again(chained, PAGES)
    sending.says(f"celery-{chained.parent.id} is completed, and Celery knows it")
    assert sending.did == [*WHOLE, "fetched after"]


def test_what_ended_without_celerys_knowing_is_replayed_with_what_follows(sending):
    chained = (sending.signature("report", PAGES) | sending.signature("after")).apply_async()
    assert chained.get(WAIT_SECONDS) == 3
    # As when the worker is killed between the run's end and Celery's.
    chained.parent.forget()
    chained.forget()
    sending.send_again(chained, PAGES)
    sending.succeeded(chained.parent, times=2)
    sending.succeeded(chained, times=2)

    assert (chained.parent.get(WAIT_SECONDS), chained.get(WAIT_SECONDS)) == (PAGES, 3)
    assert sending.did == [*WHOLE, "fetched after"]
    assert sending.run_of(chained.parent).attempt == sending.run_of(chained).attempt == 1


def test_a_task_that_kills_its_process_is_not_given_out_for_ever(sending, agentstate_clock):
    sent = sending("deadly")
    sending.asked_again(sent)
    agentstate_clock.advance(seconds=LONG_TTL + 1)
    sending.did_times("begun", 2)
    agentstate_clock.advance(seconds=LONG_TTL + 1)
    with pytest.raises(AttemptsExhausted):
        sent.get(WAIT_SECONDS)
    assert [line.split()[0] for line in sending.did] == ["begun", "begun"]


def test_a_hard_time_limit_leaves_a_run_with_which_the_same_id_goes_on(sending, agentstate_clock):
    sending.hold("second")
    sent = sending("slow")
    with pytest.raises(TimeLimitExceeded):
        sent.get(WAIT_SECONDS)
    assert sending.run_of(sent).status == "running"
    sending.go("second")
    agentstate_clock.advance(seconds=LONG_TTL + 1)
    sending("slow", task_id=sent.id)
    sending.succeeded(sent, times=1)
    assert sending.run_of(sent).status == "completed"
    assert sending.did == ["fetched first", "fetched second"]


def test_a_step_overtaken_by_an_operators_reclaim_is_not_celerys_failure(sending):
    sending.hold("b")
    sent = sending("report", PAGES)
    sending.who_is_in("b")
    record = sending.run_of(sent)
    operate(
        sending.server,
        f"leases/run:{record.key}/reclaim",
        {"expected_token": record.token, "expected_owner": record.owner, "reason": "it is stuck",
         "force": True},
    )  # fmt: skip
    sending.go("b")
    assert sent.get(WAIT_SECONDS) == PAGES
    assert sending.did == ["fetched a", "fetched b", "fetched b", "fetched c"]
    assert spent(sending.run_of(sent)) == 30
