"""The simulated fleet on Celery: a shift of a worker as a task, for as many machines as there are.

The shift runs in a process of its own under the task, because it is made to be killed: a dead child
of the pool would cost Celery a process, and the task would come back only after the broker's
visibility timeout. Queue `fleet`, so that shifts never hold up the sweeps:
`celery -A tasks.app worker -Q fleet`. Why: docs/decisions/0008-simulated-fleet.md.
"""

from __future__ import annotations

import os
import subprocess
import sys

from agentstate import where
from tasks.app import app
from tasks.simulate.scenario import names

# Well below the broker's visibility timeout (600 s): a longer task would be given out twice.
SECONDS_MAX = 300
GRACE_SECONDS = 30


@app.task(
    name="agentstate.work_shift",
    ignore_result=True,
    time_limit=SECONDS_MAX + 2 * GRACE_SECONDS,
)
def work_shift(
    *,
    url: str,
    seconds: float = 60,
    workers: int = 1,
    speed: float = 1.0,
    seed: int = 1,
    crash_rate: float = 2,
    freeze_rate: float = 1,
    race_rate: float = 2,
    scenario: str = "calm",
    **_newer: object,
) -> None:
    """Simulated workers at `url` for `seconds`; rates of faults are per minute, others as the
    scenario (one that comes with the project) says. The API key is the worker's own
    AGENTSTATE_KEY and never in a message. Sent by hand or by a schedule of one's own.
    Twice is safe: there is one more worker, under another name. Late or never: one fewer.
    """
    if scenario not in names():  # a message shall name no file
        raise ValueError(f"scenario: one of {', '.join(names())}")
    seconds = min(seconds, SECONDS_MAX)
    options = {
        "url": url,
        "seconds": seconds,
        "workers": workers,
        "speed": speed,
        "seed": seed,
        "crash-rate": crash_rate,
        "freeze-rate": freeze_rate,
        "race-rate": race_rate,
        "scenario": scenario,
    }
    command = [sys.executable, "-m", "tasks.simulate"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    subprocess.run(
        command,
        cwd=where.BASE,
        # What this process can import, it can: the client may be on the path without an install.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=True,
        timeout=seconds + GRACE_SECONDS,
    )
