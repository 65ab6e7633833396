"""What ages out, how old it gets, and how it goes: in bounded passes that can stop anywhere.

A run is hidden the moment its retention is over (reads and writes say `run-expired`). Its rows go
with its week: when every run of a week has ended and expired, the rows beside the log are deleted
in batches, and the log itself by dropping the week's partition. Tokens come from a sequence, so
they grow on whatever is deleted. Late, twice or never is safe: nothing here decides anything.
How long the other kinds are kept: ages.py, or what an admin said in its place (`ChangeAge`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from agentstate.store import partitions
from agentstate.store.ages import AGES, Age, KeptAge, check_days, settable, word
from agentstate.store.ids import lowest_uuid7

BATCH = 1_000
# Counting further would cost what deleting costs, and says no more.
DUE_MAX = 10_000
# A week of a large fleet is not counted to its end to say that it stays.
KEEPING_MAX = 10_000
# Dropping a partition needs the whole event table for a moment, and appends queue behind whoever
# waits for it: not had at once, it is tried again in the next pass.
DROP_WAITS = "300ms"
ADVISORY_LOCK = 7208
# The triggers of the ledger and of refused tries let go of rows only in a transaction that says it.
SAY_RETENTION = "SET LOCAL agentstate.retention = 'on'"
_NAMES = ("kind", "days", "version", "whole_from", "changed_at", "changed_by", "changed_why")
READ_AGES = f"SELECT {', '.join(_NAMES)} FROM agentstate_retentionage"
# One statement tells the clock and the ages that count by it.
_NOW_AND_AGES = """
SELECT agentstate_now(), (SELECT jsonb_object_agg(kind, days) FROM agentstate_retentionage
    WHERE days IS NOT NULL AND (%(kind)s::text IS NULL OR kind = %(kind)s))
"""


def purge(kind: str, *, limit: int = BATCH) -> int:
    """Delete at most `limit` rows of a kind that are older than its age; how many went.

    Two at once share the rows, and stopped anywhere it has done what it has done.
    """
    age = AGES[kind]
    with transaction.atomic(), connection.cursor() as cursor:
        if age.guarded:
            cursor.execute(SAY_RETENTION)
        now, keep = _now_and_ages(cursor, kind)
        cursor.execute(age.delete, {"before": now - keep[kind], "limit": limit})
        return int(cursor.rowcount)


def purge_all(*, limit: int = BATCH) -> dict[str, int]:
    """One bounded pass over every kind."""
    return {kind: purge(kind, limit=limit) for kind in AGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the clean-up of a kind has come.

    keep: None when each row has its own expiry, which `oldest_at` then is. default: what it is
    unless an admin says otherwise. oldest_at: None without rows. due: rows that are past their age
    and still there, counted up to DUE_MAX.
    """

    kind: str
    keep: timedelta | None
    oldest_at: datetime | None
    due: int
    default: timedelta | None = None

    @property
    def word(self) -> str:
        return word(self.kind)

    @property
    def changed(self) -> bool:
        return self.keep != self.default


def progress() -> tuple[Progress, ...]:
    """Each kind in AGES with what is still there of it; `weeks()` tells of the runs."""
    with connection.cursor() as cursor:
        now, keep = _now_and_ages(cursor)
        looks = " UNION ALL ".join(
            f"SELECT {n}, look.* FROM ({age.look.replace('%(before)s', f'%(before_{n})s')}) AS look"
            for n, age in enumerate(AGES.values())
        )
        before = {f"before_{n}": now - keep[kind] for n, kind in enumerate(AGES)}
        cursor.execute(looks, before | {"limit": DUE_MAX})
        found = {n: (oldest_at, due) for n, oldest_at, due in cursor.fetchall()}
        return tuple(_progress(kind, keep[kind], *found[n]) for n, kind in enumerate(AGES))


def _progress(kind: str, keep: timedelta, oldest_at: datetime | None, due: int) -> Progress:
    default = AGES[kind].keep or None
    return Progress(kind=kind, keep=keep or None, oldest_at=oldest_at, due=due, default=default)


def _look(cursor: Any, age: Age, before: datetime) -> tuple[datetime | None, int]:
    """When the oldest row began, and how many are older, up to DUE_MAX."""
    cursor.execute(age.look, {"before": before, "limit": DUE_MAX})
    found: tuple[datetime | None, int] = cursor.fetchone()
    return found


# --- how long ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would go with other days. due, then_due: rows that are past the age as it is, and past
    the one that was asked about, each up to DUE_MAX."""

    oldest_at: datetime | None
    due: int
    then_due: int


def ages() -> dict[str, KeptAge]:
    """Each kind whose age can be set, as it counts now."""
    with connection.cursor() as cursor:
        kept = read_kept(cursor)
    return {kind: kept.get(kind, KeptAge(kind=kind)) for kind, age in AGES.items() if age.keep}


def find(kind: str) -> KeptAge:
    """One of them. Raises NotFound."""
    settable(kind)
    return ages()[kind]


def preview(kind: str, days: int | None) -> Preview:
    """What would go if it were kept for so many days; None: for as long as by default. Raises
    NotFound, Invalid."""
    with connection.cursor() as cursor:
        kept = read_kept(cursor)
        now, age = _now(cursor), settable(kind)
        now_kept = kept.get(kind, KeptAge(kind=kind))
        check_days(kind, age.keep.days if days is None else days, kept)
        asked = KeptAge(kind=kind, days=days)
        oldest_at, due = _look(cursor, age, now - now_kept.keep)
        then_due = due
        if asked.keep != now_kept.keep:
            _, then_due = _look(cursor, age, now - asked.keep)
    return Preview(oldest_at=oldest_at, due=due, then_due=then_due)


def whole_since(*kinds: str) -> datetime:
    """From when on all rows of all of these kinds are there: what is older is past its age, or went
    while it was kept for less."""
    with connection.cursor() as cursor:
        now, kept = _now(cursor), read_kept(cursor)
    return max(kept.get(kind, KeptAge(kind=kind)).whole_since(now) for kind in kinds)


def read_kept(cursor: Any) -> dict[str, KeptAge]:
    """Those that were ever changed. A kind of another release is none of ours."""
    cursor.execute(READ_AGES)
    return {row[0]: read_age(row) for row in cursor.fetchall() if row[0] in AGES}


def read_age(row: Sequence[Any]) -> KeptAge:
    """Of READ_AGES."""
    return KeptAge(**dict(zip(_NAMES, row, strict=True)))


def _now_and_ages(cursor: Any, kind: str | None = None) -> tuple[datetime, dict[str, timedelta]]:
    cursor.execute(_NOW_AND_AGES, {"kind": kind})
    now, text = cursor.fetchone()
    days = json.loads(text) if isinstance(text, str) else text or {}
    wanted = AGES if kind is None else (kind,)
    return now, {name: KeptAge(kind=name, days=days.get(name)).keep for name in wanted}


# --- weeks of runs -------------------------------------------------------------------------------

_KEEPING = """
SELECT count(*), (array_agg(key ORDER BY id))[1] FROM (
    SELECT id, key FROM agentstate_run WHERE id >= %(low)s AND id < %(high)s
        AND (expires_at IS NULL OR expires_at > %(now)s OR hold) ORDER BY id LIMIT %(most)s
) kept
"""
# Somebody who read the clock before a run expired may still be writing that it is held. No command
# takes so long, so only what expired lately is waited for.
_LATELY_EXPIRED = """
SELECT FROM agentstate_run WHERE id >= %(low)s AND id < %(high)s
    AND expires_at > %(now)s - interval '1 hour' ORDER BY id FOR UPDATE
"""
# What stands beside a run's log, in the order in which it goes; the runs themselves last.
_BESIDE = (
    "DELETE FROM agentstate_budgetentry WHERE (budget_id, n) IN ("
    " SELECT e.budget_id, e.n FROM agentstate_budgetentry e JOIN agentstate_budget b"
    " ON b.id = e.budget_id WHERE b.run_id >= %(low)s AND b.run_id < %(high)s LIMIT %(limit)s)",
    "DELETE FROM agentstate_reservation WHERE (budget_id, n) IN ("
    " SELECT h.budget_id, h.n FROM agentstate_reservation h JOIN agentstate_budget b"
    " ON b.id = h.budget_id WHERE b.run_id >= %(low)s AND b.run_id < %(high)s LIMIT %(limit)s)",
    *(
        f"DELETE FROM agentstate_{table} WHERE ctid = ANY(ARRAY("
        f" SELECT ctid FROM agentstate_{table} WHERE run_id >= %(low)s AND run_id < %(high)s"
        f" LIMIT %(limit)s))"
        for table in ("budget", "leaseterm", "lease", "telemetry", "openeffect", "refusal")
    ),
    "DELETE FROM agentstate_run WHERE ctid = ANY(ARRAY(SELECT ctid FROM agentstate_run"
    " WHERE id >= %(low)s AND id < %(high)s LIMIT %(limit)s))",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """A week's partition. keeping: how many runs still hold it, up to KEEPING_MAX; first_key: the
    oldest of them."""

    name: str
    starts_at: datetime
    keeping: int
    first_key: str | None


def weeks() -> list[Week]:
    """Past weeks, the oldest first, with what keeps each from going; System shows it."""
    with connection.cursor() as cursor:
        now = _now(cursor)
        found = []
        for start in partitions.weeks_there(cursor):
            if start + partitions.WEEK > now:
                continue
            cursor.execute(_KEEPING, _bounds(start) | {"now": now, "most": KEEPING_MAX})
            keeping, first_key = cursor.fetchone()
            found.append(
                Week(
                    name=partitions.name_of(start),
                    starts_at=start,
                    keeping=keeping,
                    first_key=first_key,
                )
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekPass:
    """What one pass did: rows that went beside the log, and the partition if it was dropped."""

    rows: int
    dropped: str | None = None


def drop_oldest_week(*, limit: int = BATCH) -> WeekPass | None:
    """Work on the oldest week that nothing keeps. None: there is none, or another is at work on it,
    or somebody still writes to a run of it.

    At most `limit` rows of each table a pass; the pass that finds nothing left drops the partition.
    """
    week = next((week for week in weeks() if not week.keeping), None)
    if week is None:
        return None
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            return _work_on(week, cursor, limit)
    except OperationalError as waited:
        if isinstance(waited.__cause__, LockNotAvailable):
            return None
        raise


def _work_on(week: Week, cursor: Any, limit: int) -> WeekPass | None:
    cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ADVISORY_LOCK])
    if not cursor.fetchone()[0]:
        return None
    cursor.execute(f"SET LOCAL lock_timeout = '{DROP_WAITS}'")
    if _is_kept_after_all(week, cursor):
        return None
    cursor.execute(SAY_RETENTION)
    rows = 0
    for statement in _BESIDE:
        cursor.execute(statement, _bounds(week.starts_at) | {"limit": limit})
        rows += cursor.rowcount
    if rows:
        return WeekPass(rows=rows)
    cursor.execute(f"DROP TABLE IF EXISTS {week.name}")
    return WeekPass(rows=0, dropped=week.name)


def _is_kept_after_all(week: Week, cursor: Any) -> bool:
    """Whether a run of the week was kept by who decided before it expired, and wrote it since."""
    wanted = _bounds(week.starts_at) | {"now": _now(cursor)}
    cursor.execute(_LATELY_EXPIRED, wanted)
    cursor.execute(_KEEPING, wanted | {"most": 1})
    return bool(cursor.fetchone()[0])


def _now(cursor: Any) -> datetime:
    cursor.execute("SELECT agentstate_now()")
    now: datetime = cursor.fetchone()[0]
    return now


def _bounds(start: datetime) -> dict[str, Any]:
    return {"low": lowest_uuid7(start), "high": lowest_uuid7(start + partitions.WEEK)}
