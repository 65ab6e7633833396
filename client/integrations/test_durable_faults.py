"""A durable function in a process of its own is killed, stopped, overtaken and cancelled."""

from __future__ import annotations

import signal

import pytest
from conftest import LONG_TTL, only_run, operate

WHOLE = ["fetched a", "fetched b", "fetched c"]
RETURNED = "returned ['a', 'b', 'c']"
# It is renewed every two seconds, so that it hears what an operator wants.
HEARING_TTL = 6


@pytest.fixture(params=["sync", "async"])
def begin(request, agentstate_server, starting, tmp_path):
    """begin(): the function in another process."""

    def started(ttl_seconds=LONG_TTL):
        return starting("durable_process.py", agentstate_server.url, agentstate_server.key,
                        tmp_path, ttl_seconds, request.param)  # fmt: skip

    return started


def did(folder):
    return (folder / "did").read_text().splitlines()


def over(program):
    program.until(lambda: program.process.poll() is not None)
    return program.process.returncode


def test_a_call_whose_process_was_killed_in_a_step_goes_on_with_that_step(
    begin, agentstate_server, agentstate_clock, tmp_path
):
    (tmp_path / "hold-b").touch()
    first = begin()
    first.says("in b")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(30)
    (tmp_path / "hold-b").unlink()

    early = begin()
    assert (over(early), early.text) == (3, "refused LeaseHeld\n")
    agentstate_clock.advance(seconds=LONG_TTL + 1)
    second = begin()
    assert over(second) == 0, second.text
    assert RETURNED in second.text
    assert did(tmp_path) == WHOLE
    record = only_run(agentstate_server).read()
    assert (record.status, record.attempt) == ("completed", 2)


def test_who_was_stopped_for_longer_than_its_lease_writes_nothing_when_it_wakes_up(
    begin, agentstate_server, agentstate_clock, tmp_path
):
    (tmp_path / "hold-b").touch()
    stopped = begin()
    stopped.says("in b")
    stopped.process.send_signal(signal.SIGSTOP)
    agentstate_clock.advance(seconds=LONG_TTL + 1)
    second = begin()
    second.says("in b")
    (tmp_path / "hold-b").unlink()
    assert over(second) == 0, second.text
    run = only_run(agentstate_server)
    written = [(event.seq, event.raw) for event in run.events()]

    stopped.process.send_signal(signal.SIGCONT)
    assert over(stopped) == 3, stopped.text
    # It had fetched its page, and was told that the run is not its any more.
    assert stopped.text.splitlines()[-2:] in (
        ["fetched b", "refused LeaseLost"],
        ["fetched b", "refused StaleFence"],
        ["fetched b", "refused AlreadyTerminal"],
    )
    assert [(event.seq, event.raw) for event in run.events()] == written
    assert did(tmp_path) == [*WHOLE, "fetched b"]


def test_an_operators_cancel_ends_it_before_its_next_step(begin, agentstate_server, tmp_path):
    (tmp_path / "hold-b").touch()
    program = begin(HEARING_TTL)
    program.says("in b")
    run = only_run(agentstate_server)
    asked = {"signal": "cancel", "reason": "not wanted"}
    operate(agentstate_server, f"runs/{run.key}/signals", asked)
    assert over(program) == 3, program.text
    assert program.text.splitlines()[-1] == "refused CancelRequested"
    record = run.read()
    assert (record.status, record.result) == ("cancelled", {"reason": "not wanted"})
    assert did(tmp_path) == WHOLE[:2]

    again = begin()
    assert (over(again), again.text) == (3, "refused CallEnded\n")
    assert did(tmp_path) == WHOLE[:2]
