"""Who met whom: per minute and run, whose command was turned away, by whom, and about what.

A minute counts how much was refused of whom (`minutes.py`); this is the other side of it, for the
matrix of colliding workers and the columns that they want. It is added up and written like the
minutes, and bounded: of very many pairs in a minute a process counts the rest without names.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, connection

from agentstate.store.errors import (
    CONFLICTS,
    FENCED,
    BudgetExhausted,
    HolderChanged,
    LeaseHeld,
    Refusal,
    SeqConflict,
)

# Refusals that are about somebody or something else: in a row, the names that they share.
COUNTED = CONFLICTS | FENCED | {LeaseHeld.code, BudgetExhausted.code}
# What a guard is on that is no column, by the name that the API gives it.
EXPECTED_SEQ, VERSION, STATUS, HOLDER = "expected_seq", "version", "status", "holder"
BETWEEN = ", "
COLUMNS_MAX, COLUMN_CHARS, NAME_CHARS = 3, 40, 200
# How many different rows one process makes of a minute. More are one row without names, so that
# nobody's invented names fill the table.
KEYS_MAX = 1_000

SAVE = """
INSERT INTO agentstate_collision AS c
    (minute, run_key, outcome, loser, winner, about, count, latency_ms)
SELECT w.minute, w.run_key, w.outcome, w.loser, w.winner, w.about, w.count, w.latency_ms
FROM json_to_recordset(%s) AS w (minute timestamptz, run_key text, outcome text, loser text,
    winner text, about text, count bigint, latency_ms bigint)
ORDER BY w.minute, w.run_key, w.outcome, w.loser, w.winner, w.about
ON CONFLICT (minute, run_key, outcome, loser, winner, about) DO UPDATE SET
    count = c.count + excluded.count, latency_ms = c.latency_ms + excluded.latency_ms
"""

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """loser: a worker, or the principal of who writes without a lease. winner: "" where nobody or
    nobody known is in the way. about: columns, a unit or a budget. All but the minute and the
    outcome are "" in the row that counts what was too much to tell apart.
    """

    minute: datetime
    run_key: str
    outcome: str
    loser: str
    winner: str
    about: str


@dataclass(slots=True)
class Count:
    count: int = 0
    latency_ms: int = 0


class Collisions:
    """What this process has counted and not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, Count] = {}
        self._minute: datetime | None = None
        self._known: set[Key] = set()

    def add(
        self,
        *,
        at: datetime,
        run_key: str,
        outcome: str,
        loser: str,
        winner: str,
        about: str,
        latency_ms: int,
    ) -> None:
        minute = at.replace(second=0, microsecond=0)
        key = Key(minute, run_key, outcome, loser, winner, about)
        with self._lock:
            counts = self._counts.setdefault(self._bounded(key), Count())
            counts.count += 1
            counts.latency_ms += latency_ms

    def _bounded(self, key: Key) -> Key:
        if key.minute != self._minute:
            self._minute, self._known = key.minute, set()
        if key not in self._known and len(self._known) >= KEYS_MAX:
            return Key(key.minute, "", key.outcome, "", "", "")
        self._known.add(key)
        return key

    @property
    def waiting(self) -> bool:
        return bool(self._counts)

    def write(self) -> int:
        """Write what was counted; how many rows. What cannot be written is counted on."""
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return 0
        rows = [_row(key, count) for key, count in counts.items()]
        try:
            with connection.cursor() as cursor:
                cursor.execute(SAVE, [json.dumps(rows)])
        except DatabaseError as lost:
            log.warning("collisions were not written: %s", str(lost).strip().splitlines()[0])
            self._put_back(counts)
            return 0
        return len(rows)

    def _put_back(self, counts: dict[Key, Count]) -> None:
        with self._lock:
            for key, kept in counts.items():
                later = self._counts.setdefault(key, Count())
                later.count += kept.count
                later.latency_ms += kept.latency_ms

    def forget(self) -> None:
        """Drop what was counted; for tests, whose database was emptied."""
        with self._lock:
            self._counts, self._minute, self._known = {}, None, set()


def _row(key: Key, count: Count) -> dict[str, Any]:
    told = key._asdict() | {"minute": key.minute.isoformat()}
    return told | {"count": count.count, "latency_ms": count.latency_ms}


def about(refusal: Refusal, *, wanted: Mapping[str, Any], unit: str | None) -> str:
    """What a refused command and whoever was first both wanted, in one short text.

    Of a conflict the columns, of a charge its budget, of a unit that belongs to no run the unit.
    """
    if refusal.code in CONFLICTS:
        names = sorted(set(columns_of(refusal, wanted)))
        cut = [n if len(n) <= COLUMN_CHARS else f"{n[: COLUMN_CHARS - 1]}…" for n in names]
        more = ["…"] if len(names) > COLUMNS_MAX else []
        return BETWEEN.join([*cut[:COLUMNS_MAX], *more])
    if isinstance(refusal, BudgetExhausted):
        return str(refusal.facts.get("budget") or "")
    return unit or ""


def columns_of(refusal: Refusal, wanted: Mapping[str, Any]) -> list[str]:
    """What an expectation failed on; else the columns that the command wanted to change."""
    if isinstance(refusal, SeqConflict):
        return [EXPECTED_SEQ]
    if isinstance(refusal, HolderChanged):
        return [HOLDER]
    failed = [str(clause["field"]) for clause in refusal.facts.get("failed") or ()]
    changed = [str(column) for column in wanted.get("columns") or ()]
    return failed or changed or ([STATUS] if "to" in wanted else [VERSION])


# --- what was counted ----------------------------------------------------------------------------

# The range of minutes is the beginning of the primary key.
READ = """
SELECT run_key, outcome, loser, winner, about, sum(count)::bigint AS n, sum(latency_ms)::bigint
FROM agentstate_collision
WHERE minute >= %(since)s AND minute < %(until)s
    AND (%(runs)s::text[] IS NULL OR run_key = ANY(%(runs)s))
GROUP BY run_key, outcome, loser, winner, about
ORDER BY n DESC, run_key, outcome, loser, winner, about LIMIT %(limit)s
"""
READ_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """How often one was turned away because of another in a window; names as in `Key`."""

    run: str
    code: str
    loser: str
    winner: str
    about: str
    count: int
    latency_ms: int = 0

    @property
    def columns(self) -> list[str]:
        """What both wanted; nothing where it was too much to tell apart."""
        return self.about.split(BETWEEN) if self.about else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The most frequent first. more: there were so many that the least frequent are left out."""

    pairs: tuple[Collision, ...] = ()
    more: bool = False


def read(
    *, since: datetime, until: datetime, runs: Sequence[str] | None = None, limit: int = READ_MAX
) -> Found:
    """Collisions of a window: whole minutes, since included, until not. runs: only these."""
    values: dict[str, Any] = {"since": since, "until": until, "limit": limit + 1}
    values["runs"] = None if runs is None else list(runs)
    with connection.cursor() as cursor:
        cursor.execute(READ, values)
        found = cursor.fetchall()
    names = ("run", "code", "loser", "winner", "about", "count", "latency_ms")
    pairs = (Collision(**dict(zip(names, row, strict=True))) for row in found[:limit])
    return Found(pairs=tuple(pairs), more=len(found) > limit)
