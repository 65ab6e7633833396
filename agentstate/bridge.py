"""Pages and the API inside an ASGI server: a request is read, answered in a thread, and sent.

A thread works and never waits for the network: the body is there before it begins, bounded and in
time, and what it answers is sent by the event loop. So a client that sends byte by byte, that does
not read, or that goes away holds no thread and no database connection. An answer that is made
while it is sent (an export, a file) has threads of its own, and ends when nobody takes it.

In place of a library that gives the thread the socket: docs/decisions/0014-bridge.md.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from wsgiref.types import WSGIApplication

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from agentstate.store.errors import Overloaded
from agentstate.store.payloads import BODY_BYTES_MAX

# A body comes in pieces; none is waited for longer, nor all of them together.
PIECE_SECONDS, BODY_SECONDS = 10.0, 60.0
# The server lets us go on once the client has read all but some tens of kB.
SEND_SECONDS = 20.0
STREAM_THREADS = 4
SHORT_FILE_BYTES = 1024 * 1024
# Requests that are read and wait for a thread. More wait in vain: their callers have given up.
WAITING_MAX = 500

# Refusals before anything of Django has seen the request, in the shape of api/problems.py.
TOO_MANY = {
    "code": Overloaded.code,
    "title": Overloaded.title,
    "status": 503,
    "retry": "same-request",
    "detail": "too many requests at once",
}
TOO_LATE = {
    "code": "malformed",
    "title": "The request never came to its end",
    "status": 408,
    "retry": "never",
    "detail": "the body did not come in time",
}

log = logging.getLogger(__name__)

type Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Answer:
    """What the application answered: all of it in `body`, or a stream's beginning, and `parts`."""

    status: int
    headers: Headers
    body: bytes = b""
    parts: Iterable[bytes] | None = None

    def close(self) -> None:
        close = getattr(self.parts, "close", None)
        if close is not None:
            close()


class Gone(Exception):
    """The client is no longer there, or does not take what it asked for."""


class TooSlow(Exception):
    """The body did not come in time."""


class Bridge:
    """An ASGI application (HTTP alone) around a WSGI one."""

    def __init__(self, application: WSGIApplication, *, threads: int) -> None:
        self._application = application
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pages")
        self._streams = ThreadPoolExecutor(STREAM_THREADS, thread_name_prefix="exports")
        self._waiting, self._waiting_max = 0, threads + WAITING_MAX

    async def __call__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if self._waiting >= self._waiting_max:
            await _send_problem(scope, send, TOO_MANY)
            return
        try:
            body = await _read_body(scope, receive)
        except Gone:
            return
        except TooSlow:
            await _send_problem(scope, send, TOO_LATE)
            return
        self._waiting += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._answer, make_environ(scope, body)
            )
        finally:
            self._waiting -= 1
        if answer.parts is None:
            with suppress(Gone):
                await _send_whole(send, answer)
        else:
            await self._stream(receive, send, answer)

    def _answer(self, environ: dict[str, Any]) -> Answer:
        """In a thread: everything that the application does, but for a stream's parts."""
        started: list[tuple[int, Headers]] = []
        written: list[bytes] = []  # PEP 3333's older way: it comes before what is returned

        def start_response(
            status: str, headers: list[tuple[str, str]], _error: Any = None, /
        ) -> Callable[[bytes], object]:
            told = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in headers]
            started[:] = [(int(status.split(" ", 1)[0]), told)]
            return written.append

        parts = self._application(environ, start_response)
        status, headers = started[0]
        if getattr(parts, "streaming", False) and not _is_short(headers):
            return Answer(status, headers, body=b"".join(written), parts=parts)
        answer = Answer(status, headers, parts=parts)
        try:
            returned = b"".join(parts)
            answer.body = b"".join((*written, returned))
        finally:
            answer.close()
        answer.parts = None
        return answer

    async def _stream(
        self, receive: ASGIReceiveCallable, send: ASGISendCallable, answer: Answer
    ) -> None:
        """A thread makes the parts, a few ahead at most; the loop sends them."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Queue[bytes | None] = asyncio.Queue(2)
        over = asyncio.Event()
        # The server takes parts for a client who is gone, and says nothing.
        gone = asyncio.ensure_future(_leave(receive))

        async def hand_over(part: bytes | None) -> bool:
            if not over.is_set():
                await ready.put(part)
            return not (over.is_set() or gone.done())

        def make() -> None:
            try:
                for part in _parts(answer):
                    if not asyncio.run_coroutine_threadsafe(hand_over(part), loop).result():
                        return
            finally:
                answer.close()
                asyncio.run_coroutine_threadsafe(hand_over(None), loop).result()

        made = loop.run_in_executor(self._streams, make)
        try:
            await _send(send, {"type": "http.response.start", **_start(answer)})
            if answer.body:
                await _send_part(send, answer.body, more=True)
            while (part := await ready.get()) is not None:
                await _send_part(send, part, more=True)
            # A thread that failed must not look like the end: the connection is cut instead.
            await made
            await _send_part(send, b"", more=False)
        except Gone:
            log.info("cut off: a client that did not read for %g s", SEND_SECONDS)
        finally:
            over.set()
            gone.cancel()
            while not ready.empty():  # whoever waits to hand over goes on, and sees that it is over
                ready.get_nowait()
            await asyncio.gather(made, return_exceptions=True)


async def _leave(receive: ASGIReceiveCallable) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _parts(answer: Answer) -> Iterator[bytes]:
    return iter(answer.parts or ())


def _is_short(headers: Headers) -> bool:
    """A file of the console's own: read at once, so that it never waits behind an export."""
    length = dict(headers).get(b"content-length", b"")
    return length.isdigit() and int(length) <= SHORT_FILE_BYTES


async def _read_body(scope: HTTPScope, receive: ASGIReceiveCallable) -> bytes:
    """The body; of one that is too large the beginning, one byte more than is allowed: whoever
    reads it sees that it is, and the rest is not read. Raises Gone, TooSlow.
    """
    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        return b""
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while size <= BODY_BYTES_MAX:
                async with asyncio.timeout(PIECE_SECONDS):
                    event = await receive()
                if event["type"] != "http.request":
                    raise Gone
                pieces.append(event.get("body", b""))
                size += len(pieces[-1])
                if not event.get("more_body", False):
                    break
    except TimeoutError:
        raise TooSlow from None
    return b"".join(pieces)[: BODY_BYTES_MAX + 1]


def make_environ(scope: HTTPScope, body: bytes) -> dict[str, Any]:
    """The request as PEP 3333 has it. `asgi.scope`: the headers before they were joined."""
    root = scope.get("root_path", "")
    server = scope.get("server") or ("localhost", 80)
    environ: dict[str, Any] = {
        "asgi.scope": scope,
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": root.encode().decode("latin-1"),
        "PATH_INFO": scope["path"].removeprefix(root).encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1] or 0),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    if client := scope.get("client"):
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = client[0], str(client[1])
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").upper().replace("-", "_")
        if name not in ("CONTENT_LENGTH", "CONTENT_TYPE"):
            name = f"HTTP_{name}"
        value = raw_value.decode("latin-1")
        environ[name] = f"{environ[name]},{value}" if name in environ else value
    return environ


def _start(answer: Answer) -> dict[str, Any]:
    return {"status": answer.status, "headers": answer.headers, "trailers": False}


async def _send_whole(send: ASGISendCallable, answer: Answer) -> None:
    await _send(send, {"type": "http.response.start", **_start(answer)})
    await _send_part(send, answer.body, more=False)


async def _send_part(send: ASGISendCallable, part: bytes, *, more: bool) -> None:
    await _send(send, {"type": "http.response.body", "body": part, "more_body": more})


async def _send(send: ASGISendCallable, event: Any) -> None:
    """Raises Gone when the client does not take it in time."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send(event)
    except TimeoutError:
        raise Gone from None


async def _send_problem(
    scope: HTTPScope, send: ASGISendCallable, refusal: Mapping[str, Any]
) -> None:
    request_id = uuid.uuid4().hex
    problem = {"type": f"/problems/{refusal['code']}", **refusal}
    problem |= {"instance": scope["path"], "request_id": request_id}
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    if refusal["status"] == 503:
        headers.append((b"retry-after", b"1"))
    with suppress(Gone):
        await _send_whole(send, Answer(refusal["status"], headers, json.dumps(problem).encode()))
