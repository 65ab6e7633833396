"""A TCP proxy between clients and a site that does what networks do. Loopback only.

It runs in a thread with an event loop of its own. What it does to the bytes is its `mood`, which
the faults change: pass them on, delay them, halve an answer and then say nothing, reset the
connection, or cut it when the answer comes (so that the store has done what the caller never hears
of).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from dataclasses import dataclass

CHUNK_BYTES = 65_536
STALL_SECONDS = 6.0  # longer than a client waits for an answer
CONNECT_SECONDS = 3.0

PASS, DELAY, HALVE, RESET, CUT = "pass", "delay", "halve", "reset", "cut"


@dataclass(frozen=True, slots=True)
class Mood:
    """What is done, and to which share of the chunks that come by."""

    name: str = PASS
    share: float = 0.0
    delay_seconds: float = 0.0


class Proxy:
    """Use it as a context manager. port: where it listens. harmed: chunks that something was done
    to."""

    def __init__(self, *, to_port: int, seed: str) -> None:
        self.to_port, self.mood, self.harmed = to_port, Mood(), 0
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._listener.close()

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
            answers, forth = await asyncio.wait_for(
                asyncio.open_connection("127.0.0.1", self.to_port), CONNECT_SECONDS
            )
        except (OSError, TimeoutError):
            back.transport.abort()
            return
        ends = (back, forth)
        await asyncio.gather(
            self._pump(caller, forth, ends, is_answer=False),
            self._pump(answers, back, ends, is_answer=True),
        )

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, ...],
        *,
        is_answer: bool,
    ) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                mood = self.mood
                if mood.name != PASS and self._random.random() < mood.share:
                    self.harmed += 1
                    if not await self._harm(mood, data, target, ends, is_answer=is_answer):
                        break
                else:
                    target.write(data)
                await target.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in ends:
                with contextlib.suppress(OSError, RuntimeError):
                    end.close()

    async def _harm(
        self,
        mood: Mood,
        data: bytes,
        target: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, ...],
        *,
        is_answer: bool,
    ) -> bool:
        """Do it; False when the connection is over."""
        if mood.name == DELAY:
            await asyncio.sleep(mood.delay_seconds)
            target.write(data)
            return True
        if mood.name == HALVE:
            target.write(data[: len(data) // 2])
            await target.drain()
            await asyncio.sleep(STALL_SECONDS)
            return False
        if mood.name == RESET:
            for end in ends:
                reset(end)
            return False
        if is_answer:  # cut: the request has gone through, the answer is thrown away
            return False
        target.write(data)
        return True


def reset(end: asyncio.StreamWriter) -> None:
    """End a connection with RST, as a machine that lost its memory does."""
    found = end.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()
