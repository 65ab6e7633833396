"""Pages and the API inside an ASGI server: a request is read, answered in a thread, and sent.

A thread works and never waits for the network: the body is there before it begins, bounded and in
time, and what it answers is sent by the event loop. So a client that sends byte by byte, that does
not read, or that goes away holds no thread and no database connection. An answer that is made
while it is sent (an export, a file) has threads of its own, and ends when nobody takes it.

How many are in work, and who is turned away first, is decided in admission.py. In place of a
library that gives the thread the socket: docs/decisions/0014-bridge.md.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from wsgiref.types import WSGIApplication

from asgiref.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)
from django.db import close_old_connections, connections
from django.utils.encoding import escape_uri_path
from django.utils.html import escape

from agentstate import admission, metrics
from agentstate.admission import Full, Gate, Kind, Room, kind_of
from agentstate.middleware import SHORT
from agentstate.request_ids import request_id_of
from agentstate.sending import Gone, send_in_time
from agentstate.store.aio import Late
from agentstate.store.errors import Overloaded, Unavailable
from agentstate.store.payloads import BODY_BYTES_MAX

# A body comes in pieces; none is waited for longer, nor all of them together.
PIECE_SECONDS, BODY_SECONDS = 10.0, 60.0
# All bodies that this process holds, those that still come and those that wait for a thread.
BODIES_BYTES_MAX = 256 * 1024 * 1024
STREAM_THREADS = 4
SHORT_FILE_BYTES = 1024 * 1024
# What is made while it is sent gives its connection back when the client keeps it waiting so long.
PATIENCE_SECONDS = 0.5
DEADLINE_DIGITS = 8

# Where wire.py leaves what it knows of a request beside ASGI; another server leaves nothing.
CYCLE = "agentstate.cycle"
# A larger body may have stopped the reading of the connection until it is taken.
SHORT_BODY_BYTES = 60_000

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What api/problems.py would tell, before anything of Django has seen the request.

    is_read: its body was; else the connection ends with the answer.
    """

    status: int
    code: str
    title: str
    retry: str
    detail: str
    retry_after_seconds: int | None = None
    is_read: bool = False


# (status, the head's lines, body)
type Written = tuple[int, bytes, bytes]


class AtOnce(Protocol):
    """What wire.py offers requests to before they become tasks: the bridge."""

    def wants(self, scope: HTTPScope) -> bool:
        """Whether it may take such a request, by its head."""

    def take(self, scope: HTTPScope, body: bytes, then: Callable[[Written | None], None]) -> bool:
        """Take one that is there as a whole; False: it becomes a task. `then`: see Bridge.take."""


class Shortcut(Protocol):
    """Calls that are answered on the event loop (api/shortcuts.py)."""

    def find(self, scope: HTTPScope) -> Any:
        """What such a request is, by its head; None: it is no such call."""

    def kind(self, found: Any, scope: HTTPScope, body: bytes) -> Kind:
        """What it is for."""

    def begin(
        self,
        found: Any,
        scope: HTTPScope,
        body: bytes,
        *,
        came_at: float,
        longest_wait_seconds: float,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        then: Callable[[Written | Late | None], None],
    ) -> bool:
        """Take it; False: it goes the long way. `then`, once: the answer; None: the long way."""


class TurnedAway(Exception):
    """A request that gets no further than here."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


class Bridge:
    """An ASGI application (HTTP alone) around a WSGI one."""

    def __init__(
        self,
        application: WSGIApplication,
        *,
        threads: int,
        places: int,
        shortcut: Shortcut | None = None,
    ) -> None:
        self._application, self._shortcut = application, shortcut
        self.gate = Gate(Room(places=places, threads=threads))
        self.held_bytes = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pages")
        self._streams = ThreadPoolExecutor(STREAM_THREADS, thread_name_prefix="exports")

    async def __call__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        came_at = time.monotonic()
        body = _Body(self)
        try:
            self.gate.check(kind_of(scope["method"], scope["path"]))
            await body.read(scope, receive)
            answer = await self._work(scope, body, came_at)
        except Gone:
            return
        except Full as full:
            await _send_problem(scope, send, _too_many(full, is_read=body.is_whole), came_at)
            return
        except TurnedAway as away:
            await _send_problem(scope, send, away.refused, came_at)
            return
        except Exception:
            log.exception("a request failed outside Django")
            await _send_problem(scope, send, BROKEN, came_at)
            return
        finally:
            body.forget()
        if answer.parts is None:
            with suppress(Gone):
                await _send_whole(scope, send, answer)
        else:
            await self._stream(receive, send, answer)

    def wants(self, scope: HTTPScope) -> bool:
        """Whether the shortcut knows such a call."""
        return self._shortcut is not None and self._shortcut.find(scope) is not None

    def take(self, scope: HTTPScope, body: bytes, then: Callable[[Written | None], None]) -> bool:
        """A request that is there as a whole, for the shortcut; False: it goes the long way.

        `then` is called once, later: with the answer, or with None when nothing was done and it
        goes the long way after all.
        """
        came_at = time.monotonic()
        if self._shortcut is None or scope["root_path"]:
            return False
        found = self._shortcut.find(scope)
        if found is None:
            return False
        kind = self._shortcut.kind(found, scope, body)
        if self.held_bytes + len(body) > BODIES_BYTES_MAX or not self.gate.admits(kind):
            return False

        def done(told: Written | Late | None) -> None:
            self.held_bytes -= len(body)
            self.gate.taken[kind] -= 1
            if isinstance(told, Late):
                waited = time.monotonic() - came_at >= admission.WAIT_SECONDS
                refused = _too_many(self.gate.waited(kind), is_read=True) if waited else LATE
                told = _lines(_problem(scope, refused, came_at))
            then(told)

        self.held_bytes += len(body)
        self.gate.taken[kind] += 1
        taken = False
        try:
            taken = self._shortcut.begin(
                found,
                scope,
                body,
                came_at=came_at,
                longest_wait_seconds=admission.WAIT_SECONDS,
                in_thread=partial(self._in_thread, kind),
                then=done,
            )
        finally:
            if not taken:
                self.held_bytes -= len(body)
                self.gate.taken[kind] -= 1
        return taken

    async def _in_thread(self, kind: Kind, work: Callable[[], Any]) -> Any:
        """For who has a place. Raises Overloaded."""
        try:
            async with self.gate.thread(kind):
                return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except Full as full:
            wait_ms = admission.RETRY_AFTER[kind] * 1_000
            raise Overloaded(str(full), retry_after_ms=wait_ms) from None

    async def _work(self, scope: HTTPScope, body: _Body, came_at: float) -> Answer:
        """In a thread, once there is one for it. Raises Full, TurnedAway."""
        text = body.text()
        kind = kind_of(scope["method"], scope["path"], text)
        deadline_at = _deadline(scope, came_at)
        read_at = time.monotonic()
        wait_seconds = min(admission.WAIT_SECONDS, deadline_at - read_at)
        try:
            async with self.gate.turn(kind, wait_seconds=wait_seconds):
                environ = make_environ(scope, text)
                environ["agentstate.came_at"] = came_at
                environ["agentstate.queue_seconds"] = time.monotonic() - read_at
                return await asyncio.get_running_loop().run_in_executor(
                    self._pool, self._answer, environ
                )
        except Full as full:
            if full.waited and wait_seconds < admission.WAIT_SECONDS:
                raise TurnedAway(LATE) from None
            raise

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
            close_old_connections()  # Django does so where an answer ends: not in this thread
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
                    if not _patiently(asyncio.run_coroutine_threadsafe(hand_over(part), loop)):
                        return
            finally:
                answer.close()
                _patiently(asyncio.run_coroutine_threadsafe(hand_over(None), loop))

        made = loop.run_in_executor(self._streams, make)
        try:
            await send_in_time(send, _start(answer))
            if answer.body:
                await _send_part(send, answer.body, more=True)
            while (part := await ready.get()) is not None:
                await _send_part(send, part, more=True)
            # A thread that failed must not look like the end: the connection is cut instead.
            await made
            await _send_part(send, b"", more=False)
        except Gone:
            pass
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


def _patiently(handed: Future[bool]) -> bool:
    """What handing over came to. No connection to the database is held while the client lets one
    wait; whoever makes the parts opens one again (an export has no transaction open)."""
    try:
        return handed.result(PATIENCE_SECONDS)
    except TimeoutError:
        connections.close_all()
        return handed.result()


class _Body:
    """A request's body as it comes, counted among all that its process holds."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._pieces: list[bytes] = []
        self.size = 0
        self.is_whole = False

    async def read(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> None:
        """Of one that is too large the beginning, one byte more than is allowed: whoever reads it
        sees that it is, and the rest is not read. Raises Gone, TurnedAway.
        """
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
            return
        if (there := _body_there(scope)) is not None:
            self._take(there)
            self.is_whole = True
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while self.size <= BODY_BYTES_MAX and not self.is_whole:
                    async with asyncio.timeout(PIECE_SECONDS):
                        event = await receive()
                    if event["type"] != "http.request":
                        raise Gone
                    self._take(event.get("body", b""))
                    self.is_whole = not event.get("more_body", False)
        except TimeoutError:
            raise TurnedAway(TOO_LATE) from None

    def _take(self, piece: bytes) -> None:
        if self._bridge.held_bytes + len(piece) > BODIES_BYTES_MAX:
            raise TurnedAway(TOO_MUCH)
        self._pieces.append(piece)
        self.size += len(piece)
        self._bridge.held_bytes += len(piece)

    def text(self) -> bytes:
        self._pieces = [b"".join(self._pieces)[: BODY_BYTES_MAX + 1]]
        return self._pieces[0]

    def forget(self) -> None:
        self._pieces.clear()
        self._bridge.held_bytes -= self.size
        self.size = 0


def _body_there(scope: HTTPScope) -> bytes | None:
    """The body, if all of it has come already: then there is nothing to wait for in time."""
    cycle: Any = scope.get(CYCLE)
    if cycle is None or cycle.more_body or len(cycle.body) > SHORT_BODY_BYTES:
        return None
    there, cycle.body = bytes(cycle.body), bytearray()
    return there


def _deadline(scope: HTTPScope, came_at: float) -> float:
    """When `Agentstate-Deadline` is over, by time.monotonic(); what is none is refused later."""
    sent = dict(scope["headers"]).get(b"agentstate-deadline", b"").strip()
    if not sent.isdigit() or len(sent) > DEADLINE_DIGITS:
        return float("inf")
    return came_at + int(sent) / 1_000


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


def _start(answer: Answer) -> HTTPResponseStartEvent:
    return {
        "type": "http.response.start",
        "status": answer.status,
        "headers": answer.headers,
        "trailers": False,
    }


async def _send_whole(scope: HTTPScope, send: ASGISendCallable, answer: Answer) -> None:
    cycle: Any = scope.get(CYCLE)
    body: HTTPResponseBodyEvent = {
        "type": "http.response.body",
        "body": answer.body,
        "more_body": False,
    }
    for event in (_start(answer), body):
        if cycle is not None and not cycle.flow.write_paused:
            await send(event)  # it does not wait
        else:
            await send_in_time(send, event)


async def _send_part(send: ASGISendCallable, part: bytes, *, more: bool) -> None:
    await send_in_time(send, {"type": "http.response.body", "body": part, "more_body": more})


# --- turned away ---------------------------------------------------------------------------------

# INTERNAL of api/problems.py, which needs Django to be there.
BROKEN = Refused(
    status=500,
    code="internal",
    title="A fault in agentstate",
    retry="never",
    detail="this is a fault of ours; it was logged",
)
TOO_LATE = Refused(
    status=408,
    code="malformed",
    title="The request never came to its end",
    retry="never",
    detail="the body did not come in time",
)
TOO_MUCH = Refused(
    status=503,
    code=Overloaded.code,
    title=Overloaded.title,
    retry=str(Overloaded.retry),
    detail="too much is being sent at once",
    retry_after_seconds=admission.RETRY_AFTER[Kind.WRITES],
)
LATE = Refused(
    status=503,
    code=Unavailable.code,
    title=Unavailable.title,
    retry=str(Unavailable.retry),
    detail="it could not begin in the time that it was given",
    retry_after_seconds=1,
    is_read=True,
)


def _too_many(full: Full, *, is_read: bool) -> Refused:
    return Refused(
        status=503,
        code=Overloaded.code,
        title=Overloaded.title,
        retry=str(Overloaded.retry),
        detail=str(full),
        retry_after_seconds=admission.RETRY_AFTER[full.kind],
        is_read=is_read,
    )


def problem_answer(refused: Refused, *, instance: str, request_id: str) -> Answer:
    """The refusal as problem+json, as api/problems.py has it."""
    problem = {
        "type": f"/problems/{refused.code}",
        "code": refused.code,
        "title": refused.title,
        "status": refused.status,
        "retry": refused.retry,
        "detail": refused.detail,
        "instance": instance,
        "request_id": request_id,
    }
    text = json.dumps(problem).encode()
    return _refusing(refused, text, b"application/problem+json", request_id)


# To people, before any of Django's templates are there; it needs no style.
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><h1>{title}</h1>
<p>{detail}. <a href="">Try again</a> in {seconds} s. Request {request_id}.</p></html>
"""


def page_answer(refused: Refused, *, request_id: str) -> Answer:
    """The refusal for a person."""
    seconds = refused.retry_after_seconds or 1
    text = PAGE.format(
        title=escape(refused.title),
        detail=escape(refused.detail).capitalize(),
        seconds=seconds,
        request_id=escape(request_id),
    )
    answer = _refusing(refused, text.encode(), b"text/html; charset=utf-8", request_id)
    answer.headers.append((b"content-security-policy", b"default-src 'none'"))
    return answer


def _refusing(refused: Refused, text: bytes, content_type: bytes, request_id: str) -> Answer:
    metrics.note_problem(refused.code)
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(text)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", request_id.encode()),
    ]
    if refused.retry_after_seconds is not None:
        headers.append((b"retry-after", str(refused.retry_after_seconds).encode()))
    if not refused.is_read:
        headers.append((b"connection", b"close"))
    return Answer(refused.status, headers, text)


async def _send_problem(
    scope: HTTPScope, send: ASGISendCallable, refused: Refused, came_at: float
) -> None:
    with suppress(Gone):
        await _send_whole(scope, send, _problem(scope, refused, came_at))


def _problem(scope: HTTPScope, refused: Refused, came_at: float) -> Answer:
    headers = dict(scope["headers"])
    request_id = request_id_of(headers.get(b"x-request-id", b"").decode("latin-1"))
    if b"text/html" in headers.get(b"accept", b"") and not scope["path"].startswith(SHORT):
        answer = page_answer(refused, request_id=request_id)
    else:
        instance = escape_uri_path(scope["path"])
        answer = problem_answer(refused, instance=instance, request_id=request_id)
    waited_ms = (time.monotonic() - came_at) * 1_000
    timing = f"total;dur={waited_ms:.2f}, queue;dur={waited_ms:.2f}"
    answer.headers.append((b"server-timing", timing.encode()))
    return answer


def _lines(answer: Answer) -> Written:
    return answer.status, b"".join(b"%s: %s\r\n" % field for field in answer.headers), answer.body
