"""The Celery app of `kills.py` and `twice.py`: a task that works on one run, with the client.

A task that finds its run held asks Celery to be given out again when the lease will be over. The
API key is the worker's own AGENTSTATE_KEY and never in a message.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentstate_client import AlreadyTerminal, AttemptsExhausted, Charge, Client, Event, LeaseHeld

from tasks.app import app

LONGEST_SECONDS = 180.0
PAUSE_MIN_SECONDS = 0.2

if shorter := os.environ.get("AGENTSTATE_CASE_VISIBILITY_SECONDS"):
    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "visibility_timeout": int(shorter),
    }


@app.task(name="case.work", bind=True, ignore_result=True, max_retries=None)
def work(self: Any, *, url: str, run: str, folder: str, ttl_seconds: int = 30) -> None:
    """Take the run and work until the file `go-<run>` is there; each step leaves a line.

    Twice, late or never is safe: only who has the lease works, and it charges once.
    """
    with Client(url, os.environ["AGENTSTATE_KEY"], worker=f"case-{os.getpid()}") as client:
        try:
            held = client.run(run).acquire(ttl_seconds=ttl_seconds)
        except LeaseHeld as found:
            seconds = max(PAUSE_MIN_SECONDS, (found.expires_in_ms or 0) / 1_000)
            note(folder, "waits", run, seconds)
            raise self.retry(countdown=seconds) from None
        except AttemptsExhausted:
            client.claim(tag=run)  # who looks for work is given none of it, and it is failed
            note(folder, "over", run)
            return
        except AlreadyTerminal:
            note(folder, "over", run)
            return
        if held.read().status == "pending":
            held.start()
        note(folder, "works", run)
        ends_at = time.monotonic() + LONGEST_SECONDS
        while not Path(folder, f"go-{run}").exists() and time.monotonic() < ends_at:
            threading.Event().wait(0.02)
        held.append(Event("step.done"), spend=Charge("tokens", 1))
        held.complete()
        note(folder, "done", run)


def note(folder: str, what: str, run: str, *more: object) -> None:
    at = datetime.now(UTC).timestamp()
    line = " ".join(map(str, (f"{at:.3f}", what, run, os.getpid(), *more)))
    with Path(folder, "notes").open("a") as notes:
        notes.write(line + "\n")
