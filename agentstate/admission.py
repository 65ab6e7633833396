"""Who is let in when more is asked than can be done, who waits, and who is turned away first.

A process does a bounded number of requests at once. A request has a place from the moment it is
there as a whole until its answer is made; with a place it waits for a thread. When places get
scarce, reads of lists are turned away first, then reads of the feed, then appends and all that is
neither, and last of all renewals and what ends something: a worker that cannot renew loses its
run, one that cannot append only waits. Nothing waits long: who is turned away is told so at once or
after WAIT_SECONDS, and when to come back. docs/decisions/0017-backpressure.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import IntEnum

WAIT_SECONDS = 10.0
LOG_SECONDS = 10.0

log = logging.getLogger(__name__)


class Kind(IntEnum):
    """What a request is for. Of the first four the lower is turned away before the higher.

    The others have places of their own: a flood of the API takes none of theirs.
    """

    LISTS = 0  # reads of many things: lists, events, exports, verifications
    FEED = 1
    WRITES = 2  # appends and every other write; reads of one thing, by which a writer goes on
    LAST = 3  # renewals, releases, commits, and moves that end a run
    LOGIN = 4  # a password is slow to check, on purpose
    PAGES = 5  # the console
    VITAL = 6  # health and metrics

    @property
    def label(self) -> str:
        return self.name.lower()


API = (Kind.LISTS, Kind.FEED, Kind.WRITES, Kind.LAST)
# Up to which part of the places each is let in, and how much of the threads it and those before it
# may hold at once.
PLACES_PART = {Kind.LISTS: 0.5, Kind.FEED: 0.65, Kind.WRITES: 0.85, Kind.LAST: 1.0}
THREADS_PART = {Kind.LISTS: 0.4, Kind.FEED: 0.5, Kind.WRITES: 0.7, Kind.LAST: 0.9}
# Of those beside the API, whatever its own are.
OWN_PLACES = {Kind.LOGIN: 16, Kind.PAGES: 64, Kind.VITAL: 64}
OWN_THREADS_PART = {Kind.LOGIN: 0.1, Kind.PAGES: 0.3, Kind.VITAL: 0.2}
# When to come back, in seconds: what is turned away first, last.
RETRY_AFTER = {Kind.LISTS: 5, Kind.FEED: 3, Kind.WRITES: 2} | dict.fromkeys(
    (Kind.LAST, Kind.LOGIN, Kind.PAGES, Kind.VITAL), 1
)

_ONE_THING = re.compile(
    r"/api/v1/(?:(?:runs|leases|budgets)/[^/]+|runs/[^/]+/budgets/[^/]+|receipts|time)"
)
# Where a password or a code is checked.
_HASHES = re.compile(r"/(?:login(?:/|$)|setup$|account/password$)")
_ENDS = re.compile(r"/(?:renew|release|commit)$")
_MAY_END = re.compile(r"/api/v1/(?:batch|runs/[^/]+/(?:events|transitions))")
# Only a hint: a body that has this text elsewhere is let in with those that end a run.
_TERMINAL = re.compile(rb'"to"\s*:\s*"(?:completed|failed|cancelled)"')


def kind_of(method: str, path: str, body: bytes | None = None) -> Kind:
    """What a request is for. body None: not read yet; then the most important that it may be."""
    if path.startswith("/api/"):
        return _read_of(path) if method in ("GET", "HEAD") else _write_of(path, body)
    if path.startswith("/health/") or path == "/metrics":
        return Kind.VITAL
    return Kind.LOGIN if method == "POST" and _HASHES.match(path) else Kind.PAGES


def _read_of(path: str) -> Kind:
    if path.startswith("/api/v1/feed"):
        return Kind.FEED
    if path.startswith("/api/v1/health/"):
        return Kind.VITAL
    return Kind.WRITES if _ONE_THING.fullmatch(path) else Kind.LISTS


def _write_of(path: str, body: bytes | None) -> Kind:
    if _ENDS.search(path):
        return Kind.LAST
    if path.startswith(("/api/v1/feed/", "/api/v1/traces")):
        return Kind.FEED  # spans can be sent again later; workers' writes go first
    if _MAY_END.fullmatch(path) and (body is None or _TERMINAL.search(body)):
        return Kind.LAST
    return Kind.WRITES


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is: places for requests of the API, and threads for all. The rule is here."""

    places: int
    threads: int

    def admits(self, kind: Kind, taken: Mapping[Kind, int]) -> bool:
        """Whether one more of this kind gets a place, when so many of each have one."""
        if kind not in API:
            return taken.get(kind, 0) < OWN_PLACES[kind]
        # Each request comes by here.
        lists, feed, writes, last = API
        of_api = taken.get(lists, 0) + taken.get(feed, 0) + taken.get(writes, 0)
        return of_api + taken.get(last, 0) < self.places_up_to(kind)

    def places_up_to(self, kind: Kind) -> int:
        return max(1, int(self.places * PLACES_PART[kind]))

    def starts(self, kind: Kind, busy: Mapping[Kind, int]) -> bool:
        """Whether one more of this kind gets a thread, when so many of each have one."""
        if sum(busy.values()) >= self.threads:
            return False
        if kind not in API:
            return busy.get(kind, 0) < max(1, int(self.threads * OWN_THREADS_PART[kind]))
        here = sum(busy.get(one, 0) for one in API if one <= kind)
        return here < max(1, int(self.threads * THREADS_PART[kind]))


class Full(Exception):
    """No place for a request of this kind, or no thread in time."""

    def __init__(self, kind: Kind, *, waited: bool) -> None:
        super().__init__("no thread came free in time" if waited else "too many requests at once")
        self.kind, self.waited = kind, waited


class Gate:
    """Places and threads of one process, given out on its event loop and by no one else."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.taken: Counter[Kind] = Counter()
        self.busy: Counter[Kind] = Counter()
        self.refused: Counter[tuple[Kind, bool]] = Counter()
        self._waiting: dict[Kind, deque[asyncio.Future[None]]] = {k: deque() for k in Kind}
        self._untold: Counter[Kind] = Counter()
        self._told_at = float("-inf")

    def admits(self, kind: Kind) -> bool:
        """Whether there is a place for this kind now; takes none."""
        return self.room.admits(kind, self.taken)

    def check(self, kind: Kind) -> None:
        """Raises Full when there is no place for this kind now; takes none."""
        if not self.admits(kind):
            raise self._full(kind, waited=False)

    @contextmanager
    def place(self, kind: Kind) -> Iterator[None]:
        """A place while the block lasts. Raises Full."""
        self.check(kind)
        self.taken[kind] += 1
        try:
            yield
        finally:
            self.taken[kind] -= 1

    @asynccontextmanager
    async def thread(
        self, kind: Kind, *, wait_seconds: float = WAIT_SECONDS
    ) -> AsyncIterator[None]:
        """While the block lasts a thread, for who has a place. Raises Full."""
        await self._start(kind, wait_seconds)
        try:
            yield
        finally:
            self.busy[kind] -= 1
            self._wake()

    @asynccontextmanager
    async def turn(self, kind: Kind, *, wait_seconds: float = WAIT_SECONDS) -> AsyncIterator[None]:
        """A place, and while the block lasts a thread. Raises Full."""
        with self.place(kind):
            async with self.thread(kind, wait_seconds=wait_seconds):
                yield

    def waited(self, kind: Kind) -> Full:
        """What to raise for one whose turn did not come in time, whatever it waited for."""
        return self._full(kind, waited=True)

    async def _start(self, kind: Kind, wait_seconds: float) -> None:
        if not self._waiting[kind] and self.room.starts(kind, self.busy):
            self.busy[kind] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[kind].append(turn)
        try:
            async with asyncio.timeout(wait_seconds):
                await turn
        except BaseException as ended:
            self._give_back(kind, turn)
            if isinstance(ended, TimeoutError):
                raise self._full(kind, waited=True) from None
            raise

    def _give_back(self, kind: Kind, turn: asyncio.Future[None]) -> None:
        """Of one that no longer waits: its turn may have come in the same moment."""
        if turn.done() and not turn.cancelled():
            self.busy[kind] -= 1
        else:
            turn.cancel()
        self._wake()

    def _wake(self) -> None:
        """Give free threads to those who wait: the most important first, of one kind the oldest."""
        for kind in reversed(Kind):
            waiting = self._waiting[kind]
            while waiting and (waiting[0].done() or self.room.starts(kind, self.busy)):
                turn = waiting.popleft()
                if not turn.done():
                    self.busy[kind] += 1
                    turn.set_result(None)

    def _full(self, kind: Kind, *, waited: bool) -> Full:
        self.refused[kind, waited] += 1
        self._untold[kind] += 1
        if time.monotonic() - self._told_at >= LOG_SECONDS:
            told = ", ".join(f"{n} {kind.label}" for kind, n in sorted(self._untold.items()))
            log.warning("turned away since the last line like this: %s", told)
            self._untold.clear()
            self._told_at = time.monotonic()
        return Full(kind, waited=waited)
