"""Web processes of their own on the test database, and a proxy as stands before a site."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from django.conf import settings
from django.db import connection

from agentstate import postgres
from tests.bootstrap.conftest import eventually


@contextmanager
def web_process(**more: str) -> Iterator[str]:
    """The product's web process, as `./run` starts it; its address. more: of its environment."""
    parts = postgres.conninfo(settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"])
    environment = os.environ | {
        "DATABASE_URL": parts,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "AGENTSTATE_TEST_HOME": str(settings.AGENTSTATE_HOME),
    }
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    running = subprocess.Popen(
        [sys.executable, "-m", "agentstate.web", str(listener.fileno())],
        env=environment | more, cwd=settings.BASE_DIR, pass_fds=[listener.fileno()],
    )  # fmt: skip
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        eventually(lambda: answers(url), within_seconds=90)
        yield url
    finally:
        running.terminate()
        running.wait(30)
        listener.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/time", timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\naway"
)


class Gateway:
    """Before a site: passes bytes on, or while `away` is set answers 503 to everything itself."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._open: set[socket.socket] = set()
        self.away = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def go_away(self) -> None:
        """The site is stopped: what is open ends, and the proxy answers for it."""
        self.away.set()
        for one in list(self._open):
            _end(one)

    def close(self) -> None:
        self._listener.close()
        self.go_away()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        if self.away.is_set():
            _receive(caller)
            _send(caller, UNAVAILABLE)
            _end(caller)
            return
        server = socket.create_connection(("127.0.0.1", self._port))
        self._open |= {caller, server}
        threading.Thread(target=_pump, args=(server, caller), daemon=True).start()
        _pump(caller, server)
        self._open -= {caller, server}


def _pump(source: socket.socket, target: socket.socket) -> None:
    while data := _receive(source):
        if not _send(target, data):
            break
    _end(source)
    _end(target)


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(65_536)
    except OSError:
        return b""


def _send(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
