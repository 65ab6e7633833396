"""A large store, as if it had been worked with for weeks: filled in SQL, sound by its own audit.

    .venv/bin/python -m bench.filled --home FOLDER [--runs 1000000] [--events 20] [--days 30]

Makes a site in the folder and fills it, or leaves it as it is when it is full already. So many runs
with so many events each, one more with 100,000, two in a thousand held by a worker, one in a
hundred not begun; a term, a budget, ledger lines and the feed of each; workers, refusals and the
minutes of the last days. Nothing but measurements writes to the store's tables like this.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress, result
from bench.torture.trial import move_in

CHUNK = 20_000  # runs in one transaction
LONG_RUN, LONG_EVENTS, LONG_BATCH = "long", 100_000, 500
WORKERS = 300
REFUSALS = 20_000
SPEND_LINES = 3
TASKS = (
    "triage an issue", "review a pull request", "answer a customer", "migrate a table",
    "write release notes", "fix a flaky test", "summarise a call", "audit checkout",
    "translate a page", "label pictures", "watch a deploy", "clean a data set",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much of everything. minute_rows: in each minute of the last minute_days. long: of the
    run with so many more events, none if it is 0."""

    runs: int = 1_000_000
    events: int = 20
    days: int = 30
    minute_days: int = 2
    minute_rows: int = 40
    long: int = LONG_EVENTS

    @property
    def live(self) -> int:
        return max(20, self.runs // 500)

    @property
    def waiting(self) -> int:
        return max(20, self.runs // 100)


_SETTING_UP = """
CREATE FUNCTION pg_temp.id_of(at timestamptz, n bigint, salt text) RETURNS uuid LANGUAGE sql AS $$
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
    || lpad(to_hex(n %% 4096), 3, '0') || '8' || left(md5(salt || n), 15))::uuid $$;
"""

# One row a run; whatever else there is of it is told from this.
_MADE = """
CREATE TEMP TABLE made ON COMMIT DROP AS
SELECT n, pg_temp.id_of(at, n, 'run') AS id, pg_temp.id_of(at, n, 'budget') AS budget, at, kind,
    'run-' || lpad(n::text, 7, '0') AS key, (%(tasks)s::text[])[n %% 12 + 1] AS task,
    CASE WHEN n %% 3 = 0
        THEN ARRAY['team:' || (ARRAY['search', 'billing', 'docs'])[n %% 5 %% 3 + 1]]
        ELSE '{}' END AS tags,
    CASE WHEN kind <> 'pending' THEN 'worker-' || n %% %(workers)s END AS owner,
    CASE WHEN kind <> 'pending' THEN n END AS token,
    CASE WHEN kind = 'pending' THEN 1 ELSE %(events)s END AS last_seq,
    CASE kind WHEN 'pending' THEN 1 WHEN 'running' THEN 4 ELSE 5 END AS version,
    at + make_interval(secs => CASE kind WHEN 'pending' THEN 0 ELSE %(events)s END) AS changed,
    kind NOT IN ('pending', 'running') AS over
FROM (
    SELECT n, %(now)s - make_interval(secs => 60 + (%(runs)s - n) * %(days)s * 86400.0 / %(runs)s)
        AS at,
        CASE WHEN n > %(runs)s - %(live)s THEN 'running'
            WHEN n > %(runs)s - %(live)s - %(waiting)s THEN 'pending'
            WHEN n %% 200 = 0 THEN 'failed' WHEN n %% 400 = 1 THEN 'cancelled'
            ELSE 'completed' END AS kind
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
) placed
"""

_RUNS = """
INSERT INTO agentstate_run (id, key, task, status, version, last_seq, counters, tags, notes, attrs,
    result, owner, token, holder, last_token, ended_token, attempt, max_attempts, deadline_policy,
    created_by, created_at, updated_at, ended_at, hold)
SELECT id, key, task, kind, version, last_seq, '{}', tags, '', json_build_object('n', n),
    CASE WHEN over THEN '{"ok": true}'::json END, CASE WHEN over THEN NULL ELSE owner END,
    CASE WHEN over THEN NULL ELSE token END,
    CASE WHEN kind = 'running' THEN 'key:fleet' END, token, CASE WHEN over THEN token END,
    CASE WHEN token IS NULL THEN 0 ELSE 1 END, 5, 'report', 'key:fleet', at, changed,
    CASE WHEN over THEN changed END, false
FROM made
"""

_EVENTS = """
INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, token, actor, request_id,
    at)
SELECT id, s, v,
    CASE WHEN s = 1 THEN 'run.created' WHEN s = 2 THEN 'lease.acquired'
        WHEN s = 3 THEN 'run.running' WHEN v = 5 THEN 'run.' || kind
        ELSE (ARRAY['model.replied', 'tool.called', 'tool.returned', 'step.done'])[s %% 4 + 1] END,
    CASE WHEN v = 4 THEN 'worker' ELSE 'store' END,
    CASE WHEN s = 1 THEN json_build_object('task', task, 'status', 'pending', 'tags', tags,
            'attrs', json_build_object('n', n), 'parent', NULL, 'deadline_at', NULL,
            'deadline_policy', 'report', 'max_attempts', 5, 'retain_seconds', NULL, 'budgets',
            json_build_array(json_build_object('name', 'tokens', 'unit', 'tokens', 'cap', 10000)))
        WHEN s = 2 THEN json_build_object('owner', owner, 'token', token, 'ttl_seconds', 21600,
            'expires_at', at + interval '6 hours', 'attempt', 1)
        WHEN s = 3 THEN '{"from": "pending"}'
        WHEN v = 5 THEN '{"from": "running", "result": {"ok": true}}'
        ELSE json_build_object('tool', 'bash', 'command', 'pytest -q tests/test_' || n %% 977,
            'output', repeat(md5(n::text || s), 6)) END,
    CASE WHEN s > 1 THEN token END, 'key:fleet', 'req-' || n || '-' || v, at + s * interval '1 s'
FROM (
    SELECT *, CASE WHEN s <= 3 THEN s WHEN over AND s = last_seq THEN 5 ELSE 4 END AS v
    FROM made, generate_series(1, last_seq) s
) lines
"""

_TERMS = """
INSERT INTO agentstate_leaseterm (token, unit, run_id, owner, holder, held, renewals, ended,
    ended_by, ttl_seconds)
SELECT token, 'run:' || key, id, owner, 'key:fleet',
    tstzrange(at + interval '1 s', CASE WHEN over THEN changed ELSE 'infinity' END), 0,
    CASE WHEN over THEN 'run-terminal' END, CASE WHEN over THEN 'key:fleet' END,
    CASE WHEN over THEN 21600 END
FROM made WHERE token IS NOT NULL
"""

# One in twenty of those that are held ran out five minutes ago.
_LEASES = """
INSERT INTO agentstate_lease (unit, run_id, owner, holder, token, ttl_seconds, acquired_at,
    renewed_at, expires_at, renewals)
SELECT 'run:' || key, id, owner, 'key:fleet', token, 21600, at + interval '1 s', changed,
    CASE WHEN n %% 20 = 0 THEN %(now)s - interval '5 min' ELSE %(now)s + interval '6 hours' END, 0
FROM made WHERE kind = 'running'
"""

_BUDGETS = """
INSERT INTO agentstate_budget (id, run_id, name, unit, cap, reserved, spent, overdrawn, version,
    entries, depth)
SELECT budget, id, 'tokens', 'tokens', 10000, 0, CASE WHEN token IS NULL THEN 0
    ELSE %(lines)s * (n %% 3300) END, false, CASE WHEN token IS NULL THEN 1 ELSE 1 + %(lines)s END,
    CASE WHEN token IS NULL THEN 1 ELSE 1 + %(lines)s END, 0
FROM made
"""

_LEDGER = """
INSERT INTO agentstate_budgetentry (budget_id, n, kind, amount, spent, reserved, cap, run_id, token,
    note, overdrawn, actor, request_id, at)
SELECT budget, line, CASE line WHEN 1 THEN 'open' ELSE 'spend' END,
    CASE line WHEN 1 THEN 10000 ELSE n %% 3300 END, CASE line WHEN 1 THEN 0 ELSE n %% 3300 END, 0,
    CASE line WHEN 1 THEN 10000 END, id, CASE WHEN line > 1 THEN token END, '', false, 'key:fleet',
    'req-' || n || '-' || line, at + line * interval '1 s'
FROM made, generate_series(1, CASE WHEN token IS NULL THEN 1 ELSE 1 + %(lines)s END) line
"""

_FEED = """
INSERT INTO agentstate_feed (position, run_id, run_key, first_seq, last_seq, version, types, at)
SELECT %(position)s + row_number() OVER (ORDER BY n, v), id, key,
    CASE WHEN v = 5 THEN last_seq ELSE v END,
    CASE WHEN v = 5 THEN last_seq WHEN v < 4 THEN v WHEN over THEN last_seq - 1
        ELSE last_seq END, v,
    CASE v WHEN 1 THEN ARRAY['run.created'] WHEN 2 THEN ARRAY['lease.acquired']
        WHEN 3 THEN ARRAY['run.running'] WHEN 5 THEN ARRAY['run.' || kind]
        ELSE ARRAY['model.replied', 'tool.called', 'tool.returned', 'step.done'] END,
    at + v * interval '1 s'
FROM made, generate_series(1, version) v
"""

_WORKERS = """
INSERT INTO agentstate_worker (name, version, host, slots, principal, first_seen_at, seen_at)
SELECT 'worker-' || n, '1.4.' || n %% 3, 'host-' || n / 10, 4, 'key:fleet',
    %(now)s - interval '20 days', %(now)s - n * interval '1 s'
FROM generate_series(0, %(workers)s - 1) n
"""

_REFUSALS = """
INSERT INTO agentstate_refusal (at, code, operation, run_id, unit, actor, worker, token_sent,
    token_current, wanted, found, request_id, attempt)
SELECT %(now)s - (%(refusals)s - n) * interval '4 s',
    (ARRAY['stale-fence', 'version-conflict', 'lease-held'])[n %% 3 + 1],
    (ARRAY['append', 'change', 'acquire'])[n %% 3 + 1], r.id, 'run:' || r.key, 'key:fleet',
    'worker-' || n %% %(workers)s, 1, r.last_token, '{}', '{}', 'refused-' || n, 1 + n %% 3
FROM generate_series(1, %(refusals)s) n
JOIN agentstate_run r ON r.key = 'run-' || lpad((%(runs)s - n %% 500)::text, 7, '0')
"""

_MINUTES = """
INSERT INTO agentstate_minute (minute, run_key, operation, worker, outcome, count, events,
    latency_ms, attempts, latency)
SELECT date_trunc('minute', %(now)s) - m * interval '1 min',
    'run-' || lpad((%(runs)s - n * 7 %% 500)::text, 7, '0'),
    (ARRAY['append', 'renew', 'change', 'spend'])[n %% 4 + 1], 'worker-' || n %% %(workers)s,
    CASE WHEN n %% 10 = 0 THEN 'version-conflict' WHEN n %% 27 = 0 THEN 'stale-fence'
        ELSE 'ok' END,
    10 + n, 10 + n, 50 + n, ARRAY[10 + n, n %% 5, n %% 2, 0, 0],
    ARRAY[n, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]
FROM generate_series(%(first)s::bigint, %(last)s::bigint) m, generate_series(1, %(minute_rows)s) n
"""

# Of each refusal of the minutes, whom it met.
_COLLISIONS = """
INSERT INTO agentstate_collision (minute, run_key, outcome, loser, winner, about, count, latency_ms)
SELECT minute, run_key, outcome, worker, 'worker-' || (length(run_key) + count) %% %(workers)s,
    CASE outcome WHEN 'stale-fence' THEN '' ELSE 'counters.steps_done' END, count, latency_ms
FROM agentstate_minute
WHERE outcome <> 'ok' AND minute <= date_trunc('minute', %(now)s) - %(first)s * interval '1 min'
    AND minute >= date_trunc('minute', %(now)s) - %(last)s * interval '1 min'
"""


@contextmanager
def site_database(home: Path) -> Iterator[None]:
    """The embedded server of a site in this folder, durable as always, with the schema."""
    move_in(home)
    from agentstate.cli.database import ready_database

    with ready_database():
        yield


def fill(size: Size) -> bool:
    """Fill the store at hand. False when it has as many runs already.

    Raises ValueError when it has others: what is there is not written over.
    """
    from django.db import connection

    with connection.cursor() as cursor:
        # What a measurement made itself has no key like ours.
        cursor.execute("SELECT count(*) FROM agentstate_run WHERE key LIKE 'run-%%' OR key = %s",
                       [LONG_RUN])  # fmt: skip
        if (there := cursor.fetchone()[0]) == size.runs + (size.long > 0):
            return False
        if there:
            raise ValueError(f"there are {there} runs already; take another folder")
        cursor.execute("SELECT agentstate_now()")
        now = cursor.fetchone()[0]
        make_weeks(cursor, now, size)
        cursor.execute(_SETTING_UP.replace("%%", "%"))
        position = fill_runs(cursor, now, size)
        fill_long(cursor, now, size, position)
        fill_rest(cursor, now, size)
        progress("vacuum and analyze …")
        cursor.execute("VACUUM (ANALYZE)")
    return True


def make_weeks(cursor: Any, now: Any, size: Size) -> None:
    from agentstate.store import partitions

    there = set(partitions.weeks_there(cursor))
    week = partitions.week_of(now - timedelta(days=size.days + 1))
    while week <= now:
        if week not in there:
            partitions._make(cursor, week)
        week += partitions.WEEK


def values(now: Any, size: Size) -> dict[str, Any]:
    return {
        "now": now, "runs": size.runs, "events": size.events, "days": size.days, "live": size.live,
        "waiting": size.waiting, "workers": WORKERS, "tasks": list(TASKS), "lines": SPEND_LINES,
        "refusals": REFUSALS, "minute_rows": size.minute_rows,
    }  # fmt: skip


def fill_runs(cursor: Any, now: Any, size: Size) -> int:
    """All runs but the long one; the last position of the feed."""
    from django.db import transaction

    position, began = 0, time.monotonic()
    for first in range(1, size.runs + 1, CHUNK):
        last = min(first + CHUNK - 1, size.runs)
        told = values(now, size) | {"first": first, "last": last, "position": position}
        with transaction.atomic():
            for statement in (_MADE, _RUNS, _EVENTS, _TERMS, _LEASES, _BUDGETS, _LEDGER, _FEED):
                cursor.execute(statement, told)
            position += cursor.rowcount
        rate = last / (time.monotonic() - began)
        progress(f"{last:,} of {size.runs:,} runs · {rate:,.0f} a second")
    cursor.execute("SELECT setval('agentstate_fence', %s)", [size.runs + 1])
    return position


def fill_long(cursor: Any, now: Any, size: Size, position: int) -> None:
    """The run of 100,000 events, in appends of 500, and how far the feed has come."""
    cursor.execute(
        "INSERT INTO agentstate_feedhead (id, position, moved_at) VALUES (1, %s, %s)"
        " ON CONFLICT (id) DO UPDATE SET position = excluded.position",
        [position, now],
    )
    if not size.long:
        return
    from tests.store.asking import Asking, event

    store = Asking()
    store.create(LONG_RUN, task="a long one")
    token = store.hold(LONG_RUN, "worker-1", ttl_seconds=21_600).token
    for first in range(0, size.long, LONG_BATCH):
        said = [{"tool": "bash", "step": n} for n in range(first, first + LONG_BATCH)]
        store.append(LONG_RUN, [event("tool.called", one) for one in said], fence=token)


def fill_rest(cursor: Any, now: Any, size: Size) -> None:
    told = values(now, size)
    cursor.execute(_WORKERS, told)
    cursor.execute(_REFUSALS, told)
    minutes = size.minute_days * 1440
    for first in range(0, minutes, CHUNK):
        told |= {"first": first, "last": min(first + CHUNK, minutes) - 1}
        cursor.execute(_MINUTES, told)
        cursor.execute(_COLLISIONS, told)
        progress(f"{told['last'] + 1:,} of {minutes:,} minutes")


def arguments(asked: argparse.ArgumentParser) -> None:
    asked.add_argument("--home", type=Path, required=True, help="a folder for the site")
    asked.add_argument("--runs", type=int, default=Size.runs)
    asked.add_argument("--events", type=int, default=Size.events, help="of each run; at least 5")
    asked.add_argument("--days", type=int, default=Size.days)
    asked.add_argument("--minute-days", type=int, default=Size.minute_days)


def size_of(options: argparse.Namespace) -> Size:
    return Size(options.runs, options.events, options.days, options.minute_days)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments(asked)
    asked.add_argument("--audit", action="store_true", help="derive everything again at the end")
    options = asked.parse_args()
    began = time.monotonic()
    with site_database(options.home):
        made = fill(size_of(options))
        result(f"{'filled' if made else 'full already'}, {time.monotonic() - began:.0f} s")
        if options.audit:
            from agentstate.store import audit

            found = audit.verify()
            for one in found[:20]:
                result(str(one))
            result(f"{len(found)} differences")


if __name__ == "__main__":
    main()
