"""Calls over HTTP for the benchmarks: one kept connection each, on asyncio, by hand.

Client and server share the machine: what a call costs the client is lost to the server. So there
are no pools, redirects or encodings; an answer has its length in its head.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ANSWER_SECONDS = 60.0
# The server ends a connection that rests for five; one that is used in that moment is lost.
REST_SECONDS = 4.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOTAL = re.compile(rb"\r\nserver-timing: *total;dur=([\d.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """wall_ms: from sending to the whole answer; server_ms: what the server says it took, with its
    own queue; NaN where it does not say."""

    status: int
    body: bytes
    wall_ms: float
    server_ms: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Talk:
    """One connection to a site; it is opened with the first call, and again after it was cut or has
    rested."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.key = port, key
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._used_at = 0.0

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, object] = {}
    ) -> Answer:
        """Raises OSError, EOFError and TimeoutError when no answer came."""
        sent = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.key}",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(sent)}"]
        began = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._asked("\r\n".join([*lines, "", ""]).encode() + sent, began)
        except BaseException:
            self.close()
            raise

    async def _asked(self, request: bytes, began: float) -> Answer:
        if time.monotonic() - self._used_at > REST_SECONDS:
            self.close()
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length, total = _LENGTH.search(head), _TOTAL.search(head)
        if length is None:
            raise EOFError("an answer without a length")
        body = await self._reader.readexactly(int(length[1]))
        took = (time.perf_counter() - began) * 1_000
        self._used_at = time.monotonic()
        if b"connection: close" in head.lower():
            self.close()
        status = int(head[9:12])
        return Answer(status, body, took, float(total[1]) if total else float("nan"))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def unit_path(unit: str, deed: str) -> str:
    return f"/api/v1/leases/{unit.replace(':', '%3A')}/{deed}"


@dataclass(slots=True)
class Calls:
    """What became of calls, by name: how long each took, and when by the monotonic clock.

    refused: by status and code, of those that did not succeed. lost: without any answer.
    """

    took: dict[str, list[tuple[float, Answer]]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    async def make(self, name: str, call: Awaitable[Answer]) -> Answer | None:
        """None: refused, or no answer came."""
        try:
            answer = await call
        except (OSError, EOFError, TimeoutError) as error:
            self.lost[type(error).__name__] += 1
            return None
        if answer.status >= 400:
            self.refused[refusal_of(answer)] += 1
            return None
        self.took.setdefault(name, []).append((time.monotonic(), answer))
        return answer

    def server(self, *names: str, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Milliseconds of the server, of all names or these, in a part of the time."""
        return [
            answer.server_ms
            for name, answers in self.took.items()
            if not names or name in names
            for at, answer in answers
            if since <= at < until
        ]

    def wall(self, *names: str) -> list[float]:
        return [
            answer.wall_ms
            for name, answers in self.took.items()
            if not names or name in names
            for _, answer in answers
        ]

    @property
    def count(self) -> int:
        return sum(map(len, self.took.values()))


def refusal_of(answer: Answer) -> str:
    try:
        return f"{answer.status} {answer.json['code']}"
    except (ValueError, KeyError, TypeError):
        return str(answer.status)


async def at_rate(
    per_second: float, seconds: float, call: Callable[[int], Awaitable[None]]
) -> None:
    """Begin `call(n)` so often, each at its own time whatever the others do, and wait for all."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for n in range(round(per_second * seconds)):
            await asyncio.sleep(max(0.0, began + n / per_second - time.monotonic()))
            group.create_task(_run(call(n)))


async def _run(call: Awaitable[None]) -> None:
    await call


async def at_full(seconds: float, callers: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Each caller calls again as soon as it has its answer, so long."""
    end_at = time.monotonic() + seconds

    async def go_on(call: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < end_at:
            await call()

    async with asyncio.TaskGroup() as group:
        for one in callers:
            group.create_task(go_on(one))


class Pool:
    """Connections that wait for whoever needs one next."""

    def __init__(self, port: int, key: str, count: int) -> None:
        self.talks = [Talk(port, key) for _ in range(count)]
        self._free: asyncio.LifoQueue[Talk] = asyncio.LifoQueue()
        for talk in self.talks:
            self._free.put_nowait(talk)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, object] = {}
    ) -> Answer:
        talk = await self._free.get()
        try:
            return await talk.ask(method, path, body, headers)
        finally:
            self._free.put_nowait(talk)

    def close(self) -> None:
        for talk in self.talks:
            talk.close()
