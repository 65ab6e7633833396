"""How streams leave: as server-sent events. Whatever ends one also ends what made it, at once.

A client that does not read is cut off in agentstate/sending.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from django.http import StreamingHttpResponse

from agentstate.bridge import CYCLE

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


class Line:
    """The connection under a stream, for a part that need not wake the task that sends it.

    It is what agentstate/wire.py left in the scope. Under another server nothing goes this way.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._cycle = scope.get(CYCLE)

    def write(self, part: bytes) -> bool:
        """As the server's `send` does it with a part of an answer. False: it would have to wait for
        the client, or there is no place for it, and nothing was written."""
        cycle = self._cycle
        if cycle is None or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if cycle.disconnected or cycle.flow.write_paused or cycle.transport.is_closing():
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True
