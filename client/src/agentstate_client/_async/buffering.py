"""Small events of a run, gathered for a moment and sent in one call, in order.

A batch is made once and is the same each time it is sent, so that a lost answer is no second
effect. What was not acknowledged stays here, in order: the next call of the handle sends it
first, or raises what keeps it from being written. Nothing is dropped unless the caller says so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentstate_client import clock
from agentstate_client._async.transport import AsyncCall, AsyncFence, AsyncTransport
from agentstate_client._async.waiting import AsyncLock, Timer, acquired, later
from agentstate_client.calls import log
from agentstate_client.errors import (
    AgentStateError,
    ClientClosed,
    LeaseLost,
    Unreachable,
    Unsendable,
)
from agentstate_client.payloads import RawJSON, encode
from agentstate_client.records import Event
from agentstate_client.standing import Standing

EVENTS_MAX = 500  # the contract's limit for one call
BYTES_MAX = 1024 * 1024  # of payloads in one call; one event may have as much by itself
WITHIN_MS_MAX = 60_000


@dataclass
class Room:
    """How much is in a call, or waits for one."""

    events: int = 0
    size_bytes: int = 0

    def has_place_for(self, small: Small) -> bool:
        return (
            self.events + len(small.events) <= EVENTS_MAX
            and self.size_bytes + small.size_bytes <= BYTES_MAX
        )

    def note(self, small: Small, *, sign: int = 1) -> None:
        self.events += sign * len(small.events)
        self.size_bytes += sign * small.size_bytes


@dataclass(frozen=True)
class Small:
    """What one append gave: written as a whole or not at all."""

    events: tuple[Event, ...]
    size_bytes: int


@dataclass(frozen=True)
class AsyncBatch:
    """What goes in one call, which is the same each time it is sent."""

    events: tuple[Event, ...]
    call: AsyncCall


class AsyncBuffer:
    """What one handle has not written yet. unsent: the client's own list of such buffers."""

    def __init__(
        self,
        *,
        key: str,
        transport: AsyncTransport,
        standing: Standing,
        address: str,
        fence: AsyncFence | None,
        unsent: set[AsyncBuffer],
    ) -> None:
        self._key, self._transport, self._standing = key, transport, standing
        self._address, self._fence, self._unsent = address, fence, unsent
        self._lock = threading.Lock()
        self._sending = AsyncLock()
        self._waiting: deque[Small] = deque()
        self._used = Room()  # by what waits
        self._batch: AsyncBatch | None = None
        self._has_failed = False
        self._timer: Timer | None = None
        self._due_at = 0.0

    async def add(self, events: Sequence[Event], *, within_ms: int) -> None:
        """Take events, to be sent in so many milliseconds at the latest.

        Raises what kept earlier ones from being written; then none of these is taken.
        """
        if type(within_ms) is not int or not 0 <= within_ms <= WITHIN_MS_MAX:
            raise Unsendable(f"within_ms: a whole number from 0 to {WITHIN_MS_MAX}")
        if not 1 <= len(events) <= EVENTS_MAX:
            raise Unsendable(f"events: 1 to {EVENTS_MAX}")
        self._transport.check()
        small = _small(events)
        if self._has_failed or self._is_full(small):
            await self.flush()
        with self._lock:
            self._set_timer(within_ms / 1000)
            self._waiting.append(small)
            self._used.note(small)
            self._unsent.add(self)

    async def flush(self, *, within_seconds: float | None = None) -> None:
        """Write everything. Raises what keeps it from being written; it stays here then."""
        if not self.events():
            return
        if not await acquired(self._sending, within_seconds):
            raise Unreachable(f"{self._key}: events are on their way and not acknowledged")
        try:
            while (batch := self._next_batch()) is not None:
                await self._send(batch, within_seconds)
        finally:
            self._sending.release()

    def events(self) -> tuple[Event, ...]:
        """What was not acknowledged yet, in order."""
        with self._lock:
            return self._unacknowledged()

    async def drop(self) -> tuple[Event, ...]:
        """Give up what was not acknowledged; returns it. What was sent already may be written."""
        async with self._sending:
            with self._lock:
                dropped = self._unacknowledged()
                self._waiting.clear()
                self._used = Room()
                self._forget_batch()
        return dropped

    def close(self) -> None:
        """Send nothing more by itself; what is still here stays."""
        with self._lock:
            self._stop_timer()

    async def _send(self, batch: AsyncBatch, within_seconds: float | None) -> None:
        try:
            answer = await self._transport.send(replace(batch.call, total_seconds=within_seconds))
        except BaseException:
            self._has_failed = True
            raise
        self._standing.note_write(answer.document())
        with self._lock:
            self._forget_batch()

    def _forget_batch(self) -> None:
        self._batch, self._has_failed = None, False
        if not self._waiting:
            self._unsent.discard(self)
            self._stop_timer()

    def _unacknowledged(self) -> tuple[Event, ...]:
        sent = self._batch.events if self._batch is not None else ()
        return sent + tuple(event for small in self._waiting for event in small.events)

    def _next_batch(self) -> AsyncBatch | None:
        """The one that was made already and is not acknowledged, or the next one."""
        with self._lock:
            if self._batch is None and self._waiting:
                room, events = Room(), list[Event]()
                while self._waiting and (not events or room.has_place_for(self._waiting[0])):
                    small = self._waiting.popleft()
                    room.note(small)
                    self._used.note(small, sign=-1)
                    events += small.events
                self._batch = AsyncBatch(tuple(events), self._call(events))
            return self._batch

    def _call(self, events: Sequence[Event]) -> AsyncCall:
        document = {"events": [event.document() for event in events]}
        return AsyncCall("POST", self._address, encode(document), fence=self._fence, keyed=True)

    def _is_full(self, more: Small) -> bool:
        with self._lock:
            return bool(self._waiting) and not self._used.has_place_for(more)

    def _set_timer(self, seconds: float) -> None:
        due_at = clock.now() + seconds
        if self._timer is not None and self._due_at <= due_at:
            return
        self._stop_timer()
        self._due_at = due_at
        self._timer = later(seconds, self._flush_in_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _flush_in_time(self) -> None:
        with self._lock:
            self._timer = None
        try:
            await self.flush()
        except (ClientClosed, LeaseLost) as over:
            log.info("events of %s are not acknowledged: %s", self._key, over)
        except AgentStateError as failure:
            log.warning("events of %s are not acknowledged yet: %s", self._key, failure)


def _small(events: Sequence[Event]) -> Small:
    """With payloads as they are now: changing them afterwards changes nothing of what is sent.

    Raises Unsendable here, where the events are given.
    """
    kept, size_bytes = [], 0
    for event in events:
        size_bytes += len(encode(event.document()))
        if event.data is not None and not isinstance(event.data, RawJSON):
            event = replace(event, data=RawJSON(encode(event.data).decode()))
        kept.append(event)
    return Small(tuple(kept), size_bytes)
