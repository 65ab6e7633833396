"""How streams leave: as server-sent events, to clients who read them.

One that does not read is cut off, and whatever ends a stream also ends what made it, at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from django.core.exceptions import RequestAborted
from django.http import StreamingHttpResponse

# The server lets a stream go on once the client has read all but some tens of kB of it.
SEND_SECONDS = 20.0

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "Content-Encoding": "identity",
}

log = logging.getLogger(__name__)


class EventStream(StreamingHttpResponse):
    """Server-sent events. Django leaves a generator whose client is gone to be collected some
    time; this one is closed with the answer, and its place in the hub is free again."""

    def __init__(self, events: AsyncGenerator[str]) -> None:
        super().__init__(events, content_type="text/event-stream", headers=HEADERS)
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._events) as events:
            async for text in events:
                yield text.encode()


def cutting_off(application: ASGI3Application) -> ASGI3Application:
    """The application, each part of whose answers has to be taken within SEND_SECONDS."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_in_time(event: ASGISendEvent) -> None:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await send(event)
            except TimeoutError:
                log.info("cut off: a client that did not read for %g s", SEND_SECONDS)
                raise RequestAborted from None

        await application(scope, receive, send_in_time)

    return answer
