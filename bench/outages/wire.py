"""The way from a site to its database: a TCP port of loopback before the server's Unix socket.

It passes bytes on, until it is told to `silence` what is open: those connections then stay open and
nothing goes through any more, in either direction and for ever, while new ones work. So does a
firewall that forgot them; but here the near end still acknowledges what it is sent, which is the
harder case: no TCP time-out ends such a connection, only somebody who misses an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

CHUNK_BYTES = 65_536
BACKLOG = 256


class Wire:
    """Use it as a context manager. port: where it listens. silenced: connections that were."""

    def __init__(self, server: Path) -> None:
        self.server, self.silenced = server, 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        # Of the connections of now: whoever has another one is silent.
        self._age = 0
        self._open = 0

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._listener.close()

    def silence(self) -> int:
        """Let nothing through on what is open now; how many that are."""
        silenced, self.silenced = self._open, self.silenced + self._open
        self._open, self._age = 0, self._age + 1
        return silenced

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._pass_on, sock=self._listener))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _pass_on(self, caller: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            answers, forth = await asyncio.open_unix_connection(str(self.server))
        except OSError:
            back.transport.abort()
            return
        age, ends = self._age, (back, forth)
        self._open += 1
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(caller, forth, age, ends))
                both.create_task(self._pump(answers, back, age, ends))
        finally:
            if age == self._age:
                self._open -= 1

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        age: int,
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if age == self._age:
                    target.write(data)
                    await target.drain()
        if age == self._age or target is ends[1]:
            # Silent ones hear of no end; but when the caller gives up, the server is told.
            for end in ends:
                end.close()
