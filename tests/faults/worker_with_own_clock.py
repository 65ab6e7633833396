"""A worker built on the client, as a process of its own whose clock is somebody else's business.

    python worker_with_own_clock.py URL RUN TTL_SECONDS RATE   (the API key comes in WORKER_KEY)

Takes the run and writes four events, each when a line came in; then it waits until its lease is
over by itself. Tells what it does in JSON lines. RATE: how fast its monotonic clock runs; its wall
clock is libfaketime's.
"""

import json
import os
import sys
import threading
import time

from agentstate_client import Client, Event, LeaseLost, clock


def tell(**facts: object) -> None:
    # The machine's own uptime comes from a file, so nobody's clock has a part in it.
    with open("/proc/uptime") as file:
        uptime_seconds = float(file.read().split()[0])
    # What this process takes for the time is told too, so that the test can see that it is wrong.
    print(json.dumps({"uptime": uptime_seconds, "wall": time.time(), **facts}), flush=True)


def run_clock_at(rate: float) -> None:
    real, began = clock.now, clock.now()
    clock.now = lambda: began + (real() - began) * rate


def main(url: str, key: str, ttl_seconds: int, rate: float) -> None:
    # Under libfaketime 0.9.10 clock_nanosleep with a moment refuses, which is what sleep uses.
    time.sleep = lambda seconds: threading.Event().wait(seconds)
    run_clock_at(rate)
    with Client(url, os.environ["WORKER_KEY"], worker=key) as client:
        run = client.run(key).acquire(ttl_seconds=ttl_seconds)
        run.start()
        lease = run.lease
        tell(said="held", token=lease.token)
        for number in range(4):
            sys.stdin.readline()
            appended = run.append(Event("step", {"number": number}))
            tell(said="wrote", seq=appended.last_seq, remaining=lease.remaining_seconds)
        sys.stdin.readline()
        lease.lost.wait(60)
        tell(said="lost", lost=lease.lost.is_set())
        try:
            run.append(Event("too-late"))
        except LeaseLost as lost:
            tell(said="refused", reason=lost.reason)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
