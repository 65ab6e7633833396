"""Load over HTTP by raw sockets, for where there is no wrk; and what either of them found.

    python -m bench.load URL CONNECTIONS SECONDS [FILE KEY EVENTS DATA WORD]

The same arguments as `wrk.lua` has, and the same line at the end. Requests are put together of
pieces that were made before, answers are read as far as their length needs: it costs some 30 µs a
call, wrk some 10.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from bench.budget_slots import ROOT
from bench.turns import Measured, percentile

MARK = "FOUND "
ANSWER_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """Appends: runs is a file of lines "KEY TOKEN"; data: JSON of one event."""

    runs: Path
    key: str
    events: int
    data: str
    word: str

    @property
    def words(self) -> list[str]:
        return [str(self.runs), self.key, str(self.events), self.data, self.word]


@dataclass(frozen=True, slots=True)
class Found:
    """refused: answered with 400 or above. measured: calls that were done, by any of the urls."""

    measured: Measured
    done: int
    refused: int


def name() -> str:
    """What makes the load here."""
    if shutil.which("wrk"):
        return "wrk with one thread"
    return "an asyncio client on raw sockets (wrk is not installed)"


def load(
    urls: Sequence[str], connections: int, seconds: float, asked: Sequence[Asked] = ()
) -> Found:
    """So many connections over the urls as evenly as it goes, a process each.

    asked: one for each url; without, the urls are got. Of two processes the slower p50 and p99.
    Raises RuntimeError when a connection broke or nothing was done.
    """
    urls = urls[: min(connections, len(urls))]
    running = []
    for n, url in enumerate(urls):
        share = connections // len(urls) + (n < connections % len(urls))
        words = asked[n].words if asked else []
        command = command_of(url, share, seconds, words)
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    told = [read(process.communicate()[0]) for process in running]
    rate = sum((one["requests"] - one["refused"]) * 1e6 / one["us"] for one in told)
    return Found(
        Measured(
            rate,
            max(one["p50_us"] for one in told) / 1_000,
            max(one["p99_us"] for one in told) / 1_000,
        ),
        done=sum(one["requests"] - one["refused"] for one in told),
        refused=sum(one["refused"] for one in told),
    )


def command_of(url: str, connections: int, seconds: float, words: Sequence[str]) -> list[str]:
    if shutil.which("wrk"):
        return ["wrk", "-t1", f"-c{connections}", f"-d{round(seconds)}s",
                "--timeout", f"{ANSWER_SECONDS}s",
                "-s", str(Path(__file__).with_name("wrk.lua")), url, "--", *words]  # fmt: skip
    return [sys.executable, "-m", "bench.load", url, str(connections), str(seconds), *words]


def read(output: str) -> dict[str, int]:
    line = next((line for line in output.splitlines() if line.startswith(MARK)), None)
    told: dict[str, int] = json.loads(line.removeprefix(MARK)) if line else {}
    if not told or told["broken"] or not told["requests"]:
        raise RuntimeError(f"the load did not work: {output[-1_000:]}")
    return told


# --- without wrk ----------------------------------------------------------------------------------


def appends(asked: Asked) -> Callable[[], bytes]:
    """Makes the next request."""
    runs = [line.split() for line in asked.runs.read_text().splitlines()]
    before = f'{{"type":"step.done","data":{asked.data},"id":"{asked.word}-'
    heads = [
        f"POST /api/v1/runs/{key}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer"
        f" {asked.key}\r\nContent-Type: application/json\r\nAgentstate-Fence: {token}\r\n"
        "Content-Length: "
        for key, token in runs
    ]
    sent = 0

    def make() -> bytes:
        nonlocal sent
        lines = ",".join(f'{before}{sent + n}"}}' for n in range(asked.events))
        sent += asked.events
        body = f'{{"add":{{"steps":{asked.events}}},"events":[{lines}]}}'
        return f"{random.choice(heads)}{len(body)}\r\n\r\n{body}".encode()

    return make


class Caller(asyncio.Protocol):
    """A connection that sends the next request as soon as it has its answer."""

    def __init__(self, make: Callable[[], bytes], until: float, told: dict[str, int]) -> None:
        self.make, self.until, self.told = make, until, told
        self.took: list[int] = []
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.got = cast("asyncio.Transport", transport), b""
        self.send()

    def send(self) -> None:
        self.began = time.perf_counter()
        if self.began >= self.until:
            self.transport.close()
        else:
            self.transport.write(self.make())

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, end, rest = self.got.partition(b"\r\n\r\n")
        if not end or len(rest) < length_of(head):
            return
        self.got = b""
        self.told["requests"] += 1
        self.told["refused"] += head[9:10] > b"3"
        self.took.append(int((time.perf_counter() - self.began) * 1e6))
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        self.told["broken"] += error is not None or time.perf_counter() < self.until
        self.over.set_result(None)


def length_of(head: bytes) -> int:
    """Of the body, by its header; what the API answers always has one."""
    found = head.lower().split(b"content-length:", 1)
    return int(found[1].split(b"\r\n", 1)[0]) if len(found) == 2 else 0


async def call(url: str, connections: int, seconds: float, make: Callable[[], bytes]) -> str:
    told = {"requests": 0, "refused": 0, "broken": 0}
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    began = time.perf_counter()
    callers = [
        (await loop.create_connection(
            lambda: Caller(make, began + seconds, told), parts.hostname, parts.port))[1]
        for _ in range(connections)
    ]  # fmt: skip
    async with asyncio.timeout(seconds + ANSWER_SECONDS):
        for caller in callers:
            await caller.over
    lasted = time.perf_counter() - began
    took = [us for caller in callers for us in caller.took]
    told["us"] = int(lasted * 1e6)
    told["p50_us"], told["p99_us"] = (int(percentile(took, part) or 0) for part in (0.5, 0.99))
    return MARK + json.dumps(told)


def main(url: str, connections: str, seconds: str, *words: str) -> None:
    parts = urlsplit(url)
    if words:
        runs, key, events, data, word = words
        make = appends(Asked(Path(runs), key, int(events), data, word))
    else:
        get = f"GET {parts.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        make = lambda: get  # noqa: E731
    import uvloop

    print(uvloop.run(call(url, int(connections), float(seconds), make)))


if __name__ == "__main__":
    main(*sys.argv[1:])
