"""Whether whoever has a stream open may still do what they might: asked for all of them at once.

A stream holds no database connection. So one question a second, for all people and for all API
keys that have a stream, each on one connection. A person's stream ends with the session, by either
of its limits or because it was ended, and when they have other roles than at its beginning: the
browser then opens another, or is told why it cannot. A worker's ends with its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from django.conf import settings

from agentstate.django_postgres.patient import AsyncPatient
from agentstate.live.hub import conninfo
from agentstate.store.callers import ROLES

CHECK_SECONDS = 1.0
ANSWER_SECONDS = 5.0

# Each session that goes on, with what its person may: who is a superuser, and which groups.
STILL_IN = """
SELECT s.session_key, (
    SELECT concat(u.is_superuser, string_agg(g.name, ',' ORDER BY g.name))
    FROM auth_user_groups AS m JOIN auth_group AS g ON g.id = m.group_id
    WHERE m.user_id = u.id AND g.name = ANY(%(roles)s)
) FROM dashboard_session AS s
JOIN unnest(%(names)s::text[], %(users)s::int[]) AS open (session_key, user_id)
    USING (session_key)
JOIN auth_user AS u ON u.id = open.user_id AND u.id = s.user_id
WHERE s.seen_at > agentstate_now() - make_interval(secs => %(idle)s)
    AND s.started_at > agentstate_now() - make_interval(secs => %(absolute)s) AND u.is_active
    AND (u.is_superuser OR EXISTS (
        SELECT FROM auth_user_groups AS m JOIN auth_group AS g ON g.id = m.group_id
        WHERE m.user_id = u.id AND g.name = ANY(%(roles)s)))
"""

STILL_VALID = """
SELECT name, array_to_string(scopes, ',') FROM agentstate_apikey
WHERE name = ANY(%(names)s) AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > agentstate_now())
"""

log = logging.getLogger(__name__)


type Who = tuple[str, int]


@dataclass(eq=False, slots=True)
class Watched:
    """One stream: whose it is, what they might at its first look, and whom to tell of its end."""

    who: Who
    tell: Callable[[], None]
    over: bool = False
    rights: str | None = None

    def end(self) -> None:
        self.over = True
        self.tell()


class Watch:
    """The open streams of a process; each is told once it is over."""

    statement = ""

    def __init__(self, *, every_seconds: float | None = None) -> None:
        self._every_seconds = CHECK_SECONDS if every_seconds is None else every_seconds
        self._open: set[Watched] = set()
        self._asking: asyncio.Task[None] | None = None

    def enter(self, who: Who, tell: Callable[[], None]) -> Watched:
        """Begin to watch a stream; `tell` is called once when it has to end."""
        watched = Watched(who, tell)
        self._open.add(watched)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_again())
        return watched

    def leave(self, watched: Watched) -> None:
        self._open.discard(watched)
        if not self._open and self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask_again(self) -> None:
        connection: psycopg.AsyncConnection | None = None
        try:
            while True:
                await asyncio.sleep(self._every_seconds)
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        if connection is None or connection.closed:
                            connection = await AsyncPatient.connect(
                                conninfo("agentstate sessions"), autocommit=True
                            )
                        await self._look(connection)
                except (psycopg.Error, TimeoutError) as failed:
                    # What is told is asked for with the session or the key each time.
                    log.info("rights were not looked at: %s", type(failed).__name__)
                    if connection is not None:
                        await connection.close()
        finally:
            if connection is not None:
                await connection.close()

    async def _look(self, connection: psycopg.AsyncConnection) -> None:
        """End the streams of whoever may no more, or something else."""
        asked = list(self._open)
        whose = {one.who for one in asked}
        rows = await connection.execute(
            self.statement,
            {
                "names": [name for name, _ in whose],
                "users": [user for _, user in whose],
                "idle": settings.SESSION_IDLE_SECONDS,
                "absolute": settings.SESSION_COOKIE_AGE,
                "roles": list(ROLES),
            },
        )
        rights: dict[str, str] = dict(await rows.fetchall())
        for one in asked:
            now = rights.get(one.who[0])
            if one.rights is None:
                one.rights = now
            if now is None or now != one.rights:
                one.end()
                self._open.discard(one)


class People(Watch):
    """Those who look at the console: who is the key of a session and the id of its person."""

    statement = STILL_IN


class Keys(Watch):
    """Workers: who is the name of an API key, and 0."""

    statement = STILL_VALID


def open_of(kind: type[Watch]) -> list[Watched]:
    """The streams of this kind that are open in this process."""
    return [one for watch in _watches.values() if type(watch) is kind for one in watch._open]


_watches: dict[tuple[asyncio.AbstractEventLoop, type[Watch]], Watch] = {}


def watch(kind: type[Watch]) -> Watch:
    """The watch of this kind of the running loop."""
    loop = asyncio.get_running_loop()
    if (loop, kind) not in _watches:
        _watches[loop, kind] = kind()
    return _watches[loop, kind]
