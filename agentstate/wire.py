"""HTTP on the socket: uvicorn's own reading of it, with bounds while it reads.

uvicorn takes a head of any size, for as long as it comes. Here a request's head has an end: in
bytes, in fields, in time; also one that is never finished, and one that is hidden behind a body as
trailers, which are dropped (a trailer is no header, whatever its name). What is not HTTP or goes
beyond is refused as every other request is, as problem+json with a request id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, cast

from asgiref.typing import HTTPScope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from agentstate.bridge import (
    CAME_AT,
    CYCLE,
    SHORT_BODY_BYTES,
    AtOnce,
    Refused,
    Written,
    problem_answer,
)
from agentstate.phrases import phrase_of
from agentstate.request_ids import request_id_of

# From the first byte of a connection or a request until its head is there.
HEAD_SECONDS = 20.0
HEAD_BYTES_MAX = 32 * 1024
FIELDS_MAX = 100
LINE_BYTES_MAX = 8 * 1024
# What may come beside each byte of a body: a chunk of one byte has five more of its own.
CHUNK_FACTOR = 10
# A short call waits so long for its body before it becomes a task, which has patience of its own.
PATIENCE_SECONDS = 0.25


class Wire(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._in_head = True
        self._begun = 0  # requests, so that one is known that began in the bytes at hand
        self._beside = 0  # how many bytes may still come that are no body
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        # What answers at once, and the request that may be for it once its body is there.
        self._shortcut: AtOnce | None = getattr(self.config.app, "at_once", None)
        self._held: tuple[RequestResponseCycle, Any] | None = None
        # Whose answer comes next; those behind it are in the pipeline.
        self._active: RequestResponseCycle | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._let_go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        begun = self._begun
        super().data_received(data)
        if self._held is not None and self._patience is None:
            self._wait_for_body(*self._held)
        if self._in_head and self._begun and self._timer is None and not self._is_over:
            self._wait_for_head()
        if begun == self._begun:
            self._beside -= len(data)
            if self._beside < 0:
                self._refuse(TOO_LONG)

    # --- what the parser calls -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._beside = True, HEAD_BYTES_MAX
        self._begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._beside = False, HEAD_BYTES_MAX
        self._stop_waiting()
        refused = _judge(self.url, self.headers)
        if self._is_over or refused is not None:
            if refused is not None:
                self._refuse(refused)
            return
        self.scope[CAME_AT] = time.monotonic()  # type: ignore[literal-required]
        super().on_headers_complete()
        # What the bridge need not wait for: a body that is there, a client that reads.
        self.scope[CYCLE] = self.cycle  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        self._beside += CHUNK_FACTOR * len(body)
        if not self._is_over:
            super().on_body(body)
            if self._held is not None and len(self._held[0].body) > SHORT_BODY_BYTES:
                self._start_held()

    def on_message_complete(self) -> None:
        if not self._is_over:
            super().on_message_complete()
            held = self._let_go()
            if held is not None:
                self._at_once(*held)

    # --- at once ---------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Not yet, when it is a request whose body is about to come."""
        self._active = cycle
        if self._shortcut is not None and cycle is self.cycle and cycle.more_body:
            self._held = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _wait_for_body(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Most clients send it right behind the head. Who takes longer is the task's business."""
        assert self._shortcut is not None
        if cycle.waiting_for_100_continue or not self._shortcut.wants(_scope(cycle)):
            self._start_held()
        else:
            self._patience = self.loop.call_later(PATIENCE_SECONDS, self._start_held)

    def _let_go(self) -> tuple[RequestResponseCycle, Any] | None:
        held, self._held = self._held, None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        return held

    def _start_held(self) -> None:
        held = self._let_go()
        if held is not None:
            super()._start_asgi_task(*held)

    def _at_once(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Without a task, if the shortcut takes it."""

        def then(written: Written | None) -> None:
            if written is None:
                super(Wire, self)._start_asgi_task(cycle, app)
            else:
                self._answer(cycle, written)

        may_be = cycle.keep_alive and not self.flow.write_paused
        may_be = may_be and len(cycle.body) <= SHORT_BODY_BYTES
        assert self._shortcut is not None
        if not may_be or not self._shortcut.take(_scope(cycle), bytes(cycle.body), then):
            super()._start_asgi_task(cycle, app)

    def _answer(self, cycle: RequestResponseCycle, written: Written) -> None:
        """What the cycle's `send` does, in one write."""
        status, head, body = written
        if not cycle.disconnected:
            default = b"".join([b"%s: %s\r\n" % field for field in cycle.default_headers])
            end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
            self.transport.write(b"".join((STATUS_LINE[status], default, head, end, body)))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:  # the server is about to end
            self.transport.close()
        cycle.on_response()

    # --- an end ----------------------------------------------------------------------------------

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        if self.flow.read_paused:  # it is we who do not read on
            self._wait_for_head()
        elif self._begun and self._in_head:
            self._refuse(LATE)
        else:
            self.transport.close()

    def _refuse(self, refused: Refused) -> None:
        """The last answer on this connection, unless one before it is still to come: what came
        whole may have been done, so its answer goes out, and nothing after it."""
        self._is_over = True
        self._stop_waiting()
        self._let_go()
        last = self._last_whole()
        if last is not None:
            last.keep_alive = False
            return
        cut = self._active
        if cut is None or cut.response_complete or not cut.response_started:
            self.transport.write(_written(refused, self.headers or ()))
        if cut is not None:  # whoever waits for its body is told that it never comes
            cut.disconnected = True
            cut.message_event.set()
        self.transport.close()

    def _last_whole(self) -> RequestResponseCycle | None:
        """The newest request that is there with all of its body and not yet answered."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        found = self.pipeline[0][0] if self.pipeline else self._active
        is_open = found is not None and not found.response_complete and not found.more_body
        return found if is_open else None

    def send_400_response(self, msg: str) -> None:
        """uvicorn's, for what is not HTTP."""
        self._refuse(NO_HTTP)


def _scope(cycle: RequestResponseCycle) -> HTTPScope:
    """uvicorn has types of its own for what is the same."""
    return cast("HTTPScope", cycle.scope)


def _judge(line: bytes, headers: list[tuple[bytes, bytes]]) -> Refused | None:
    if len(line) > LINE_BYTES_MAX:
        return LONG_LINE
    size = len(line) + sum(len(name) + len(value) + 4 for name, value in headers)
    if size > HEAD_BYTES_MAX:
        return TOO_LONG
    return TOO_MANY if len(headers) > FIELDS_MAX else None


def _written(refused: Refused, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    sent = dict(headers).get(b"x-request-id", b"").decode("latin-1")
    answer = problem_answer(refused, instance="", request_id=request_id_of(sent))
    lines = [b"%s: %s\r\n" % field for field in answer.headers]
    return b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", answer.body])


def _refusal(status: HTTPStatus, detail: str) -> Refused:
    return Refused(
        status=status, code="malformed", title=phrase_of(status), retry="never", detail=detail
    )


NO_HTTP = _refusal(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1")
LATE = _refusal(HTTPStatus.REQUEST_TIMEOUT, f"the head did not come within {HEAD_SECONDS:g} s")
LONG_LINE = _refusal(HTTPStatus.REQUEST_URI_TOO_LONG, f"at most {LINE_BYTES_MAX} bytes of address")
TOO_LONG = _refusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {HEAD_BYTES_MAX} bytes of headers"
)
TOO_MANY = _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {FIELDS_MAX} headers")
