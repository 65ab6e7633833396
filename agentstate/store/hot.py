"""Runs that have just refused a write as hot: for a moment this process refuses more by itself.

An unlocked look may refuse, never allow: only what the rule counts (`rules/pacing.py`) is refused
here, and only without an idempotency key and without ids, because a request that was answered
before must get that answer. At most a second, and never longer than the refusal itself said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agentstate.store import minutes
from agentstate.store.asks import Ask
from agentstate.store.commands import Append, Patch, Spend, Transition
from agentstate.store.errors import RunHot
from agentstate.store.rules.pacing import is_counted
from agentstate.store.states import TERMINAL

LONGEST_SECONDS = 1.0
RUNS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class _Hot:
    """A run and until when, by this process's clock, its refusal stands; at: the database's."""

    refusal: RunHot
    at: datetime
    worker: str
    since: float
    until: float


class HotRuns:
    """What this process was refused and remembers. Losing it costs a look at the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Hot] = {}

    def remember(self, run: str, refusal: RunHot, *, at: datetime, worker: str) -> None:
        """at: when it was refused, by the database's clock."""
        since = time.monotonic()
        seconds = min(LONGEST_SECONDS, (refusal.retry_after_ms or 0) / 1_000)
        with self._lock:
            if len(self._runs) >= RUNS_MAX:
                self._runs.clear()
            self._runs[run] = _Hot(refusal, at, worker, since, since + seconds)

    def forget(self, run: str | None = None) -> None:
        """Forget one run, or all."""
        with self._lock:
            self._runs = {} if run is None else {k: v for k, v in self._runs.items() if k != run}

    def refusal_of(self, ask: Ask) -> RunHot | None:
        """The refusal that still stands for this command, counted like any other; else None."""
        if not self._runs:
            return None
        run = _run_of(ask)
        hot = self._runs.get(run) if run is not None else None
        if run is None or hot is None:
            return None
        left = hot.until - time.monotonic()
        if left <= 0:
            self.forget(run)
            return None
        _count(hot, run, ask)
        left_ms = max(1, int(left * 1_000))
        return RunHot(hot.refusal.detail, current=hot.refusal.current, retry_after_ms=left_ms)


def _count(hot: _Hot, run: str, ask: Ask) -> None:
    minutes.TALLY.add(
        at=hot.at + timedelta(seconds=time.monotonic() - hot.since),
        run_key=run,
        operation=type(ask.command).__name__.lower(),
        worker=hot.worker,
        outcome=RunHot.code,
        attempt=ask.under.attempt,
        latency_ms=0,
    )


def _run_of(ask: Ask) -> str | None:
    """The run of a command that would be counted and cannot be a repetition; else None."""
    may_be = _FIRST_TIME.get(type(ask.command))
    if may_be is None or ask.under.idempotency_key is not None or not is_counted(ask.by):
        return None
    return may_be(ask.command)


def _append(ask: Append) -> str | None:
    ids = any(e.id is not None for e in ask.events) or any(c.id is not None for c in ask.spend)
    return None if ids or ask.to in TERMINAL else ask.run


_FIRST_TIME: dict[type[Any], Callable[[Any], str | None]] = {
    Append: _append,
    Patch: lambda ask: ask.run if ask.id is None else None,
    Transition: lambda ask: None if ask.to in TERMINAL else ask.run,
    Spend: lambda ask: ask.run if ask.charge.id is None else None,
}

HOT = HotRuns()
