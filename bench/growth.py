"""What grows with what: calls of the store at three sizes of everything that there may be more of.

In this process on one new database, without web and Celery; a call is what `execute` or a function
for readers takes, on one connection. Sizes are 1, 4 and 16 times the first:

- runs: of which all but a few are over, as `bench.filled` makes them, each size in a process apart;
- events of the run that is appended to, held, and read;
- workers that call at once, in threads: what counts is the time the store has for each call.

Of the medians of several rounds, the sizes taking turns where they can, the exponent k of
cost ~ size^k is told, by least squares on the logarithms. 0: it costs the same; 1: twice for twice.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress
from bench import filled, grounds
from bench.crew import in_threads
from bench.grounds import ask, exponent, median, ms
from bench.report import Goal, Options, Report, Table

ABOUT = "What grows with what: writes, claims and reads at three sizes of runs, events, workers"

TIMES = (1, 4, 16)
CLAIMABLE, HELD = 2_000, 64
PAGE = 100
FLAT = 0.1  # an exponent below it is called none
DATA = '{"model": "large-2", "tokens": {"in": 4096, "out": 212}, "thought": "%s"}' % ("x" * 200)


@dataclass(frozen=True, slots=True)
class Plan:
    """The first of each three sizes, and how much is asked of each."""

    runs: int
    events: int
    workers: int
    calls: int
    rounds: int
    seconds: float


# --- what is called -------------------------------------------------------------------------------


class Bench:
    """Held runs, runs to be claimed, and the calls on them. names: unique, so that nothing repeats
    what another bench did here."""

    def __init__(self, prefix: str, *, claimable: int, runs: int) -> None:
        from agentstate.store.commands import CreateBudget, CreateRun, NewBudget

        self.prefix, self.runs = prefix, runs
        self.held = grounds.make_held(HELD, prefix=f"{prefix}-held")
        for key, token in self.held:
            tokens = NewBudget(name="tokens", cap=10**9)
            ask(CreateBudget(run=key, budget=tokens, fence=token))
        self._turn = itertools.count()
        for number in range(claimable):
            ask(CreateRun(key=f"{prefix}-claim-{number:05d}", task=f"{prefix}-claim"))

    def calls(self) -> dict[str, Callable[[], Any]]:
        return {
            "append": self.append,
            "spend": self.spend,
            "renew": self.renew,
            "claim": self.claim,
            "story page": self.story,
            "list": self.list_newest,
            "list of a status": self.list_running,
            "feed read": self.feed,
        }

    def append(self, run: tuple[str, int] | None = None) -> None:
        from agentstate.store.commands import Append, NewEvent
        from agentstate.store.payloads import RawJSON

        n = next(self._turn)
        key, token = run or self.held[n % HELD]
        new = NewEvent(type="step.done", data=RawJSON(DATA), id=f"{self.prefix}-{n}")
        ask(Append(run=key, events=(new,), fence=token, add={"steps": 1}))

    def spend(self, run: tuple[str, int] | None = None) -> None:
        from agentstate.store.commands import Charge, Spend

        n = next(self._turn)
        key, token = run or self.held[n % HELD]
        charge = Charge(budget="tokens", amount=1, id=f"{self.prefix}-{n}")
        ask(Spend(run=key, charge=charge, fence=token))

    def renew(self, run: tuple[str, int] | None = None) -> None:
        from agentstate.store.commands import RenewLease

        key, token = run or self.held[next(self._turn) % HELD]
        ask(RenewLease(unit=f"run:{key}", token=token, ttl_seconds=86_400))

    def claim(self) -> None:
        from agentstate.store.commands import ClaimRuns

        found = ask(ClaimRuns(owner="bench", task=f"{self.prefix}-claim", ttl_seconds=86_400))
        if not found.items:
            raise RuntimeError("nothing is left to be claimed")

    def story(self) -> None:
        from agentstate.store import reads

        key = f"run-{next(self._turn) * 7_919 % self.runs + 1:07d}"
        reads.events(run_key=key, wanted=reads.EventFilter(), limit=PAGE)

    def list_newest(self) -> None:
        from agentstate.store import reads

        reads.runs(wanted=reads.RunFilter(), limit=50)

    def list_running(self) -> None:
        from agentstate.store import reads

        reads.runs(wanted=reads.RunFilter(statuses=("running",)), limit=50)

    def feed(self) -> None:
        from agentstate.store import feed

        feed.read(after=next(self._turn) * 97 % self.runs, limit=PAGE)


def cost_of(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds, the median of so many."""
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1_000)
    return median(took)


# --- by runs that are over ------------------------------------------------------------------------


def measure_runs(*, runs: int, plan: dict[str, Any]) -> dict[str, list[float]]:
    """In a process of its own: of each call its median in each round."""
    wanted = Plan(**plan)
    with scratch():
        filled.fill(filled.Size(runs=runs, events=5, minute_days=0, long=0))
        bench = Bench("by-runs", claimable=wanted.calls * (wanted.rounds + 1), runs=runs)
        found: dict[str, list[float]] = {name: [] for name in bench.calls()}
        for turn in range(wanted.rounds + 1):
            for name, call in bench.calls().items():
                cost = cost_of(call, wanted.calls)
                if turn:  # the first is to warm up
                    found[name].append(cost)
            progress(f"{runs:,} runs, turn {turn + 1} of {wanted.rounds + 1}")
    return found


# --- by events of the run -------------------------------------------------------------------------


def measure_events(*, plan: dict[str, Any]) -> dict[str, dict[int, list[float]]]:
    """The three runs in turns, in one process."""
    from contextlib import ExitStack

    wanted = Plan(**plan)
    with ExitStack() as stack:
        stack.enter_context(scratch())
        bench = Bench("by-events", claimable=0, runs=1)
        long = {times: long_run(wanted.events * times) for times in TIMES}
        found: dict[str, dict[int, list[float]]] = {}
        for turn in range(wanted.rounds + 1):
            for times in TIMES if turn % 2 else reversed(TIMES):
                for name, call in calls_on(bench, long[times], wanted.events * times).items():
                    cost = cost_of(call, wanted.calls)
                    if turn:
                        found.setdefault(name, {}).setdefault(times, []).append(cost)
            progress(f"events, turn {turn + 1} of {wanted.rounds + 1}")
    return found


def long_run(events: int) -> tuple[str, int]:
    """A run that is held, with so many events."""
    from agentstate.store.commands import Append, NewEvent
    from agentstate.store.payloads import RawJSON

    (key, token), batch = grounds.make_held(1, prefix=f"long-{events}")[0], 100
    for _ in range(events // batch):
        new = tuple(NewEvent(type="step.done", data=RawJSON(DATA)) for _ in range(batch))
        ask(Append(run=key, events=new, fence=token))
    return key, token


def calls_on(bench: Bench, run: tuple[str, int], events: int) -> dict[str, Callable[[], Any]]:
    from agentstate.store import reads

    def page(after: int, *, newest_first: bool = False) -> None:
        wanted = reads.EventFilter(after=after, newest_first=newest_first)
        reads.events(run_key=run[0], wanted=wanted, limit=PAGE)

    return {
        "append": lambda: bench.append(run),
        "renew": lambda: bench.renew(run),
        "head of the run": lambda: reads.run(run[0]),
        "story page, first": lambda: page(0),
        "story page, middle": lambda: page(events // 2),
        "story page, newest": lambda: page(0, newest_first=True),
    }


# --- by workers at once ---------------------------------------------------------------------------


def measure_workers(*, plan: dict[str, Any]) -> dict[str, dict[int, list[float]]]:
    """Milliseconds for each call that the store was at work: 1,000 by the rate of all together."""
    wanted = Plan(**plan)
    found: dict[str, dict[int, list[float]]] = {}
    with scratch():
        runs = 500
        filled.fill(filled.Size(runs=runs, events=5, minute_days=0, long=0))
        bench = Bench("by-workers", claimable=0, runs=runs)
        for turn in range(wanted.rounds + 1):
            for times in TIMES if turn % 2 else reversed(TIMES):
                for name, call in bench.calls().items():
                    if name == "claim":
                        continue
                    cost = 1_000 / rate_of(call, wanted.workers * times, wanted.seconds)
                    if turn:
                        found.setdefault(name, {}).setdefault(times, []).append(cost)
            progress(f"workers, turn {turn + 1} of {wanted.rounds + 1}")
    return found


def rate_of(call: Callable[[], Any], workers: int, seconds: float) -> float:
    """Calls a second by so many threads."""
    from django.db import connections

    def once() -> int:
        call()
        return 1

    count, took, _ = in_threads(workers, seconds, once, at_end=connections.close_all)
    return count / took


# --- all of it ------------------------------------------------------------------------------------


def scratch() -> Any:
    """A database of its own in a new folder, with nothing else at work."""
    from contextlib import contextmanager

    from bench.torture.trial import move_in

    @contextmanager
    def database() -> Any:
        with grounds.folder(None) as where:
            move_in(Path(where))
            from agentstate.cli.database import ready_database

            with ready_database():
                yield

    return database()


def report(options: Options) -> Report:
    plan = (
        Plan(runs=500, events=500, workers=1, calls=30, rounds=1, seconds=0.3)
        if options.quick
        else Plan(runs=10_000, events=1_000, workers=4, calls=200, rounds=options.rounds, seconds=2)
    )
    asked = asdict(plan)
    by_runs: dict[str, dict[int, list[float]]] = {}
    for times in TIMES:
        told = grounds.apart(measure_runs, runs=plan.runs * times, plan=asked)
        for name, costs in told.items():
            by_runs.setdefault(name, {})[times] = costs
    by_events = with_numbers(grounds.apart(measure_events, plan=asked))
    by_workers = with_numbers(grounds.apart(measure_workers, plan=asked))
    parts = [
        told_of("runs that are over", plan.runs, by_runs, "each size on a database of its own"),
        told_of("events of the run", plan.events, by_events, "in turns on one database"),
        told_of(
            "workers at once", plan.workers, by_workers,
            "in turns; the time that all together have for each call, so that less is better than"
            " the same",
        ),
    ]  # fmt: skip
    return Report(tables=tuple(table for table, _ in parts), goals=tuple(goal for _, goal in parts))


def with_numbers(told: dict[str, dict[str, list[float]]]) -> dict[str, dict[int, list[float]]]:
    """JSON has made texts of the keys."""
    return {name: {int(t): costs for t, costs in by.items()} for name, by in told.items()}


def told_of(
    what: str, first: int, found: dict[str, dict[int, list[float]]], how: str
) -> tuple[Table, Goal]:
    powers = {
        name: exponent({times: median(costs) for times, costs in by.items()})
        for name, by in found.items()
    }
    table = Table(
        title=f"By {what}",
        columns=("call", *(f"{first * times:,}, ms" for times in TIMES), "exponent"),
        rows=tuple((name, *cells(by), f"{powers[name]:+.2f}") for name, by in found.items()),
        note=f"Medians, {how}.",
    )
    steep = {name: k for name, k in powers.items() if k >= FLAT}
    goal = Goal(
        what=f"cost by {what}, {first:,} to {first * TIMES[-1]:,}",
        asked=f"grows with none (exponents below {FLAT:g})",
        found=", ".join(f"{name} {k:+.2f}" for name, k in steep.items())
        or f"{max(powers.values()):+.2f} at most",
        reached=not steep,
    )
    return table, goal


def cells(by: dict[int, list[float]]) -> Sequence[str]:
    return [ms(median(by[times])) for times in TIMES]
