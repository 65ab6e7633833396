"""Conflict and retry rates of a window: what the console, the API and the alerts ask for.

Read from the minute table alone, so that asking costs the writers nothing. Each figure is defined
once, in docs/rates.md. Counts are at most about a second behind (minutes.py), and say as of when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from django.db import connection

from agentstate.store.errors import CONFLICTS, FENCED, Invalid
from agentstate.store.minutes import ATTEMPTS, LATENCY_MS, OK

# What can be grouped by, each with its column.
BY = {
    "minute": "minute",
    "run": "run_key",
    "operation": "operation",
    "worker": "worker",
    "outcome": "outcome",
}
MINUTE = timedelta(minutes=1)
WINDOW_DEFAULT, WINDOW_MAX = timedelta(hours=1), timedelta(days=366)
GROUPS_MAX, GROUPS_READ_MAX = 2_000, 10_000
FAILED = "failed"
# Our own sweeps write, too, and nobody waits for them: they would only thin the ratios.
HOUSEKEEPING = ("note-lapsed", "drop-dead-holds", "deadlines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was counted. attempts: of tries 1, 2, 3, 4, 5 and more; latency: of LATENCY_MS and more.

    conflict_ms: what the store spent on commands that it then refused as conflicts.
    """

    writes: int = 0
    accepted: int = 0
    failed: int = 0
    conflicts: int = 0
    fenced: int = 0
    gave_up: int = 0
    events: int = 0
    latency_ms: int = 0
    conflict_ms: int = 0
    attempts: tuple[int, ...] = (0,) * ATTEMPTS
    latency: tuple[int, ...] = (0,) * (len(LATENCY_MS) + 1)

    @property
    def refused(self) -> int:
        return self.writes - self.accepted - self.failed

    @property
    def conflict_ratio(self) -> float | None:
        """Conflicts of all writes, 0 to 1; None without a write."""
        return self.conflicts / self.writes if self.writes else None

    @property
    def retries(self) -> int:
        """Commands that were not a first try."""
        return sum(self.attempts[1:])

    @property
    def retries_per_success(self) -> float | None:
        return self.retries / self.accepted if self.accepted else None

    @property
    def added_ms_per_success(self) -> float | None:
        """What conflicts added to each accepted write, on average."""
        return self.conflict_ms / self.accepted if self.accepted else None

    @property
    def mean_ms(self) -> float | None:
        return self.latency_ms / self.writes if self.writes else None

    def percentile_ms(self, part: float) -> float | None:
        """The least bound of LATENCY_MS under which `part` (0 to 1) of the writes took.

        inf: more than the last bound. None without a write.
        """
        wanted, seen = part * sum(self.latency), 0
        if not wanted:
            return None
        for bound, count in zip((*LATENCY_MS, inf), self.latency, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        return inf


def add_up(several: Iterable[Figures]) -> Figures:
    """The figures of several groups as one."""
    found = list(several)
    totals = {
        name: _added([getattr(figures, name) for figures in found])
        for name in (field.name for field in fields(Figures))
    }
    return Figures(**totals) if found else Figures()


def _added(values: Sequence[Any]) -> Any:
    """Numbers added; buckets bucket by bucket."""
    if values and isinstance(values[0], tuple):
        return tuple(sum(bucket) for bucket in zip(*values, strict=True))
    return sum(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Figures of one value of each of `by`; None where the minute knows no run or worker."""

    keys: dict[str, Any]
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The figures of a window, whole minutes: since included, until not. more: groups were cut."""

    as_of: datetime
    since: datetime
    until: datetime
    by: tuple[str, ...]
    total: Figures
    groups: tuple[Group, ...]
    more: bool


_COUNTED = """
    coalesce(sum(count), 0)::bigint,
    coalesce(sum(count) FILTER (WHERE outcome = %(ok)s), 0)::bigint,
    coalesce(sum(count) FILTER (WHERE outcome = %(failed)s), 0)::bigint,
    coalesce(sum(count) FILTER (WHERE outcome = ANY(%(conflicts)s)), 0)::bigint,
    coalesce(sum(count) FILTER (WHERE outcome = ANY(%(fenced)s)), 0)::bigint,
    coalesce(sum(gave_up), 0)::bigint, coalesce(sum(events), 0)::bigint,
    coalesce(sum(latency_ms), 0)::bigint,
    coalesce(sum(latency_ms) FILTER (WHERE outcome = ANY(%(conflicts)s)), 0)::bigint,
"""
_MOST = """
    coalesce(sum(count) FILTER (WHERE outcome = ANY(%(contested)s)), 0) DESC,
    coalesce(sum(count) FILTER (WHERE outcome <> ALL(ARRAY[%(ok)s, %(failed)s])), 0) DESC,
    sum(count) DESC
"""
_FIELDS = (
    "writes", "accepted", "failed", "conflicts", "fenced", "gave_up", "events", "latency_ms",
    "conflict_ms",
)  # fmt: skip
_ATTEMPTS, _LATENCY = (
    f"ARRAY[{', '.join(f'coalesce(sum({name}[{n}]), 0)::bigint' for n in range(1, size + 1))}]"
    for name, size in (("attempts", ATTEMPTS), ("latency", len(LATENCY_MS) + 1))
)
_NO_ATTEMPTS, _NO_LATENCY = (
    f"array_fill(0::bigint, ARRAY[{size}])" for size in (ATTEMPTS, len(LATENCY_MS) + 1)
)
_BUCKETS, _NO_BUCKETS = f"{_ATTEMPTS}, {_LATENCY}", f"{_NO_ATTEMPTS}, {_NO_LATENCY}"
# The range of minutes is the beginning of the primary key; one run's are in minute_of_run.
_ROWS = """
    SELECT date_bin(%(step)s, minute, 'epoch'::timestamptz) AS minute, run_key, operation, worker,
        outcome, count, events, latency_ms, gave_up, attempts, latency
    FROM agentstate_minute
    WHERE minute >= %(since)s AND minute < %(until)s AND operation <> ALL(%(housekeeping)s)
"""


def read(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    by: Sequence[str] = (),
    runs: Sequence[str] = (),
    operation: str | None = None,
    worker: str | None = None,
    outcome: str | None = None,
    step: timedelta = MINUTE,
    limit: int = 100,
    buckets: bool = True,
) -> Rates:
    """The figures of a window as a whole, and of the `limit` greatest groups in it.

    since, until: widened to whole minutes; without them the last hour, the running minute included.
    Where most was turned away because of another writer (conflicts and fenced) comes first, then
    the most refused, then the most written; with `minute` in `by` the newest comes before that.
    step: how long the minutes of `by` are. runs: only these; none: all. buckets: False for figures
    without attempts and latency, whose sums cost more than all others. One statement, one snapshot.
    Raises Invalid.
    """
    now = _now()
    start, end = window(since=since, until=until, now=now)
    if not set(by) <= set(BY) or len(set(by)) < len(by):
        raise Invalid("by", f"each of {', '.join(BY)} once at most")
    if not 1 <= limit <= GROUPS_READ_MAX:
        raise Invalid("limit", f"a whole number from 1 to {GROUPS_READ_MAX}")
    filters: dict[str, Any] = {"operation": operation, "worker": worker, "outcome": outcome}
    asked = [name for name, value in filters.items() if value is not None]
    statement = _statement(by, runs, asked, _BUCKETS if buckets else _NO_BUCKETS)
    values = (
        _codes()
        | filters
        | {"since": start, "until": end, "step": step, "runs": list(runs), "limit": limit + 2}
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        total, *found = cursor.fetchall()
    groups = tuple(_group(by, row) for row in found[:limit])
    return Rates(
        as_of=now,
        since=start,
        until=end,
        by=tuple(by),
        total=_figures(total[len(by) :]),
        groups=groups,
        more=len(found) > limit,
    )


# Two looks at the rows: as one, the buckets of every minute are too much to be added up in memory,
# and PostgreSQL sorts all rows on disk instead.
# What is grouped by outcome need not look at that of each row again: it costs more than to add.
_OF_OUTCOME = """sum(count)::bigint, sum(gave_up)::bigint, sum(events)::bigint,
    sum(latency_ms)::bigint"""
_OVER_TIME = f"""
SELECT minute, outcome, {_OF_OUTCOME}, {_NO_BUCKETS} FROM ({_ROWS}) AS m GROUP BY minute, outcome
"""  # noqa: S608  our own
_OUTCOMES, _OUTCOMES_WITHOUT_LATENCY = (
    f"SELECT outcome, {_OF_OUTCOME}, {buckets} FROM ({_ROWS}) AS m GROUP BY outcome"  # noqa: S608
    for buckets in (_BUCKETS, f"{_ATTEMPTS}, {_NO_LATENCY}")
)


def over_time(*, since: datetime, until: datetime, step: timedelta) -> list[Group]:
    """All of a window of whole minutes by `step` and outcome, in no order and without buckets."""
    with connection.cursor() as cursor:
        cursor.execute(_OVER_TIME, _codes() | {"since": since, "until": until, "step": step})
        return [
            Group(
                keys={"minute": minute, "outcome": outcome},
                figures=_figures_of_outcome(outcome, *counts),
            )
            for minute, outcome, *counts in cursor.fetchall()
        ]


def outcomes(*, since: datetime, until: datetime, latency: bool = True) -> dict[str, Figures]:
    """The figures of each outcome in a window of whole minutes. latency: with its buckets, whose
    sums cost more than all others."""
    statement = _OUTCOMES if latency else _OUTCOMES_WITHOUT_LATENCY
    with connection.cursor() as cursor:
        cursor.execute(statement, _codes() | {"since": since, "until": until})
        return {
            outcome: _figures_of_outcome(outcome, *counts) for outcome, *counts in cursor.fetchall()
        }


# Each row is looked at once for all the lists. Nobody asks these for attempts and percentiles,
# whose sums cost more than all the others.
_TOPS = f"""
SELECT * FROM (
    SELECT grouping(run_key, worker, operation), coalesce(run_key, worker, operation), {_COUNTED}
        {_NO_BUCKETS}, row_number() OVER (PARTITION BY grouping(run_key, worker, operation)
            ORDER BY {_MOST}, coalesce(run_key, worker, operation)) AS place
    FROM ({_ROWS}) AS m GROUP BY GROUPING SETS ((run_key), (worker), (operation))
) AS tops WHERE place <= %(limit)s ORDER BY 1, place
"""  # noqa: S608  our own
# How PostgreSQL says which of the three a group is of: a bit for each that it is not.
_TOP_OF = {0b011: "run", 0b101: "worker", 0b110: "operation"}


def tops(*, since: datetime, until: datetime, limit: int) -> dict[str, list[Group]]:
    """The greatest runs, workers and operations of a window of whole minutes, each in the order of
    `read`, and without buckets."""
    with connection.cursor() as cursor:
        cursor.execute(_TOPS, _codes() | {"since": since, "until": until, "limit": limit})
        rows = cursor.fetchall()
    found: dict[str, list[Group]] = {name: [] for name in _TOP_OF.values()}
    for which, name, *counts in rows:
        of = _TOP_OF[which]
        found[of].append(Group(keys={of: name or None}, figures=_figures(counts[:-1])))
    return found


def _codes() -> dict[str, Any]:
    """What the statements have to know of the outcomes."""
    return {
        "step": MINUTE,
        "ok": OK,
        "failed": FAILED,
        "conflicts": sorted(CONFLICTS),
        "fenced": sorted(FENCED),
        "contested": sorted(CONFLICTS | FENCED),
        "housekeeping": list(HOUSEKEEPING),
    }


def window(
    *, since: datetime | None, until: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    """Whole minutes that hold the asked ones. Raises Invalid."""
    # An instant on the minute itself, as now may be, begins a minute that is wanted, too.
    end = -(-until.timestamp() // 60) * 60 if until else now.timestamp() // 60 * 60 + 60
    start = since.timestamp() // 60 * 60 if since else end - WINDOW_DEFAULT.total_seconds()
    if since and until and since >= until:
        raise Invalid("since", "before until")
    if start >= end:
        raise Invalid("since", "before now")
    if end - start > WINDOW_MAX.total_seconds() + 60:
        raise Invalid("since", f"at most {WINDOW_MAX.days} days before until")
    return datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)


def _now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        now: datetime = cursor.fetchone()[0]
        return now


def _statement(by: Sequence[str], runs: Sequence[str], filters: Sequence[str], buckets: str) -> str:
    """The total first, then the groups in their order."""
    keys = [BY[name] for name in by]
    wanted = "".join(f" AND {name} = %({name})s" for name in filters)
    wanted += " AND run_key = ANY(%(runs)s)" if runs else ""
    if not keys:
        return f"SELECT {_COUNTED}{buckets} FROM ({_ROWS}{wanted}) AS m"  # noqa: S608  our own
    named = ", ".join(keys)
    newest = "minute DESC, " if "minute" in by else ""
    return (
        f"SELECT {named}, {_COUNTED}{buckets} FROM ({_ROWS}{wanted}) AS m"  # noqa: S608  our own
        f" GROUP BY GROUPING SETS (({named}), ())"
        f" ORDER BY grouping({named}) DESC, {newest}{_MOST}, {named}"
        " LIMIT %(limit)s"
    )


def _group(by: Sequence[str], row: Sequence[Any]) -> Group:
    keys = {name: None if value == "" else value for name, value in zip(by, row, strict=False)}
    return Group(keys=keys, figures=_figures(row[len(by) :]))


def _figures_of_outcome(
    outcome: str,
    count: int,
    gave_up: int,
    events: int,
    latency_ms: int,
    attempts: Sequence[int],
    latency: Sequence[int],
) -> Figures:
    is_conflict = outcome in CONFLICTS
    return Figures(
        writes=count,
        accepted=count if outcome == OK else 0,
        failed=count if outcome == FAILED else 0,
        conflicts=count if is_conflict else 0,
        fenced=count if outcome in FENCED else 0,
        gave_up=gave_up,
        events=events,
        latency_ms=latency_ms,
        conflict_ms=latency_ms if is_conflict else 0,
        attempts=tuple(attempts),
        latency=tuple(latency),
    )


def _figures(row: Sequence[Any]) -> Figures:
    attempts, latency = row[len(_FIELDS) :]
    counts = dict(zip(_FIELDS, row, strict=False))
    return Figures(**counts, attempts=tuple(attempts), latency=tuple(latency))
