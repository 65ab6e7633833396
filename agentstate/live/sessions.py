"""Whether the people behind open streams may still read: asked for all of them at once.

A stream holds no database connection. So one question every few seconds, for every session that
has a stream, on a connection that is closed again.
"""

from __future__ import annotations

import asyncio
import logging

import psycopg

from agentstate.live.hub import conninfo

CHECK_SECONDS = 10.0

STILL_IN = """
SELECT s.session_key FROM dashboard_session AS s
JOIN unnest(%s::text[], %s::int[]) AS open (session_key, user_id) USING (session_key)
JOIN auth_user AS u ON u.id = open.user_id
WHERE s.expire_date > now() AND u.is_active
    AND (u.is_superuser OR EXISTS (SELECT 1 FROM auth_user_groups AS g WHERE g.user_id = u.id))
"""

log = logging.getLogger(__name__)


class Watch:
    """Sessions with open streams, and an event for each that is set once it is over."""

    def __init__(self, *, every_seconds: float = CHECK_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._open: dict[str, tuple[int, asyncio.Event, int]] = {}
        self._asking: asyncio.Task[None] | None = None

    def enter(self, session: str, user: int) -> asyncio.Event:
        """Begin to watch a session; the event is set when it has ended."""
        _, over, streams = self._open.get(session, (user, asyncio.Event(), 0))
        self._open[session] = (user, over, streams + 1)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_again())
        return over

    def leave(self, session: str) -> None:
        user, over, streams = self._open.pop(session, (0, asyncio.Event(), 1))
        if streams > 1:
            self._open[session] = (user, over, streams - 1)
        elif not self._open and self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask_again(self) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            try:
                still_in = await self._still_in()
            except psycopg.Error as failed:
                # Streams only hint; what is shown is asked for again with the session each time.
                log.info("sessions were not looked at: %s", type(failed).__name__)
                continue
            for session, (_, over, _) in list(self._open.items()):
                if session not in still_in:
                    over.set()

    async def _still_in(self) -> set[str]:
        asked = {session: user for session, (user, _, _) in self._open.items()}
        async with await psycopg.AsyncConnection.connect(conninfo(), autocommit=True) as connection:
            rows = await connection.execute(STILL_IN, [list(asked), list(asked.values())])
            return {session for (session,) in await rows.fetchall()}


_watches: dict[asyncio.AbstractEventLoop, Watch] = {}


def watch() -> Watch:
    """The watch of the running loop."""
    return _watches.setdefault(asyncio.get_running_loop(), Watch())
