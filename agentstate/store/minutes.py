"""Counts per minute, run, operation, worker and outcome: what every chart and alert reads.

Added up in each process and written about once a second, as one statement, beside the writers'
transactions and never in them. What a killed process had not written yet is lost: counts of events
and recorded refusals can be made again from their rows (`recount.py`), attempts and latency cannot.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db import DatabaseError, connection

from agentstate.store.collisions import Collisions

# Upper bounds in milliseconds; the last bucket is everything above.
LATENCY_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
ATTEMPTS = 5  # the last bucket is this many and more
OK = "ok"
PAUSE_SECONDS = 1.0

SAVE = """
INSERT INTO agentstate_minute AS m
    (minute, run_key, operation, worker, outcome, count, events, latency_ms, gave_up, attempts,
    latency)
SELECT w.minute, w.run_key, w.operation, w.worker, w.outcome, w.count, w.events, w.latency_ms,
    w.gave_up,
    ARRAY(SELECT json_array_elements_text(w.attempts)::bigint),
    ARRAY(SELECT json_array_elements_text(w.latency)::bigint)
FROM json_to_recordset(%s) AS w (minute timestamptz, run_key text, operation text, worker text,
    outcome text, count bigint, events bigint, latency_ms bigint, gave_up bigint, attempts json,
    latency json)
ORDER BY w.minute, w.run_key, w.operation, w.worker, w.outcome
ON CONFLICT (minute, run_key, operation, worker, outcome) DO UPDATE SET
    count = m.count + excluded.count, events = m.events + excluded.events,
    latency_ms = m.latency_ms + excluded.latency_ms, gave_up = m.gave_up + excluded.gave_up,
    attempts = ARRAY(SELECT a + b FROM unnest(m.attempts, excluded.attempts) AS t (a, b)),
    latency = ARRAY(SELECT a + b FROM unnest(m.latency, excluded.latency) AS t (a, b))
"""

log = logging.getLogger(__name__)

type Key = tuple[datetime, str, str, str, str]


@dataclass(slots=True)
class Counts:
    count: int = 0
    events: int = 0
    latency_ms: int = 0
    gave_up: int = 0
    attempts: list[int] = field(default_factory=lambda: [0] * ATTEMPTS)
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_MS) + 1))


class Tally:
    """What this process has counted and not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, Counts] = {}
        self._written_at = time.monotonic()
        self.collisions = Collisions()
        # Since this process began, for its metrics: by operation and outcome; of later tries.
        self.totals: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[str] = Counter()

    def add(
        self,
        *,
        at: datetime,
        run_key: str,
        operation: str,
        worker: str,
        outcome: str,
        attempt: int,
        latency_ms: int,
        events: int = 0,
        gave_up: bool = False,
    ) -> None:
        """Count one command. events: those that it wrote to this run, now (else `add_events`)."""
        key = (at.replace(second=0, microsecond=0), run_key, operation, worker, outcome)
        with self._lock:
            self.totals[operation, outcome] += 1
            self.retries[operation] += attempt > 1
            counts = self._counts.setdefault(key, Counts())
            counts.count += 1
            counts.events += events
            counts.latency_ms += latency_ms
            counts.gave_up += gave_up
            counts.attempts[min(max(attempt, 1), ATTEMPTS) - 1] += 1
            counts.latency[bisect_left(LATENCY_MS, latency_ms)] += 1

    def add_alike(
        self,
        whose: Iterable[tuple[str, str, int]],
        *,
        at: datetime,
        operation: str,
        outcome: str,
        latency_ms: int,
    ) -> None:
        """Count commands that came to one end together. whose: each one's run, worker, attempt."""
        minute, slot = at.replace(second=0, microsecond=0), bisect_left(LATENCY_MS, latency_ms)
        with self._lock:
            counted = again = 0
            for run_key, worker, attempt in whose:
                key = (minute, run_key, operation, worker, outcome)
                counts = self._counts.get(key)
                if counts is None:
                    counts = self._counts[key] = Counts()
                counts.count += 1
                counts.latency_ms += latency_ms
                counts.attempts[min(max(attempt, 1), ATTEMPTS) - 1] += 1
                counts.latency[slot] += 1
                counted += 1
                again += attempt > 1
            self.totals[operation, outcome] += counted
            self.retries[operation] += again

    def add_events(
        self, *, at: datetime, run_key: str, operation: str, worker: str, events: int
    ) -> None:
        """Count the events that a command wrote to another run than its own, or to the past."""
        key = (at.replace(second=0, microsecond=0), run_key, operation, worker, OK)
        with self._lock:
            self._counts.setdefault(key, Counts()).events += events

    @property
    def waiting(self) -> bool:
        return bool(self._counts) or self.collisions.waiting

    @property
    def due(self) -> bool:
        return self.waiting and time.monotonic() - self._written_at >= PAUSE_SECONDS

    def write(self) -> int:
        """Write what was counted; how many minutes' rows. What cannot be written is counted on."""
        self.collisions.write()
        with self._lock:
            counts, self._counts = self._counts, {}
            self._written_at = time.monotonic()
        if not counts:
            return 0
        try:
            with connection.cursor() as cursor:
                cursor.execute(SAVE, [json.dumps([_row(k, c) for k, c in counts.items()])])
        except DatabaseError as lost:
            log.warning("minutes were not written: %s", str(lost).strip().splitlines()[0])
            self._put_back(counts)
            return 0
        return len(counts)

    def _put_back(self, counts: dict[Key, Counts]) -> None:
        with self._lock:
            for key, kept in counts.items():
                later = self._counts.setdefault(key, Counts())
                later.count += kept.count
                later.events += kept.events
                later.latency_ms += kept.latency_ms
                later.gave_up += kept.gave_up
                later.attempts = [a + b for a, b in zip(later.attempts, kept.attempts, strict=True)]
                later.latency = [a + b for a, b in zip(later.latency, kept.latency, strict=True)]

    def forget(self) -> None:
        """Drop what was counted; for tests, whose database was emptied."""
        self.collisions.forget()
        with self._lock:
            self._counts = {}


def _row(key: Key, counts: Counts) -> dict[str, object]:
    minute, run_key, operation, worker, outcome = key
    return {
        "minute": minute.isoformat(),
        "run_key": run_key,
        "operation": operation,
        "worker": worker,
        "outcome": outcome,
        "count": counts.count,
        "events": counts.events,
        "latency_ms": counts.latency_ms,
        "gave_up": counts.gave_up,
        "attempts": counts.attempts,
        "latency": counts.latency,
    }


TALLY = Tally()
