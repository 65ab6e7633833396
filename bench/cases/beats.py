"""O-45: a real beat and worker over both changes of the clock, two beats, and three hours off.

    .venv/bin/python -m bench.cases.beats

Both live in Los Angeles, and their wall clock is libfaketime's (Debian's `faketime`): it begins
half a minute before the change, or three hours after what beat remembers. The monotonic clock and
the database's are right. What beat sent is in its log; how often a job began and ended is in the
database (`agentstate_heartbeat.passes`). About four minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import grounds
from bench.cases import Verdict, site, until

SECONDS = 60
BEFORE = timedelta(seconds=25)  # beat needs some of it to come up
BACK = datetime(2026, 11, 1, 9, 0, tzinfo=UTC)
AHEAD = datetime(2026, 3, 8, 10, 0, tzinfo=UTC)
SENT = re.compile(r"Scheduler: Sending due task ([a-z-]+)")
# Under libfaketime 0.9.10 clock_nanosleep with a moment refuses, which is what sleep uses.
CELERY = """
import runpy, sys, threading, time
time.sleep = lambda seconds: threading.Event().wait(seconds) and None
sys.argv[0] = "celery"
runpy.run_module("celery", run_name="__main__")
"""
FAILED = re.compile(r"Traceback|ERROR|CRITICAL")


class Host:
    """A beat and a worker with one wall clock, while its block lasts. at: what it says then."""

    def __init__(self, folder: Path, at: datetime, *, beats: int = 1) -> None:
        self.folder, self.at, self.beats = folder, at, beats
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Host:
        from agentstate.cli.site import background_children

        worker, beat = background_children()
        for number in range(self.beats):
            command = list(beat.command)
            command[command.index("--schedule") + 1] = str(self.folder / f"schedule-{number}")
            self._begin(command, f"beat-{number}", "beat")
        self._begin(worker.command, "worker", "worker")
        return self

    def _begin(self, command: Sequence[str], name: str, process: str) -> None:
        offset = (self.at - datetime.now(UTC)).total_seconds()
        clock = {
            "TZ": "America/Los_Angeles", "LD_PRELOAD": _library(), "FAKETIME": f"{offset:+.0f}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "AGENTSTATE_PROCESS": process,
        }  # fmt: skip
        told = list(command)[command.index("celery") + 1 :]
        told[told.index("WARNING")] = "INFO"
        with self.log(name).open("ab") as log:
            self._running.append(
                subprocess.Popen([sys.executable, "-c", CELERY, *told], stdout=log, stderr=log,
                                 env=os.environ | clock, cwd=grounds.ROOT)
            )  # fmt: skip

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(60)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def sent(self) -> Counter[str]:
        found = Counter[str]()
        for number in range(self.beats):
            file = self.log(f"beat-{number}")
            found.update(SENT.findall(file.read_text()) if file.exists() else [])
        return found

    def failures(self) -> int:
        return sum(len(FAILED.findall(file.read_text())) for file in self.folder.glob("*.log"))

    @property
    def all_run(self) -> bool:
        return all(process.poll() is None for process in self._running)


def _library() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise SystemExit("libfaketime is not here: install the package faketime")
    return str(found[0])


def passes() -> Counter[str]:
    """How often each job has begun and ended, by its name in `SCHEDULE`."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT replace(name, ' ', '-'), passes FROM agentstate_heartbeat")
        return Counter(dict(cursor.fetchall()))


@contextmanager
def counted(host: Host, seconds: float) -> Iterator[tuple[Counter[str], Counter[str]]]:
    """What is sent and what is done in so many seconds, from the first start on."""
    before = host.sent()
    until(lambda: host.sent() != before)
    sent, done = host.sent(), passes()
    began = time.monotonic()
    until(lambda: time.monotonic() - began >= seconds, seconds + 60)
    yield host.sent() - sent, passes() - done


def usual(found: Counter[str], seconds: float, jobs: dict[str, float]) -> bool:
    """Each as often as its period says, give or take one."""
    return all(abs(found[job] - seconds / every) <= 1.5 for job, every in jobs.items())


def told(found: Counter[str], jobs: dict[str, float]) -> str:
    return ", ".join(f"{job} {found[job]}" for job in jobs)


def over_the_changes(jobs: dict[str, float], swept: dict[str, float], verdict: Verdict) -> None:
    for name, change in (("back an hour", BACK), ("ahead an hour", AHEAD)):
        with tempfile.TemporaryDirectory() as folder:
            host = Host(Path(folder), change - BEFORE)
            with host, counted(host, SECONDS) as (sent, done):
                holds = host.all_run and not host.failures()
                holds &= usual(sent, SECONDS, jobs) and usual(done, SECONDS, swept)
                verdict.say("O-45", f"{name}, sent in {SECONDS} s: {told(sent, jobs)};"
                            f" done: {told(done, swept)}", holds)  # fmt: skip


def two_beats(swept: dict[str, float], verdict: Verdict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), BACK, beats=2)
        with host, counted(host, SECONDS) as (sent, done):
            twice = all(sent[job] > 1.5 * SECONDS / every for job, every in swept.items())
            verdict.say("O-45", f"two beats, sent: {told(sent, swept)}; done: {told(done, swept)}",
                        twice and usual(done, SECONDS, swept))  # fmt: skip


def three_hours_off(jobs: dict[str, float], swept: dict[str, float], verdict: Verdict) -> None:
    """What it sends in its first two seconds: each job once, and those that are due again."""
    from tasks.schedule import SCHEDULE

    with tempfile.TemporaryDirectory() as folder:
        with Host(Path(folder), BACK - BEFORE) as host:
            until(lambda: set(host.sent()) == set(SCHEDULE))
        before = host.sent()
        again = Host(Path(folder), BACK + timedelta(hours=3))
        with again, counted(again, 2) as (_, done):
            sent = again.sent() - before
            once = all(1 <= sent[job] <= 2 + 3 / every for job, every in jobs.items())
            once &= max(done.values(), default=0) <= 2
            verdict.say("O-45", f"after three hours off, sent: {told(sent, jobs)};"
                        f" done: {told(done, swept)}", once)  # fmt: skip


def main() -> int:
    verdict = Verdict()
    with site() as _:
        from agentstate.store.upkeep import JOBS
        from tasks.schedule import SCHEDULE

        jobs = {name: float(entry["schedule"]) for name, entry in SCHEDULE.items()}
        jobs = {name: every for name, every in jobs.items() if every <= SECONDS}
        # These look whether they are due, and count each pass.
        swept = {"note-lapsed-leases", "carry-out-deadlines", "drop-dead-holds", "evaluate-alerts"}
        sweeps = {name: float(JOBS[name.replace("-", " ")]) for name in sorted(swept)}
        over_the_changes(jobs, sweeps, verdict)
        two_beats(sweeps, verdict)
        three_hours_off(jobs, sweeps, verdict)
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
