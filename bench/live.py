"""Many open pages: how soon they hear of a commit, what each costs the web process and the writers.

On a new site with Celery. A page is its stream (`/live/console`), held open by a process apart: a
quarter each of Runs, of one run, of Leases and of Now, by as many people as are needed (a person
may have 50). What pages fetch after a hint is not in it: `bench.console` has that, and from commit
to visible in a browser.

A commit's time is the one that the database gave it, before it was written; a hint's is when the
listener has read it; both of this machine's clock.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress
from bench import grounds
from bench.grounds import Ground, median, ms, percentile
from bench.open_pages import KINDS
from bench.report import Goal, Options, Report, Table, read_report
from bench.talk import Calls, Talk, at_full, at_rate

ABOUT = "500 open pages: from commit to hint, memory of each, and what the writers lose"

PAGES, PER_PERSON = 500, 50
WATCHED, RUNS, WRITERS = 64, 256, 16
COMMITS_PER_SECOND = 10.0
WARM_PAGES, OPEN_SECONDS, SETTLE_SECONDS = 20, 120.0, 3.0
HINT_MS, PAGE_KB, RATE_LOSS = 250.0, 100.0, 0.15


@dataclass(frozen=True, slots=True)
class Sizes:
    pages: int
    latency_seconds: float
    rate_seconds: float
    rounds: int


# --- open pages -----------------------------------------------------------------------------------


class OpenPages:
    """So many streams in a process apart, and what they heard."""

    def __init__(self, ground: Ground, keys: list[str], sessions: list[str], count: int) -> None:
        self.count, self.closed = count, Counter[str]()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.open_pages", str(ground.port), ",".join(keys),
             str(count)],
            cwd=grounds.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._say(json.dumps(sessions))
        deadline = time.monotonic() + OPEN_SECONDS
        while (told := self._next("open"))["open"] < count:
            if time.monotonic() > deadline or self.closed:
                self.end()
                raise RuntimeError(f"{told['open']} of {count} pages opened: {dict(self.closed)}")

    def take(self) -> dict[str, Any]:
        """What was heard since the last time."""
        self._say("take")
        return self._next("heard")

    def end(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def _next(self, what: str) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            told: dict[str, Any] = json.loads(line)
            if "closed" in told:
                self.closed[told["closed"]] += 1
            elif what in told:
                return told
        raise RuntimeError("the listener ended")


@contextmanager
def open_pages(
    ground: Ground, keys: list[str], sessions: list[str], count: int
) -> Iterator[OpenPages]:
    pages = OpenPages(ground, keys, sessions, count)
    try:
        yield pages
    finally:
        pages.end()


def sessions_of(ground: Ground, count: int) -> list[str]:
    """Cookies of new people, each signed in."""
    from agentstate.cli.people import save_user
    from bench.console import log_in

    cookies = []
    for _ in range(count):
        name, password = f"bench-{secrets.token_hex(4)}", secrets.token_urlsafe(16)
        save_user(name=name, role="operator", password=password)
        with closing(log_in(ground.url, name, password)) as client:
            cookies.append("; ".join(f"{n}={value}" for n, value in client.cookies.items()))
    return cookies


# --- from commit to hint --------------------------------------------------------------------------


@dataclass(slots=True)
class Heard:
    """Milliseconds from a commit to the hint of it, by kind of page; missed: that never came.
    hints: sent in all; load: of the web process meanwhile, as a part of a core."""

    took: dict[str, list[float]] = field(default_factory=dict)
    missed: int = 0
    hints: int = 0
    load: float = math.nan


def append_body(n: int) -> dict[str, Any]:
    text = "The failing test builds its window from the local time zone. " * 4
    return {"events": [{"type": "step.done", "data": {"n": n, "thought": text[:230]}}]}


async def commit(
    ground: Ground, held: list[tuple[str, int]], seconds: float
) -> dict[tuple[str, int], float]:
    """Append at an even rate, to one run after the other; when each was committed."""
    found: dict[tuple[str, int], float] = {}
    talk, calls, turn = Talk(ground.port, ground.key), Calls(), asyncio.Lock()

    async def append(n: int) -> None:
        key, token = held[n % len(held)]
        async with turn:
            head = {"Agentstate-Fence": token}
            asked = talk.ask("POST", f"/api/v1/runs/{key}/events", append_body(n), head)
            answer = await calls.make("append", asked)
        if answer is not None:
            told = answer.json
            found[key, told["last_seq"]] = datetime.fromisoformat(told["at"]).timestamp()

    await at_rate(COMMITS_PER_SECOND, seconds, append)
    talk.close()
    if calls.refused:
        raise RuntimeError(f"appends were refused: {dict(calls.refused)}")
    return found


def latency(ground: Ground, pages: OpenPages, held: list[tuple[str, int]], seconds: float) -> Heard:
    before = pages.take()["hints"]
    busy, began = grounds.processor_seconds(ground.web), time.monotonic()
    commits = asyncio.run(commit(ground, held, seconds))
    busy = grounds.processor_seconds(ground.web) - busy
    found, counted = Heard(load=busy / (time.monotonic() - began)), Counter[tuple[str, int]]()
    time.sleep(SETTLE_SECONDS)
    told = pages.take()
    found.hints = sum(told["hints"].values()) - sum(before.values())
    for kind, heard in told["heard"].items():
        times = found.took.setdefault(kind, [])
        for run, seq, at in heard:
            if (run, seq) in commits:
                times.append((at - commits[run, seq]) * 1_000)
                counted[run, seq] += 1
    keys = [key for key, _ in held]
    of_one = Counter(keys[n % len(keys)] for n in range(pages.count) if KINDS[n % 4] == "run")
    of_many = pages.count - of_one.total()
    wanted = {one: of_many + of_one[one[0]] for one in commits}
    found.missed = sum(max(0, wanted[one] - counted[one]) for one in commits)
    return found


# --- what the writers lose ------------------------------------------------------------------------


async def rate_of(ground: Ground, held: list[tuple[str, int]], seconds: float) -> float:
    """Appends a second, over HTTP, one event each."""
    calls = Calls()

    def writer() -> Any:
        talk = Talk(ground.port, ground.key)

        async def write() -> None:
            key, token = random.choice(held)
            head = {"Agentstate-Fence": token}
            path = f"/api/v1/runs/{key}/events"
            await calls.make("append", talk.ask("POST", path, append_body(0), head))

        return write

    began = time.monotonic()
    await at_full(seconds, [writer() for _ in range(WRITERS)])
    took = time.monotonic() - began
    if calls.refused or calls.lost:
        raise RuntimeError(f"appends failed: {dict(calls.refused)} {dict(calls.lost)}")
    return calls.count / took


def rates(
    ground: Ground, held: list[tuple[str, int]], sessions: list[str], sizes: Sizes
) -> dict[str, list[float]]:
    """Without and with the pages, in turns; which comes first changes."""
    keys = [key for key, _ in held[:WATCHED]]
    found: dict[str, list[float]] = {"without": [], "with": []}

    def measure() -> float:
        return asyncio.run(rate_of(ground, held, sizes.rate_seconds))

    def with_pages() -> float:
        with open_pages(ground, keys, sessions, sizes.pages):
            time.sleep(SETTLE_SECONDS)
            return measure()

    measure()
    for turn in range(sizes.rounds):
        both = [("without", measure), ("with", with_pages)]
        for name, way in both if turn % 2 else reversed(both):
            found[name].append(way())
            progress(f"writers {name} pages: {found[name][-1]:,.0f} appends a second")
    return found


# --- all of it ------------------------------------------------------------------------------------


def report(options: Options) -> Report:
    return read_report(grounds.apart(measure, quick=options.quick, rounds=options.rounds))


def measure(*, quick: bool, rounds: int) -> dict[str, Any]:
    """In a process of its own."""
    return measure_with(**asdict(Sizes(60, 3, 2, 1) if quick else Sizes(PAGES, 30, 6, rounds)))


def measure_with(**asked: Any) -> dict[str, Any]:
    from bench.torture.trial import move_in

    sizes = Sizes(**asked)
    with grounds.folder(None) as where:
        move_in(Path(where))
        with grounds.site(background=True) as ground:
            held = grounds.make_held(RUNS, prefix="live", key_name=ground.key_name)
            sessions = sessions_of(ground, math.ceil(sizes.pages / PER_PERSON))
            keys = [key for key, _ in held[:WATCHED]]
            with open_pages(ground, keys, sessions, WARM_PAGES) as pages:
                few = latency(ground, pages, held[:WATCHED], 3 if sizes.rounds == 1 else 10)
            time.sleep(SETTLE_SECONDS)
            memory = [grounds.memory_kb(ground.web)]
            with open_pages(ground, keys, sessions, sizes.pages) as pages:
                time.sleep(SETTLE_SECONDS)
                memory.append(grounds.memory_kb(ground.web))
                progress(f"{sizes.pages} pages are open")
                heard = latency(ground, pages, held[:WATCHED], sizes.latency_seconds)
                memory.append(grounds.memory_kb(ground.web))
                if pages.closed:
                    raise RuntimeError(f"pages were closed: {dict(pages.closed)}")
            found = rates(ground, held, sessions, sizes)
    return asdict(told(sizes, few, heard, memory, found))


def told(
    sizes: Sizes, few: Heard, heard: Heard, memory: list[float], found: dict[str, list[float]]
) -> Report:
    times = heard.took
    everywhere = [one for took in times.values() for one in took]
    hints = Table(
        title=f"From commit to hint with {sizes.pages} open pages,"
        f" {COMMITS_PER_SECOND:g} commits a second",
        columns=("pages of", "hints", "p50 ms", "p95 ms", "p99 ms", "longest ms"),
        rows=tuple(
            (kind, f"{len(took):,}", ms(median(took)), ms(percentile(took, 0.95)),
             ms(percentile(took, 0.99)), ms(max(took, default=math.nan)))
            for kind, took in (times | {"all": everywhere}).items()
        ),
        note=f"{heard.missed} hints were missed. Pages of one run are told first; those of many"
        " runs one after the other, so that not all of them ask at once what they are told.",
    )  # fmt: skip
    each = [(after - memory[0]) / sizes.pages for after in memory[1:]]
    cost = Table(
        title="What an open page costs the web process",
        columns=("when", "MB in all", "kB a page"),
        rows=(
            ("before", f"{memory[0] / 1024:.1f}", ""),
            (f"{sizes.pages} open, nothing said", f"{memory[1] / 1024:.1f}", f"{each[0]:.0f}"),
            ("after the hints above", f"{memory[2] / 1024:.1f}", f"{each[1]:.0f}"),
        ),
        note=f"With {COMMITS_PER_SECOND:g} commits a second it was at work for {few.load:.0%} of a"
        f" core with {WARM_PAGES} pages, {few.hints:,} hints, and for {heard.load:.0%} with"
        f" {sizes.pages}, {heard.hints:,} hints in {sizes.latency_seconds:g} s.",
    )
    ratios = [b / a for a, b in zip(found["without"], found["with"], strict=True)]
    writers = Table(
        title=f"{WRITERS} writers over HTTP, one event a call",
        columns=("pages", "appends a second", "lowest", "highest"),
        rows=tuple(
            (name, f"{median(own):,.0f}", f"{min(own):,.0f}", f"{max(own):,.0f}")
            for name, own in found.items()
        ),
    )
    p99 = percentile(everywhere, 0.99)
    goals = (
        Goal(
            what=f"commit to hint at {sizes.pages} open pages, p99 of all of them",
            asked=f"< {HINT_MS:g} ms",
            found=f"{ms(p99)} ms (of one run's {ms(percentile(times['one run'], 0.99))},"
            f" of many runs' {ms(percentile(times['many runs'], 0.99))}; {heard.missed} missed)",
            reached=p99 < HINT_MS and not heard.missed,
        ),
        Goal(
            what="memory of the web process for each open page",
            asked=f"< {PAGE_KB:g} kB",
            found=f"{max(each):.0f} kB",
            reached=max(each) < PAGE_KB,
        ),
        Goal(
            what=f"write rate with {sizes.pages} pages open",
            asked=f"falls by less than {RATE_LOSS:.0%}",
            found=f"{median(ratios) - 1:+.0%}",
            reached=median(ratios) > 1 - RATE_LOSS,
        ),
    )
    return Report(tables=(hints, cost, writers), goals=goals)
