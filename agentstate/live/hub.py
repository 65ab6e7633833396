"""One LISTEN connection for all streams of this process, and a bounded queue for each of them.

A stream that cannot keep up loses its hints and gets RESYNC instead: its page then asks for all
that is newer than what it shows. The same when the connection was lost, since nobody knows what was
said meanwhile. At shutdown every stream gets BYE, so that the server can stop at once.

On the same connection the process hears who looks at which page (company.py), and what others wrote
that ends copies of this process (agentstate/caching.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import FrameType
from typing import Any

import psycopg
from django.conf import settings
from django.db import connections

from agentstate import metrics, postgres, presence
from agentstate.caching import note_hint
from agentstate.django_postgres.patient import AsyncPatient
from agentstate.live import company
from agentstate.live.company import Company
from agentstate.presence import Board
from agentstate.store.feed import CHANNEL

QUEUE_SIZE = 100
# Pages of many runs are told one after the other: all of them ask at once what they are told, and
# who looks at the run itself would wait behind them. At most so long for the last of them; longer
# while so much moves that no run is named, because then each of them is told again and again.
APART_SECONDS, APART_SECONDS_MAX, APART_SECONDS_BUSY = 0.005, 0.15, 1.0
# A page of one run is told at once, and then not again for so long: it asks about once a second,
# and of a run that is written to without a pause it would be told twenty times a second.
AGAIN_SECONDS = 0.5
# Of a hint to pages of many runs; more are told as "any".
NAMED_MAX = 20
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
ALIVE_EVERY_SECONDS = 5.0

log = logging.getLogger(__name__)


class Notice(Enum):
    """What is said to a stream beside hints."""

    RESYNC = "resync"
    BYE = "bye"


@dataclass(frozen=True)  # no slots: it keeps what it is as text
class Hint:
    """Something moved. runs: key → last number; None: any run may have.

    kinds: `run` when statuses may have, `lease` when holders may have; None: both may.
    """

    position: int | None
    runs: dict[str, int] | None
    kinds: tuple[str, ...] | None = None

    @property
    def of_many(self) -> Hint:
        """The same for a page of many runs, which looks at all of them whatever moved: with their
        names only while they are few. Put together and written out for hundreds of pages, twenty
        times a second, hundreds of names took the writers a tenth of what they do."""
        few = self.runs is not None and len(self.runs) <= NAMED_MAX
        return self if few else Hint(self.position, None, self.kinds)

    @cached_property
    def text(self) -> str:
        """JSON for who is told of all runs: one text, however many they are."""
        return self._written(self.runs)

    def text_of(self, run: str) -> str:
        """JSON for who is told of this run alone."""
        return self._written(None if self.runs is None else {run: self.runs[run]})

    def _written(self, runs: dict[str, int] | None) -> str:
        beside = {"runs": runs, "kinds": self.kinds}
        told = {"position": self.position} | {k: v for k, v in beside.items() if v is not None}
        return json.dumps(told)

    def with_later(self, later: Hint) -> Hint:
        """Both in one, for who has not been told of this one yet."""
        runs = None if self.runs is None or later.runs is None else self.runs | later.runs
        kinds = None
        if self.kinds is not None and later.kinds is not None:
            kinds = tuple(sorted({*self.kinds, *later.kinds}))
        return Hint(later.position, runs, kinds).of_many


@dataclass(frozen=True, slots=True)
class Seen:
    """Other people are seen on this page now."""

    page: str


type Message = Hint | Seen | Notice


def parse(payload: str) -> Message:
    """A hint as the mover sends it; RESYNC for anything else, so that nothing is missed."""
    try:
        told = json.loads(payload)
        position, runs = int(told["position"]), told.get("runs")
        kinds = tuple(map(str, told["kinds"])) if "kinds" in told else None
    except (ValueError, TypeError, KeyError):
        return Notice.RESYNC
    if runs is None:
        return Hint(position, None, kinds)
    if not isinstance(runs, dict) or not all(type(seq) is int for seq in runs.values()):
        return Notice.RESYNC
    return Hint(position, runs, kinds)


@dataclass(eq=False)
class Subscription:
    """One stream's queue. run: only hints about this run; None: about all. page: who looks at it
    is told as well; None: of no page. person: whose page it is; None: no person's, a worker's.
    straight: takes a hint past the queue and says whether it did; None: nobody does.
    again_at: by the loop's clock, before which a page of one run is not told of it again."""

    run: str | None
    page: str | None = None
    person: int | None = None
    queue: asyncio.Queue[Message] = field(default_factory=lambda: asyncio.Queue(QUEUE_SIZE))
    due: Hint | None = None  # what it is told when its turn comes
    straight: Callable[[Hint], bool] | None = None
    again_at: float = 0.0

    @property
    def is_page(self) -> bool:
        """Somebody looks at it, who does not see what is some milliseconds newer."""
        return self.person is not None

    def put_due(self) -> None:
        due, self.due = self.due, None
        if due is not None:
            self.put(due)

    def put_at_once(self, hint: Hint) -> None:
        """Or as soon as it was not told for AGAIN_SECONDS."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = max(now, self.again_at)
        self.again_at = at + AGAIN_SECONDS
        if at > now:
            self.due = hint
            loop.call_at(at, self.put_due)
        else:
            self.put(hint)

    def put(self, message: Message) -> None:
        if isinstance(message, Hint) and (not self.concerns(message) or self._is_sent(message)):
            return
        if isinstance(message, Seen) and message.page != self.page:
            return
        if message is Notice.BYE or self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            message = message if message is Notice.BYE else Notice.RESYNC
        self.queue.put_nowait(message)

    def _is_sent(self, hint: Hint) -> bool:
        # Not past what waits.
        return self.straight is not None and self.queue.empty() and self.straight(hint)

    def concerns(self, hint: Hint) -> bool:
        return self.run is None or hint.runs is None or self.run in hint.runs


def conninfo(application_name: str = "agentstate live") -> str:
    """The database of this process (a test's own, in tests), on a session of its own."""
    parts = settings.SESSION_PARTS
    if not settings.SESSION_URL:  # behind a pooler it may have another name
        parts = parts | {"dbname": connections["default"].settings_dict["NAME"]}
    return postgres.conninfo(parts, application_name=application_name)


def conninfo_of_company() -> str:
    return conninfo("agentstate presence")


class Hub:
    """Streams come and go; the connection is there while there is at least one, or always."""

    def __init__(
        self, *, conninfo: Callable[[], str] = conninfo, board: Board = presence.board
    ) -> None:
        self._conninfo = conninfo
        self._subscriptions: set[Subscription] = set()
        self._streams_of: Counter[int | None] = Counter()
        self._listening: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._stays = False
        self.company = Company(conninfo_of_company, board=board)

    @property
    def streams(self) -> int:
        """How many streams there are now."""
        return len(self._subscriptions)

    def streams_of(self, person: int | None) -> int:
        """How many of them are one person's; of nobody: how many are workers'."""
        return self._streams_of[person]

    @property
    def stays(self) -> bool:
        """Whether it listens also while there is no stream."""
        return self._stays

    def stay(self) -> None:
        """Listen from now on, for what pages are made of beside streams."""
        self._stays = True
        self._begin()

    def _begin(self) -> None:
        if self._listening is None or self._listening.done():
            self._ready.clear()
            self._listening = asyncio.create_task(self._listen())

    async def subscribe(
        self, run: str | None = None, page: str | None = None, person: int | None = None
    ) -> Subscription:
        """A new stream's queue. LISTEN is in force when this returns, or it begins with RESYNC."""
        subscription = Subscription(run, page, person)
        self._subscriptions.add(subscription)
        self._streams_of[person] += 1
        self._begin()
        try:
            await asyncio.wait_for(self._ready.wait(), 2)
        except TimeoutError:
            subscription.put(Notice.RESYNC)
        except asyncio.CancelledError:  # the client is gone already: nobody will unsubscribe it
            self.unsubscribe(subscription)
            raise
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Call it in the stream's `finally`: a client that goes away cancels the stream."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._streams_of -= Counter([subscription.person])  # those with none left go
        if not self._subscriptions and not self._stays and self._listening is not None:
            self._listening.cancel()
            self._listening = None

    def publish(self, message: Message) -> None:
        """Tell all streams; a hint those first that follow one run, or that no person looks at."""
        if not isinstance(message, Hint):
            for subscription in list(self._subscriptions):
                subscription.put(message)
            return
        waiting, of_many = [], message.of_many
        both: dict[int, Hint] = {}  # by the one that is due: it is due to many
        for subscription in list(self._subscriptions):
            due = subscription.due
            if not subscription.concerns(message):
                continue
            if due is not None:
                if id(due) not in both:
                    both[id(due)] = due.with_later(of_many)
                subscription.due = both[id(due)]
            elif not subscription.is_page:
                subscription.put(message)
            elif subscription.run is not None:
                subscription.put_at_once(message)
            else:
                subscription.due = of_many
                waiting.append(subscription)
        self._tell_apart(waiting, APART_SECONDS_BUSY if of_many.runs is None else APART_SECONDS_MAX)

    def _tell_apart(self, waiting: list[Subscription], seconds: float) -> None:
        """What is due to each, within so long."""
        random.shuffle(waiting)
        apart = min(APART_SECONDS, seconds / max(1, len(waiting)))
        for turn, subscription in enumerate(waiting):
            if turn:
                asyncio.get_running_loop().call_later(turn * apart, subscription.put_due)
            else:
                subscription.put_due()

    async def _listen(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with await AsyncPatient.connect(
                    self._conninfo(), autocommit=True
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    await connection.execute(f"LISTEN {company.CHANNEL}")
                    pause = FIRST_PAUSE_SECONDS
                    note_hint(None)  # nobody knows what was written meanwhile
                    self.company.ask()
                    self._ready.set()
                    while True:
                        async for notice in connection.notifies(timeout=ALIVE_EVERY_SECONDS):
                            self._take(notice)
                        # Nobody says anything to a connection that was forgotten on the way.
                        await connection.execute("SELECT 1")
            except psycopg.Error as lost:
                log.info("the stream of hints was cut: %s", type(lost).__name__)
            self._ready.clear()
            self.publish(Notice.RESYNC)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _take(self, notice: psycopg.Notify) -> None:
        if notice.channel == company.CHANNEL:
            for page in self.company.hear(notice.payload):
                self.publish(Seen(page))
            return
        message = parse(notice.payload)
        # Before the pages hear of it: what they ask for then has to be new.
        note_hint(message.kinds if isinstance(message, Hint) else None)
        self.publish(message)


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}


def count_streams() -> tuple[int, int]:
    """Of people and of workers, in this process."""
    hubs = list(_hubs.values())
    workers = sum(one.streams_of(None) for one in hubs)
    return sum(one.streams for one in hubs) - workers, workers


metrics.STREAMS.count = count_streams
_chained = threading.Lock()
_background = threading.Lock()


def listen_in_background() -> None:
    """Listen in a thread of its own, once, in a process whose server has no loop to do it in."""
    if any(one.stays for one in list(_hubs.values())) or not _background.acquire(blocking=False):
        return
    threading.Thread(target=asyncio.run, args=[_stay()], name="live-hub", daemon=True).start()


async def _stay() -> None:
    hub().stay()
    await asyncio.Event().wait()


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
