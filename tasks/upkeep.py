"""The periodic tasks: each gives the store one command, and none of them decides anything.

Whether a lease is over, what the feed's next position is, which answer is too old: the store knows,
whenever it is asked. So each of these may be late, come twice, or not come at all. How often they
are started: tasks/schedule.py.
"""

from __future__ import annotations

from agentstate.store import feed, partitions, upkeep
from agentstate.store.callers import SWEEP
from agentstate.store.commands import CarryOutDeadlines, DropDeadHolds, NoteLapsed
from agentstate.store.execute import execute
from tasks.app import app

# A pass is bounded; what is left waits for the next one.
PURGE_PASSES = 20
PURGE_ROWS = 1_000


@app.task(name="agentstate.note_lapsed_leases", ignore_result=True, time_limit=30)
def note_lapsed_leases(*, limit: int = 500, **_newer: object) -> None:
    """Record the leases that ran out unseen. Every 5 s. Twice, late or never is safe: acquire
    treats a lapsed lease as free already; this only tells people.
    """
    execute(NoteLapsed(limit=limit), by=SWEEP)


@app.task(name="agentstate.carry_out_deadlines", ignore_result=True, time_limit=30)
def carry_out_deadlines(*, limit: int = 200, **_newer: object) -> None:
    """Fail or cancel the runs whose deadline has passed, where their policy says so. Every 5 s.
    Twice is safe: an ended run has no deadline any more. Late only ends them later.
    """
    execute(CarryOutDeadlines(limit=limit), by=SWEEP)


@app.task(name="agentstate.drop_dead_holds", ignore_result=True, time_limit=30)
def drop_dead_holds(*, limit: int = 500, **_newer: object) -> None:
    """Give back what dead workers hold of budgets. Every 10 s. Twice, late or never is safe: a
    charge that would be refused looks for dead holds itself.
    """
    execute(DropDeadHolds(limit=limit), by=SWEEP)


@app.task(name="agentstate.move_feed", ignore_result=True, time_limit=30)
def move_feed(**_newer: object) -> None:
    """Move what waits in the outbox to the feed. Every second, behind the mover thread of each
    web process. Twice is safe (one mover at a time), late only delays readers, and without it
    the feed moves as soon as a web process writes again.
    """
    feed.move()


@app.task(name="agentstate.make_partitions", ignore_result=True, time_limit=60)
def make_partitions(**_newer: object) -> None:
    """Make the coming weeks' partitions of the event table. Hourly. Twice or late is safe: there
    are eight weeks in hand, and after those a write makes the one that it needs.
    """
    partitions.ensure_ahead()


@app.task(name="agentstate.purge_idempotency", ignore_result=True, time_limit=120)
def purge_idempotency(**_newer: object) -> None:
    """Delete answers whose 24 h are over. Hourly, at most PURGE_PASSES times PURGE_ROWS at a time.
    Twice, late or never is safe: an expired one is not looked at; it only takes room.
    """
    for _ in range(PURGE_PASSES):
        if upkeep.purge_idempotency(limit=PURGE_ROWS) < PURGE_ROWS:
            return
