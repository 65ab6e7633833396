"""Processes of their own that do the calling, each with its share of the callers.

A child is `python -m MODULE --serve ARGUMENT`. For each line of its input, `[kind, callers,
seconds]`, it answers with one: `[count, seconds, [µs of each call]]`. Two of them, as two web
processes share a machine.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.budget_slots import ROOT
from bench.turns import Measured, measured

PROCESSES = 2
END_SECONDS = 30

type Told = tuple[int, float, list[int]]
type Work = Callable[[str, int, float], Told]


class Crew:
    """Use it as a context manager: at its end the processes are gone."""

    def __init__(
        self,
        module: str,
        argument: str,
        *,
        python: str | Path = sys.executable,
        environment: Mapping[str, str] | None = None,
        processes: int = PROCESSES,
    ) -> None:
        self._children = [
            subprocess.Popen(
                [str(python), "-m", module, "--serve", argument],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=dict(environment) if environment is not None else None,
            )
            for _ in range(processes)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            if child.stdin:
                child.stdin.close()
            if kind is not None:
                child.terminate()
        for child in self._children:
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def work(self, kind: str, callers: int, seconds: float) -> Measured:
        """A turn of so many callers, spread over the processes as evenly as it goes."""
        at_work = self._children[: min(len(self._children), callers)]
        for n, child in enumerate(at_work):
            share = callers // len(at_work) + (n < callers % len(at_work))
            assert child.stdin is not None
            child.stdin.write(json.dumps([kind, share, seconds]) + "\n")
            child.stdin.flush()
        told = [_answer(child) for child in at_work]
        took = [us / 1_000 for _, _, own in told for us in own]
        rate = sum(count / lasted for count, lasted, _ in told)
        return measured(1, 1 / rate if rate else float("inf"), took)


def _answer(child: subprocess.Popen[str]) -> Told:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the crew ended with {child.wait()}")
    count, lasted, took = json.loads(line)
    return count, lasted, took


def serve(work: Work) -> None:
    """The child: until its input ends."""
    for line in sys.stdin:
        kind, callers, seconds = json.loads(line)
        print(json.dumps(work(kind, callers, seconds)), flush=True)


def in_threads(
    callers: int, seconds: float, call: Callable[[], int], *, at_end: Callable[[], Any] = int
) -> Told:
    """So many threads that call one after the other. call: how many things it did; at_end: in each
    thread, to give back its connection."""
    begin = threading.Event()
    counts, took = [0] * callers, [list[int]() for _ in range(callers)]
    failed: list[BaseException] = []
    until = 0.0

    def go(number: int) -> None:
        begin.wait()
        try:
            while (began := time.perf_counter()) < until and not failed:
                counts[number] += call()
                took[number].append(int((time.perf_counter() - began) * 1e6))
        except BaseException as error:
            failed.append(error)
        finally:
            at_end()

    threads = [threading.Thread(target=go, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    until = began + seconds
    begin.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sum(counts), time.perf_counter() - began, _joined(took)


@functools.cache
def _runner() -> asyncio.Runner:
    """One loop for all turns, of the kind that a web process has: what belongs to it stays."""
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def in_tasks(callers: int, seconds: float, call: Callable[[], Awaitable[int]]) -> Told:
    """So many tasks of an event loop that call one after the other. call: how much it did."""
    return _runner().run(_in_tasks(callers, seconds, call))


async def _in_tasks(callers: int, seconds: float, call: Callable[[], Awaitable[int]]) -> Told:
    count, took = 0, list[int]()
    began = time.perf_counter()
    until = began + seconds

    async def go() -> None:
        nonlocal count
        while (at := time.perf_counter()) < until:
            done = await call()  # not within the sum, which others change meanwhile
            count += done
            took.append(int((time.perf_counter() - at) * 1e6))

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(go())
    return count, time.perf_counter() - began, took


def _joined(took: Sequence[Sequence[int]]) -> list[int]:
    return [us for own in took for us in own]
