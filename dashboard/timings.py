"""How long the console's own reads take, by page and panel: in the memory of this process alone.

It is what an operator asks when a page is slow, and decides nothing; a restart begins anew, and
another process has figures of its own. Names come from the code, so there are few.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime

SAMPLES = 512
NAMES_MAX = 300
SHOWN = 25
OK, TIMED_OUT, FAILED = "ok", "timed out", "failed"

_page: ContextVar[str] = ContextVar("the page that asks", default="elsewhere")


@dataclass(slots=True)
class _Kept:
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    count: int = 0
    timeouts: int = 0
    failures: int = 0
    slowest: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of one panel since `Timings.since`; p50 and p95 of its last SAMPLES reads."""

    page: str
    part: str
    count: int
    p50_ms: float
    p95_ms: float
    slowest_ms: float
    timeouts: int
    failures: int


class Timings:
    """What this process has read since it began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self.since = datetime.now(UTC)

    def note(self, part: str, seconds: float, outcome: str = OK) -> None:
        """One read of a part of the page that is being made."""
        name = (_page.get(), part)
        with self._lock:
            if name not in self._kept and len(self._kept) >= NAMES_MAX:
                return
            kept = self._kept.setdefault(name, _Kept())
            kept.count += 1
            kept.seconds.append(seconds)
            kept.slowest = max(kept.slowest, seconds)
            kept.timeouts += outcome == TIMED_OUT
            kept.failures += outcome == FAILED

    def read(self, *, most: int = SHOWN) -> list[Line]:
        """Those that timed out or failed first, then by p95: the slowest first."""
        with self._lock:
            lines = [_line(name, kept) for name, kept in self._kept.items()]
        lines.sort(key=lambda line: (-line.timeouts, -line.failures, -line.p95_ms))
        return lines[:most]

    def forget(self) -> None:
        """Begin anew; for tests."""
        with self._lock:
            self._kept = {}


def _line(name: tuple[str, str], kept: _Kept) -> Line:
    ordered = sorted(kept.seconds)
    page, part = name
    return Line(
        page=page,
        part=part,
        count=kept.count,
        p50_ms=_quantile(ordered, 0.5),
        p95_ms=_quantile(ordered, 0.95),
        slowest_ms=kept.slowest * 1_000,
        timeouts=kept.timeouts,
        failures=kept.failures,
    )


def _quantile(ordered: list[float], share: float) -> float:
    """The smallest that at least this share of them does not exceed, in milliseconds."""
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)] * 1_000


TIMINGS = Timings()


@contextmanager
def of_page(name: str) -> Iterator[None]:
    """Count what is read inside for this page."""
    before = _page.set(name)
    try:
        yield
    finally:
        _page.reset(before)


@contextmanager
def timed(part: str) -> Iterator[list[str]]:
    """Time one read. The caller puts what became of it into the list, if it is not OK."""
    outcome: list[str] = []
    began = time.perf_counter()
    try:
        yield outcome
    finally:
        TIMINGS.note(part, time.perf_counter() - began, outcome[-1] if outcome else OK)
