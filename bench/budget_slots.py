"""How fast several processes charge one shared budget: as one row, and in 4, 8 and 16 slots.

    .venv/bin/python -m bench.budget_slots [--processes 4] [--threads 4] [--seconds 2] [--rounds 5]
        [--flush-ms 0]

The kinds take turns, round after round, on one scratch server with fsync on, so that whatever else
the machine does meets all of them. Only the ratios mean anything. Each process brings its threads'
charges together as a web process does, and draws its slot anew for each round. --flush-ms has every
flush of the log take so much longer (PostgreSQL's commit_delay), as on a slower disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SLOTS = (1, 4, 8, 16)
CAP = 2**52
ROOT = Path(__file__).resolve().parent.parent


def django_on(home: str) -> None:
    os.environ["AGENTSTATE_HOME"] = home
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    import django

    django.setup()


@contextmanager
def scratch_server(
    *, flush_ms: int, max_connections: int = 150, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server and a folder of its own, gone at the end. settings: more of the server's."""
    with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as home:
        # The server's own user must get in, which is not root.
        Path(home).chmod(0o755)
        django_on(home)
        from django.conf import settings as ours
        from django.db import connections

        from agentstate.embedded import DURABLE, EmbeddedPostgres
        from agentstate.prepare import prepare

        own = {"commit_delay": str(flush_ms * 1_000), "commit_siblings": "0"}
        own["max_connections"] = str(max_connections)
        own |= settings or {}
        server = EmbeddedPostgres(ours.AGENTSTATE_HOME / "postgres", settings=DURABLE | own)
        with server.held():
            prepare()
            try:
                yield home
            finally:
                connections.close_all()


def ask(command: Any) -> Any:
    from agentstate import store
    from agentstate.store.callers import SCOPES, Caller

    return store.execute(command, by=Caller(kind="key", name="bench", scopes=frozenset(SCOPES)))


def open_budgets(processes: int, threads: int) -> None:
    """For each kind a shared budget that is wide open, one that has no room, a run per thread."""
    from agentstate.store.commands import CreateBudget, CreateRun, NewBudget

    for slots in SLOTS:
        for name, cap in ((f"open-{slots}", CAP), (f"full-{slots}", 0)):
            ask(CreateBudget(run=None, budget=NewBudget(name=name, cap=cap, slots=slots)))
        for number in range(processes * threads):
            own = NewBudget(name="own", cap=CAP, parent=f"open-{slots}")
            ask(CreateRun(key=f"r-{slots}-{number}", task="bench", budgets=(own,)))


def charge_for(seconds: float, run: str | None, budget: str) -> int:
    """How many charges were answered, admitted or refused."""
    from agentstate.store.commands import Charge, Spend
    from agentstate.store.errors import BudgetExhausted

    charges, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(BudgetExhausted):
            ask(Spend(run=run, charge=Charge(budget=budget, amount=1)))
        charges += 1
    return charges


def serve(number: int, threads: int) -> None:
    """A process that charges: one round for every line that it is sent."""
    from agentstate.store import splits

    with ThreadPoolExecutor(threads) as pool:
        for line in sys.stdin:
            what, slots, seconds = json.loads(line)
            splits._OWN.draw()
            asked = [
                (None, f"{what}-{slots}") if what != "runs" else (f"r-{slots}-{n}", "own")
                for n in range(number * threads, (number + 1) * threads)
            ]
            done = pool.map(lambda at, s=seconds: charge_for(s, *at), asked)
            print(sum(done), flush=True)


def measure(
    what: str, children: list[subprocess.Popen[str]], seconds: float, rounds: int
) -> dict[int, list[float]]:
    """Charges a second by number of slots, a figure for each round."""
    found: dict[int, list[float]] = {slots: [] for slots in SLOTS}
    for number in range(rounds + 1):
        for slots in SLOTS:
            for child in children:
                child.stdin.write(json.dumps([what, slots, seconds]) + "\n")
                child.stdin.flush()
            charges = sum(int(child.stdout.readline()) for child in children)
            if number:  # the first is to warm up
                found[slots].append(charges / seconds)
    return found


def report(title: str, found: dict[int, list[float]]) -> None:
    one = statistics.median(found[1])
    print(f"\n{title}\n  slots   charges/s   (lowest to highest)   ratio")
    for slots, figures in found.items():
        median = statistics.median(figures)
        print(
            f"  {slots:>5} {median:>11,.0f}   ({min(figures):,.0f} to {max(figures):,.0f})"
            f"   {median / one:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("processes", 4), ("threads", 4), ("seconds", 2), ("rounds", 5), ("flush-ms", 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        django_on(os.environ["AGENTSTATE_HOME"])
        serve(chosen.serve, chosen.threads)
        return
    with scratch_server(flush_ms=chosen.flush_ms):
        open_budgets(chosen.processes, chosen.threads)
        command = [sys.executable, "-m", "bench.budget_slots", "--threads", str(chosen.threads)]
        children = [
            subprocess.Popen(
                [*command, "--serve", str(number)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(chosen.processes)
        ]  # fmt: skip
        try:
            for what, title in (
                ("open", "Charges of the shared budget itself"),
                ("runs", "Charges of runs' budgets below it, a run for each thread"),
                ("full", "Refusals once it is used up"),
            ):
                report(title, measure(what, children, chosen.seconds, chosen.rounds))
        finally:
            for child in children:
                child.stdin.close()
                child.wait(30)
        tell_differences()


def tell_differences() -> None:
    from agentstate.store import audit

    print(f"{len(audit.verify())} differences when everything is derived again")


if __name__ == "__main__":
    main()
