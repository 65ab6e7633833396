"""Coalescing: the commands that threads of a process bring at once go in one transaction.

Flat combining, without a timer: whoever finds nobody at work takes all that wait as one batch and
does it for everybody, then hands on to the first who came meanwhile. Alone, a command goes at once
in its own thread. So a hot run is written in batches behind one fsync, and the row's lock is waited
for once, not once per command.

Leases have a lane of their own: a renewal never waits behind appends. A batch, also of one, waits
only briefly for locks; when the database rolls it back, the lane is handed on and each command is
done again by itself, in the thread that brought it: one locked run does not hold up the others.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from agentstate.store import spent
from agentstate.store.asks import Ask, Outcome, weight
from agentstate.store.errors import OutcomeUnknown, Unavailable
from agentstate.store.sizes import Sizes
from agentstate.store.spent import Spent

BATCH_COMMANDS = 200
BATCH_BYTES = 4 * 1024 * 1024
LONGEST_WAIT_SECONDS = 30.0

log = logging.getLogger(__name__)

type DoAll = Callable[[Sequence[Ask]], list[Outcome] | None]


class _Signal:
    """An Event that one thread waits for: a lock that is had until it is told. Half the price."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Once, by whoever leads; a second time says nothing more."""
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Whether it was told in time. It stays so for who asks again."""
        had = self._lock.acquire(timeout=seconds)
        if had:
            self.set()
        return had


class _Turn:
    """A command and the thread that waits for it."""

    __slots__ = ("alone", "ask", "came_at", "outcome", "ready", "spent", "taken")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.came_at = perf_counter()
        self.spent: Spent | None = None  # of the batch that another thread did it in
        self.ready = _Signal()
        self.outcome: Outcome | None = None
        self.taken = False
        self.alone = False


class Lane:
    """A queue of commands. together: does a batch, or says with None that each goes by itself."""

    def __init__(self, *, together: DoAll, alone: Callable[[Ask], Outcome]) -> None:
        self._together, self._alone = together, alone
        self.sizes = Sizes()
        self._lock = threading.Lock()
        self._waiting: deque[_Turn] = deque()
        self._busy = False

    def submit(self, ask: Ask) -> Outcome:
        """The command's outcome; at the latest after 30 s Unavailable or OutcomeUnknown.

        One with a time to begin by is Unavailable as soon as that is over and it has not begun.
        """
        turn, seconds = _Turn(ask), ask.under.wait_seconds(LONGEST_WAIT_SECONDS)
        if not seconds:  # it waited for a thread, or for its own body
            return Unavailable(
                "it could not begin in the time that it was given", retry_after_ms=1_000
            )
        with self._lock:
            if not self._busy and not self._waiting:
                self._busy = leads = True
                turn.taken = True
            else:
                self._waiting.append(turn)
                leads = False
        if not leads:
            is_ready = turn.ready.wait(seconds)
            _note_waiting(turn)
            if not is_ready:
                return self._give_up(turn)
        if turn.outcome is None and not turn.alone:
            self._lead(turn)
        return turn.outcome if turn.outcome is not None else self._alone(ask)

    def _give_up(self, turn: _Turn) -> Outcome:
        with self._lock:
            if not turn.taken:
                self._waiting.remove(turn)
                return Unavailable("waited too long for its turn", retry_after_ms=1_000)
        if not turn.ready.wait(LONGEST_WAIT_SECONDS):
            return OutcomeUnknown("its batch is still being written", retry_after_ms=1_000)
        if turn.outcome is not None:
            return turn.outcome
        if turn.alone:
            return self._alone(turn.ask)
        # It was to lead from this very moment on: others wait for that, and it has not begun.
        self._hand_on()
        return Unavailable("waited too long for its turn", retry_after_ms=1_000)

    def _lead(self, own: _Turn) -> None:
        """Do one batch for everybody, and hand on; in `finally`, whatever happens."""
        batch = self._take(own)
        self.sizes.note(len(batch))
        try:
            self._do(batch)
        finally:
            self._hand_on()
            for turn in batch[1:]:
                turn.ready.set()

    def _do(self, batch: Sequence[_Turn]) -> None:
        outcomes: list[Outcome] | None = None
        together, own = Spent(), spent.record()
        try:
            with spent.kept(together):
                outcomes = self._together([turn.ask for turn in batch])
        except Exception:
            log.exception("a batch of %s commands failed; each goes by itself", len(batch))
        if own is not None:
            own.add(together)
        for turn in batch[1:]:
            turn.spent = together
        for index, turn in enumerate(batch):
            if outcomes is None:
                turn.alone = True
            else:
                turn.outcome = outcomes[index]

    def _take(self, own: _Turn) -> list[_Turn]:
        batch, size = [own], weight(own.ask.command)
        with self._lock:
            while self._waiting and len(batch) < BATCH_COMMANDS:
                size += weight(self._waiting[0].ask.command)
                if size > BATCH_BYTES:
                    break
                turn = self._waiting.popleft()
                turn.taken = True
                batch.append(turn)
        return batch

    @property
    def waiting(self) -> int:
        """How many commands wait for their turn now."""
        return len(self._waiting)

    def _hand_on(self) -> None:
        with self._lock:
            if self._waiting:
                following = self._waiting.popleft()
                following.taken = True
                following.ready.set()
            else:
                self._busy = False


def _note_waiting(turn: _Turn) -> None:
    """What a follower's time went to: the parts of the batch that it was in, and waiting for it."""
    own = spent.record()
    if own is None:
        return
    done = turn.spent or Spent()
    own.add(done)
    own.queue += max(0.0, perf_counter() - turn.came_at - done.working)
