"""What a write costs the coordinator and the workers of a store that is distributed on Citus.

    AGENTSTATE_CITUS_BIN=… .venv/bin/python -m bench.distributed [--seconds 10] [--workers 2]

Two stores on the same servers take turns: one on the coordinator alone, one whose log is on the
workers. Counted is the processor time of each server's processes, which tells what a coordinator
could carry on a machine of its own; the rate beside it says only what all servers and the writers
do together on this one. fsync is on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from tests.citus.cluster import HOST, USER, Cluster, Node, running

ROOT = Path(__file__).resolve().parent.parent
RUNS = 400
BATCHES = (1, 20, 200)
DATA = {"text": "x" * 280}
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", help="(its own) write to the store of DATABASE_URL")
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.batch, options.seconds)
    else:
        measure(options.seconds, options.workers)


def measure(seconds: float, workers: int) -> None:
    with tempfile.TemporaryDirectory(prefix="agentstate-citus-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(folder, durable=True, workers=workers, autovacuum="on") as cluster:
            stores = {"one server": "alone", "distributed log": "spread"}
            urls = {
                kind: f"postgresql://{USER}@{HOST}:{cluster.coordinator.port}/{database}"
                for kind, database in stores.items()
            }
            for kind, database in stores.items():
                with cluster.coordinator.connect() as session:
                    session.execute(f"CREATE DATABASE {database}".encode())
                manage(urls[kind], "migrate", "-v0")
            cluster.spread("spread")
            manage(urls["distributed log"], "distribute", "--shards", "8")
            print("kind of write, commands a transaction, store: commands a second,"
                  " µs of the coordinator, µs of all workers, each a command")  # fmt: skip
            for what in ("append", "renew"):
                for batch in BATCHES:
                    for kind, url in urls.items():
                        n, took, used = one(cluster, url, what, batch, seconds)
                        own, theirs = used[0] / n * 1e6, sum(used[1:]) / n * 1e6
                        rate = f"{n / took:8.0f} /s"
                        print(f"{what:7} {batch:4} {kind:16} {rate} {own:8.0f} {theirs:8.0f}")


def one(
    cluster: Cluster, url: str, what: str, batch: int, seconds: float
) -> tuple[int, float, list[float]]:
    """How many commands in how many seconds, and the seconds of a processor of each server."""
    ask = ["-m", "bench.distributed", "--write", what, "--batch", str(batch), "--seconds",
           str(seconds)]  # fmt: skip
    with subprocess.Popen([sys.executable, *ask], cwd=ROOT, env=environment(url), text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:  # fmt: skip
        assert writer.stdin
        assert writer.stdout
        writer.stdout.readline()  # its runs are made
        before = [spent(node) for node in cluster.nodes]
        writer.stdin.write("go\n")
        writer.stdin.flush()
        done, took = writer.stdout.readline().split()
        after = [spent(node) for node in cluster.nodes]
    return int(done), float(took), [b - a for a, b in zip(before, after, strict=True)]


def manage(url: str, *arguments: str) -> None:
    command = [sys.executable, "manage.py", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment(url), check=True, stdout=subprocess.DEVNULL)


def environment(url: str) -> dict[str, str]:
    told = {"DATABASE_URL": url, "PYTHONPATH": f"{ROOT}:{ROOT}/client/src",
            "AGENTSTATE_RUN_WRITES_PER_SECOND": "0"}  # fmt: skip
    return os.environ | told


def spent(node: Node) -> float:
    """Seconds of processor time of a server: of its processes, and of those that have ended."""
    assert node.process
    postmaster = node.process.pid
    total = sum(_times(postmaster))
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == postmaster:
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _times(pid: int) -> Iterator[float]:
    """Of the process, and of its children that have ended and were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    yield from (int(field) / TICKS for field in fields[11:15])


def write(what: str, batch: int, seconds: float) -> None:
    """Prints how many commands were carried out, and in how many seconds."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "agentstate.settings"
    import django

    django.setup()
    from agentstate.store.callers import PLAIN, SCOPES, Caller
    from agentstate.store.commands import AcquireLease, Append, CreateRun, NewEvent, RenewLease
    from agentstate.store.execute import Ask, execute, execute_all
    from agentstate.store.partitions import ensure_ahead
    from agentstate.store.payloads import dump

    ensure_ahead()
    fleet = Caller(kind="key", name="fleet", scopes=frozenset(SCOPES))
    prefix = uuid4().hex
    runs = [f"{prefix}-{n}" for n in range(RUNS)]
    tokens = {}
    for run in runs:
        execute(CreateRun(key=run, task="t"), by=fleet)
        tokens[run] = execute(
            AcquireLease(unit=f"run:{run}", owner="w", ttl_seconds=3_600), by=fleet
        ).token

    def ask(n: int) -> Ask:
        run = runs[n % RUNS]
        if what == "renew":
            command = RenewLease(unit=f"run:{run}", token=tokens[run])
        else:
            event = NewEvent(type="step.done", data=dump(DATA), id=f"e-{n}")
            command = Append(run=run, events=(event,), fence=tokens[run])
        return Ask(command=command, by=fleet, under=PLAIN)

    for n in range(0, RUNS, batch):  # plans are made, sessions on the workers are open
        execute_all([ask(n + k) for k in range(batch)])
    print("ready", flush=True)
    sys.stdin.readline()
    n, began = RUNS + batch, time.monotonic()
    first = n
    while time.monotonic() < began + seconds:
        for outcome in execute_all([ask(n + k) for k in range(batch)]):
            if isinstance(outcome, Exception):
                raise outcome
        n += batch
    print(n - first, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main()
