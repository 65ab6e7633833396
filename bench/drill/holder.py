"""A worker that holds one run, to be killed or frozen: `python -m bench.drill.holder URL RUN TTL`.

It writes each step once a second. When it was frozen past its lease it sends its step all the same,
past the client's own check: what a worker without such a check would do. Its key: AGENTSTATE_KEY.
"""

from __future__ import annotations

import os
import sys
import time

from agentstate_client import Client, Event, LeaseLost, StaleFence

from tasks.simulate import plain
from tasks.simulate.shift import Shift

STEP_SECONDS = 1.0


def hold(url: str, run: str, ttl_seconds: int) -> str:
    """Until the lease is lost; the code of the refusal of the write that came too late."""
    key = os.environ["AGENTSTATE_KEY"]
    with Client(url, key, worker="drill-holder") as client:
        held = client.run(run).acquire(ttl_seconds=ttl_seconds)
        assert held.lease is not None
        token, step = held.lease.token, 0
        while True:
            step += 1
            try:
                held.append(Event("drill.step", {"step": step}))
            except (LeaseLost, StaleFence):
                document = {"events": [{"type": "drill.step", "data": {"step": step}}]}
                shift, path = Shift(url=url, key=key), f"runs/{run}/events"
                return plain.send(shift, "POST", path, document, fence=token)[0]
            print(f"step {step} under token {token} by {client.owner}", flush=True)
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    print(hold(sys.argv[1], sys.argv[2], int(sys.argv[3])), flush=True)
