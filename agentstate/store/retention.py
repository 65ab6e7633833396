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

from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from agentstate.store import partitions
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """How long rows of a kind are kept (0: each has its own expiry), and how the oldest are found.

    key: what names a row. at: when its age began. only: which of the table's rows age at all.
    order: in which they go, where that is another than by age. guarded: a trigger refuses to let
    them go to whoever does not say that it is retention. app: whose table it is. own: what is said
    of those that have their own expiry.
    """

    keep: timedelta
    table: str
    key: str
    at: str
    only: str = "true"
    order: str = ""
    guarded: bool = False
    app: str = "agentstate"
    own: str = "24 hours, each with its own expiry"

    @property
    def due(self) -> str:
        return f"{self.only} AND {self.at} <= %(before)s"

    @property
    def delete(self) -> str:
        return (
            f"DELETE FROM {self.app}_{self.table} WHERE ({self.key}) IN ("
            f" SELECT {self.key} FROM {self.app}_{self.table} WHERE {self.due}"
            f" ORDER BY {self.order or self.at} LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"
        )

    @property
    def look(self) -> str:
        return (
            f"SELECT (SELECT min({self.at}) FROM {self.app}_{self.table} WHERE {self.only}),"
            f" (SELECT count(*) FROM (SELECT FROM {self.app}_{self.table} WHERE {self.due}"
            f" LIMIT %(limit)s) AS due)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedAge(Age):
    """The feed goes from its front, so that what is left has no hole: only what stands before the
    first change that is still young, and no pass looks further than it may delete."""

    @property
    def delete(self) -> str:
        return """
DELETE FROM agentstate_feed WHERE position IN (SELECT position FROM (
    SELECT position, bool_and(at <= %(before)s) OVER (ORDER BY position) AS due
    FROM (SELECT position, at FROM agentstate_feed ORDER BY position LIMIT %(limit)s) AS front
) AS marked WHERE due)
"""

    @property
    def look(self) -> str:
        return """
SELECT (SELECT at FROM agentstate_feed ORDER BY position LIMIT 1), count(*) FILTER (WHERE due)
FROM (SELECT bool_and(at <= %(before)s) OVER (ORDER BY position) AS due
    FROM (SELECT position, at FROM agentstate_feed ORDER BY position LIMIT %(limit)s) AS front
) AS marked
"""


# Ages beside the runs' own retention; an answer's age is in its own row (24 h).
AGES: dict[str, Age] = {
    "idempotency records": Age(
        keep=timedelta(0), table="idempotencyrecord", key="principal, key", at="expires_at"
    ),
    "refusals": Age(keep=timedelta(days=30), table="refusal", key="id", at="at", order="at, id"),
    "minutes": Age(
        keep=timedelta(days=30),
        table="minute",
        key="minute, run_key, operation, worker, outcome",
        at="minute",
    ),
    "collisions": Age(
        keep=timedelta(days=30),
        table="collision",
        key="minute, run_key, outcome, loser, winner, about",
        at="minute",
    ),
    "feed": FeedAge(keep=timedelta(days=7), table="feed", key="position", at="at"),
    "free units": Age(
        keep=timedelta(days=7),
        table="lease",
        key="unit",
        at="term_ended_at",
        only="run_id IS NULL AND token IS NULL",
        order="unit",
    ),
    "terms of units": Age(
        keep=timedelta(days=90),
        table="leaseterm",
        key="token",
        at="upper(held)",
        only="run_id IS NULL AND ended IS NOT NULL",
        order="token",
    ),
    "workers not seen": Age(keep=timedelta(days=7), table="worker", key="name", at="seen_at"),
    # The site's own go on for ever: it says its version when it starts, however long it then runs.
    "versions of workers": Age(
        keep=timedelta(days=90),
        table="seenversion",
        key="what, version",
        at="seen_at",
        only="what = 'workers'",
        order="what, version",
    ),
    # Long after the feed itself has gone on: whoever comes back has to begin anew either way.
    "consumers not seen": Age(keep=timedelta(days=30), table="feedconsumer", key="name", at="at"),
    "changes of alerts": Age(
        keep=timedelta(days=90), table="alertchange", key="id", at="at", order="at, id"
    ),
    "figures of alerts": Age(
        keep=timedelta(days=2), table="alertfigure", key="rule, minute", at="minute"
    ),
    "refused tries": Age(
        keep=timedelta(days=90),
        table="refusedaction",
        key="id",
        at="at",
        order="at, id",
        guarded=True,
    ),
    "deliveries": Age(
        keep=timedelta(days=30),
        table="delivery",
        key="id",
        at="settled_at",
        only="settled_at IS NOT NULL",
        order="id",
    ),
    "outcomes of bulks": Age(
        keep=timedelta(days=90), table="bulkitem", key="bulk_id, n", at="found_at"
    ),
    "bulks": Age(
        keep=timedelta(days=90),
        table="bulkaction",
        key="id",
        at="ended_at",
        only="ended_at IS NOT NULL",
        order="id",
    ),
    "heartbeats of jobs that are no more": Age(
        keep=timedelta(days=30), table="heartbeat", key="name", at="started_at"
    ),
    # Over before, by either of their limits; here they only take room.
    "sessions": Age(
        keep=timedelta(0),
        app="dashboard",
        table="session",
        key="session_key",
        at="expire_date",
        own="AGENTSTATE_SESSION_SECONDS",
    ),
    "counted tries": Age(
        keep=timedelta(0),
        app="dashboard",
        table="try",
        key="what",
        at="until",
        order="what",
        own="5 minutes at most",
    ),
}


def purge(kind: str, *, limit: int = BATCH) -> int:
    """Delete at most `limit` rows of a kind that are older than its age; how many went.

    Two at once share the rows, and stopped anywhere it has done what it has done.
    """
    age = AGES[kind]
    with transaction.atomic(), connection.cursor() as cursor:
        if age.guarded:
            cursor.execute(SAY_RETENTION)
        cursor.execute(age.delete, {"before": _now(cursor) - age.keep, "limit": limit})
        return int(cursor.rowcount)


def purge_all(*, limit: int = BATCH) -> dict[str, int]:
    """One bounded pass over every kind."""
    return {kind: purge(kind, limit=limit) for kind in AGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the clean-up of a kind has come.

    keep: None when each row has its own expiry, which `oldest_at` then is. oldest_at: None without
    rows. due: rows that are past their age and still there, counted up to DUE_MAX.
    """

    kind: str
    keep: timedelta | None
    oldest_at: datetime | None
    due: int


def progress() -> tuple[Progress, ...]:
    """Each kind in AGES with what is still there of it; `weeks()` tells of the runs."""
    with connection.cursor() as cursor:
        now = _now(cursor)
        return tuple(_progress(cursor, kind, age, now) for kind, age in AGES.items())


def _progress(cursor: Any, kind: str, age: Age, now: datetime) -> Progress:
    cursor.execute(age.look, {"before": now - age.keep, "limit": DUE_MAX})
    oldest_at, due = cursor.fetchone()
    return Progress(kind=kind, keep=age.keep or None, oldest_at=oldest_at, due=due)


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
