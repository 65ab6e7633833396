"""A reader of a run's events by stream: cut at random, by us or by whatever happens, and resumed.

Each connection is a call in the history: where it began, and all that came before its end.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.torture import wire
from bench.torture.calls import NOTHING_DONE
from bench.torture.history import BUSY, OK, REFUSED, SILENT, Writer

ITEMS_MAX, SECONDS_MAX = 200, 4.0
CONNECT_SECONDS = 3.0
QUIET = "quiet"  # it ended because our time was over
QUIET_SECONDS = 15.0  # a comment comes at least every 10 s


class Streams:
    """Follows runs, one connection after the other. name: ids of its calls begin with it.

    came_to: of each run, the number of the last event that came.
    """

    def __init__(
        self, *, name: str, ports: Sequence[int], key: str, writer: Writer, seed: str
    ) -> None:
        self.name, self._ports, self._key, self._writer = name, list(ports), key, writer
        self.random = random.Random(seed)
        self.came_to: dict[str, int] = {}
        self._count = 0

    def follow(self, run: str, stop: threading.Event, *, to_end: int | None = None) -> None:
        """One connection, behind what came last. Ended by the server, by a fault, by us after some
        seconds or events; with to_end only when that number came, or in a long silence."""
        self._count += 1
        id, after, began = f"{self.name}-{self._count}", self.came_to.get(run, 0), time.monotonic()
        ask = {"after": after} | ({} if to_end is None else {"to_end": to_end})
        self._writer.write(op=id, at=began, kind="stream", on=f"run:{run}", ask=ask)
        items: list[list[Any]] = []
        said, code = OK, QUIET
        seconds = self.random.uniform(0, SECONDS_MAX) if to_end is None else QUIET_SECONDS
        try:
            for name, document in self._events(run, after, began + seconds):
                if name == "bye":
                    code = document["reason"]
                    break
                items.append([document["seq"], document["version"], document["type"]])
                self.came_to[run] = document["seq"]
                enough = len(items) >= ITEMS_MAX if to_end is None else document["seq"] >= to_end
                if enough or (to_end is None and stop.is_set()):
                    code = "enough"
                    break
        except Refused as refused:
            said, code = refused.said, refused.code
        except (OSError, ValueError, KeyError):
            said, code = (OK, "cut") if items else (SILENT, "no-answer")
        answer = {"items": items, "end": code} if said == OK else {}
        at = time.monotonic()
        self._writer.write(op=id, at=at, said=said, sent=began, code=code, answer=answer)

    def _events(self, run: str, after: int, ends_at: float) -> Iterator[tuple[str, Any]]:
        """(event, data) until `ends_at`. Raises Refused, OSError, ValueError."""
        port = self.random.choice(self._ports)
        with socket.create_connection((wire.HOST, port), timeout=CONNECT_SECONDS) as opened:
            lines = [
                f"GET /live/v1/runs/{run}/events HTTP/1.1",
                "Host: 127.0.0.1",
                f"Authorization: Bearer {self._key}",
                "Accept: text/event-stream",
                f"Last-Event-ID: {after}",
                "Connection: close",
            ]
            opened.sendall("\r\n".join([*lines, "", ""]).encode())
            opened.settimeout(QUIET_SECONDS)
            with opened.makefile("rb") as file:
                check_answer(file)
                yield from parsed(chunks(file, opened, ends_at))


class Refused(Exception):
    """The server answered, and not with a stream."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.code = code
        self.said = BUSY if code in NOTHING_DONE else REFUSED if status < 500 else SILENT


def check_answer(file: Any) -> None:
    """Read the head. Raises Refused, or ValueError for what is none."""
    first = file.readline(65_536).split(None, 2)
    if len(first) < 2:
        raise ValueError("no answer")
    while file.readline(65_536) not in (b"\r\n", b""):
        pass
    if int(first[1]) != 200:
        # The connection is closed behind it.
        raise Refused(int(first[1]), str(json.loads(file.read(65_536)).get("code", "")))


def chunks(file: Any, opened: socket.socket, ends_at: float) -> Iterator[bytes]:
    """The parts of a chunked body, until its end or until it is time. Raises OSError."""
    while (left := ends_at - time.monotonic()) > 0:
        opened.settimeout(left)
        try:
            size = int(file.readline(64), 16)
        except TimeoutError:
            return  # nothing new for so long: it was our own time that was over
        opened.settimeout(QUIET_SECONDS)
        part = file.read(size)
        file.readline(8)
        if len(part) < size:
            raise ValueError("cut off")
        if not size:
            return
        yield part


def parsed(parts: Iterator[bytes]) -> Iterator[tuple[str, Any]]:
    """Whole events, each with its data; comments are passed over."""
    text = b""
    for part in parts:
        text += part
        *blocks, text = text.split(b"\n\n")
        for block in blocks:
            fields = dict(
                line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":")
            )
            if b"data" in fields:
                yield fields.get(b"event", b"message").decode(), json.loads(fields[b"data"])
