"""In milliseconds: calls at a moderate load over stores of three sizes, and 500 workers at once.

Each size is a site of its own, filled as `bench.filled` does, in a process apart; the largest in
the folder that is given, if there is one. Celery does not run: of weeks that were filled at once it
would delete what is old all the while. Of an answer two times are told: what the server says of
itself (`Server-Timing`, total, with its queue), and what the caller waited.

1. So many calls a second, evenly: of four appends an acquire and a release of a free unit, and two
   reads of a run that is long over. Each begins at its time, whatever the others do.
2. From no worker to 500 within five seconds, over the largest store: each claims a run, appends to
   it, renews its lease, ends it and claims the next, and does what it is told when it is refused
   (503 and 429: later). Then p99 of each second.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress
from bench import filled, grounds
from bench.grounds import Ground, exponent, median, ms, percentile
from bench.report import Goal, Options, Report, Table
from bench.talk import Answer, Calls, Pool, Talk, at_rate, unit_path

ABOUT = "Calls in milliseconds at a moderate load over three sizes of store; 500 workers at once"

SIZES, QUICK_SIZES, EVENTS = (10_000, 100_000, 1_000_000), (500, 8_000), 5
SMALL_LARGEST = 160_000  # of the runs, where no folder for a million is given
CALLS_PER_SECOND, CONNECTIONS = 50.0, 32
HELD = 200
KINDS = ("append", "acquire", "read")
P99_MS, FLAT, BACK_SECONDS = 10.0, 0.1, 10.0
WORKERS, RAMP_SECONDS = 500, 5.0
# A worker: an append a second or so, 20 to a run, its lease renewed at a third of it.
STEP_SECONDS, STEPS, TTL_SECONDS = 1.0, 20, 30
BACKPRESSURE = ("503 overloaded", "429 rate-limited", "429 run-hot")
AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: of the moderate load. after_seconds: how long all workers work, once all came."""

    sizes: tuple[int, ...]
    seconds: float
    workers: int
    after_seconds: float


# --- 1. a moderate load ---------------------------------------------------------------------------


async def moderate(ground: Ground, held: list[tuple[str, int]], runs: int, seconds: float) -> Calls:
    calls, pool = Calls(), Pool(ground.port, ground.key, CONNECTIONS)

    async def append(n: int) -> None:
        key, token = held[n % len(held)]
        head = {"Agentstate-Fence": token}
        path = f"/api/v1/runs/{key}/events"
        await calls.make("append", pool.ask("POST", path, step(n), head))

    async def acquire(n: int) -> None:
        unit = f"bench:{n}"
        body = {"owner": "bench", "ttl_seconds": 60}
        got = await calls.make("acquire", pool.ask("POST", unit_path(unit, "acquire"), body))
        if got is not None:
            given = {"token": got.json["token"]}
            await calls.make("release", pool.ask("POST", unit_path(unit, "release"), given))

    async def read(n: int) -> None:
        key = f"run-{random.randint(1, runs):07d}"
        await calls.make("read", pool.ask("GET", f"/api/v1/runs/{key}"))

    deeds = (append, read, append, acquire, append, read, append)

    async def one(n: int) -> None:
        await deeds[n % len(deeds)](n)

    await at_rate(CALLS_PER_SECOND, seconds, one)
    pool.close()
    return calls


def step(n: int) -> dict[str, Any]:
    text = "The failing test builds its window from the local time zone. " * 4
    event = {"type": "step.done", "data": {"n": n, "thought": text[:230]}}
    return {"events": [event], "add": {"steps": 1}}


# --- 2. all workers at once -----------------------------------------------------------------------


class Fleet:
    """Workers that come within the ramp and work until the end."""

    def __init__(self, ground: Ground, plan: Plan) -> None:
        self.ground, self.plan, self.calls = ground, plan, Calls()
        self.began = self.end_at = 0.0
        self.ended = 0

    async def work(self) -> None:
        self.began = time.monotonic()
        self.end_at = self.began + RAMP_SECONDS + self.plan.after_seconds
        async with asyncio.TaskGroup() as group:
            for number in range(self.plan.workers):
                group.create_task(self._worker(number))

    async def _worker(self, number: int) -> None:
        await asyncio.sleep(RAMP_SECONDS * number / self.plan.workers)
        talk = Talk(self.ground.port, self.ground.key)
        wanted = {"owner": f"burst-{number}", "ttl_seconds": TTL_SECONDS, "task": "burst"}
        while time.monotonic() < self.end_at:
            got = await self.calls.make("claim", talk.ask("POST", "/api/v1/leases/claim", wanted))
            found = got.json["items"] if got else []
            if not found:
                await asyncio.sleep(AGAIN_SECONDS)
            for run in found:
                await self._play(talk, run["run"], run["token"])
        talk.close()

    async def _play(self, talk: Talk, key: str, token: int) -> None:
        head, renew_at = {"Agentstate-Fence": token}, time.monotonic() + TTL_SECONDS / 3
        path = f"/api/v1/runs/{key}/events"
        for n in range(STEPS):
            await asyncio.sleep(STEP_SECONDS * random.uniform(0.5, 1.5))
            if time.monotonic() >= self.end_at:
                return
            if time.monotonic() >= renew_at:
                body = {"token": token, "ttl_seconds": TTL_SECONDS}
                unit = unit_path(f"run:{key}", "renew")
                await self._insist("renew", lambda: talk.ask("POST", unit, body))  # noqa: B023
                renew_at = time.monotonic() + TTL_SECONDS / 3
            await self._insist("append", lambda n=n: talk.ask("POST", path, step(n), head))
        done = {"to": "completed"}
        path = f"/api/v1/runs/{key}/transitions"
        if await self._insist("end", lambda: talk.ask("POST", path, done, head)):
            self.ended += 1

    async def _insist(self, name: str, call: Callable[[], Awaitable[Answer]]) -> bool:
        """Again after a second, as it is told, until it is done or the time is over."""
        while time.monotonic() < self.end_at:
            if await self.calls.make(name, call()) is not None:
                return True
            await asyncio.sleep(AGAIN_SECONDS * random.uniform(0.8, 1.2))
        return False

    def per_second(self) -> list[tuple[int, float, float]]:
        """Of each second since the first worker came: calls, p50 and p99 of the server, in ms."""
        found = []
        for second in range(math.ceil(self.end_at - self.began)):
            since = self.began + second
            took = self.calls.server(since=since, until=since + 1)
            found.append((len(took), median(took), percentile(took, 0.99)))
        return found


def back_after(seconds: list[tuple[int, float, float]]) -> int | None:
    """How many seconds after the ramp p99 was under the bound for three seconds on end."""
    after = [p99 for _, _, p99 in seconds[int(RAMP_SECONDS) :]]
    for second in range(len(after) - 2):
        if all(p99 < P99_MS for p99 in after[second : second + 3]):
            return second
    return None


# --- each size, in a process of its own -----------------------------------------------------------


def measure(
    *, home: str | None, runs: int, events: int, long: int, burst: bool, plan: dict[str, Any]
) -> dict[str, Any]:
    from agentstate.store.commands import CreateRun
    from bench.torture.trial import move_in

    wanted = Plan(**plan)
    with grounds.folder(home) as where:
        move_in(Path(where))
        with grounds.site(background=False) as ground:
            filled.fill(filled.Size(runs=runs, events=events, minute_days=0, long=long))
            mark = f"calm-{int(time.time())}"
            held = grounds.make_held(HELD, prefix=mark, key_name=ground.key_name)
            asyncio.run(moderate(ground, held, runs, 2))
            calls = asyncio.run(moderate(ground, held, runs, wanted.seconds))
            told: dict[str, Any] = {"calm": calm(calls)}
            if burst:
                for number in range(wanted.workers * 3):
                    grounds.ask(CreateRun(key=f"{mark}-burst-{number:05d}", task="burst"))
                fleet = Fleet(ground, wanted)
                asyncio.run(fleet.work())
                told["burst"] = {
                    "seconds": fleet.per_second(),
                    "refused": fleet.calls.refused,
                    "lost": fleet.calls.lost,
                    "ended": fleet.ended,
                    "calls": fleet.calls.count,
                }
    return told


def calm(calls: Calls) -> dict[str, Any]:
    return {
        "times": {name: {"server": calls.server(name), "wall": calls.wall(name)} for name in KINDS},
        "refused": calls.refused,
        "lost": calls.lost,
    }


# --- the report -----------------------------------------------------------------------------------


def report(options: Options) -> Report:
    home = None if options.home is None or options.quick else str(options.home)
    sizes = QUICK_SIZES if options.quick else SIZES
    if home is None and not options.quick:
        sizes = (*SIZES[:2], SMALL_LARGEST)
    plan = Plan(sizes, 3, 60, 5) if options.quick else Plan(sizes, 60, WORKERS, 30)
    found: dict[int, dict[str, Any]] = {}
    for runs in sizes:
        is_largest = runs == sizes[-1]
        progress(f"a store of {runs:,} runs")
        found[runs] = grounds.apart(
            measure,
            home=home if is_largest else None,
            runs=runs,
            events=filled.Size.events if is_largest and home else EVENTS,
            long=filled.LONG_EVENTS if is_largest and home else 0,
            burst=is_largest,
            plan=asdict(plan),
        )
    calm_report = told_calm(plan, {runs: told["calm"] for runs, told in found.items()})
    burst_report = told_burst(plan, found[sizes[-1]]["burst"])
    return Report(
        tables=calm_report.tables + burst_report.tables,
        goals=calm_report.goals + burst_report.goals,
    )


def told_calm(plan: Plan, found: dict[int, dict[str, Any]]) -> Report:
    rows, growth, worst = [], {}, 0.0
    for name in KINDS:
        for runs in plan.sizes:
            server, wall = (found[runs]["times"][name][of] for of in ("server", "wall"))
            p99 = percentile(server, 0.99)
            worst = max(worst, p99)
            rows.append((name, f"{runs:,}", f"{len(server):,}", ms(median(server)),
                         ms(p99), ms(percentile(wall, 0.99))))  # fmt: skip
        growth[name] = exponent(
            {runs: median(found[runs]["times"][name]["server"]) for runs in plan.sizes}
        )
    failed = Counter[str]()
    for told in found.values():
        failed.update(told["refused"])
        failed.update(told["lost"])
    table = Table(
        title=f"{CALLS_PER_SECOND:g} calls a second over stores of growing size",
        columns=("call", "runs", "calls", "server p50 ms", "server p99 ms", "caller p99 ms"),
        rows=tuple(rows),
        note=f"Failed: {told_counts(failed)}. Medians as runs to the power of: "
        + ", ".join(f"{name} {k:+.2f}" for name, k in growth.items()) + ".",
    )  # fmt: skip
    steepest = max(growth.values())
    goals = (
        Goal(
            what="append, acquire and read of a run at a moderate load, server p99",
            asked=f"< {P99_MS:g} ms",
            found=f"{ms(worst)} ms at most; failed: {told_counts(failed)}",
            reached=worst < P99_MS and not failed,
        ),
        Goal(
            what=f"the same over {plan.sizes[0]:,} to {plan.sizes[-1]:,} runs",
            asked=f"flat (medians as runs to a power below {FLAT:g})",
            found=f"{steepest:+.2f} at most",
            reached=steepest < FLAT,
        ),
    )
    return Report(tables=(table,), goals=goals)


def told_counts(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{name}: {n:,}" for name, n in counts.items()) or "none"


def told_burst(plan: Plan, found: dict[str, Any]) -> Report:
    seconds = [tuple(one) for one in found["seconds"]]
    strange = {name: n for name, n in found["refused"].items() if name not in BACKPRESSURE}
    strange |= found["lost"]
    back = back_after(seconds)
    rows = tuple(
        (str(n + 1), f"{count:,}", ms(p50), ms(p99)) for n, (count, p50, p99) in enumerate(seconds)
    )
    table = Table(
        title=f"From none to {plan.workers} workers within {RAMP_SECONDS:g} s, second by second",
        columns=("second", "calls that were done", "server p50 ms", "server p99 ms"),
        rows=rows,
        note=f"{found['calls']:,} calls were done, {found['ended']:,} runs ended."
        f" Refused: {told_counts(found['refused'])}. Without an answer:"
        f" {told_counts(found['lost'])}.",
    )
    later = median([p99 for count, _, p99 in seconds[int(RAMP_SECONDS) :] if count])
    goals = (
        Goal(
            what=f"from 0 to {plan.workers} workers within {RAMP_SECONDS:g} s",
            asked="nothing but written backpressure (503, 429)",
            found=f"refused: {told_counts(found['refused'])}; anything else:"
            f" {told_counts(strange)}",
            reached=not strange,
        ),
        Goal(
            what="p99 after the last of them came",
            asked=f"< {P99_MS:g} ms again within {BACK_SECONDS:g} s",
            found=f"after {back} s"
            if back is not None
            else f"not; {ms(later)} ms, the median second",
            reached=back is not None and back <= BACK_SECONDS,
        ),
    )
    return Report(tables=(table,), goals=goals)
