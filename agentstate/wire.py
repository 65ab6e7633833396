"""HTTP on the socket: uvicorn's own reading of it, with bounds while it reads.

uvicorn takes a head of any size, for as long as it comes. Here a request's head has an end: in
bytes, in fields, in time; also one that is never finished, and one that is hidden behind a body as
trailers, which are dropped (a trailer is no header, whatever its name). What is not HTTP or goes
beyond is refused as every other request is, as problem+json with a request id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from agentstate.bridge import Refused, problem_answer
from agentstate.phrases import phrase_of
from agentstate.request_ids import request_id_of

# From the first byte of a connection or a request until its head is there.
HEAD_SECONDS = 20.0
HEAD_BYTES_MAX = 32 * 1024
FIELDS_MAX = 100
LINE_BYTES_MAX = 8 * 1024
# What may come beside each byte of a body: a chunk of one byte has five more of its own.
CHUNK_FACTOR = 10


class Wire(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._in_head = True
        self._begun = 0  # requests, so that one is known that began in the bytes at hand
        self._beside = 0  # how many bytes may still come that are no body
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        begun = self._begun
        super().data_received(data)
        if begun == self._begun:
            self._beside -= len(data)
            if self._beside < 0:
                self._refuse(TOO_LONG)

    # --- what the parser calls -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._beside = True, HEAD_BYTES_MAX
        self._begun += 1
        if self._timer is None and not self._is_over:
            self._wait_for_head()

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
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside += CHUNK_FACTOR * len(body)
        if not self._is_over:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_over:
            super().on_message_complete()

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
        """The last answer on this connection. While one is on its way there is no place for it."""
        self._is_over = True
        self._stop_waiting()
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_written(refused, self.headers or ()))
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's, for what is not HTTP."""
        self._refuse(NO_HTTP)


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
