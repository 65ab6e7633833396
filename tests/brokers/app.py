"""The product's Celery app with one task more: one that tells when it begins and ends when it may.

Started as `celery -A tests.brokers.app worker`. The visibility timeout is shortened here, because
the one of the product is longer than a test.
"""

import os
import time
from pathlib import Path

from agentstate.store.callers import SYSTEM, Circumstances
from agentstate.store.commands import Append, NewEvent
from agentstate.store.execute import execute
from tasks.app import app

VISIBILITY_SECONDS = 3
LONGEST_SECONDS = 200

app.conf.broker_transport_options = {
    **app.conf.broker_transport_options,
    "visibility_timeout": VISIBILITY_SECONDS,
}


@app.task(name="test.append_slowly", ignore_result=True)
def append_slowly(*, run: str, folder: str) -> None:
    """One event under one idempotency key, then wait for the file `go`. Leaves the files
    `began-…` and `ended-…` in the folder, one for each start.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    under = Circumstances(idempotency_key="the-one", fingerprint=b"1")
    execute(Append(run=run, events=(NewEvent(type="a.b"),)), by=SYSTEM, under=under)
    (Path(folder) / f"began-{mark}").touch()
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    (Path(folder) / f"ended-{mark}").touch()
