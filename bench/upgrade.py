"""How long an upgrade locks calls out: all migrations over a large store, with everybody at work.

    .venv/bin/python -m bench.upgrade --home FOLDER [--events 20000000] [--first 0004_retention]

Makes a store of so many events in the folder (`bench.filled`), or takes the one that is there, and
upgrades it twice, each time under steady load:

1. from the schema of `--first` to that of the release before. No code of today runs on the schemas
   in between, so sessions do what calls do (SQL that is good on each of them): appends, renewals,
   charges, refusals, counts of the minute, reads of runs, events, leases and lists;
2. from the schema of the release before to today's, and back and again: a web process with the code
   of then (out of the repository's history) and one with today's, clients of today over HTTP.

Of each kind of call the longest one is told, before, while migrations ran, and of those the longest
wait for a lock, which the server is asked for every 50 ms: a processor that others have makes calls
long as well, and is no lock. Exits with 1 when any call waited for a lock for more than 2 s.
The folder is left as it is: remove it when you need it no more.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from agentstate.cli.output import progress, result
from bench import filled, webs
from bench.budget_slots import ROOT

BOUND_SECONDS = 2.0
EVENTS_PER_RUN = 100
SAMPLE_SECONDS = 0.05
THINK_SECONDS = 0.02
BEFORE_SECONDS = 20.0
LOAD = "upgrade load"  # application_name
WORKERS = 6
WEB = "agentstate web"

WAITING = """
SELECT a.application_name, a.query, extract(epoch FROM clock_timestamp() - l.waitstart)::float8
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND l.waitstart IS NOT NULL AND a.application_name = ANY(%s)
ORDER BY l.waitstart LIMIT 1
"""


@dataclass
class Seen:
    """Seconds of calls by kind, and of the longest wait for a lock. Filled by many threads."""

    calls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)
    longest_wait: float = 0.0
    waiter: str = ""

    def tell(self, name: str) -> None:
        for kind, took in sorted(self.calls.items()):
            ordered = sorted(took)
            median, longest = ordered[len(ordered) // 2], ordered[-1]
            result(
                f"{name} · {kind}: {len(took):,} calls, median {median * 1e3:.1f} ms,"
                f" longest {longest * 1e3:,.0f} ms"
            )
        waiter = f" ({' '.join(self.waiter.split())[:80]})" if self.waiter else ""
        result(f"{name} · longest wait for a lock: {self.longest_wait * 1e3:,.0f} ms{waiter}")
        for failure in self.failed[:5]:
            result(f"{name} · FAILED: {failure}")


class Load:
    """Threads that call until the end of the block, and one that asks the server who waits.

    `seen` is that of now; who measures puts a new one there.
    """

    def __init__(self, conninfo: str, callers: dict[str, Callable[[], Callable[[], None]]]) -> None:
        self.conninfo, self.callers = conninfo, callers
        self.seen = Seen()
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> Load:
        self.threads = [
            threading.Thread(target=self._call, args=item, daemon=True)
            for item in self.callers.items()
        ]
        self.threads.append(threading.Thread(target=self._sample, daemon=True))
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)

    def measure(self, name: str, run: Callable[[], object]) -> Seen:
        """What is seen while this runs."""
        self.seen = seen = Seen()
        began = time.monotonic()
        run()
        took = time.monotonic() - began
        self.seen = Seen()
        result(f"{name}: {took:.1f} s")
        seen.tell(name)
        return seen

    def _call(self, name: str, begin: Callable[[], Callable[[], None]]) -> None:
        kind = name.partition("#")[0]
        try:
            call = begin()
            while not self.stopping.is_set():
                seen, began = self.seen, time.monotonic()
                call()
                seen.calls[kind].append(time.monotonic() - began)
                self.stopping.wait(random.uniform(0, 2 * THINK_SECONDS))
        except Exception as failure:  # told at the end, whatever it is
            self.seen.failed.append(f"{name}: {failure!r}")

    def _sample(self) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            while not self.stopping.wait(SAMPLE_SECONDS):
                found = session.execute(WAITING, [[LOAD, WEB]]).fetchone()
                if found and found[2] > self.seen.longest_wait:
                    self.seen.longest_wait, self.seen.waiter = found[2], found[1]


# --- what calls do, in SQL that is good on every schema since 0002 --------------------------------

APPEND = """
WITH run AS (
    UPDATE agentstate_run SET last_seq = last_seq + 1, version = version + 1, updated_at = now()
    WHERE id = %(run)s RETURNING id, key, last_seq, version, last_token
), event AS (
    INSERT INTO agentstate_event
        (run_id, seq, version, type, origin, data, token, actor, request_id, at)
    SELECT id, last_seq, version, 'step.done', 'worker', %(data)s::json, last_token, 'key:load',
        %(request)s, now() FROM run
)
INSERT INTO agentstate_outbox (run_id, run_key, first_seq, last_seq, version, types, at)
SELECT id, key, last_seq, last_seq, version, '{step.done}', now() FROM run
"""
RENEW = """
WITH lease AS (
    UPDATE agentstate_lease SET renewed_at = now(), renewals = renewals + 1,
        expires_at = now() + interval '6 h' WHERE run_id = %(run)s RETURNING token
)
UPDATE agentstate_leaseterm SET renewals = renewals + 1 WHERE token = (SELECT token FROM lease)
"""
CHARGE = """
WITH budget AS (
    UPDATE agentstate_budget SET spent = spent + 1, cap = cap + 1, entries = entries + 1,
        version = version + 1 WHERE run_id = %(run)s RETURNING id, entries, cap, spent
)
INSERT INTO agentstate_budgetentry
    (budget_id, n, kind, amount, spent, reserved, cap, run_id, note, overdrawn, actor, request_id,
    at)
SELECT id, entries, 'spend', 1, 1, 0, NULL, %(run)s, '', false, 'key:load', %(request)s, now()
FROM budget
"""
REFUSE = """
INSERT INTO agentstate_refusal
    (at, code, operation, run_id, actor, wanted, found, request_id, attempt)
VALUES (now(), 'stale-fence', 'append', %(run)s, 'key:load', '{}', '{}', %(request)s, 1)
"""
COUNT = """
INSERT INTO agentstate_minute (minute, run_key, operation, worker, outcome, count, events,
    latency_ms, attempts, latency)
VALUES (date_trunc('minute', now()), %(run)s::text, 'append', 'w', 'ok', 1, 1, 1, '{1}', '{1}')
ON CONFLICT (minute, run_key, operation, worker, outcome)
    DO UPDATE SET count = agentstate_minute.count + 1
"""
KINDS = {
    "append": APPEND,
    "renew": RENEW,
    "charge": CHARGE,
    "refusal": REFUSE,
    "minute": COUNT,
    "read run": "SELECT key, status, version FROM agentstate_run WHERE id = %(run)s",
    "read events": "SELECT seq, type, data FROM agentstate_event WHERE run_id = %(run)s"
    " ORDER BY seq DESC LIMIT 50",
    "read lease": "SELECT owner, token, expires_at FROM agentstate_lease WHERE run_id = %(run)s",
    "list runs": "SELECT key, status FROM agentstate_run ORDER BY created_at DESC, id DESC"
    " LIMIT 50",
}
HELD = "SELECT id FROM agentstate_run WHERE status = 'running' AND key LIKE 'run-%' LIMIT 300"


def sql_callers(conninfo: str) -> dict[str, Callable[[], Callable[[], None]]]:
    """Two sessions for each kind of call."""
    with psycopg.connect(conninfo) as session:
        runs = [run for (run,) in session.execute(HELD).fetchall()]

    def caller(statement: str) -> Callable[[], Callable[[], None]]:
        def begin() -> Callable[[], None]:
            session = psycopg.connect(conninfo, autocommit=True, application_name=LOAD)
            data = '{"output": "%s"}' % ("x" * 200)

            def call() -> None:
                given = {"run": random.choice(runs), "request": secrets.token_hex(8), "data": data}
                cursor = session.execute(statement.encode(), given)
                if cursor.description:
                    cursor.fetchall()

            return call

        return begin

    return {f"{kind}#{n}": caller(sql) for kind, sql in KINDS.items() for n in range(2)}


# --- real clients ---------------------------------------------------------------------------------


def client_callers(urls: list[str], key: str) -> dict[str, Callable[[], Callable[[], None]]]:
    """Workers that hold a run, append to it, renew its lease and read it, by turns at each web."""
    sys.path.insert(0, str(ROOT / "client" / "src"))  # where ./run has it, too
    from agentstate_client import Client, Event, RetryPolicy

    def holding(number: int) -> Any:
        url = urls[number % len(urls)]
        client = Client(url, key, worker=f"w-{number}", retry=RetryPolicy(total_seconds=60))
        run = client.create(task="upgrade", key=f"upgrade-{secrets.token_hex(6)}")
        return client, run.acquire(ttl_seconds=600)

    def appending(number: int) -> Callable[[], None]:
        _, run = holding(number)
        run.start()
        return lambda: run.append(Event("step.done", {"by": number}), add={"done": 1})

    def renewing(number: int) -> Callable[[], None]:
        import httpx

        _, run = holding(number)
        web = httpx.Client(
            base_url=urls[number % len(urls)],
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
        )
        asked = {"token": run.lease.token, "ttl_seconds": 600}
        path = f"/api/v1/leases/{run.lease.unit}/renew"
        return lambda: web.post(path, json=asked).raise_for_status() and None

    def reading(number: int) -> Callable[[], None]:
        _, run = holding(number)
        return lambda: run.read() and None

    kinds = {"append": appending, "renew": renewing, "read": reading}
    return {
        f"{kind} over HTTP#{n}": lambda make=make, n=n: make(n)  # type: ignore[misc]
        for kind, make in kinds.items()
        for n in range(WORKERS // 2)
    }


def code_of_release_before(to: Path) -> Path:
    """Its tree out of the history. Raises SystemExit in a clone that has none."""
    from agentstate.store.schema.releases import COMMIT_BEFORE

    packed = subprocess.run(
        ["git", "archive", COMMIT_BEFORE], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        raise SystemExit(
            f"this clone does not have the commit {COMMIT_BEFORE}, the release before: it is"
            " shallow (git fetch --unshallow), or no clone"
        )
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", to], input=packed.stdout, check=True)
    return to


@contextmanager
def two_webs(home: str) -> Iterator[list[str]]:
    """One with the code of the release before, one with today's."""
    old = code_of_release_before(Path(home) / "code-before")
    with webs.web_process(home, 1, code=old) as then, webs.web_process(home, 2) as now:
        for one in (then, now):
            webs.wait_for(one)
        yield [then.url, now.url]


# --- the upgrades ---------------------------------------------------------------------------------


def migrate(*arguments: str) -> None:
    """In a process of its own, as an operator does it."""
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "1", *arguments],
        cwd=ROOT, check=True, stdout=sys.stderr, env=os.environ | {"AGENTSTATE_PROCESS": "migrate"},
    )  # fmt: skip


def upgrade(options: argparse.Namespace, conninfo: str) -> float:
    """The longest wait for a lock, in seconds."""
    from agentstate.store.schema.releases import RELEASE_BEFORE

    before = RELEASE_BEFORE["agentstate"]
    progress(f"back to {options.first} …")
    migrate("agentstate", options.first)
    subprocess.run([sys.executable, "manage.py", "migrate", "--plan", "agentstate", before],
                   cwd=ROOT, check=True)  # fmt: skip
    waits = []
    with Load(conninfo, sql_callers(conninfo)) as load:
        load.measure("nothing migrates", lambda: time.sleep(BEFORE_SECONDS))
        seen = load.measure(f"{options.first} to {before}", lambda: migrate("agentstate", before))
        waits.append(seen)
    from agentstate.cli.people import make_key

    key = make_key(name=f"upgrade-{secrets.token_hex(4)}", scopes=("read", "write"))
    with (
        two_webs(os.environ["AGENTSTATE_HOME"]) as urls,
        Load(conninfo, client_callers(urls, key)) as load,
    ):
        load.measure(f"on {before}, nothing migrates", lambda: time.sleep(BEFORE_SECONDS))
        waits.append(load.measure(f"{before} to today", lambda: migrate("agentstate")))
        waits.append(load.measure(f"back to {before}", lambda: migrate("agentstate", before)))
        waits.append(load.measure(f"{before} to today again", lambda: migrate("agentstate")))
    if failed := [failure for seen in waits for failure in seen.failed]:
        raise SystemExit(f"calls failed: {failed[:5]}")
    return max(seen.longest_wait for seen in waits)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--home", type=Path, required=True, help="a folder for the store")
    asked.add_argument("--events", type=int, default=20_000_000)
    asked.add_argument("--first", default="0004_retention", help="the migration to begin at")
    options = asked.parse_args()
    runs = max(1_000, options.events // EVENTS_PER_RUN)
    size = filled.Size(runs=runs, events=EVENTS_PER_RUN, minute_days=1, long=0)
    with filled.site_database(options.home):
        from django.conf import settings
        from django.db import connections

        from agentstate import postgres

        filled.fill(size)
        connections.close_all()
        longest = upgrade(options, postgres.conninfo(settings.SESSION_PARTS))
        connections.close_all()
    result(f"the longest wait of a call for a lock: {longest * 1e3:,.0f} ms")
    if longest > BOUND_SECONDS:
        raise SystemExit(f"more than {BOUND_SECONDS:g} s")


if __name__ == "__main__":
    main()
