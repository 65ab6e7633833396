"""Who is here, as the processes tell one another: signs of the pages whose streams each has.

A stream that opens is a sign, every beat while it is open is one, and its end says that the page is
gone. They go out by NOTIFY on a channel of their own, never in a transaction of the store, and each
carries the database's clock. Whatever is lost is said again by the next beat, or never: nothing is
decided by it (agentstate/presence.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from agentstate import presence
from agentstate.django_postgres.patient import AsyncPatient
from agentstate.presence import Board, Sign

CHANNEL = "agentstate_presence"
# Three may be lost before somebody counts as gone.
BEAT_SECONDS = presence.EXPIRES_SECONDS / 3
# PostgreSQL takes 7,999 octets; the rest is for the stamp.
SIGNS_OCTETS_MAX = 7_000

TELL = """
SELECT pg_notify(%s, json_build_object(
    'at', (extract(epoch FROM agentstate_now()) * 1000000)::bigint,
    'ask', %s::boolean, 'signs', %s::json)::text)
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looker:
    """Somebody's open page: the person, the page's own number, and what it shows."""

    person: str
    instance: str
    page: str


@dataclass(frozen=True, slots=True)
class Told:
    """What another process says, or this one heard back. asks: it wants to know who is here."""

    at: int
    asks: bool
    signs: presence.Signs


def parse(payload: str) -> Told | None:
    """What was told; None for what is not understood, as of a newer release."""
    try:
        told = json.loads(payload)
        at = int(told["at"])
        signs = dict(_sign(at, *one) for one in told["signs"])
        return Told(at, told["ask"] is True, signs)
    except (ValueError, TypeError, LookupError):
        return None


def _sign(
    at: int, person: str, instance: str, page: str, since: int | None, gone: bool
) -> tuple[tuple[str, str], Sign]:
    if not all(isinstance(one, str) for one in (person, instance, page)):
        raise TypeError("names are texts")
    # Not later than now: before the clock was set back it may have been.
    begun = at if since is None else min(at, int(since))
    return (person, instance), Sign(at=at, gone=gone is True, page=page, since=begun)


class Company:
    """The open pages of this process, and what it tells the others of them."""

    def __init__(self, conninfo: Callable[[], str], *, board: Board = presence.board) -> None:
        self._conninfo, self._board = conninfo, board
        self._streams: dict[Looker, int] = {}
        self._untold: dict[Looker, None] = {}
        self._asking = False
        self._telling: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    def enter(self, looker: Looker) -> None:
        """A stream of this page has opened."""
        self._streams[looker] = self._streams.get(looker, 0) + 1
        self._soon([looker])
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    def leave(self, looker: Looker) -> None:
        """A stream of this page has ended; it is gone unless it has come back meanwhile."""
        left = self._streams.pop(looker, 1) - 1
        if left:
            self._streams[looker] = left
        self._soon([looker])

    def ask(self) -> None:
        """Let everybody say who is here: this process hears again, or for the first time."""
        self._asking = True
        self._soon([])

    def hear(self, payload: str) -> set[str]:
        """Take in what was told; the pages on which other people are seen now."""
        told = parse(payload)
        if told is None:
            return set()
        if told.asks:
            self._soon(self._streams)
        return self._board.merge(told.signs, now=told.at)

    def _soon(self, lookers: Iterable[Looker]) -> None:
        self._untold.update(dict.fromkeys(lookers))
        if (self._untold or self._asking) and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        """One after the other, each as it is by then: whoever left at once is not told as here."""
        while self._untold or self._asking:
            asks, self._asking = self._asking, False
            untold, self._untold = self._untold, {}
            try:
                await self._tell(asks, [self._as_told(looker) for looker in untold])
            except psycopg.Error as lost:
                log.info("who is here was not told: %s", type(lost).__name__)

    def _as_told(self, looker: Looker) -> list[Any]:
        since = self._board.since(looker.person, looker.instance)
        gone = looker not in self._streams
        return [looker.person, looker.instance, looker.page, since, gone]

    async def _tell(self, asks: bool, signs: list[list[Any]]) -> None:
        async with await AsyncPatient.connect(self._conninfo(), autocommit=True) as connection:
            for part in _parts(signs):
                await connection.execute(TELL, [CHANNEL, asks, part])

    async def _beat(self) -> None:
        while self._streams:
            await asyncio.sleep(BEAT_SECONDS)
            self._soon(self._streams)


def _parts(signs: list[list[Any]]) -> Iterator[str]:
    """The signs as JSON lists, none too long for one NOTIFY; at least one."""
    texts: list[str] = []
    for sign in signs:
        text = json.dumps(sign)
        if texts and sum(map(len, texts)) + len(texts) + len(text) > SIGNS_OCTETS_MAX:
            yield f"[{','.join(texts)}]"
            texts = []
        texts.append(text)
    yield f"[{','.join(texts)}]"
