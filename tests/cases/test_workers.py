"""A worker as a process of its own whose work starves everything else in it."""

import os
import subprocess
import sys
from pathlib import Path

import agentstate_client
import pytest
from agentstate_client import Event

from tests.client.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.many]

# One regular expression keeps the interpreter for as long as it matches: no thread renews then.
STARVED = """
import re, sys, threading, time
from agentstate_client import Client, Event, LeaseLost, StaleFence

def match_for_long():
    length, took = 18, 0.0
    while took < 4:
        began = time.monotonic()
        re.match("(a+)+$", "a" * length + "b")
        took = time.monotonic() - began
        length += 1 if took > 1 else 2

client = Client(sys.argv[1], sys.stdin.readline().strip(), worker="starved")
(run,) = client.claim(ttl_seconds=2)
print("claimed", flush=True)
work = threading.Thread(target=match_for_long)
work.start()
work.join()
for write in (lambda: run.append(Event("late")), run.complete):
    try:
        write()
        print("written", flush=True)
    except (LeaseLost, StaleFence) as refused:
        print(refused.code, flush=True)
"""


@pytest.fixture
def starved(live_server, api_key):
    source = str(Path(agentstate_client.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-c", STARVED, live_server.url], text=True, bufsize=1,
        env={**os.environ, "PYTHONPATH": source}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    process.stdin.write(f"{api_key}\n")
    yield process
    process.kill()
    process.communicate()


def test_work_that_starves_its_own_renewals_has_lost_the_run_before_its_next_write(worker, starved):
    """O-05 (c): nothing can renew while one regular expression matches, so another one goes on."""
    other = worker("w-2")
    made = other.create(task="t", key="42")
    assert starved.stdout.readline() == "claimed\n"
    claimed = []
    wait_for(lambda: claimed or claimed.extend(other.claim(ttl_seconds=60)), deadline_seconds=60)
    (run,) = claimed
    run.append(Event("mine"))

    assert [starved.stdout.readline() for _ in range(2)] == ["lease-lost\n"] * 2
    run.complete()
    assert [e.type for e in made.events(origin="worker")] == ["mine"]
    assert made.read().status == "completed"
