"""Coalescing for callers on an event loop: what lanes.py does for threads, without one for each.

What tasks of a loop bring in one of its turns, and while a batch is being written, goes to one
thread as the next batch. So a command costs no change of threads of its own, and while PostgreSQL
works on one batch the loop reads the requests of the next. A lane belongs to the loop that asks;
its thread begins with the first command, ends when there was none for a while, and has a connection
of its own. Why: docs/decisions/0031-on-the-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import cast

from django.db import close_old_connections, connections

from agentstate.store import spent
from agentstate.store.lanes import BATCH_BYTES, BATCH_COMMANDS, LONGEST_WAIT_SECONDS
from agentstate.store.sizes import Sizes
from agentstate.store.spent import Spent

# Of a lane. Two gain nothing: what is short is the processor, and batches become smaller.
THREADS = 1
# A thread that had nothing to do for so long ends, and its connection with it.
IDLE_SECONDS = 30.0
LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)


class Late(Exception):
    """It did not begin in its time: nothing was done, and nothing will be."""


class Unknown(Exception):
    """It began, and has not ended in LONGEST_WAIT_SECONDS."""


class _Turn[Item, Out]:
    """An item, and whom to tell what became of it; once."""

    __slots__ = ("came_at", "item", "then", "until", "weight")

    def __init__(self, item: Item, weight: int, until: float, then: Then[Out] | None) -> None:
        self.item, self.weight, self.until, self.then = item, weight, until, then
        self.came_at = perf_counter()

    def end(self, outcome: Out | None, failed: Exception | None, together: Spent | None) -> None:
        """Tell it, unless it was told or taken back."""
        then, self.then = self.then, None
        if then is None:
            return
        own = together or Spent()
        own = replace(own, queue=max(0.0, perf_counter() - self.came_at - own.working))
        try:
            then(outcome, failed, own)
        except Exception:
            log.exception("whoever waited for a command failed")


# (what `do` said, or what it raised, or Late or Unknown, and where the time went)
type Then[Out] = Callable[[Out | None, Exception | None, Spent], None]
type Do[Item, Out] = Callable[[Sequence[Item]], Sequence[Out]]


class LoopLane[Item, Out]:
    """A queue of one event loop, and the thread that works it off. do: a batch, in that thread.

    sizes: where its batches are counted.
    """

    def __init__(self, do: Do[Item, Out], *, name: str, sizes: Sizes | None = None) -> None:
        self._do, self._name = do, name
        self._sizes = sizes or Sizes()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Turn[Item, Out]] = deque()
        # Of each thread: its batch and since when, or nothing.
        self._at_work: list[_Batch[Item, Out] | None] = [None] * THREADS
        self._threads: list[_Worker | None] = [None] * THREADS
        self._called = False  # the loop will look for a batch in its next turn
        self._look: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait for their turn now."""
        return len(self._waiting)

    async def submit(self, item: Item, *, weight: int, wait_seconds: float) -> Out:
        """What became of it, for a task. Raises what `do` raises, Late, Unknown.

        A task that is cancelled before its batch begins takes its item back.
        """
        done: asyncio.Future[Out] = self._loop.create_future()
        parts: list[Spent] = []

        def then(outcome: Out | None, failed: Exception | None, own: Spent) -> None:
            parts.append(own)
            if done.done():
                return
            if failed is not None:
                done.set_exception(failed)
            else:
                done.set_result(cast("Out", outcome))

        turn = self.put(item, weight=weight, wait_seconds=wait_seconds, then=then)
        try:
            return await done
        except asyncio.CancelledError:
            turn.then = None
            raise
        finally:
            own = spent.record()
            if own is not None and parts:
                own.add(parts[0])

    def put(
        self, item: Item, *, weight: int, wait_seconds: float, then: Then[Out]
    ) -> _Turn[Item, Out]:
        """Queue it; `then` is called on the loop, once, later.

        weight: about how many bytes it writes. wait_seconds: in which its batch has to begin.
        """
        turn = _Turn(item, weight, time.monotonic() + wait_seconds, then)
        self._waiting.append(turn)
        if not self._called and None in self._at_work:
            # In the loop's next turn, so that all that came in this one goes together.
            self._called = True
            self._loop.call_soon(self._begin)
        if self._look is None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_after)
        return turn

    def _begin(self) -> None:
        self._called = False
        while self._waiting and None in self._at_work:
            turns = self._take()
            if not turns:
                return
            self._sizes.note(len(turns))
            n = self._at_work.index(None)
            batch = self._at_work[n] = _Batch(n, turns, time.monotonic())
            thread = self._threads[n]
            if thread is None or not thread.give(batch):
                self._threads[n] = thread = _Worker(self._work, name=f"{self._name}-{n + 1}")
                thread.give(batch)

    def _take(self) -> list[_Turn[Item, Out]]:
        turns: list[_Turn[Item, Out]] = []
        size, now = 0, time.monotonic()
        while self._waiting and len(turns) < BATCH_COMMANDS:
            turn = self._waiting[0]
            if turn.then is None or turn.until <= now:
                self._waiting.popleft().end(None, Late(), None)
                continue
            size += turn.weight
            if turns and size > BATCH_BYTES:
                break
            turns.append(self._waiting.popleft())
        return turns

    def _work(self, batch: _Batch[Item, Out]) -> None:
        """In a thread."""
        together, outcomes, failed = Spent(), None, None
        try:
            close_old_connections()
            with spent.kept(together):
                outcomes = self._do([turn.item for turn in batch.turns])
        except Exception as error:
            failed = error
        close_old_connections()
        try:
            self._loop.call_soon_threadsafe(self._end, batch, outcomes, failed, together)
        except RuntimeError:
            log.info("%s: the loop that asked is closed", self._name)

    def _end(
        self,
        batch: _Batch[Item, Out],
        outcomes: Sequence[Out] | None,
        failed: Exception | None,
        together: Spent,
    ) -> None:
        self._at_work[batch.thread] = None
        if self._waiting:
            self._begin()  # first: the thread works while answers are written
        for n, turn in enumerate(batch.turns):
            turn.end(None if outcomes is None else outcomes[n], failed, together)

    def _look_after(self) -> None:
        """Of a batch that does not end: whoever waits behind it, or in it, is told in time."""
        self._look = None
        now = time.monotonic()
        for turn in [turn for turn in self._waiting if turn.until <= now]:
            self._waiting.remove(turn)
            turn.end(None, Late(), None)
        at_work = [batch for batch in self._at_work if batch is not None]
        for batch in at_work:
            if now - batch.began_at > LONGEST_WAIT_SECONDS:
                for turn in batch.turns:
                    turn.end(None, Unknown(), None)
        if self._waiting or at_work:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_after)

    async def end(self) -> None:
        """End the threads, once what they do is done; a later command begins others."""
        threads, self._threads = self._threads, [None] * THREADS
        for thread in threads:
            if thread is not None:
                await asyncio.to_thread(thread.end)


@dataclass(frozen=True, slots=True)
class _Batch[Item, Out]:
    """What a thread does at a time; began_at: by time.monotonic()."""

    thread: int
    turns: Sequence[_Turn[Item, Out]]
    began_at: float


class _Worker:
    """A thread that takes one thing after the other, and ends when nothing comes."""

    def __init__(self, work: Callable[..., None], *, name: str) -> None:
        self._work = work
        self._given: SimpleQueue[object] = SimpleQueue()
        self._lock = Lock()
        self._ended = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, what: object) -> bool:
        """False: it has ended."""
        with self._lock:
            if not self._ended:
                self._given.put(what)
            return not self._ended

    def end(self) -> None:
        """Once it has done what it was given."""
        self.give(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (what := self._next()) is not None:
                self._work(what)
        finally:
            self._ended = True
            connections.close_all()

    def _next(self) -> object:
        try:
            return self._given.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                self._ended = self._given.empty()
            return None if self._ended else self._given.get()


class LoopLanes[Item, Out]:
    """One lane for each event loop that asks. do and name as for LoopLane."""

    def __init__(self, do: Do[Item, Out], *, name: str) -> None:
        self._do, self._name = do, name
        self.sizes = Sizes()
        self._lanes: dict[asyncio.AbstractEventLoop, LoopLane[Item, Out]] = {}

    def here(self) -> LoopLane[Item, Out]:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            for closed in [one for one in self._lanes if one.is_closed()]:
                del self._lanes[closed]
            lane = self._lanes[loop] = LoopLane(self._do, name=self._name, sizes=self.sizes)
        return lane

    @property
    def waiting(self) -> int:
        """How many wait for their turn in this process."""
        return sum(lane.waiting for lane in list(self._lanes.values()))

    async def end(self) -> None:
        """End the running loop's thread."""
        lane = self._lanes.pop(asyncio.get_running_loop(), None)
        if lane is not None:
            await lane.end()
