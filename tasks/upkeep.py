"""The periodic tasks: each gives the store one command, and none of them decides anything.

Whether a lease is over, what the feed's next position is, which answer is too old: the store knows,
whenever it is asked. So each of these may be late, come twice, or not come at all. How often they
are started: tasks/schedule.py.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings

from agentstate.otlp import ending
from agentstate.store import backlog, feed, partitions, retention
from agentstate.store.ages import AGES
from agentstate.store.callers import SWEEP
from agentstate.store.commands import CarryOutDeadlines, DropDeadHolds, NoteLapsed
from agentstate.store.execute import execute
from agentstate.store.upkeep import FrequentBeat, beat, is_due
from tasks.app import app

# A start cleans up for so long at most, in passes of so many rows; the next one goes on with it.
PURGE_SECONDS = 60.0
PURGE_ROWS = 1_000

_MOVING = FrequentBeat("move feed")


def periodic(job: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a task be started by the clock: with `when_due` it does nothing if the job (one of JOBS)
    began within half its period. So two beats, or a queue of old starts, have the effect of one.
    """

    def wrap(task: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(task)
        def start(*, when_due: bool = False, **kwargs: Any) -> None:
            if not when_due or is_due(job):
                task(**kwargs)

        return start

    return wrap


@app.task(name="agentstate.note_lapsed_leases", ignore_result=True, time_limit=30)
@periodic("note lapsed leases")
def note_lapsed_leases(*, limit: int = 500, **_newer: object) -> None:
    """Record the leases that ran out unseen. Every 5 s. Twice, late or never is safe: acquire
    treats a lapsed lease as free already; this only tells people.
    """
    with beat("note lapsed leases") as this:
        this.did = execute(NoteLapsed(limit=limit), by=SWEEP).lapsed
        this.behind = backlog.lapsed(this.late_from)


@app.task(name="agentstate.end_quiet_traces", ignore_result=True, time_limit=60)
@periodic("end quiet traces")
def end_quiet_traces(**_newer: object) -> None:
    """End the runs of traces to which no span has come for long. Every 30 s. Twice is safe: an
    ended run is not quiet any more. Late only ends them later; without it they stay running.
    """
    with beat("end quiet traces") as this:
        this.did = ending.end_quiet(
            quiet_seconds=settings.TRACE_QUIET_SECONDS, idle_seconds=settings.TRACE_IDLE_SECONDS
        )
        this.behind = 0 if this.did < ending.LIMIT else None


@app.task(name="agentstate.carry_out_deadlines", ignore_result=True, time_limit=30)
@periodic("carry out deadlines")
def carry_out_deadlines(*, limit: int = 200, **_newer: object) -> None:
    """Fail or cancel the runs whose deadline has passed, where their policy says so. Every 5 s.
    Twice is safe: an ended run has no deadline any more. Late only ends them later.
    """
    with beat("carry out deadlines") as this:
        done = execute(CarryOutDeadlines(limit=limit), by=SWEEP)
        this.did = done.failed + done.cancelled
        this.behind = backlog.overdue(this.late_from)


@app.task(name="agentstate.drop_dead_holds", ignore_result=True, time_limit=30)
@periodic("drop dead holds")
def drop_dead_holds(*, limit: int = 500, **_newer: object) -> None:
    """Give back what dead workers hold of budgets. Every 10 s. Twice, late or never is safe: a
    charge that would be refused looks for dead holds itself.
    """
    with beat("drop dead holds") as this:
        this.did = execute(DropDeadHolds(limit=limit), by=SWEEP).holds
        this.behind = backlog.dead_holds(this.late_from)


@app.task(name="agentstate.move_feed", ignore_result=True, time_limit=30)
def move_feed(**_newer: object) -> None:
    """Move what waits in the outbox to the feed. Every second, behind the mover thread of each
    web process. Twice is safe (one mover at a time), late only delays readers, and without it
    the feed moves as soon as a web process writes again.
    """
    moved = feed.move()
    _MOVING.note(len(moved.runs) if moved else 0, behind=backlog.unmoved)


@app.task(name="agentstate.make_partitions", ignore_result=True, time_limit=60)
@periodic("make partitions")
def make_partitions(**_newer: object) -> None:
    """Make the coming weeks' partitions of the event table. Hourly. Twice or late is safe: there
    are eight weeks in hand, and after those a write makes the one that it needs.
    """
    with beat("make partitions") as this:
        this.did = len(partitions.ensure_ahead())
        this.behind = max(0, partitions.WEEKS_AHEAD - partitions.weeks_ahead())


@app.task(name="agentstate.purge", ignore_result=True, time_limit=240)
@periodic("purge what is past its age")
def purge(**_newer: object) -> None:
    """Delete what is past its age (`ages.AGES`), pass by pass and at most for a minute. Every
    five minutes. Twice at once share the work; late or never is safe: what is past its age is not
    looked at, or only shown longer; it takes room.
    """
    with beat("purge what is past its age") as this:
        ends = time.monotonic() + PURGE_SECONDS
        todo = list(AGES)
        while todo and (time.monotonic() < ends or not this.did):
            went = {kind: retention.purge(kind, limit=PURGE_ROWS) for kind in todo}
            this.did += sum(went.values())
            todo = [kind for kind in todo if went[kind] == PURGE_ROWS]
        this.behind = sum(kind.due for kind in retention.progress()) if todo else 0


@app.task(name="agentstate.drop_old_weeks", ignore_result=True, time_limit=240)
@periodic("drop weeks that are over")
def drop_old_weeks(**_newer: object) -> None:
    """Work on weeks of which every run has ended and expired, at most for a minute. Every five
    minutes. Two at once: one works. Late or never is safe: their runs are hidden already.
    """
    with beat("drop weeks that are over") as this:
        ends = time.monotonic() + PURGE_SECONDS
        done = retention.drop_oldest_week(limit=PURGE_ROWS)
        while done is not None:
            this.did += done.rows
            if time.monotonic() >= ends:
                break
            done = retention.drop_oldest_week(limit=PURGE_ROWS)
        this.behind = sum(not week.keeping for week in retention.weeks())
