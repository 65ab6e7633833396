"""O-46: a process of Celery's pool is killed in the middle of a run, twenty times in a row.

    .venv/bin/python -m bench.cases.kills [--kills 20] [--ttl-seconds 20]

A worker of the product's Celery (pgmq) has a task that claims a run with the client
(`killed.py`). Whenever it works on the run, `kill -9` takes the process; the broker gives the task
out again while the lease still lives. It has to wait for what is left of it and no longer, without
using the processor; the run is done in the end, once. Then a run that kills whoever works on it:
it has to end as failed after its max_attempts (5).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentstate.cli.output import result
from bench.cases import Verdict, site
from bench.cases.rounds import Api
from bench.grounds import ROOT, Ground

PATIENCE_SECONDS = 120.0
# From a kill until somebody works on the run again, beside the lease that is left: what Celery
# takes to see the dead process, and the broker to give the task out again (about 11 s).
WAITED_MAX_SECONDS = 20.0
PROCESSOR_PART_MAX = 0.5
LOOKS_MAX = 8  # at a run that is held, for each kill
POISON_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Note:
    """A line that the task left. at: by the host's clock, seconds."""

    at: float
    what: str
    run: str
    pid: int


class Worker:
    """A Celery worker with two processes in its pool, in a session of its own."""

    def __init__(self, ground: Ground, folder: Path, name: str = "killed", **more: str) -> None:
        self.folder, self.log = folder, folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "celery",
                    "-A",
                    "bench.cases.killed",
                    "worker",
                    "--concurrency",
                    "2",
                    "-n",
                    f"{name}@case",
                    "--without-mingle",
                    "--without-gossip",
                    "--without-heartbeat",
                    "--loglevel",
                    "INFO",
                ],
                cwd=ROOT,
                env=os.environ | {"AGENTSTATE_KEY": ground.key} | more,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def notes(self, run: str) -> list[Note]:
        file = self.folder / "notes"
        lines = file.read_text().splitlines() if file.exists() else []
        words = [line.split() for line in lines]
        return [Note(float(at), what, of, int(pid)) for at, what, of, pid, *_ in words if of == run]

    def works(self, run: str) -> list[Note]:
        return [note for note in self.notes(run) if note.what == "works"]

    def processor_seconds(self) -> float:
        """Of the worker and all that it has begun, those included that are dead."""
        told = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        seconds = sum(int(ticks) for ticks in told[11:15])
        for child in (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ):
            with open(f"/proc/{child}/stat") as stat:
                seconds += sum(int(t) for t in stat.read().rpartition(") ")[2].split()[11:13])
        return seconds / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def until[T](what: Callable[[], T]) -> T:
    """The first true value; raises TimeoutError after PATIENCE_SECONDS."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not (found := what()):
        if time.monotonic() > ends_at:
            raise TimeoutError(what.__name__)
        time.sleep(0.02)
    return found


def send(ground: Ground, run: str, folder: Path, ttl_seconds: int) -> None:
    from bench.cases.killed import work

    work.delay(url=ground.url, run=run, folder=str(folder), ttl_seconds=ttl_seconds)


def killed_again_and_again(
    ground: Ground, api: Api, worker: Worker, kills: int, ttl_seconds: int, verdict: Verdict
) -> None:
    run = "killed"
    ask = {
        "task": "t",
        "key": run,
        "tags": [run],
        "max_attempts": kills + 1,
        "budgets": [{"name": "tokens", "cap": 100}],
    }
    api.post("/runs", ask).raise_for_status()
    send(ground, run, worker.folder, ttl_seconds)
    waited, used, wall = [], 0.0, 0.0
    for number in range(kills):
        working = until(lambda n=number: worker.works(run)[n:])[0]
        began, before = time.monotonic(), worker.processor_seconds()
        os.kill(working.pid, signal.SIGKILL)
        until(lambda n=number: worker.works(run)[n + 1 :])
        waited.append(time.monotonic() - began)
        used += worker.processor_seconds() - before
        wall += waited[-1]
    (worker.folder / f"go-{run}").touch()
    ended = until(lambda: api.http.get(f"/runs/{run}").json()["status"] == "completed")
    events = api.http.get(f"/runs/{run}/events?limit=500").json()["items"]
    done = sum(event["type"] == "step.done" for event in events)
    looks = sum(note.what == "waits" for note in worker.notes(run)) / kills
    said = (
        f"{kills} kills; worked on again after {min(waited):.1f} to {max(waited):.1f} s (ttl"
        f" {ttl_seconds} s), {looks:.1f} looks at the held run each, {used / wall:.2f} of a"
        f" processor meanwhile; ended: {ended}, steps: {done}, attempts: {len(worker.works(run))}"
    )
    verdict.say(
        "O-46",
        said,
        max(waited) <= ttl_seconds + WAITED_MAX_SECONDS
        and looks <= LOOKS_MAX
        and used / wall <= PROCESSOR_PART_MAX
        and done == 1
        and len(worker.works(run)) == kills + 1,
    )


def poison(ground: Ground, api: Api, worker: Worker, ttl_seconds: int, verdict: Verdict) -> None:
    run = "poison"
    ask = {"task": "t", "key": run, "tags": [run], "max_attempts": POISON_ATTEMPTS}
    api.post("/runs", ask).raise_for_status()
    send(ground, run, worker.folder, ttl_seconds)
    for number in range(POISON_ATTEMPTS):
        working = until(lambda n=number: worker.works(run)[n:])[0]
        os.kill(working.pid, signal.SIGKILL)
    until(lambda: api.http.get(f"/runs/{run}").json()["status"] == "failed")
    found = api.http.get(f"/runs/{run}").json()
    over = until(lambda: [note for note in worker.notes(run) if note.what == "over"])
    verdict.say(
        "O-46",
        f"a run that kills each worker: {found['status']} {found['result']} after"
        f" {found['attempt']} attempts; its task has ended: {bool(over)}",
        found["attempt"] == POISON_ATTEMPTS == len(worker.works(run)),
    )


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--kills", type=int, default=20)
    asked.add_argument("--ttl-seconds", type=int, default=20)
    options = asked.parse_args()
    ttl = options.ttl_seconds
    verdict = Verdict()
    with site(background=False) as ground, tempfile.TemporaryDirectory() as folder:
        api, worker = Api(ground), Worker(ground, Path(folder))
        try:
            killed_again_and_again(ground, api, worker, options.kills, ttl, verdict)
            poison(ground, api, worker, ttl, verdict)
        except TimeoutError as late:
            verdict.say("O-46", f"not within {PATIENCE_SECONDS} s: {late}", False)
            result(worker.log.read_text()[-4_000:])
        finally:
            worker.end()
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
