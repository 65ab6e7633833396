"""Half an hour of even work: whether the last minutes are as fast as the first, and what grows.

On a new site with Celery, over HTTP. First the best rate of appends is looked for, by callers that
call again as soon as they are answered. Then appends come evenly at 70 % of it to 500 runs, whose
leases are renewed one by one at a third of their time, for 30 minutes (`--quick`: half a minute).
A line a minute tells of rate, p99, updates in place (HOT), sizes and memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress
from bench import grounds
from bench.absolute import step
from bench.grounds import Ground, median, ms, percentile
from bench.report import Goal, Options, Report, Table, read_report
from bench.talk import Calls, Pool, Talk, at_full, unit_path

ABOUT = "30 minutes at 70 % of the best rate with 500 leases: same speed, in place, flat"

HELD, TTL_SECONDS, CALLERS, CONNECTIONS = 500, 60, 32, 128
LOAD = 0.7
SAME, HOT, FLAT = 0.1, 0.95, 0.1
# What an event leaves behind by its nature, once each; everything else shall not grow with them.
# The minutes have a row for each run that was written to and each kind of call, however often; what
# may not grow is what such a row takes.
OF_EVENTS, OF_MINUTES = ("agentstate_event", "agentstate_feed"), "agentstate_minute"
MEGABYTE = 1024 * 1024
TELLS = 50  # octets an event that a table may grow between the two ends and still be called flat
ROW_GROWS = 1.2


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds of the work; period: of one line; edge: what is compared at both ends."""

    best_seconds: float
    seconds: float
    period: float
    edge: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was so at the end of a period. at: seconds since the beginning. sizes: octets by table,
    with its indexes; memory in kB; minutes: rows of the minute table."""

    at: float
    events: int
    per_second: float
    p50: float
    p99: float
    web_kb: float
    server_kb: float
    sizes: dict[str, int]
    minutes: int


# --- what the database tells ----------------------------------------------------------------------

# The parts of a partitioned table together, under its name.
SIZES = """
SELECT coalesce(p.relname, c.relname), sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace GROUP BY 1
"""
UPDATES = """
SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE schemaname = current_schema()
"""


def rows_of(statement: str) -> list[Any]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(statement)
        return list(cursor.fetchall())


def sizes() -> dict[str, int]:
    return {name: int(size) for name, size in rows_of(SIZES)}


def updates() -> dict[str, tuple[int, int]]:
    """Of each table all updates and those in place, since the server keeps count."""
    return {name: (all_of_them, hot) for name, all_of_them, hot in rows_of(UPDATES)}


# --- the work -------------------------------------------------------------------------------------


async def best_rate(ground: Ground, held: list[tuple[str, int]], seconds: float) -> float:
    calls, turn = Calls(), iter(range(10**9))

    def caller() -> Any:
        talk = Talk(ground.port, ground.key)

        async def call() -> None:
            n = next(turn)
            key, token = held[n % len(held)]
            head = {"Agentstate-Fence": token}
            path = f"/api/v1/runs/{key}/events"
            await calls.make("append", talk.ask("POST", path, step(n), head))

        return call

    began = time.monotonic()
    await at_full(seconds, [caller() for _ in range(CALLERS)])
    if calls.refused or calls.lost:
        raise RuntimeError(f"appends failed: {dict(calls.refused)} {dict(calls.lost)}")
    return calls.count / (time.monotonic() - began)


class Work:
    """Appends and renewals at an even rate, and a line for each period."""

    def __init__(
        self, ground: Ground, held: list[tuple[str, int]], rate: float, plan: Plan
    ) -> None:
        self.ground, self.held, self.rate, self.plan = ground, held, rate, plan
        self.pool = Pool(ground.port, ground.key, CONNECTIONS)
        self.calls = Calls()
        self.failed: dict[str, int] = {}
        self.lines: list[Line] = []
        self.events = 0
        self._began = 0.0

    async def go(self) -> None:
        self._began = time.monotonic()
        renewals = HELD / (TTL_SECONDS / 3)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._evenly(self.rate, self._append))
            group.create_task(self._evenly(renewals, self._renew))
            group.create_task(self._watch())
        self.pool.close()

    async def _evenly(self, per_second: float, call: Any) -> None:
        """As `at_rate`, but it never has more on the way than there are connections: whoever is
        late catches up."""
        room = asyncio.Semaphore(CONNECTIONS)

        async def one(n: int) -> None:
            try:
                await call(n)
            finally:
                room.release()

        async with asyncio.TaskGroup() as group:
            for n in range(round(per_second * self.plan.seconds)):
                await asyncio.sleep(max(0.0, self._began + n / per_second - time.monotonic()))
                if time.monotonic() > self._began + self.plan.seconds:
                    break
                await room.acquire()
                group.create_task(one(n))

    async def _append(self, n: int) -> None:
        key, token = self.held[n % len(self.held)]
        head = {"Agentstate-Fence": token}
        path = f"/api/v1/runs/{key}/events"
        await self.calls.make("append", self.pool.ask("POST", path, step(n), head))

    async def _renew(self, n: int) -> None:
        key, token = self.held[n % len(self.held)]
        body = {"token": token, "ttl_seconds": TTL_SECONDS}
        asked = self.pool.ask("POST", unit_path(f"run:{key}", "renew"), body)
        await self.calls.make("renew", asked)

    async def _watch(self) -> None:
        for period in range(round(self.plan.seconds / self.plan.period)):
            next_at = self._began + (period + 1) * self.plan.period
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            await self._note()

    async def _note(self) -> None:
        done, self.calls = self.calls, Calls()
        for name, n in (done.refused + done.lost).items():
            self.failed[name] = self.failed.get(name, 0) + n
        count = len(done.took.get("append", ()))
        self.events += count
        loop, at = asyncio.get_running_loop(), time.monotonic() - self._began
        since = self.lines[-1].at if self.lines else 0.0
        took = done.server()
        line = Line(
            at=at,
            events=self.events,
            per_second=count / (at - since),
            p50=median(took),
            p99=percentile(took, 0.99),
            **await loop.run_in_executor(None, self._facts),
        )
        self.lines.append(line)
        progress(
            f"{at / 60:5.1f} min  {line.per_second:6,.0f} appends a second, p99 {ms(line.p99)} ms,"
            f" web {line.web_kb / 1024:.0f} MB, PostgreSQL {line.server_kb / 1024:.0f} MB"
        )

    def _facts(self) -> dict[str, Any]:
        from django.db import connection

        try:
            found, minutes = sizes(), rows_of(f"SELECT count(*) FROM {OF_MINUTES}")[0][0]
        finally:
            connection.close()
        server = self.ground.postgres
        return {
            "web_kb": grounds.memory_kb(self.ground.web),
            "server_kb": grounds.memory_of_server_kb(server) if server else math.nan,
            "sizes": found,
            "minutes": minutes,
        }


# --- all of it ------------------------------------------------------------------------------------


def report(options: Options) -> Report:
    return read_report(grounds.apart(measure, quick=options.quick))


def measure(*, quick: bool) -> dict[str, Any]:
    """In a process of its own."""
    return measure_with(**asdict(Plan(2, 18, 3, 6) if quick else Plan(20, 1_800, 60, 300)))


def measure_with(**asked: Any) -> dict[str, Any]:
    from bench.torture.trial import move_in

    plan = Plan(**asked)
    with grounds.folder(None) as where:
        move_in(Path(where))
        with grounds.site(background=True) as ground:
            held = grounds.make_held(
                HELD, prefix="steady", key_name=ground.key_name, ttl_seconds=3_600
            )
            asyncio.run(best_rate(ground, held, 2))
            best = asyncio.run(best_rate(ground, held, plan.best_seconds))
            progress(f"at best {best:,.0f} appends a second")
            before, sizes_before = updates(), sizes()
            work = Work(ground, held, best * LOAD, plan)
            asyncio.run(work.go())
            found = told(plan, best, work, before, updates(), sizes_before)
    return asdict(found)


def told(
    plan: Plan,
    best: float,
    work: Work,
    before: dict[str, tuple[int, int]],
    after: dict[str, tuple[int, int]],
    sizes_before: dict[str, int],
) -> Report:
    lines = work.lines
    first = [line for line in lines if line.at <= plan.edge + plan.period / 2]
    last = [line for line in lines if line.at > lines[-1].at - plan.edge + plan.period / 2]
    if not (first and last):
        raise RuntimeError(f"it stood still: the first line came after {lines[0].at:.0f} s")
    speed = median([one.p50 for one in last]) / median([one.p50 for one in first])
    rate = median([one.per_second for one in last]) / median([one.per_second for one in first])
    hot, hot_share = told_updates(before, after)
    grown, growing = told_sizes(work.events, sizes_before, first, last)
    a_row = [one.sizes[OF_MINUTES] / max(1, one.minutes) for one in (first[-1], last[-1])]
    web, server = (
        median([getattr(one, name) for one in last]) / median([getattr(one, name) for one in first])
        for name in ("web_kb", "server_kb")
    )
    failed = ", ".join(f"{name}: {n:,}" for name, n in work.failed.items()) or "none"
    minutes = plan.edge / 60
    course = Table(
        title=f"{plan.seconds / 60:g} minutes at {LOAD:.0%} of {best:,.0f} appends a second,"
        f" and {HELD} leases renewed every {TTL_SECONDS / 3:g} s",
        columns=("minute", "appends a second", "server p50 ms", "p99 ms", "web MB",
                 "PostgreSQL MB", "tables without events and feed MB"),
        rows=tuple(
            (f"{one.at / 60:.1f}", f"{one.per_second:,.0f}", ms(one.p50), ms(one.p99),
             f"{one.web_kb / 1024:.0f}", f"{one.server_kb / 1024:.0f}",
             f"{beside_events(one.sizes) / MEGABYTE:.1f}")
            for one in lines
        ),
        note=f"{work.events:,} events. Failed: {failed}. Memory is PSS, PostgreSQL's without"
        " its buffers.",
    )  # fmt: skip
    goals = (
        Goal(
            what=f"the last {minutes:g} minutes against the first: rate, and median of the server",
            asked=f"±{SAME:.0%}",
            found=f"{rate - 1:+.0%}, and {speed - 1:+.0%} of the time a call takes",
            reached=abs(rate - 1) <= SAME and speed <= 1 + SAME and not work.failed,
        ),
        Goal(
            what="updates in place (HOT), all tables that an append or a renewal updates",
            asked=f"> {HOT:.0%}",
            found=f"{hot_share:.1%}",
            reached=hot_share > HOT,
        ),
        Goal(
            what="sizes of tables and indexes beyond events and feed",
            asked=f"flat (less than {TELLS} octets an event; of the minutes, a row at most"
            f" {ROW_GROWS:g} times as large)",
            found=(", ".join(growing) or "none grew between the two ends")
            + f"; minutes: {last[-1].minutes:,} rows, {a_row[0]:.0f} octets each, then"
            f" {a_row[1]:.0f}",
            reached=not growing and a_row[1] <= ROW_GROWS * a_row[0],
        ),
        Goal(
            what="memory, the last minutes against the first: web, PostgreSQL",
            asked=f"flat (at most {FLAT:+.0%})",
            found=f"{web - 1:+.0%}, {server - 1:+.0%}",
            reached=web <= 1 + FLAT and server <= 1 + FLAT,
        ),
    )
    return Report(tables=(course, hot, grown), goals=goals)


def beside_events(of: dict[str, int]) -> int:
    return sum(size for name, size in of.items() if name not in OF_EVENTS)


def told_updates(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> tuple[Table, float]:
    """By table, those with the most first; and the share of all together."""
    none = (0, 0)
    found = {
        name: (n - before.get(name, none)[0], hot - before.get(name, none)[1])
        for name, (n, hot) in after.items()
    }
    found = {name: both for name, both in found.items() if both[0]}
    table = Table(
        title="Updates in place",
        columns=("table", "updates", "of them HOT"),
        rows=tuple(
            (name, f"{n:,}", f"{hot / n:.1%}")
            for name, (n, hot) in sorted(found.items(), key=lambda one: -one[1][0])
        ),
    )
    return table, share(found.values())


def share(counts: Iterable[tuple[int, int]]) -> float:
    pairs = list(counts)
    return sum(hot for _, hot in pairs) / max(1, sum(n for n, _ in pairs))


def told_sizes(
    events: int, before: dict[str, int], first: list[Line], last: list[Line]
) -> tuple[Table, list[str]]:
    """By table, and those that went on growing between the two ends by more than a trifle."""
    early, late = first[-1], last[-1]
    between = max(1, late.events - early.events)
    rows, growing = [], []
    for name, size in sorted(late.sizes.items(), key=lambda one: -one[1]):
        more = size - early.sizes.get(name, 0)
        if size - before.get(name, 0) == 0:
            continue
        if name not in (*OF_EVENTS, OF_MINUTES) and more / between > TELLS:
            growing.append(f"{name} by {more / MEGABYTE:.1f} MB")
        rows.append((name, *(f"{octets / MEGABYTE:.2f}" for octets in
                             (before.get(name, 0), early.sizes.get(name, 0), size)),
                     f"{more / between:.1f}"))  # fmt: skip
    table = Table(
        title="Tables with their indexes, those that changed",
        columns=("table", "MB before", "MB after the first part", "MB at the end",
                 "octets an event between"),
        rows=tuple(rows),
        note=f"{events:,} events in all.",
    )  # fmt: skip
    return table, growing
