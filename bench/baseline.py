"""The unit of all ratios: PostgreSQL's own bare single-row INSERT, by pgbench, on the same server.

One event of about 300 octets as jsonb, a bigserial key, prepared, as many clients as the contender
beside it has callers.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.turns import Measured

TEXT = "The failing test builds its window from the local time zone, so it only breaks there. " * 3
DATA = json.dumps({"model": "large-2", "thought": TEXT[:230], "tokens": {"in": 4096, "out": 212}})
UNIT = "pgbench INSERT"
RUNS = 1_000
TRIES = 3
ASKED_AT_ONCE = 200  # as many as the store takes
_SCRIPT = """\\set run random(1, :runs)
INSERT INTO bench_event (run, data) VALUES (:run, '{data}');
"""


def make_baseline(home: str) -> Path:
    """The table, in the store's own database, and pgbench's script."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bench_event (id bigserial PRIMARY KEY, run int, data jsonb)")
    script = Path(home) / "insert.sql"
    script.write_text(_SCRIPT.replace("{data}", DATA))
    return script


def conninfo() -> str:
    """How libpq reaches the database at hand."""
    from django.conf import settings
    from django.db import connection

    from agentstate import postgres

    return postgres.conninfo(settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"])


def pgbench(script: Path, clients: int, seconds: int, runs: int = RUNS) -> Measured:
    """Transactions by pgbench's own count."""
    from django.conf import settings

    from agentstate.embedded import EmbeddedPostgres

    binary = EmbeddedPostgres(settings.AGENTSTATE_HOME / "postgres").binaries / "pgbench"
    command = [
        str(binary), "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(2, clients)),
        "-f", str(script), "-D", f"runs={runs}",
    ]  # fmt: skip
    for more in range(TRIES):
        told = _carry_out([*command, "-T", str(seconds + more), conninfo()])
        line = next((line for line in told.splitlines() if line.startswith("tps =")), None)
        if line:
            return Measured(float(line.split()[2]))
    # On a machine that is very busy its clients may not even be connected by then.
    raise RuntimeError(f"pgbench carried out nothing in {seconds} s and more")


def _carry_out(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if done.returncode:
        raise RuntimeError(f"pgbench: {done.stderr.strip()}")
    return done.stdout


def make_runs(count: int = RUNS) -> list[tuple[str, int]]:
    """Runs that are held for a day by the key `bench`, each with its token."""
    from agentstate.store.commands import AcquireLease, CreateRun

    keys = [f"r-{number}" for number in range(count)]
    ask_all([CreateRun(key=key, task="bench") for key in keys])
    leases = ask_all(
        [AcquireLease(unit=f"run:{key}", owner="bench", ttl_seconds=86_400) for key in keys]
    )
    return [(key, lease.token) for key, lease in zip(keys, leases, strict=True)]


def ask_all(commands: Sequence[Any]) -> list[Any]:
    """Their results; raises what the first that was refused was told."""
    from agentstate import store
    from agentstate.store.callers import SCOPES, Caller

    by, done = Caller(kind="key", name="bench", scopes=frozenset(SCOPES)), []
    for first in range(0, len(commands), ASKED_AT_ONCE):
        some = commands[first : first + ASKED_AT_ONCE]
        done += store.execute_all([store.Ask(command=one, by=by) for one in some])
    for outcome in done:
        if isinstance(outcome, Exception):
            raise outcome
    return done
