"""A peer on a real socket that answers as it was told, so that the client meets real silence,
cut connections and late answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import agentstate_client
from agentstate_client import Client, RetryPolicy

Make = Callable[..., Client]
KEY = "ask_secret-that-nobody-may-see"
QUICK = RetryPolicy(attempts=4, total_seconds=10, first_delay_seconds=0.02)
AT = "2026-01-02T03:04:05.678901Z"


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    text: str
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Reply:
    """What the peer says. body: a value, a text, or made from what was asked. until: waits for
    this first. cut: hangs up instead.
    """

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    until: threading.Event | None = None
    cut: bool = False


class Quiet(ThreadingHTTPServer):
    """A client that hangs up is no news here."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Peer:
    """Plays the server. The last reply that was given for an address is repeated."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.replies: dict[str, deque[Reply]] = {}
        self.over = threading.Event()
        self.changed = threading.Condition()
        self._server = Quiet(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def says(self, path: str, *replies: Reply) -> None:
        """What requests for /api/v1<path> are told, one after the other."""
        self.replies[path] = deque(replies)

    def to(self, path: str) -> list[Seen]:
        return [s for s in self.seen if s.path.partition("?")[0] == f"/api/v1{path}"]

    def wait_for(self, path: str, count: int, seconds: float = 10) -> list[Seen]:
        """Wait until so many requests for the path have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.to(path)) >= count, seconds), self.seen
        return self.to(path)

    def _next(self, path: str) -> Reply:
        queue = self.replies.get(path.partition("?")[0].removeprefix("/api/v1"))
        if not queue:
            return problem(404, "not-found")
        return queue.popleft() if len(queue) > 1 else queue[0]

    def _handler(peer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                seen = Seen(self.command, self.path, dict(self.headers), text, time.monotonic())
                with peer.changed:
                    peer.seen.append(seen)
                    reply = peer._next(self.path)
                    peer.changed.notify_all()
                if reply.until is not None:
                    while not (reply.until.wait(0.05) or peer.over.is_set()):
                        pass
                if reply.cut:
                    self.close_connection = True
                    return
                self.send(reply, reply.body(seen) if callable(reply.body) else reply.body)

            def send(self, reply: Reply, said: Any) -> None:
                body = said if isinstance(said, str) else json.dumps(said)
                self.send_response_only(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: Any) -> None:
                pass

            do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815

        return Handler


def problem(status: int, code: str, retry: str = "never", **more: Any) -> Reply:
    headers = more.pop("headers", {})
    body = {"code": code, "retry": retry, "title": code, "detail": f"it is {code}", **more}
    return Reply(status, {"request_id": "r-1", **body}, headers)


def granted(unit: str = "u", token: int = 7, **more: Any) -> Reply:
    body = {"unit": unit, "owner": "w-1~0000", "token": token, "expires_at": AT}
    return Reply(200, {**body, "expires_in_ms": 1000, **more})


def claimed(*keys: str) -> Reply:
    items = [
        {
            **granted(f"run:{key}", token).body,
            "run": key,
            "task": "audit",
            "status": "running",
            "version": 3,
            "last_seq": 2,
            "attempt": 1,
        }
        for token, key in enumerate(keys, start=7)
    ]
    return Reply(200, {"items": items})


def renewed(**more: Any) -> Reply:
    return Reply(200, {"expires_at": AT, "token": 7, **more})


def renewed_all(**refused: Reply) -> Reply:
    """A renewal for each unit that was asked, or what is given for it: run_a for run:a."""

    def items(seen: Seen) -> Any:
        units = [item["unit"] for item in seen.body["items"]]
        told = [refused.get(unit.replace(":", "_"), renewed()) for unit in units]
        return {
            "items": [{"status": t.status, **t.body} if t.status > 200 else t.body for t in told]
        }

    return Reply(200, items)


def appended(seq: int = 3, **more: Any) -> Reply:
    body = {"first_seq": seq, "last_seq": seq, "version": seq + 1, "at": AT, "status": "running"}
    return Reply(201, {**body, **more})


def moved(status: str) -> Reply:
    return Reply(200, {"status": status, "version": 9, "last_seq": 8, "at": AT})


def run_script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A worker in a process of its own."""
    source = str(Path(agentstate_client.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=30,
    )


def eventually(holds: Callable[[], object], seconds: float = 10) -> None:
    """Wait until a condition holds; fails when it does not in time."""
    until, nap = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        nap.wait(0.01)
