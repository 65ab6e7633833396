"""Workers whose clocks are wrong: what is stored, and who may write until when, is the same.

Wall clocks are libfaketime's. A monotonic clock that it fakes as well stops Python altogether
(0.9.10, deadlock in the first wait), so that one is made fast or slow in the client itself, which
reads it in one place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentstate.store.rows import unit_of
from tests.api.asking import new_key
from tests.api.serving import serving
from tests.bootstrap.conftest import ROOT, eventually
from tests.client.proxy import Proxy
from tests.store.asking import Asking, rows

WORKER = Path(__file__).with_name("worker_with_own_clock.py")
TTL_SECONDS = 5
HOURS = 3_600
JUMPS = ("+0", "+5h", "-5h", "+1d", "-1d")
WORK_SECONDS = 6.0  # longer than a lease, so that each was renewed
# Of how a wall clock is wrong: what libfaketime is told, and how fast the monotonic one runs.
RIGHT = ("+0", 1.0)
CLOCKS: dict[str, tuple[str, float]] = {
    "5-hours-ahead": ("+5h", 1.0),
    "5-hours-behind": ("-5h", 1.0),
    "half-as-fast-again": ("+0 x1.5", 1.0),
    "half-as-fast": ("+0 x0.5", 1.0),
    "jumps": ("", 1.0),
    "monotonic-half-as-fast-again": ("+0", 1.5),
    "monotonic-a-twentieth-slow": ("+0", 0.95),
}


def library() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is not here: install the package faketime (apt-get install faketime)"
    return str(found[0])


@dataclass
class Worker:
    """A process with a clock of its own. told: what it said, a JSON line each."""

    name: str
    process: subprocess.Popen[str]
    jumps_in: Path
    told: list[dict[str, Any]] = field(default_factory=list)

    def next(self, said: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended with {self.process.wait(10)}"
        self.told.append(json.loads(line))
        assert self.told[-1]["said"] == said, (self.name, self.told[-1])
        return self.told[-1]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def jump(self, by: str) -> None:
        """For the one whose clock jumps: libfaketime reads it anew at each look at the clock."""
        new = self.jumps_in.with_suffix(".new")
        new.write_text(by)
        new.replace(self.jumps_in)


@pytest.fixture
def proxy(store: Asking) -> Iterator[Proxy]:
    """The way to the running product."""
    with serving() as url:
        httpx.get(f"{url}/api/v1/time", timeout=60)
        between = Proxy(port=int(url.rpartition(":")[2]))
        yield between
        between.close()


@pytest.fixture
def workers(store: Asking, proxy: Proxy, tmp_path: Path) -> Iterator[list[Worker]]:
    """One with a right clock, and one of each that is wrong; each has a run of its own."""
    key, started = new_key("fleet").text, []
    for name, (wall, rate) in ({"right": RIGHT} | CLOCKS).items():
        store.create(name)
        started.append(start(name, wall, rate, proxy.url, key, tmp_path))
    yield started
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


def start(name: str, wall: str, rate: float, url: str, key: str, folder: Path) -> Worker:
    jumps_in = folder / f"{name}.clock"
    jumps_in.write_text(JUMPS[0])
    clock = {"FAKETIME": wall} if wall else {"FAKETIME_TIMESTAMP_FILE": str(jumps_in)}
    environment = os.environ | clock | {
        "LD_PRELOAD": library(), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1",
        "PYTHONPATH": str(ROOT / "client" / "src"), "WORKER_KEY": key,
    }  # fmt: skip
    arguments = [str(WORKER), url, name, str(TTL_SECONDS), str(rate)]
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    return Worker(name, process, jumps_in)


def work(workers: list[Worker]) -> None:
    """All at once, event by event, over more than the time of a lease."""
    for worker in workers:
        worker.next("held")
    began = time.monotonic()
    for number in range(4):
        eventually(lambda n=number: time.monotonic() >= began + WORK_SECONDS * n / 3)
        for worker in workers:
            worker.jump(JUMPS[number + 1])
            worker.go_on()
        for worker in workers:
            worker.next("wrote")


def database_now() -> Any:
    ((now,),) = rows("SELECT agentstate_now()")
    return now


@pytest.mark.long
@pytest.mark.many
def test_with_any_clock_the_same_is_stored_and_the_time_is_the_databases(store, workers):
    """Case O-47 (docs/cases.md)."""
    began_at = database_now()
    work(workers)
    ended_at = database_now()

    right, *wrong = workers
    assert are_wrong(wrong)
    for worker in wrong:
        assert shape(store, worker.name) == shape(store, right.name), worker.name
    for worker in workers:
        moments = [event.at for event in store.events(worker.name) if event.origin == "worker"]
        moments = [began_at, *moments, ended_at]
        assert moments == sorted(moments), worker.name
        lease = store.lease(unit_of(worker.name))
        assert 0 < (lease.expires_at - database_now()).total_seconds() <= TTL_SECONDS, worker.name
        (term,) = store.terms(unit_of(worker.name))
        assert (term.token, term.ended) == (worker.told[0]["token"], None), worker.name
    assert store.refusals() == []


def are_wrong(workers: list[Worker]) -> bool:
    """Whether the clocks of those that should be wrong are: else nothing is shown here."""
    off = {w.name: w.told[-1]["wall"] - time.time() for w in workers}
    passed = {w.name: w.told[-1]["wall"] - w.told[0]["wall"] for w in workers}
    ahead, behind = off["5-hours-ahead"], off["5-hours-behind"]
    fast, slow = passed["half-as-fast-again"], passed["half-as-fast"]
    hours = abs(ahead - 5 * HOURS) < 60 and abs(behind + 5 * HOURS) < 60
    return hours and fast > 1.4 * WORK_SECONDS > 3 * slow / 2 and off["jumps"] < -23 * HOURS


def shape(store: Asking, run: str) -> tuple[Any, ...]:
    """All that does not differ between two runs that went the same way."""
    head = store.run(run)
    events = [(e.seq, e.version, e.type, e.origin, e.data) for e in store.events(run)]
    kept = [e if e[3] == "worker" else e[:4] for e in events]
    return kept, head.status, head.version, head.last_seq, head.attempt


@pytest.mark.long
@pytest.mark.many
def test_with_any_clock_a_worker_stops_before_the_store_lets_anybody_else_in(store, proxy, workers):
    """Case O-47 (docs/cases.md)."""
    for worker in workers:
        worker.next("held")
        for by in JUMPS[1:]:
            worker.jump(by)
            worker.go_on()
            worker.next("wrote")
        worker.go_on()
    proxy.silent.set()
    silent_at = machine_uptime_seconds()

    lost = {worker.name: worker.next("lost") for worker in workers}

    over_at = {w.name: uptime_at_expiry(store, w.name) for w in workers}
    for name, told in lost.items():
        assert told["lost"], name
        assert told["uptime"] < over_at[name], f"{name}: late"
        # Nor did it give up at the first silence: its last renewal was not yet old.
        assert told["uptime"] > silent_at + TTL_SECONDS / 4, f"{name}: early"
    for worker in workers:
        assert worker.next("refused")["reason"] == "deadline"
    types = {w.name: store.types(w.name, origin="worker") for w in workers}
    assert types == dict.fromkeys(types, ["step"] * 4)


def uptime_at_expiry(store: Asking, run: str) -> float:
    """When the run's lease is over, on the scale that the workers tell."""
    lease = store.lease(unit_of(run))
    return machine_uptime_seconds() + (lease.expires_at - database_now()).total_seconds()


def machine_uptime_seconds() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
