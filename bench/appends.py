"""Appends in process, with every guard, against PostgreSQL's own bare INSERT by pgbench.

    .venv/bin/python -m bench.appends [--seconds 2] [--rounds 5] [--runs 1000] [--writers 1 16 64]

On one scratch server with fsync on. In each round, at each number of writers, the contenders take
turns, each for so many seconds: pgbench's prepared single-row INSERT with as many clients; `execute`
of an append with fence, event id and counter to one of many runs, from as many threads of one
process; and the same to one run alone. One event of about 300 octets each. Figures are medians of
the rounds; only the ratios to pgbench in the same round mean anything.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from bench.budget_slots import ask, scratch_server

TEXT = "The failing test builds its window from the local time zone, so it only breaks there. " * 3
DATA = json.dumps({"model": "large-2", "thought": TEXT[:230], "tokens": {"in": 4096, "out": 212}})
PGBENCH = """\\set run random(1, :runs)
INSERT INTO bench_event (run, data) VALUES (:run, '{data}');
"""


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


def appends(runs: list[tuple[str, int]], writers: int, seconds: float) -> tuple[float, list[float]]:
    """Appends a second, and how long each took, in ms."""
    from django.db import connections

    from agentstate.store.commands import Append, NewEvent
    from agentstate.store.payloads import RawJSON

    names = itertools.count()
    begin = threading.Event()
    took: list[list[float]] = [[] for _ in range(writers)]
    until = 0.0

    def write(own: list[float]) -> None:
        begin.wait()
        while (began := time.perf_counter()) < until:
            key, token = random.choice(runs)
            new = NewEvent(type="step.done", data=RawJSON(DATA), id=f"{os.getpid()}-{next(names)}")
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


def measure(options: argparse.Namespace, home: str) -> None:
    script, runs = make_baseline(home), make_runs(options.runs)
    rates: dict[tuple[int, str], list[float]] = {}
    ratios: dict[tuple[int, str], list[float]] = {}
    times: dict[tuple[int, str], list[float]] = {}
    for turn in range(options.rounds + 1):
        for writers in options.writers:
            base = pgbench(script, writers, max(1, round(options.seconds)), options.runs)
            found: dict[str, float] = {"INSERT": base}
            for name, some in (("many runs", runs), ("one run", runs[:1])):
                found[name], took = appends(some, writers, options.seconds)
                if turn:
                    times.setdefault((writers, name), []).extend(took)
            if turn:  # the first is to warm up
                for name, rate in found.items():
                    rates.setdefault((writers, name), []).append(rate)
                    ratios.setdefault((writers, name), []).append(rate / base)
            print(turn, writers, {k: round(v) for k, v in found.items()}, flush=True)
    print("| writers | what | a second | of INSERT | p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    for (writers, name), found_rates in rates.items():
        own: Any = sorted(times.get((writers, name), [])) or [0.0]
        print(
            f"| {writers} | {name} | {statistics.median(found_rates):,.0f} |"
            f" {statistics.median(ratios[writers, name]):.2f} | {own[len(own) // 2]:.1f} |"
            f" {own[len(own) * 99 // 100]:.1f} |"
        )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--seconds", type=float, default=2)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--runs", type=int, default=1_000)
    asked.add_argument("--writers", type=int, nargs="+", default=[1, 16, 64])
    options = asked.parse_args()
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"
    with scratch_server(flush_ms=0) as home:
        measure(options, home)


if __name__ == "__main__":
    main()
