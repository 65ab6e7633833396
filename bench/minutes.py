"""Pages over a year of minute rows: how long they take, and whether any reads more than its window.

    .venv/bin/python -m bench.minutes --home FOLDER [--days 365] [--rows 20] [--repeats 40]

In the folder's own database (embedded, durable as always) it makes some runs as `bench.filled`
does, a shared budget with a long ledger, and minute rows (what was written, who met whom) by SQL:
first of two days, then of all the days. After each it asks for every page by turns, in this
process, and tells the time from the request to its answer. Retention keeps minutes for 30 days, and
nothing of a site runs here, so nothing deletes what is measured.

Only the ratio of the two and the rows that were read mean anything on a busy machine: a page that
reads its window alone reads as many rows of a year as of two days, whatever that takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress, result
from bench import filled
from bench.console import percentile

FIRST_DAYS = 2
# Minutes that are inserted in one statement.
CHUNK = 5_000
WARM = 2  # turns that are not counted
LIMIT_MS = 300
LEDGER = "year"

_LEDGER = """
WITH budget AS (
    INSERT INTO agentstate_budget (id, run_id, name, unit, cap, reserved, spent, overdrawn, version,
        entries, depth, slots)
    VALUES (gen_random_uuid(), NULL, %(name)s, 'tokens', 10 * %(lines)s, 0, %(lines)s - 1, false,
        %(lines)s, %(lines)s, 0, 1)
    RETURNING id
)
INSERT INTO agentstate_budgetentry (budget_id, n, kind, amount, spent, reserved, cap, note,
    overdrawn, actor, at)
SELECT id, n, CASE n WHEN 1 THEN 'open' ELSE 'spend' END,
    CASE n WHEN 1 THEN 10 * %(lines)s ELSE 1 END, CASE n WHEN 1 THEN 0 ELSE 1 END, 0,
    CASE n WHEN 1 THEN 10 * %(lines)s END, '', false, 'key:fleet',
    %(now)s - (%(lines)s - n) * make_interval(secs => %(days)s * 86400.0 / %(lines)s)
FROM budget, generate_series(1, %(lines)s) n
"""
# Who met whom: of every tenth row of a minute, which is a conflict, and of its fenced calls.
_COLLISIONS = """
INSERT INTO agentstate_collision (minute, run_key, outcome, loser, winner, about, count, latency_ms)
SELECT minute, run_key, outcome, worker, 'worker-' || count %% 7, 'counters.steps', sum(count),
    sum(latency_ms)
FROM agentstate_minute WHERE outcome <> 'ok' AND minute <= %(until)s AND minute > %(since)s
GROUP BY 1, 2, 3, 4, 5
"""
_READ = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))
FROM pg_stat_user_tables WHERE relname IN ('agentstate_minute', 'agentstate_collision')
"""


@dataclass(frozen=True)
class Size:
    days: int
    rows: int
    runs: int
    lines: int


@dataclass(slots=True)
class Page:
    """Milliseconds of each turn; rows of the minute tables that the last one read."""

    took: list[float] = field(default_factory=list)
    read: int = 0
    status: int = 0


def fill(size: Size) -> datetime:
    """Everything but the minutes; the clock that they end at."""
    from django.db import connection

    filled.fill(filled.Size(runs=size.runs, events=5, days=30, minute_days=0))
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now(), count(*) FROM agentstate_budget WHERE name = %s",
                       [LEDGER])  # fmt: skip
        now, there = cursor.fetchone()
        if not there:
            facts = {"name": LEDGER, "lines": size.lines, "days": size.days, "now": now}
            cursor.execute(_LEDGER, facts)
    found: datetime = now
    return found


def fill_minutes(size: Size, now: datetime, *, first: int, last: int) -> None:
    """Rows of the minutes from `first` to before `last`, counted back from now."""
    from django.db import connection

    values = filled.values(now, filled.Size(runs=size.runs, minute_rows=size.rows))
    began = time.monotonic()
    with connection.cursor() as cursor:
        for start in range(first, last, CHUNK):
            ends = {"first": start, "last": min(start + CHUNK, last) - 1}
            cursor.execute(filled._MINUTES, values | ends)
            rate = (start + CHUNK - first) * size.rows / (time.monotonic() - began)
            progress(f"{start * size.rows:,} of {last * size.rows:,} rows · {rate:,.0f} a second")
        times = {
            name: now - timedelta(minutes=n) for name, n in (("until", first), ("since", last))
        }
        cursor.execute(_COLLISIONS, times)
        progress("vacuum and analyze …")
        cursor.execute("VACUUM (ANALYZE) agentstate_minute, agentstate_collision")


def addresses(now: datetime, days: int, runs: int) -> dict[str, str]:
    """What is asked for; `then` is in the middle of all the days."""
    then = now - timedelta(days=days / 2)
    part = f"from={then:%Y-%m-%dT%H:%M}&to={then + timedelta(hours=1):%Y-%m-%dT%H:%M}"
    hour = f"since={then:%Y-%m-%dT%H:%M:%SZ}&until={then + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    run = f"run-{runs:07d}"
    return {
        "Now": "/",
        "Now, its table": "/?table=1",
        "Contention": "/contention",
        "Contention, 24 hours": "/contention?window=24h",
        "Contention, an hour long ago": f"/contention?{part}",
        "Budgets": "/budgets",
        "Budget of a run": f"/runs/{run}/budgets/tokens",
        "Budget with a long ledger": f"/budgets/{LEDGER}",
        "Budget with a long ledger, a week": f"/budgets/{LEDGER}?window=7d",
        "Budget with a long ledger, long ago": f"/budgets/{LEDGER}?{part}",
        "Budget with a long ledger, another cap": f"/budgets/{LEDGER}?window=7d&cap=5",
        "Workers": "/workers",
        "Rates": "/api/v1/rates",
        "Rates, by run and minute": "/api/v1/rates?by=run&by=minute",
        "Rates, of a run": f"/api/v1/rates?by=minute&run={run}",
        "Rates, an hour long ago": f"/api/v1/rates?by=worker&{hour}",
    }


def asking() -> Callable[[str], Any]:
    """A client of this process, as an operator and with a key that reads."""
    import secrets

    from django.contrib.auth.models import User
    from django.test import Client

    from agentstate.cli.people import make_key, save_user

    save_user(name="bench", role="operator", password=secrets.token_urlsafe(16))
    key = make_key(name=f"bench-{secrets.token_hex(4)}", scopes=("read",))
    page = Client(headers={"host": "localhost"})
    page.force_login(User.objects.get(username="bench"))
    api = Client(headers={"host": "localhost", "authorization": f"Bearer {key}"})
    return lambda address: (api if address.startswith("/api/") else page).get(address)


def rows_read() -> int:
    """Rows of the minute tables that were read in this database up to now."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(_READ)
        return int(cursor.fetchone()[0])


def measure(asked: dict[str, str], get: Callable[[str], Any], repeats: int) -> dict[str, Page]:
    pages = {name: Page() for name in asked}
    for turn in range(repeats + WARM):
        for name, address in asked.items():
            before = rows_read()
            began = time.perf_counter()
            status = get(address).status_code
            took = (time.perf_counter() - began) * 1_000
            if turn >= WARM:
                page = pages[name]
                page.took.append(took)
                page.status, page.read = status, rows_read() - before
        progress(f"turn {turn + 1} of {repeats + WARM}")
    return pages


def tell(
    asked: dict[str, str], few: dict[str, Page], all_of_it: dict[str, Page], days: int
) -> None:
    result(
        f"\n| page | p50 ms | p95 ms | ratio to {FIRST_DAYS} days | minute rows read, of"
        f" {FIRST_DAYS} days | of {days} |\n|---|---|---|---|---|---|"
    )
    for name in asked:
        one, year = few[name], all_of_it[name]
        bad = "" if year.status == 200 else f" (status {year.status})"
        late = " (!)" if percentile(year.took, 0.95) > LIMIT_MS else ""
        ratio = statistics.median(year.took) / statistics.median(one.took)
        result(
            f"| {name}{bad} | {statistics.median(year.took):.0f} |"
            f" {percentile(year.took, 0.95):.0f}{late} | {ratio:.2f} | {one.read:,} |"
            f" {year.read:,} |"
        )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--home", type=Path, required=True, help="an empty folder for the site")
    asked.add_argument("--days", type=int, default=365)
    asked.add_argument("--rows", type=int, default=20, help="of each minute")
    asked.add_argument("--runs", type=int, default=5_000)
    asked.add_argument("--lines", type=int, default=500_000, help="of the long ledger")
    asked.add_argument("--repeats", type=int, default=40)
    options = asked.parse_args()
    size = Size(options.days, options.rows, options.runs, options.lines)
    with filled.site_database(options.home):
        now = fill(size)
        minutes = FIRST_DAYS * 1440
        fill_minutes(size, now, first=0, last=minutes)
        get = asking()
        few = measure(addresses(now, FIRST_DAYS, size.runs), get, options.repeats)
        fill_minutes(size, now, first=minutes, last=size.days * 1440)
        places = addresses(now, size.days, size.runs)
        result(f"{size.days} days of {size.rows} rows a minute: {size.days * 1440 * size.rows:,}")
        tell(places, few, measure(places, get, options.repeats), size.days)


if __name__ == "__main__":
    main()
