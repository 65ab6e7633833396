"""One connection to a site, kept open: HTTP/1.1 by hand, because a client must cost little here.

Client and server share the machine; what a call costs the client is lost to the server. So there
are no pools, no redirects and no encodings, only what the API needs.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONNECT_SECONDS = 3.0
# Where the site is; only `./run networks` has it elsewhere, and tells its clients so.
HOST = os.environ.get("AGENTSTATE_TORTURE_HOST", "127.0.0.1")
ANSWER_BYTES_MAX = 32 * 2**20


class Silent(Exception):
    """No answer. sent: perhaps the request reached the store, and was carried out."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.why, self.sent = why, sent


@dataclass(frozen=True, slots=True)
class Answer:
    """status, body, and whether it is the first answer to a request that was repeated."""

    status: int
    body: bytes
    replayed: bool


class Wire:
    """A client of one thread. ports: the ways to the site; another is tried when one is shut."""

    def __init__(self, *, ports: Sequence[int], key: str, timeout_seconds: float) -> None:
        self.ports, self.key, self.timeout_seconds = list(ports), key, timeout_seconds
        self._socket: socket.socket | None = None
        self._file: Any = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Answer:
        """Send a request once. Raises Silent."""
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        try:
            self._socket.sendall(self._request(method, path, body, headers))
            return self._answer()
        except (OSError, ValueError, IndexError) as error:
            self.close()
            raise Silent(f"{type(error).__name__}: {error}", sent=True) from None

    def close(self) -> None:
        """The next request opens a new connection."""
        for thing in (self._file, self._socket):
            if thing is not None:
                thing.close()
        self._socket = self._file = None

    def _connect(self) -> None:
        port = random.choice(self.ports)
        try:
            opened = socket.create_connection((HOST, port), timeout=CONNECT_SECONDS)
        except OSError as error:
            raise Silent(f"{type(error).__name__}: {error}", sent=False) from None
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.settimeout(self.timeout_seconds)
        self._socket, self._file = opened, opened.makefile("rb")

    def _request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.key}",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    def _answer(self) -> Answer:
        status = int(self._file.readline(65_536).split(None, 2)[1])
        length, replayed, keeps = None, False, True
        while (line := self._file.readline(65_536)) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if name == b"content-length":
                length = int(value)
            elif name == b"idempotent-replayed":
                replayed = True
            elif name == b"connection" and value.lower() == b"close":
                keeps = False
        if length is None or length > ANSWER_BYTES_MAX:
            raise ValueError("an answer without a length")
        body = self._file.read(length)
        if len(body) < length:
            raise ValueError("an answer that was cut off")
        if not keeps:
            self.close()
        return Answer(status, body, replayed)
