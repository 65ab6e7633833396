"""Leases: renewals, refusals of a held unit, claims among many runs, and what others take for it.

    ./run bench leases [--quick] [--rounds N]

By `execute` in threads of two processes, and where a call is a single one also by `aexecute` in
tasks of an event loop.
A thousand units that all callers share are renewed one by one, and a hundred in one call in any
order; one that is held is asked for; runs are claimed, one and ten at once, among a million of
which a hundred thousand wait, and none may be given to two. procrastinate's fetch_job and pgmq's
read take from as many jobs that wait. What a claim costs is asked at three numbers of ended runs.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress
from bench import crew
from bench.appends import aask
from bench.baseline import UNIT, make_baseline, make_runs, pgbench
from bench.beside import Beside, beside
from bench.budget_slots import ask, django_on, scratch_server
from bench.claimable import Claimable
from bench.crew import Crew, Told
from bench.grounds import exponent
from bench.report import Goal, Options, Report, Table
from bench.turns import Measured, Turns, columns, seconds_of

ABOUT = "Leases: renewals, refusals and claims among many runs, beside procrastinate and pgmq"
CALLERS = (16, 64)
RENEW, RENEW_100 = "renew one", "renew 100 in one call, units"
REFUSED = "a held unit is refused"
CLAIM, CLAIM_10 = "claim one", "claim ten at once, runs"
FETCH, READ = "procrastinate fetch_job", "pgmq read"
TASKS = ", aexecute"
HELD, OWNER = "bench-held", "claimer"
AT_ONCE = 100
CLAIM_SECONDS = 1  # so that those that wait last


@dataclass(frozen=True, slots=True)
class Sizes:
    """ended: the numbers of ended runs; waiting: runs, or a peer's jobs, that wait."""

    ended: tuple[int, int, int]
    waiting: int


FULL = Sizes(ended=(10_000, 100_000, 900_000), waiting=100_000)
QUICK = Sizes(ended=(1_000, 3_000, 10_000), waiting=10_000)


def report(options: Options) -> Report:
    sizes, turns, claims = QUICK if options.quick else FULL, Turns(UNIT), Turns(UNIT)
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"  # the limit of one run is not measured
    with scratch_server(flush_ms=0, max_connections=300) as home:
        store = Claimable(sizes.ended[-1])
        script, held = make_baseline(home), Path(home) / "runs.json"
        held.write_text(json.dumps(make_runs()))
        hold()
        with Crew("bench.leases", str(held)) as callers:
            renew(turns, options, script, callers)
            claiming = Claiming(store, callers, sizes)
            for ended in sizes.ended[:-1]:
                claiming.grow(claims, options, script, ended)
            store.end_up_to(sizes.ended[-1])
            with beside([FETCH, READ], jobs=sizes.waiting) as others:
                claiming.play(claims, options, script, others)
        claiming.check()
    return told(turns, claims, claiming, others)


def in_tasks(kind: str) -> str:
    """The same call by tasks."""
    return kind + TASKS


def both(kind: str) -> tuple[str, str]:
    return kind, in_tasks(kind)


def renew(turns: Turns, options: Options, script: Path, callers: Crew) -> None:
    seconds = seconds_of(options)
    turns.play(options, {
        str(count): {
            UNIT: lambda c=count: pgbench(script, c, seconds),
            **{kind: lambda k=kind, c=count: callers.work(k, c, seconds)
               for kind in (*both(RENEW), RENEW_100, *both(REFUSED))},
        }
        for count in CALLERS
    })  # fmt: skip


def hold() -> None:
    from agentstate.store.commands import AcquireLease

    ask(AcquireLease(unit=HELD, owner="bench", ttl_seconds=86_400))


class Claiming:
    """Claims by sixteen callers, always among as many that wait."""

    callers = 16

    def __init__(self, store: Claimable, crew: Crew, sizes: Sizes) -> None:
        self.store, self.crew, self.sizes = store, crew, sizes
        self.claimed = 0

    def turns(self, kind: str) -> dict[str, Callable[[], Measured]]:
        return {way: self.turn(way) for way in both(kind)}

    def turn(self, kind: str) -> Callable[[], Measured]:
        """Those that were taken before are made up for first."""

        def claim() -> Measured:
            before = count_claimed()
            if missing := self.sizes.waiting - (self.store.waiting - before):
                self.store.wait(missing)
            found = self.crew.work(kind, self.callers, CLAIM_SECONDS)
            if count_claimed() - before >= self.sizes.waiting:
                raise ValueError("nothing was left to claim: the turn is too long")
            return found

        return claim

    def grow(self, turns: Turns, options: Options, script: Path, ended: int) -> None:
        """The same claims with so many runs that ended."""
        self.store.end_up_to(ended)
        unit = lambda: pgbench(script, self.callers, CLAIM_SECONDS)  # noqa: E731
        turns.play(options, {f"{ended:,}": {UNIT: unit} | self.turns(CLAIM)})

    def play(self, turns: Turns, options: Options, script: Path, others: Beside) -> None:
        turns.play(options, {f"{self.sizes.ended[-1]:,}": {
            UNIT: lambda: pgbench(script, self.callers, CLAIM_SECONDS),
            **self.turns(CLAIM), **self.turns(CLAIM_10),
            **{peer: lambda p=peer: others.work(p, self.callers, CLAIM_SECONDS)
               for peer in others.names},
        }})  # fmt: skip

    def check(self) -> None:
        """Raises ValueError if one run was given to two, or one that was claimed is not held."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), count(DISTINCT t.run_id), count(l.unit) FROM agentstate_leaseterm"
                " t LEFT JOIN agentstate_lease l ON l.token = t.token WHERE t.owner = %s",
                [OWNER],
            )
            terms, runs, leases = cursor.fetchone()
        if not terms == runs == leases:
            raise ValueError(f"{terms} claims of {runs} runs, {leases} of them held")
        self.claimed = terms
        progress(f"{terms:,} claims, each of another run, all of them held")


def count_claimed() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM agentstate_leaseterm WHERE owner = %s", [OWNER])
        return int(cursor.fetchone()[0])


# --- what was found -------------------------------------------------------------------------------


def told(turns: Turns, claims: Turns, claiming: Claiming, others: Beside) -> Report:
    sizes = claiming.sizes
    note = (
        f"16 callers in 2 processes, {sizes.waiting:,} runs that wait (as many jobs of peers, in"
        f" databases of their own). {claiming.claimed:,} runs were claimed in all, each once."
    )
    if others.missing:
        note += " Could not be measured here: " + "; ".join(
            f"{peer} ({why})" for peer, why in others.missing.items()
        )
    return Report(
        tables=(
            Table(title="Renewals and refusals", columns=columns("callers", UNIT),
                  rows=turns.rows(), note="A thousand units, shared by all callers."),
            Table(title="Claims", columns=columns("ended runs", UNIT), rows=claims.rows(),
                  note=note),
        ),
        goals=(
            *goals_of_renewals(turns),
            *goals_of_claims(claims, sizes, others),
            Goal(what="runs that were given to two", asked="none", reached=True,
                 found=f"none of {claiming.claimed:,} that were claimed"),
        ),
    )  # fmt: skip


def best(turns: Turns, group: str, kind: str, to: str | None = None) -> float:
    """By the better way of calling."""
    return max(turns.ratio(group, way, to) for way in both(kind))


def goals_of_renewals(turns: Turns) -> list[Goal]:
    asked = (
        ("renew one, 16 callers", 0.5, best(turns, "16", RENEW)),
        ("renew 100 in one call, 16 callers, in units", 8, turns.ratio("16", RENEW_100)),
        ("renew 100 in one call, 64 callers, in units", 4, turns.ratio("64", RENEW_100)),
        ("a held unit is refused, 16 callers", 1.0, best(turns, "16", REFUSED)),
    )
    return [at_least(what, least, found) for what, least, found in asked]


def at_least(what: str, least: float, found: float) -> Goal:
    return Goal(what=what, asked=f"≥ {least:g} of a bare INSERT", found=f"{found:.2f}",
                reached=found >= least)  # fmt: skip


def goals_of_claims(claims: Turns, sizes: Sizes, others: Beside) -> list[Goal]:
    group = f"{sizes.ended[-1]:,}"
    among = f"{sizes.ended[-1] + sizes.waiting:,} runs, {sizes.waiting:,} of them waiting"
    goals = [at_least(f"claim among {among}, 16 callers", 0.4, best(claims, group, CLAIM))]
    for peer, least in ((FETCH, 3), (READ, 5)):
        times = None if peer in others.missing else best(claims, group, CLAIM, to=peer)
        goals.append(Goal(
            what=f"claim beside {peer}", asked=f"≥ {least} times",
            found="not measured here" if times is None else f"{times:.1f} times",
            reached=times is not None and times >= least,
        ))  # fmt: skip
    costs = [1 / best(claims, f"{ended:,}", CLAIM) for ended in sizes.ended]
    grows = exponent(dict(zip(sizes.ended, costs, strict=True)))
    goals.append(Goal(
        what="cost of a claim by the number of ended runs, in units of the INSERT beside it",
        asked="flat: exponent under 0.05",
        found=f"{grows:+.3f} ({', '.join(f'{cost:.1f}' for cost in costs)})", reached=grows < 0.05,
    ))  # fmt: skip
    return goals


# --- a process that calls -------------------------------------------------------------------------


def serve(held: str) -> None:
    django_on(os.environ["AGENTSTATE_HOME"])
    units = [(f"run:{key}", token) for key, token in json.loads(Path(held).read_text())]
    from django.db import connections

    calls: dict[str, Callable[[], int]] = {
        RENEW: lambda: renew_one(units),
        RENEW_100: lambda: renew_many(units),
        REFUSED: be_refused,
        CLAIM: lambda: len(ask(claim(1)).items),
        CLAIM_10: lambda: len(ask(claim(10)).items),
    }

    def work(kind: str, callers: int, seconds: float) -> Told:
        if kind.endswith(TASKS):
            return crew.in_tasks(callers, seconds, task_of(kind.removesuffix(TASKS), units))
        return crew.in_threads(callers, seconds, calls[kind], at_end=connections.close_all)

    crew.serve(work)


def task_of(kind: str, units: list[tuple[str, int]]) -> Callable[[], Awaitable[int]]:
    """The same calls, to be awaited."""

    async def renew_in_a_task() -> int:
        await aask(renewal(units))
        return 1

    async def take() -> int:
        return len((await aask(claim(10 if kind == CLAIM_10 else 1))).items)

    return {RENEW: renew_in_a_task, REFUSED: be_refused_in_a_task}.get(kind, take)


def renewal(units: list[tuple[str, int]]) -> Any:
    from agentstate.store.commands import RenewLease

    unit, token = random.choice(units)
    return RenewLease(unit=unit, token=token, ttl_seconds=86_400)


def renew_one(units: list[tuple[str, int]]) -> int:
    ask(renewal(units))
    return 1


def renew_many(units: list[tuple[str, int]]) -> int:
    """As POST /api/v1/leases/renew does it; the units in no order, as callers have them."""
    from agentstate import store
    from agentstate.store.callers import SCOPES, Caller
    from agentstate.store.commands import RenewLease

    by = Caller(kind="key", name="bench", scopes=frozenset(SCOPES))
    asks = [
        store.Ask(command=RenewLease(unit=unit, token=token, ttl_seconds=86_400), by=by)
        for unit, token in random.sample(units, AT_ONCE)
    ]
    for outcome in store.execute_all(asks):
        if isinstance(outcome, Exception):
            raise outcome
    return AT_ONCE


def of_another() -> Any:
    from agentstate.store.commands import AcquireLease

    return AcquireLease(unit=HELD, owner="another", ttl_seconds=60)


def be_refused() -> int:
    from agentstate.store.errors import LeaseHeld

    try:
        ask(of_another())
    except LeaseHeld:
        return 1
    raise ValueError("a unit that is held was given away")


async def be_refused_in_a_task() -> int:
    from agentstate.store.errors import LeaseHeld

    try:
        await aask(of_another())
    except LeaseHeld:
        return 1
    raise ValueError("a unit that is held was given away")


def claim(limit: int) -> Any:
    """Refusals there are none: who gets nothing is told so."""
    from agentstate.store.commands import ClaimRuns

    return ClaimRuns(owner=OWNER, limit=limit, ttl_seconds=86_400)


if __name__ == "__main__":
    serve(sys.argv[sys.argv.index("--serve") + 1])
