"""A receiver of webhooks on this machine: it keeps what it gets and answers as it is told.

Written over sockets, so that it can be slow, lie and cut the connection as real ones do.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """answer: bytes, or what is done with the connection once the request was read."""

    answer: bytes | Callable[[socket.socket, Receiver], None] = OK
    got: list[Request] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    connections: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=hidden-in-the-address"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            request = _read(connection)
            if request is not None:
                self.got.append(request)
            if callable(self.answer):
                self.answer(connection, self)
            else:
                connection.sendall(self.answer)

    def close(self) -> None:
        self.released.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(timeout=5)


def _read(connection: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65_536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (f.partition(":") for f in fields)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65_536)
    return Request(line, headers, body)


@contextlib.contextmanager
def receiving(answer: bytes | Callable[[socket.socket, Receiver], None] = OK) -> Iterator[Receiver]:
    receiver = Receiver(answer)
    try:
        yield receiver
    finally:
        receiver.close()


def status(code: int, *fields: str, body: str = "") -> bytes:
    """An answer of this status."""
    head = [f"HTTP/1.1 {code} Word", f"Content-Length: {len(body.encode())}", *fields]
    return "\r\n".join([*head, "", body]).encode()


# --- ways to misbehave ---------------------------------------------------------------------------


def never(connection: socket.socket, receiver: Receiver) -> None:
    """Take the request and say nothing."""
    receiver.released.wait(60)


def drip(connection: socket.socket, receiver: Receiver) -> None:
    """A header byte by byte, without end: no time-out of a single read ever passes."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not receiver.released.wait(0.05):
        connection.sendall(b"a")


def drip_body(connection: socket.socket, receiver: Receiver) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not receiver.released.wait(0.05):
        connection.sendall(b"1\r\na\r\n")


def flood(connection: socket.socket, receiver: Receiver) -> None:
    """A body without end, as fast as it is taken."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not receiver.released.is_set():
        connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


def cut(connection: socket.socket, receiver: Receiver) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")


def garbage(connection: socket.socket, receiver: Receiver) -> None:
    connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
