"""How streams leave: as server-sent events. Whatever ends one also ends what made it, at once.

A client that does not read is cut off in agentstate/sending.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from django.http import StreamingHttpResponse

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "Content-Encoding": "identity",
}


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
