"""Open pages of the console as far as its stream goes: sockets that hear hints, in a process apart.

    python -m bench.open_pages PORT RUN,RUN,… COUNT      (the sessions' cookies: lines of its input)

Nothing of Django is loaded, so that a page costs the listener little. What it heard is told on its
output, a line of JSON each: {"open": n} while they connect, then {"closed": reason} for a stream
that ended, and for every line `take` of its input what came since: for each kind of page the run,
its number and the wall clock of each hint, as lists.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

# As bench.console has them: half of what people look at is one run's, or is told after the others.
KINDS = ("runs", "run", "leases", "now")
CONNECTING = 20  # at once


class Listener:
    def __init__(self, port: int, keys: list[str], sessions: list[str]) -> None:
        self.port, self.keys, self.sessions = port, keys, sessions
        self.watched = frozenset(keys)
        self.pages: list[tuple[str, Page]] = []
        self.hints: Counter[str] = Counter()
        self.open = 0
        self._connecting = asyncio.Semaphore(CONNECTING)

    async def look(self, n: int) -> None:
        """One page's stream, for as long as the server keeps it."""
        kind = KINDS[n % len(KINDS)]
        key = self.keys[n % len(self.keys)] if kind == "run" else None
        async with self._connecting:
            loop = asyncio.get_running_loop()
            transport, page = await loop.create_connection(Page, "127.0.0.1", self.port)
            address = "/live/console" + (f"?run={key}" if key else "")
            cookie = self.sessions[n % len(self.sessions)]
            transport.write(
                f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nCookie: {cookie}\r\n"
                "Accept: text/event-stream\r\n\r\n".encode()
            )
            head = await page.head
            if not head.startswith(b"HTTP/1.1 200"):
                tell({"closed": head[:60].decode("latin-1")})
                return
            self.open += 1
            self.pages.append(("one run" if key else "many runs", page))
        try:
            await page.ended
        finally:
            self.open -= 1
            tell({"closed": f"{kind}: the stream ended"})

    def take(self) -> dict[str, Any]:
        heard: dict[str, list[tuple[str, int, float]]] = {"one run": [], "many runs": []}
        for kind, page in self.pages:
            for at, told in page.take():
                self.hints[kind] += 1
                for run, seq in (told.get("runs") or {}).items():
                    if run in self.watched:
                        heard[kind].append((run, seq, at))
        return {"heard": heard, "hints": self.hints, "open": self.open}


class Page(asyncio.Protocol):
    """A stream's connection: what came and when, as it came. What it says is looked at when it is
    asked for, because the server that is measured is on the same cores."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[bytes] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._came: list[tuple[float, bytes]] = []
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        self._came.append((time.time(), data))
        if not self.head.done() and b"\r\n\r\n" in (head := b"".join(d for _, d in self._came)):
            self.head.set_result(head)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.head.done():
            self.head.set_result(b"the connection ended")
        self.ended.set_result(None)

    def take(self) -> Iterator[tuple[float, Any]]:
        """Each hint that came since the last time, and when the end of it did."""
        came, self._came = self._came, []
        for at, data in came:
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield at, json.loads(line[6:])


def tell(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def main() -> None:
    port, keys, count = int(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
    loop = asyncio.get_running_loop()
    sessions = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    listener = Listener(port, keys, sessions)
    looking = [asyncio.create_task(listener.look(n)) for n in range(count)]
    while listener.open < count:
        tell({"open": listener.open})
        await asyncio.sleep(0.1)
        if any(one.done() for one in looking):
            break
    tell({"open": listener.open})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "take":
            tell(listener.take())
    for one in looking:
        one.cancel()


if __name__ == "__main__":
    asyncio.run(main())
