"""Alerts by the clock: they are judged, and what people outside are to be told goes out.

How often: tasks/schedule.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

from agentstate.outside.sending import send
from agentstate.store import alerts, deliveries
from agentstate.store.deliveries import Claim
from agentstate.store.delivering import Answer
from agentstate.store.upkeep import beat
from tasks.app import app
from tasks.upkeep import periodic

log = logging.getLogger(__name__)


@app.task(name="agentstate.evaluate_alerts", ignore_result=True, time_limit=60)
@periodic(alerts.JOB)
def evaluate_alerts(**_newer: object) -> None:
    """Judge every alert by its figure. Every 15 s. Twice at once is safe (one evaluates, the other
    goes), late only tells people later, and when it does not come the page says so itself.
    """
    with beat(alerts.JOB) as this:
        this.did = len(alerts.evaluate_all() or ())
        this.behind = 0  # it looks at all of them, or at none


# A start takes so many at once, and takes more for so long; the next one goes on with it.
DELIVERIES_AT_ONCE = 12
DELIVERING_SECONDS = 20.0


@app.task(name="agentstate.deliver_alerts", ignore_result=True, time_limit=80)
def deliver_alerts(**_newer: object) -> None:
    """Try what is due, at most for 20 s and what a try takes. Every 5 s. Two at once share the
    deliveries; killed in a try, that one is tried again when its claim is over, and the receiver
    knows it again by its id. Late only tells people later, and when it does not come, what waits
    stands on the page.
    """
    with beat(deliveries.JOB) as this:
        ends = time.monotonic() + DELIVERING_SECONDS
        while claims := deliveries.claim(limit=DELIVERIES_AT_ONCE):
            for claim, answer in try_all(claims):
                deliveries.settle(claim, answer)
                this.did += 1
            if time.monotonic() >= ends:
                break
        this.behind = deliveries.count_due()


def try_all(claims: list[Claim]) -> Iterator[tuple[Claim, Answer]]:
    """Try all of them side by side; each is given out as soon as its try is over.

    Between two of them the loop rests, so that the database may be asked.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        trying = {loop.create_task(send(claim)): claim for claim in claims}
        while trying:
            done, _ = runner.run(_first_of(set(trying)))
            for task in done:
                yield trying.pop(task), _answer_of(task)


async def _first_of[T](tasks: set[asyncio.Task[T]]) -> tuple[set[asyncio.Task[T]], object]:
    return await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _answer_of(task: asyncio.Task[Answer]) -> Answer:
    broken = task.exception()
    if broken is None:
        return task.result()
    log.error("a try to deliver failed by a fault of ours", exc_info=broken)
    return Answer(arrived=False, text="a fault of ours: see the log of the workers")
