"""One LISTEN connection for all streams of this process, and a bounded queue for each of them.

A stream that cannot keep up loses its hints and gets RESYNC instead: its page then asks for all
that is newer than what it shows. The same when the connection was lost, since nobody knows what was
said meanwhile. At shutdown every stream gets BYE, so that the server can stop at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any

import psycopg
from django.conf import settings
from django.db import connections

from agentstate import postgres
from agentstate.store.feed import CHANNEL

QUEUE_SIZE = 100
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

log = logging.getLogger(__name__)


class Notice(Enum):
    """What is said to a stream beside hints."""

    RESYNC = "resync"
    BYE = "bye"


@dataclass(frozen=True, slots=True)
class Hint:
    """Something moved. runs: key → last number; None: any run may have."""

    position: int | None
    runs: dict[str, int] | None


type Message = Hint | Notice


def parse(payload: str) -> Message:
    """A hint as the mover sends it; RESYNC for anything else, so that nothing is missed."""
    try:
        told = json.loads(payload)
        position, runs = int(told["position"]), told.get("runs")
    except (ValueError, TypeError, KeyError):
        return Notice.RESYNC
    if runs is None:
        return Hint(position, None)
    if not isinstance(runs, dict) or not all(type(seq) is int for seq in runs.values()):
        return Notice.RESYNC
    return Hint(position, runs)


@dataclass(eq=False)
class Subscription:
    """One stream's queue. run: only hints about this run; None: about all."""

    run: str | None
    queue: asyncio.Queue[Message] = field(default_factory=lambda: asyncio.Queue(QUEUE_SIZE))

    def put(self, message: Message) -> None:
        if isinstance(message, Hint) and not self._concerns(message):
            return
        if message is Notice.BYE or self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            message = message if message is Notice.BYE else Notice.RESYNC
        self.queue.put_nowait(message)

    def _concerns(self, hint: Hint) -> bool:
        return self.run is None or hint.runs is None or self.run in hint.runs


def conninfo() -> str:
    """The database of this process (a test's own, in tests), on a session of its own."""
    name = connections["default"].settings_dict["NAME"]
    parts = settings.DATABASE_PARTS
    return postgres.conninfo(parts, dbname=name, application_name="agentstate live")


class Hub:
    """Streams come and go; the connection is there while there is at least one."""

    def __init__(self, *, conninfo: Callable[[], str] = conninfo) -> None:
        self._conninfo = conninfo
        self._subscriptions: set[Subscription] = set()
        self._listening: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def streams(self) -> int:
        """How many streams there are now."""
        return len(self._subscriptions)

    async def subscribe(self, run: str | None = None) -> Subscription:
        """A new stream's queue. LISTEN is in force when this returns, or it begins with RESYNC."""
        subscription = Subscription(run)
        self._subscriptions.add(subscription)
        if self._listening is None or self._listening.done():
            self._ready.clear()
            self._listening = asyncio.create_task(self._listen())
        try:
            await asyncio.wait_for(self._ready.wait(), 2)
        except TimeoutError:
            subscription.put(Notice.RESYNC)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Call it in the stream's `finally`: a client that goes away cancels the stream."""
        self._subscriptions.discard(subscription)
        if not self._subscriptions and self._listening is not None:
            self._listening.cancel()
            self._listening = None

    def publish(self, message: Message) -> None:
        for subscription in list(self._subscriptions):
            subscription.put(message)

    async def _listen(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._conninfo(), autocommit=True
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pause = FIRST_PAUSE_SECONDS
                    self._ready.set()
                    async for notice in connection.notifies():
                        self.publish(parse(notice.payload))
            except psycopg.Error as lost:
                log.info("the stream of hints was cut: %s", type(lost).__name__)
            self._ready.clear()
            self.publish(Notice.RESYNC)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}
_chained = threading.Lock()


def hub() -> Hub:
    """The hub of the running loop; a server process has one."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        for closed in [one for one in _hubs if one.is_closed()]:
            del _hubs[closed]
        _hubs[loop] = Hub()
        _say_bye_on_signals(loop)
    return _hubs[loop]


def _say_bye_on_signals(loop: asyncio.AbstractEventLoop) -> None:
    """End all streams when the server is told to stop.

    Django has no hook for it in ASGI, and a server waits for open answers; so what the server
    does at a signal comes after what we do.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if not _chained.acquire(blocking=False):
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _with_bye(loop, signal.getsignal(number)))


def _with_bye(
    loop: asyncio.AbstractEventLoop, before: Any
) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if (own := _hubs.get(loop)) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(own.publish, Notice.BYE)
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle
