"""Our own jobs leave a heartbeat, and one that is silent is seen."""

import pytest
from django.db import OperationalError

from agentstate.store import feed, reads, upkeep
from agentstate.store.errors import Unavailable
from agentstate.store.execute import moving_the_feed
from agentstate.store.upkeep import FrequentBeat, beat, in_short
from tests.store.asking import rows
from tests.store.waiting import wait_for

NAME = "note lapsed leases"


def seen(name=NAME):
    (found,) = [beat for beat in reads.heartbeats() if beat.name == name]
    return found


def test_a_pass_says_when_it_was_and_what_it_did(store, clock):
    with beat(NAME) as this:
        assert seen().running
        clock.advance(seconds=2)
        this.did, this.behind = 7, 3

    found = seen()
    assert (found.did, found.behind, found.passes, found.took_ms) == (7, 3, 1, 2_000)
    assert (found.ended_at, found.running, found.silent) == (clock.now, False, False)


def test_a_pass_that_failed_says_why_and_the_next_one_clears_it(store, clock):
    with pytest.raises(Unavailable), beat(NAME):
        raise Unavailable("not now")
    assert (seen().failed, seen().running) == ("refused: unavailable", False)
    with beat(NAME):
        pass
    assert (seen().failed, seen().passes) == (None, 2)


def test_nothing_for_three_periods_and_five_seconds_is_silence(store, clock):
    with beat(NAME):
        pass
    clock.advance(seconds=20)
    assert not seen().silent
    clock.advance(seconds=0.001)
    assert seen().silent


def test_a_job_that_never_ran_is_listed_and_waited_for_since_the_last_migration(store, clock):
    (applied,) = rows("SELECT max(applied) FROM django_migrations WHERE app = 'agentstate'")[0]
    clock.set(applied)
    assert (seen().started_at, seen().passes, seen().silent) == (None, 0, False)
    clock.advance(seconds=21)
    assert seen().silent
    assert not seen("make partitions").silent


def test_a_job_that_is_no_more_is_listed_and_not_waited_for(store, clock, monkeypatch):
    monkeypatch.setitem(upkeep.JOBS, "of the last release", 5)
    with upkeep.beat("of the last release"):
        pass
    monkeypatch.undo()
    clock.advance(hours=1)
    (job,) = [job for job in reads.heartbeats() if job.name == "of the last release"]
    assert not job.silent


def test_a_heartbeat_that_cannot_be_written_stops_no_job(store, monkeypatch):
    monkeypatch.setattr(upkeep, "_BEGIN", "SELECT 1/0")
    with beat(NAME) as this:
        this.did = 1
    assert seen().passes == 0


def test_a_frequent_job_writes_once_a_period_and_adds_up(store, clock, monkeypatch):
    at = [100.0]
    monkeypatch.setattr(upkeep.time, "monotonic", lambda: at[0])
    moving = FrequentBeat("move feed")
    for _ in range(3):
        moving.note(2)
    assert (seen("move feed").passes, seen("move feed").did) == (1, 2)
    at[0] += 5
    moving.note(1)
    assert (seen("move feed").passes, seen("move feed").did) == (4, 5)


def test_the_movers_thread_has_one(store, monkeypatch):
    monkeypatch.setattr(feed.MOVER, "_beat", FrequentBeat("move feed"))
    with moving_the_feed():
        store.create("42")
        wait_for(lambda: seen("move feed").passes)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OperationalError("cannot connect\nDETAIL: row (1, 'x')"),
            "OperationalError: cannot connect",
        ),
        (ValueError("to postgresql://me:pw@db/x"), "ValueError: to postgresql://…db/x"),
        (ValueError("password=pw host=db"), "ValueError: password=… host=db"),
        (KeyError(), "KeyError"),
        (ValueError("x" * 999), "ValueError: " + "x" * 188),
    ],
)
def test_a_failure_is_told_in_one_short_line_without_secrets(error, told):
    assert in_short(error) == told
