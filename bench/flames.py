"""Flame pictures of the hot paths: py-spy looks at a process while it does one thing alone.

    ./run bench flames [--quick]

An append over HTTP in one of two web processes, an append and a renewal in process. Pictures go to
docs/img/flames, with a line for each in `captions.txt`, and stand at the end of docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentstate.cli.output import CommandFailure, progress
from bench import folded
from bench.apart import peers_folder
from bench.appends import TASKS_MANY
from bench.baseline import make_runs
from bench.budget_slots import scratch_server
from bench.crew import Crew
from bench.document import FLAMES
from bench.http import SINGLE, Calls, make_key
from bench.leases import RENEW, in_tasks
from bench.report import Options, Report
from bench.webs import web_processes

ABOUT = "Flame pictures of the hot paths, for docs/benchmarks.md"
FULL_SECONDS, QUICK_SECONDS = 10, 2
EDGE_SECONDS = 1.0  # that the load goes on before and after py-spy looks
SAMPLES_PER_SECOND = 250


def report(options: Options) -> Report:
    """Draws the pictures; there are no figures."""
    seconds = QUICK_SECONDS if options.quick else FULL_SECONDS
    spy = peers_folder() / "py-spy"
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"
    captions = {}
    with scratch_server(flush_ms=0) as home:
        runs = make_runs()
        for name, title, at_work in (
            ("http-append", "A web process that takes appends over HTTP, one event a call, from 32"
             " of 64 connections", lambda: over_http(home, runs, seconds)),
            ("append", "A process that appends by aexecute, 32 of 64 writers",
             lambda: in_process(home, "bench.appends", TASKS_MANY, 64, runs, seconds)),
            ("renew", "A process that renews by aexecute, 8 of 16 callers",
             lambda: in_process(home, "bench.leases", in_tasks(RENEW), 16, runs, seconds)),
        ):  # fmt: skip
            with at_work() as pid:
                stacks = look(spy, pid, seconds, Path(home) / f"{name}.folded")
            FLAMES.mkdir(parents=True, exist_ok=True)
            (FLAMES / f"{name}.svg").write_text(folded.draw(stacks, title))
            captions[f"{name}.svg"] = title
            progress(f"{name}.svg: {title}")
    told = "".join(f"{name}\t{title}\n" for name, title in captions.items())
    (FLAMES / "captions.txt").write_text(told)
    return Report(tables=())


@contextmanager
def over_http(home: str, runs: list[tuple[str, int]], seconds: int) -> Iterator[int]:
    """The process of one of two while both are called."""
    held = Path(home) / "runs.txt"
    held.write_text("".join(f"{key} {token}\n" for key, token in runs))
    with web_processes(home) as webs:
        calls = Calls([web.url for web in webs], make_key(), held, load_seconds(seconds))
        with beside(lambda: calls.append(64, SINGLE)):
            yield webs[0].pid


@contextmanager
def in_process(
    home: str, module: str, kind: str, callers: int, runs: list[tuple[str, int]], seconds: int
) -> Iterator[int]:
    held = Path(home) / "runs.json"
    held.write_text(json.dumps(runs))
    with Crew(module, str(held)) as crew:
        crew.work(kind, callers, 0.5)  # everything is loaded
        with beside(lambda: crew.work(kind, callers, load_seconds(seconds))):
            yield crew.pids[0]


def load_seconds(seconds: int) -> int:
    return round(seconds + 2 * EDGE_SECONDS + 1)


@contextmanager
def beside(load: Callable[[], Any]) -> Iterator[None]:
    """The load in a thread; at the end of the block it is waited for, and fails as it did."""
    failed: list[BaseException] = []

    def go() -> None:
        try:
            load()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        time.sleep(EDGE_SECONDS)
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]


def look(spy: Path, pid: int, seconds: int, into: Path) -> str:
    """Folded stacks of whoever holds Python's lock: threads that wait, also for the database or for
    each other, do not count, and of threads that want to compute only one can."""
    done = subprocess.run(
        [str(spy), "record", "--pid", str(pid), "--duration", str(seconds), "--gil",
         "--nolineno", "--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--output", str(into)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode or not into.exists():
        raise CommandFailure(f"py-spy: {(done.stderr or done.stdout).strip()[-500:]}")
    return into.read_text()
