"""A lease as its holder sees it: the right to write until a deadline of the client's own.

Four things that must not be taken for one another:

* the store cannot be reached: `unreachable` is set; the lease goes on until its deadline;
* the lease is lost: `lost` is set, `loss` says why, and no write leaves the client any more;
* the store asks to stop: `cancel_requested` is set, `signals` says who and why; still the holder;
* the holder gave the unit back, or ended the run: nothing is set, there is nothing to do.

The deadline is: when the request that was granted left + ttl - a margin. It counts from before
the request, so it is over here before the store lets anybody else in.

The same for the sync and the async client: nothing here waits or sends. The thread that renews
tells it what the store said.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from agentstate_client import clock
from agentstate_client.errors import (
    AgentStateError,
    CancelRequested,
    LeaseLost,
    Refused,
    lost_here,
)
from agentstate_client.payloads import RawJSON, encode
from agentstate_client.records import Grant, Signal

log = logging.getLogger("agentstate_client")

MARGIN_PART = 0.1
MARGIN_SECONDS_MAX = 2.0


def margin_seconds(ttl_seconds: int) -> float:
    """How long before the store's expiry the client stops: for clocks that run unlike."""
    return min(MARGIN_SECONDS_MAX, ttl_seconds * MARGIN_PART)


class Settable(Protocol):
    """threading.Event, or what stands for it where one awaits: can be set from any thread."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...


F = TypeVar("F", bound=Settable)


class Holding(Generic[F]):
    """One unit, held by this client. All members can be used from any thread.

    lost: set at the moment from which nothing may be written; wait on it to abort long work.
    taken_from: the owner who had the unit before and did not give it back.
    found_progress: what the holder before had reported last. found_effects: what former holders of
    a run began and did not end, the first hundred.
    """

    def __init__(
        self, grant: Grant, *, ttl_seconds: int, sent_at: float, make_flag: Callable[[], F]
    ) -> None:
        self.unit, self.owner, self.token = grant.unit, grant.owner, grant.token
        self.ttl_seconds, self.expires_at = ttl_seconds, grant.expires_at
        self.taken_from, self.found_progress = grant.taken_from, grant.progress
        self.found_effects = grant.open_effects
        self.lost, self.unreachable = make_flag(), make_flag()
        self.cancel_requested, self._over = make_flag(), make_flag()
        self._lock = threading.RLock()  # a log handler may look at the lease
        self._state = "held"
        self._loss: LeaseLost | None = None
        self._trouble: AgentStateError | None = None
        self._signals: tuple[Signal, ...] = ()
        self._progress: RawJSON | None = None
        self._failed_renewals = 0
        self._deadline = self._renew_at = 0.0
        self._count_from(sent_at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.unit} token={self.token} {self.state}>"

    @property
    def state(self) -> str:
        """held; lost; released (given back); ended (its run has come to an end)."""
        self.check_deadline()
        return self._state

    @property
    def remaining_seconds(self) -> float:
        """How long writes may still leave if no renewal is confirmed; 0 when the lease is over."""
        return max(0.0, self._deadline - clock.now()) if self.state == "held" else 0.0

    @property
    def loss(self) -> LeaseLost | None:
        """Why the lease was lost; None while it was not."""
        return self._loss

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What operators want of this holder, as of the last renewal: each until it is over."""
        return self._signals

    def guard(self) -> None:
        """Raises LeaseLost when nothing may be written under this lease any more."""
        self.raise_loss()
        if self._state == "released":
            raise lost_here("released", f"{self.unit} was given back")

    def checkpoint(self, progress: Any = None) -> None:
        """Between two steps: may this worker go on?

        progress: any JSON value; travels with the next renewal and is handed to the next holder.
        Raises LeaseLost, or CancelRequested when an operator asked the holder to stop.
        """
        if progress is not None:
            carried = RawJSON(encode(progress).decode())
            with self._lock:
                self._progress = carried
        self.guard()
        if self.cancel_requested.is_set():
            reasons = (signal.reason for signal in self._signals if signal.name == "cancel")
            raise CancelRequested(next(reasons, ""))

    # What follows is for the client's own parts.

    @property
    def deadline(self) -> float:
        """On the clock of agentstate_client.clock."""
        return self._deadline

    @property
    def renew_at(self) -> float:
        """When the next renewal is due, on the same clock."""
        return self._renew_at

    @property
    def failed_renewals(self) -> int:
        """How many renewals have failed since the last one that was confirmed."""
        return self._failed_renewals

    def note_renewal(
        self, *, sent_at: float, expires_at: datetime, signals: tuple[Signal, ...]
    ) -> None:
        """A renewal that left at `sent_at` was confirmed. Comes too late after a release."""
        with self._lock:
            if self._state != "held":
                return
            self._count_from(sent_at)
            self.expires_at = expires_at
            self.unreachable.clear()
            self._trouble, self._failed_renewals = None, 0
            self._signals = signals
        if any(signal.name == "cancel" for signal in signals):
            self.cancel_requested.set()

    def note_trouble(self, trouble: AgentStateError, *, renew_at: float) -> None:
        """A renewal failed without a word on the lease; it is tried again at `renew_at`."""
        with self._lock:
            if self._state != "held":
                return
            self._trouble, self._renew_at = trouble, renew_at
            self._failed_renewals += 1
            self.unreachable.set()

    def note_refusal(self, refused: Refused) -> None:
        """The store said that the lease is over. Expected, and silent, after its own end."""
        with self._lock:
            if self._state == "held":
                self._lose(refused if isinstance(refused, LeaseLost) else _overtaken(refused))

    def note_end(self) -> None:
        """The run has come to an end, and its lease with it: also when this client had given the
        lease up while the move was on its way, for the store took the move under this token.
        """
        with self._lock:
            self._loss = None
            self._end("ended")

    def note_release(self) -> bool:
        """The holder gives the unit back. True when the store has still to be told.

        First of all: a renewal that is on its way now changes nothing any more.
        """
        with self._lock:
            held = self._state == "held"
            if held:
                self._end("released")
            return held

    def note_loss(self, lost: LeaseLost) -> None:
        """The unit was lost before it could be given back."""
        with self._lock:
            self._lose(lost)

    @property
    def has_progress(self) -> bool:
        """True when the next renewal has something to carry."""
        return self._progress is not None

    def take_progress(self) -> RawJSON | None:
        """What the next renewal carries up; None when there is nothing new."""
        with self._lock:
            progress, self._progress = self._progress, None
            return progress

    def put_progress_back(self, progress: RawJSON | None) -> None:
        """The renewal that carried it failed; a newer one has replaced it, or it goes again."""
        with self._lock:
            self._progress = self._progress or progress

    def check_deadline(self) -> None:
        """Lose the lease if its deadline has passed."""
        if self._state != "held" or clock.now() < self._deadline:
            return
        with self._lock:
            if self._state == "held" and clock.now() >= self._deadline:
                self._lose(self._overdue())

    def raise_loss(self) -> None:
        """A new exception each time: two threads must not share one traceback."""
        self.check_deadline()
        loss = self._loss
        if loss is not None:
            raise LeaseLost(loss.problem) from loss.__cause__

    def _count_from(self, sent_at: float) -> None:
        self._deadline = sent_at + self.ttl_seconds - margin_seconds(self.ttl_seconds)
        self._renew_at = sent_at + self.ttl_seconds / 3

    def _lose(self, loss: LeaseLost) -> None:
        self._loss = loss
        self._end("lost")
        self.lost.set()
        log.warning("%s (token %d) is lost: %s", self.unit, self.token, loss)

    def _end(self, state: str) -> None:
        self._state = state
        self._over.set()

    def _overdue(self) -> LeaseLost:
        why = f"; the last trouble was: {self._trouble}" if self._trouble else ""
        loss = lost_here("deadline", f"no renewal of {self.unit} was confirmed in time{why}")
        loss.__cause__ = self._trouble
        return loss


def _overtaken(refused: Refused) -> LeaseLost:
    """The token is no longer the unit's: a write was refused for it, or the unit is unknown."""
    loss = lost_here("superseded", refused.detail)
    loss.__cause__ = refused
    return loss
