"""What ages out, how old it gets, and how it goes: in bounded passes that can stop anywhere.

A run is hidden the moment its retention is over (reads and writes say `run-expired`). Its rows go
with its week: when every run of a week has ended and expired, the rows beside the log are deleted
in batches, and the log itself by dropping the week's partition. Tokens come from a sequence, so
they grow on whatever is deleted. Late, twice or never is safe: nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from agentstate.store import partitions
from agentstate.store.ids import lowest_uuid7

BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """How long rows of a kind are kept, and the statement that deletes the oldest of them."""

    keep: timedelta
    statement: str


def _oldest(table: str, key: str, condition: str, order: str) -> str:
    return (
        f"DELETE FROM agentstate_{table} WHERE ({key}) IN (SELECT {key} FROM agentstate_{table}"
        f" WHERE {condition} ORDER BY {order} LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"
    )


# Ages beside the runs' own retention; an answer's age is in its own row (24 h).
AGES: dict[str, Age] = {
    "idempotency records": Age(
        keep=timedelta(0),
        statement=_oldest(
            "idempotencyrecord", "principal, key", "expires_at <= %(before)s", "expires_at"
        ),
    ),
    "refusals": Age(
        keep=timedelta(days=30), statement=_oldest("refusal", "id", "at <= %(before)s", "at, id")
    ),
    "minutes": Age(
        keep=timedelta(days=30),
        statement=_oldest(
            "minute",
            "minute, run_key, operation, worker, outcome",
            "minute <= %(before)s",
            "minute",
        ),
    ),
    "feed": Age(
        keep=timedelta(days=7),
        # From the front, so that what is left has no hole.
        statement=_oldest("feed", "position", "at <= %(before)s", "position"),
    ),
    "free units": Age(
        keep=timedelta(days=7),
        statement=_oldest(
            "lease",
            "unit",
            "run_id IS NULL AND token IS NULL AND term_ended_at <= %(before)s",
            "unit",
        ),
    ),
    "terms of units": Age(
        keep=timedelta(days=90),
        statement=_oldest(
            "leaseterm",
            "token",
            "run_id IS NULL AND ended IS NOT NULL AND upper(held) <= %(before)s",
            "token",
        ),
    ),
    "workers not seen": Age(
        keep=timedelta(days=7), statement=_oldest("worker", "name", "seen_at <= %(before)s", "name")
    ),
}


def purge(kind: str, *, limit: int = BATCH) -> int:
    """Delete at most `limit` rows of a kind that are older than its age; how many went."""
    age = AGES[kind]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        before = cursor.fetchone()[0] - age.keep
        cursor.execute(age.statement, {"before": before, "limit": limit})
        return int(cursor.rowcount)


def purge_all(*, limit: int = BATCH) -> dict[str, int]:
    """One bounded pass over every kind."""
    return {kind: purge(kind, limit=limit) for kind in AGES}


# --- weeks of runs -------------------------------------------------------------------------------

_KEEPING = """
SELECT count(*), min(key) FROM agentstate_run WHERE id >= %(low)s AND id < %(high)s
    AND (expires_at IS NULL OR expires_at > %(now)s OR hold)
"""
# What stands beside a run's log, in the order in which it goes.
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
        for table in ("budget", "leaseterm", "lease", "telemetry", "refusal")
    ),
)
_RUNS = "DELETE FROM agentstate_run WHERE id >= %(low)s AND id < %(high)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """A week's partition. keeping: how many runs still hold it, and the first of them by key."""

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
            cursor.execute(_KEEPING, _bounds(start) | {"now": now})
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


def drop_oldest_week(*, limit: int = BATCH) -> str | None:
    """Work on the oldest week that nothing keeps; its name once it is gone, else None.

    At most `limit` rows of each table a pass; the pass that finds nothing left beside the log
    drops the partition and the runs in one transaction.
    """
    week = next((week for week in weeks() if not week.keeping), None)
    if week is None:
        return None
    with transaction.atomic(), connection.cursor() as cursor:
        values = _bounds(week.starts_at) | {"limit": limit}
        # The ledger's trigger lets go of rows only for this.
        cursor.execute("SET LOCAL agentstate.retention = 'on'")
        went = 0
        for statement in _BESIDE:
            cursor.execute(statement, values)
            went += cursor.rowcount
        if went:
            return None
        cursor.execute(f"DROP TABLE {week.name}")
        cursor.execute(_RUNS, values)
    return week.name


def _now(cursor: Any) -> datetime:
    cursor.execute("SELECT agentstate_now()")
    now: datetime = cursor.fetchone()[0]
    return now


def _bounds(start: datetime) -> dict[str, Any]:
    return {"low": lowest_uuid7(start), "high": lowest_uuid7(start + partitions.WEEK)}
