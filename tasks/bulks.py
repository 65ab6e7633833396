"""Bulks by the clock, and as soon as one is begun: each start takes a few steps of what waits.

How often: tasks/schedule.py.
"""

from __future__ import annotations

import time

from agentstate.store import bulks
from agentstate.store.bulks import Claim
from agentstate.store.upkeep import beat
from tasks.app import app

# A start works for so long, and the next one goes on: what else is scheduled gets its turn, and so
# does a bulk that was begun meanwhile.
SLICE_SECONDS = 6.0
# After each step it rests as long as the step took: half of what one worker of ours could do to the
# database is left to everybody else.
REST = 1.0
REST_SECONDS_MAX = 2.0


@app.task(name="agentstate.work_bulks", ignore_result=True, time_limit=120)
def work_bulks(**_newer: object) -> None:
    """Go on with the bulk that waits the longest, for 6 s. Every 2 s: while somebody is at one,
    nobody else begins. Killed anywhere, the next start goes on once the claim is over (15 s), and
    no run is done twice. Twice is safe, late only ends a bulk later, and when it does not come,
    the bulk's page says that it waits.
    """
    with beat(bulks.JOB) as this:
        claim = bulks.claim()
        if claim is not None:
            this.did = work(claim, seconds=SLICE_SECONDS)
        this.behind = bulks.left()


def work(claim: Claim, *, seconds: float, rest: float = REST) -> int:
    """Take steps of one bulk for so long, and let go of it; how many rows."""
    ends, rows = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        began = time.monotonic()
        took = bulks.step(claim)
        if took is None:
            break
        rows += took
        time.sleep(min((time.monotonic() - began) * rest, REST_SECONDS_MAX))
    bulks.release(claim)
    return rows
