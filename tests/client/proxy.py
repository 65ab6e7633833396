"""A TCP proxy in front of the real server: what a network does to requests and answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


class Proxy:
    """Passes bytes on, unless told otherwise for requests whose first line holds some text.

    silent: while it is set every byte disappears, and nobody is told.
    """

    def __init__(self, *, port: int) -> None:
        self._server_port = port
        self._lock = threading.Lock()
        self._to_cut: dict[str, int] = {}
        self._gates: dict[str, threading.Event] = {}
        self._answer_gates: dict[str, threading.Event] = {}
        self.held = threading.Event()
        self.silent = threading.Event()
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def cut_answers(self, to: str, times: int = 1) -> None:
        """The server does what is asked, and the caller never hears of it."""
        self._to_cut[to] = times

    def hold(self, to: str) -> Callable[[], None]:
        """Keep such a request on its way until the returned function is called."""
        return self._close_gate(self._gates, to)

    def hold_answers(self, to: str) -> Callable[[], None]:
        """Let such requests through, and keep their answers until the function is called."""
        return self._close_gate(self._answer_gates, to)

    def _close_gate(self, gates: dict[str, threading.Event], to: str) -> Callable[[], None]:
        gate = gates[to] = threading.Event()
        self.held.clear()

        def let_go() -> None:
            gates.pop(to, None)
            gate.set()

        return let_go

    def _wait_at(self, gates: dict[str, threading.Event], line: str) -> None:
        for text, gate in list(gates.items()):
            if text in line:
                self.held.set()
                gate.wait(20)

    def close(self) -> None:
        for gate in (*self._gates.values(), *self._answer_gates.values()):
            gate.set()
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            asked: list[str] = [""]
            for pump in (self._pass_requests, self._pass_answers):
                threading.Thread(target=pump, args=(caller, server, asked), daemon=True).start()

    def _pass_requests(
        self, caller: socket.socket, server: socket.socket, asked: list[str]
    ) -> None:
        while data := _receive(caller):
            if b" HTTP/1.1\r\n" in data:
                asked[0] = data.split(b"\r\n", 1)[0].decode()
                self._wait_at(self._gates, asked[0])
            if not self.silent.is_set() and not _send(server, data):
                break
        _end(caller, server)

    def _pass_answers(self, caller: socket.socket, server: socket.socket, asked: list[str]) -> None:
        while data := _receive(server):
            self._wait_at(self._answer_gates, asked[0])
            if self.silent.is_set():
                continue
            if self._is_to_be_cut(asked[0]) or not _send(caller, data):
                break
        _end(caller, server)

    def _is_to_be_cut(self, line: str) -> bool:
        with self._lock:
            for text, times in self._to_cut.items():
                if text in line and times:
                    self._to_cut[text] = times - 1
                    self.cuts += 1
                    return True
        return False


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _send(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def _end(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
