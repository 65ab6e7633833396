"""The list of runs: one page of rows with what stands beside each, counts, and what is new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from agentstate.caching import copies
from agentstate.store.models import Budget, Lease, Run
from agentstate.store.states import TERMINAL, Status
from dashboard import cursors, filters
from dashboard.queries.clock import TooSlow, at_most

PAGE_ROWS = 50
COUNT_MAX = 10_000
NEW_MAX = 100
REFUSALS_SHOWN = 100
ROWS_MS = 5_000
COUNTS_MS = 800
SALT = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A run as a row of the list. budget: the one of which the most is used."""

    run: Run
    lease: Lease | None
    budget: Budget | None
    refusals: int
    now: datetime

    @property
    def held(self) -> bool:
        return self.lease is not None and self.lease.token is not None

    @property
    def live(self) -> bool:
        expires_at = self.lease.expires_at if self.lease else None
        return expires_at is not None and self.now < expires_at

    @property
    def terminal(self) -> bool:
        return self.run.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows in order, and the places before and after them (None: there are no more)."""

    lines: list[Line]
    newer: str | None
    older: str | None
    first: str | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many; capped: at least so many. count None: it took too long."""

    status: str
    count: int | None
    capped: bool = False


def matching(wanted: filters.Filter, *, now: datetime) -> QuerySet[Run]:
    """The runs that a filter without problems lets through."""
    found = Run.objects.filter(kept(now))
    for clause in wanted.clauses:
        condition = reduce(or_, (_condition(clause.field, v, now) for v in clause.values))
        found = found.filter(~condition if clause.negated else condition)
    return found


def kept(now: datetime) -> Q:
    """Runs whose retention is not over, or that are held: all others are hidden at once."""
    return Q(expires_at__isnull=True) | Q(expires_at__gt=now) | Q(hold=True)


def _condition(field: str, value: str, now: datetime) -> Q:
    match field:
        case "status":
            groups = {"live": filters.LIVE, "ended": tuple(TERMINAL)}
            return Q(status__in=groups.get(value, (value,)))
        case "task":
            return Q(task__icontains=value)
        case "key":
            return Q(key__startswith=value)
        case "worker":
            return Q(owner__startswith=value)
        case "tag":
            return Q(tags__contains=[value])
        case "lease":
            return _lease_condition(value, now)
        case "overdue":
            overdue = Q(deadline_at__lte=now, ended_at__isnull=True)
            return overdue if value == "yes" else ~overdue
        case "parent":
            return Q(parent__key=value)
        case "since":
            return Q(created_at__gte=now - filters.span(value))
        case "budget":
            used = (F("spent") + F("reserved")) * 100
            share = F("cap") * filters.budget_percent(value)
            budgets = Budget.objects.alias(used=used, share=share)
            return Q(Exists(budgets.filter(run=OuterRef("pk"), used__gt=F("share"))))
        case _:
            return Q(key__istartswith=value) | Q(task__icontains=value) | Q(owner__startswith=value)


def _lease_condition(state: str, now: datetime) -> Q:
    leases = Lease.objects.filter(run=OuterRef("pk"), token__isnull=False)
    if state == "live":
        return Q(Exists(leases.filter(expires_at__gt=now)))
    if state == "lapsed":
        return Q(Exists(leases.filter(expires_at__lte=now)))
    return Q(status__in=filters.LIVE) & ~Q(Exists(leases))


def read_page(
    wanted: filters.Filter,
    *,
    now: datetime,
    after: str = "",
    before: str = "",
    rows: int = PAGE_ROWS,
) -> Page:
    """A page of rows, newest first; after: towards older ones, before: towards newer ones.

    Raises cursors.BadCursor, and TooSlow after 5 s.
    """
    found = matching(wanted, now=now)
    order = ("created_at", "id") if before else ("-created_at", "-id")
    if after or before:
        found = found.filter(_beyond(after or before, newer=bool(before)))
    with at_most(ROWS_MS):
        runs = list(found.order_by(*order)[: rows + 1])
        more, runs = len(runs) > rows, runs[:rows]
        if before:
            runs.reverse()
        lines = describe(runs, now=now)
    return Page(
        lines=lines,
        newer=place(runs[0]) if runs and (more if before else after) else None,
        older=place(runs[-1]) if runs and (before or more) else None,
        first=place(runs[0]) if runs else None,
        now=now,
    )


def place(run: Run) -> str:
    return cursors.write(run.created_at, run.id.hex, salt=SALT)


def _beyond(cursor: str, *, newer: bool) -> Q:
    at, tie = cursors.read(cursor, salt=SALT)
    tail = Q(created_at=at, id__gt=UUID(tie)) if newer else Q(created_at=at, id__lt=UUID(tie))
    # The first condition alone can use the index; the rest only decides among equals.
    if newer:
        return Q(created_at__gte=at) & (Q(created_at__gt=at) | tail)
    return Q(created_at__lte=at) & (Q(created_at__lt=at) | tail)


def read_lines(keys: Iterable[str], *, now: datetime) -> list[Line]:
    """The rows of these runs, as many as a page has."""
    return describe(list(Run.objects.filter(kept(now), key__in=list(keys)[:PAGE_ROWS])), now=now)


def describe(runs: list[Run], *, now: datetime) -> list[Line]:
    """Runs with lease, budget and refusals: three queries, however many rows."""
    ids = [run.id for run in runs]
    leases = {lease.run_id: lease for lease in Lease.objects.filter(run__in=ids)}
    budgets: dict[UUID | None, Budget] = {}
    for budget in Budget.objects.filter(run__in=ids):
        best = budgets.get(budget.run_id)
        if best is None or _used(budget) > _used(best):
            budgets[budget.run_id] = budget
    refused = refusals_of(ids)
    return [
        Line(
            run=run,
            lease=leases.get(run.id),
            budget=budgets.get(run.id),
            refusals=refused.get(run.id, 0),
            now=now,
        )
        for run in runs
    ]


def _used(budget: Budget) -> float:
    return (budget.spent + budget.reserved) / budget.cap if budget.cap else 1.0


# At most 100 rows of each run are looked at: a hot run has any number of them. In no order, or the
# planner would walk all refusals from the newest for a run that has none.
COUNT_REFUSALS = """
SELECT run.id, (SELECT count(*) FROM (
    SELECT 1 FROM agentstate_refusal WHERE run_id = run.id LIMIT %s) AS refused)
FROM unnest(%s::uuid[]) AS run(id)
"""


def refusals_of(ids: list[UUID]) -> dict[UUID, int]:
    """Refused commands of each run, counted up to 100."""
    with connection.cursor() as cursor:
        cursor.execute(COUNT_REFUSALS, [REFUSALS_SHOWN, ids])
        return dict(cursor.fetchall())


def count_statuses(wanted: filters.Filter, *, now: datetime) -> list[Count]:
    """Runs per status under the rest of the filter.

    Exact, except where another condition or a terminal status makes that dear: then up to 10,000.
    All at once; if that takes too long, each by itself, so that only the slow ones are missing.
    Those without another condition, which every open list asks for, are copied.
    """
    rest = wanted.without("status")
    capped = {s: bool(rest.clauses) or s in TERMINAL for s in Status}
    if rest.clauses:
        numbers = _count_statuses(rest, capped, now=now)
    else:
        numbers = copies.count(
            "statuses", fill=lambda: _count_statuses(rest, capped, now=now), read=_numbers_of
        )
    return [
        _count(status, number, capped=capped[status])
        for status, number in zip(Status, numbers, strict=True)
    ]


def count_overdue(wanted: filters.Filter, *, now: datetime) -> Count:
    """Runs past their deadline and not ended, under the rest of the filter, up to 10,000."""
    rest = wanted.without("status", "overdue")
    overdue = matching(rest.with_only("overdue", "yes"), now=now)
    number = _count_one(_countable(overdue, capped=True))
    return _count("overdue", number, capped=True)


def add_up(counts: list[Count]) -> Count:
    """All of them together; None as soon as one is not known."""
    numbers = [count.count for count in counts if count.count is not None]
    known = len(numbers) == len(counts)
    capped = any(count.capped for count in counts)
    return Count(status="all", count=sum(numbers) if known else None, capped=capped)


def _numbers_of(found: list[int | None]) -> list[int | None]:
    if len(found) != len(Status) or not all(n is None or type(n) is int for n in found):
        raise ValueError("a number for each status")
    return found


def _count_statuses(
    rest: filters.Filter, capped: dict[Status, bool], *, now: datetime
) -> list[int | None]:
    found = matching(rest, now=now)
    rows = {s: _countable(found.filter(status=s), capped=capped[s]) for s in Status}
    try:
        return list(_count_all(rows))
    except TooSlow:
        return [None if rest.clauses else _count_one(rows[s]) for s in Status]


def _countable(rows: QuerySet[Run], *, capped: bool) -> QuerySet[Run, Any]:
    plain = rows.order_by().values("pk")
    return plain[: COUNT_MAX + 1] if capped else plain


_COUNT_OF = "(SELECT count(*) FROM ({}) AS counted)"


def _count_all(rows: dict[Status, QuerySet[Run, Any]]) -> list[int]:
    """One statement for all of them. Raises TooSlow."""
    compiled = [found.query.sql_with_params() for found in rows.values()]
    counts = ", ".join(_COUNT_OF.format(sql) for sql, _ in compiled)
    with at_most(COUNTS_MS), connection.cursor() as cursor:
        # Composed of what the ORM compiled; its values stay parameters.
        values = [value for _, found in compiled for value in found]
        cursor.execute("SELECT " + counts, values)
        return list(cursor.fetchone())


def _count_one(rows: QuerySet[Run, Any]) -> int | None:
    try:
        with at_most(COUNTS_MS):
            return rows.count()
    except TooSlow:
        return None


def _count(status: str, number: int | None, *, capped: bool) -> Count:
    over = capped and number is not None and number > COUNT_MAX
    return Count(status=status, count=COUNT_MAX if over else number, capped=over)


def count_newer(wanted: filters.Filter, *, first: str, now: datetime) -> int:
    """How many matching runs came after this place, up to 100. Raises cursors.BadCursor."""
    newer = matching(wanted, now=now).filter(_beyond(first, newer=True))
    try:
        with at_most(COUNTS_MS):
            return newer.values("pk")[:NEW_MAX].count()
    except TooSlow:
        return 0


def any_run() -> bool:
    return Run.objects.exists()
