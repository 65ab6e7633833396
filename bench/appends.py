"""Appends in process, with every guard, against PostgreSQL's own bare INSERT by pgbench.

    .venv/bin/python -m bench.appends [--seconds 2] [--rounds 5] [--runs 1000] [--writers 1 16 64]

On one scratch server with fsync on. In each round, at each number of writers, the contenders take
turns, each for so many seconds: pgbench's prepared single-row INSERT with as many clients; then
`execute` of an append with fence, event id and counter to one of many runs; the same to one run
alone; and to many by the rule in Python for each (`plain.py` put aside). The writers are threads
of two processes, as of two web processes. One event of about 300 octets each. Figures are medians
of the rounds; only the ratios to pgbench in the same round mean anything.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.budget_slots import ROOT, ask, django_on, scratch_server

TEXT = "The failing test builds its window from the local time zone, so it only breaks there. " * 3
DATA = json.dumps({"model": "large-2", "thought": TEXT[:230], "tokens": {"in": 4096, "out": 212}})
PGBENCH = """\\set run random(1, :runs)
INSERT INTO bench_event (run, data) VALUES (:run, '{data}');
"""
KINDS = ("many runs", "one run", "many runs, rule in Python")
PROCESSES = 2


def make_baseline(home: str) -> Path:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bench_event (id bigserial PRIMARY KEY, run int, data jsonb)")
    script = Path(home) / "insert.sql"
    script.write_text(PGBENCH.replace("{data}", DATA))
    return script


def pgbench(script: Path, clients: int, seconds: int, runs: int) -> float:
    """Transactions a second, by pgbench's own count."""
    from django.conf import settings
    from django.db import connection

    from agentstate import postgres
    from agentstate.embedded import EmbeddedPostgres

    binary = EmbeddedPostgres(settings.AGENTSTATE_HOME / "postgres").binaries / "pgbench"
    done = subprocess.run(
        [str(binary), "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(2, clients)),
         "-T", str(seconds), "-f", str(script), "-D", f"runs={runs}",
         postgres.conninfo(settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"])],
        capture_output=True, text=True, check=True,
        env=os.environ | {"LC_ALL": "C"},
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("tps ="))
    return float(line.split()[2])


def make_runs(count: int) -> list[tuple[str, int]]:
    """Runs that are held, each with its token."""
    from agentstate.store.commands import AcquireLease, CreateRun

    made = []
    for number in range(count):
        key = f"r-{number}"
        ask(CreateRun(key=key, task="bench"))
        lease = ask(AcquireLease(unit=f"run:{key}", owner="bench", ttl_seconds=86_400))
        made.append((key, lease.token))
    return made


NAMES = itertools.count()


def appends(runs: list[tuple[str, int]], writers: int, seconds: float) -> tuple[float, list[float]]:
    """Appends a second by threads of this process, and how long each took, in ms."""
    from django.db import connections

    from agentstate.store.commands import Append, NewEvent
    from agentstate.store.payloads import RawJSON

    begin = threading.Event()
    took: list[list[float]] = [[] for _ in range(writers)]
    until = 0.0

    def write(own: list[float]) -> None:
        begin.wait()
        while (began := time.perf_counter()) < until:
            key, token = random.choice(runs)
            new = NewEvent(type="step.done", data=RawJSON(DATA), id=f"{os.getpid()}-{next(NAMES)}")
            ask(Append(run=key, events=(new,), fence=token, add={"steps": 1}))
            own.append((time.perf_counter() - began) * 1_000)
        connections.close_all()

    threads = [threading.Thread(target=write, args=(own,)) for own in took]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    until = began + seconds
    begin.set()
    for thread in threads:
        thread.join()
    all_of_them = [one for own in took for one in own]
    return len(all_of_them) / (time.perf_counter() - began), all_of_them


class Writers:
    """Processes of their own, each with its share of the threads, asked one turn at a time."""

    def __init__(self, home: str, runs: list[tuple[str, int]]) -> None:
        held = Path(home) / "runs.json"
        held.write_text(json.dumps(runs))
        self._children = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.appends", "--serve", str(held)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(PROCESSES)
        ]  # fmt: skip

    def write(self, kind: str, writers: int, seconds: float) -> tuple[float, list[float]]:
        at_work = self._children[: min(PROCESSES, writers)]
        for child in at_work:
            assert child.stdin is not None
            child.stdin.write(json.dumps([kind, writers // len(at_work), seconds]) + "\n")
            child.stdin.flush()
        answers = [json.loads(child.stdout.readline()) for child in at_work if child.stdout]
        return sum(rate for rate, _ in answers), [one for _, took in answers for one in took]

    def end(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(30)


def serve(held: str) -> None:
    django_on(os.environ["AGENTSTATE_HOME"])
    from agentstate.store import plain

    is_plain = plain.is_plain
    runs = [tuple(run) for run in json.loads(Path(held).read_text())]
    for line in sys.stdin:
        kind, writers, seconds = json.loads(line)
        plain.is_plain = (lambda _: False) if "Python" in kind else is_plain
        some: Any = runs[:1] if kind == "one run" else runs
        print(json.dumps(appends(some, writers, seconds)), flush=True)


def measure(options: argparse.Namespace, home: str) -> None:
    script, writing = make_baseline(home), Writers(home, make_runs(options.runs))
    rates: dict[tuple[int, str], list[float]] = {}
    ratios: dict[tuple[int, str], list[float]] = {}
    times: dict[tuple[int, str], list[float]] = {}
    for turn in range(options.rounds + 1):
        for writers in options.writers:
            base = pgbench(script, writers, max(1, round(options.seconds)), options.runs)
            found: dict[str, float] = {"INSERT": base}
            for kind in KINDS if turn % 2 else reversed(KINDS):
                found[kind], took = writing.write(kind, writers, options.seconds)
                if turn:
                    times.setdefault((writers, kind), []).extend(took)
            if turn:  # the first is to warm up
                for kind, rate in found.items():
                    rates.setdefault((writers, kind), []).append(rate)
                    ratios.setdefault((writers, kind), []).append(rate / base)
            print(turn, writers, {k: round(v) for k, v in found.items()}, flush=True)
    writing.end()
    print("| writers | what | a second | of INSERT | p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    for (writers, kind), found_rates in rates.items():
        own: Any = sorted(times.get((writers, kind), [])) or [0.0]
        print(
            f"| {writers} | {kind} | {statistics.median(found_rates):,.0f} |"
            f" {statistics.median(ratios[writers, kind]):.2f} | {own[len(own) // 2]:.1f} |"
            f" {own[len(own) * 99 // 100]:.1f} |"
        )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--seconds", type=float, default=2)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--runs", type=int, default=1_000)
    asked.add_argument("--writers", type=int, nargs="+", default=[1, 16, 64])
    asked.add_argument("--serve", help=argparse.SUPPRESS)
    options = asked.parse_args()
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"
    if options.serve:
        serve(options.serve)
        return
    with scratch_server(flush_ms=0) as home:
        measure(options, home)


if __name__ == "__main__":
    main()
