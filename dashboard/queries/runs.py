"""The list of runs: one page of rows with what stands beside each, counts, and what is new."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Q, QuerySet

from agentstate.caching import copies
from agentstate.store import filters
from agentstate.store.errors import CONFLICTS
from agentstate.store.models import Budget, Lease, Run
from agentstate.store.search import kept, matching, of_keys
from agentstate.store.states import TERMINAL, Status
from dashboard.models import DatabaseNow
from dashboard.queries import together
from dashboard.queries.clock import TooSlow, at_most
from dashboard.queries.search import beyond, place, reach
from dashboard.queries.together import Read

PAGE_ROWS = 50
COUNT_MAX = 10_000
NEW_MAX = 100
# No row shows them, and each may be a megabyte.
LONG = ("attrs", "result", "notes")
REFUSALS_SHOWN = 100
ROWS_MS = 5_000
COUNTS_MS = 800
# For those that a page asks for by themselves, after it is there.
COUNTS_LATER_MS = 2_000
NEIGHBOURS_MS = 200
# Of a list that is searched run by run: so many on either side.
NEIGHBOURS_RUNS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A run as a row of the list. budget: the one of which the most is used.

    refusals, of them conflicts: of at most 100 that are looked at.
    """

    run: Run
    lease: Lease | None
    budget: Budget | None
    refusals: int
    now: datetime
    conflicts: int = 0

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
    """Rows in order, and the places before and after them (None: there are no more).

    searched_to: how far a search went that is not at its end yet.
    """

    lines: list[Line]
    newer: str | None
    older: str | None
    first: str | None
    now: datetime
    searched_to: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many; capped: at least so many. count None: it took too long."""

    status: str
    count: int | None
    capped: bool = False


def read_page(
    wanted: filters.Filter,
    *,
    now: datetime,
    after: str = "",
    before: str = "",
    rows: int = PAGE_ROWS,
) -> Page:
    """A page of rows, newest first; after: towards older ones, before: towards newer ones.

    A dear search goes only so far (search.py): then the page says to where, and the place beyond
    is where it goes on. Where no full page is newer than `before` it is the first page, so that the
    way back ends with that. Raises cursors.BadCursor, and TooSlow after 5 s.
    """
    newer = bool(before)
    start = beyond(before or after, newer=newer) if after or before else Q()
    order = ("created_at", "id") if newer else ("-created_at", "-id")
    with at_most(ROWS_MS):
        stop = reach(wanted, now=now, start=start, newer=newer)
        found = matching(wanted, now=now).filter(start)
        if stop is not None:
            found = found.filter(beyond(stop.place, newer=not newer, inclusive=True))
        runs = list(found.defer(*LONG).order_by(*order)[: rows + 1])
        more, runs = len(runs) > rows, runs[:rows]
        if newer:
            runs.reverse()
        lines = describe(runs, now=now)
    if newer and not more and stop is None:
        return read_page(wanted, now=now, rows=rows)
    stop = None if more else stop
    edge = place(runs[0 if newer else -1]) if more else stop.place if stop else None
    back = place(runs[-1 if newer else 0]) if runs else None
    return Page(
        lines=lines,
        newer=edge if newer else back if after else None,
        older=back if newer else edge,
        first=place(runs[0]) if runs else None,
        now=now,
        searched_to=stop.at if stop else None,
    )


def read_lines(keys: Iterable[str], *, now: datetime) -> list[Line]:
    """The rows of these runs, as many as a page has."""
    return describe(list(of_keys(list(keys)[:PAGE_ROWS], now=now).defer(*LONG)), now=now)


def lines_reads(keys: Iterable[str]) -> dict[str, Read[Any]]:
    """The same, to be read in one statement."""
    names = list(keys)[:PAGE_ROWS]
    runs = of_keys(names, now=DatabaseNow())
    ids = runs.values("id")
    sql = COUNT_REFUSALS.replace("unnest(%(runs)s::uuid[])", RUNS_NAMED)
    asked = {"keys": names, "conflicts": sorted(CONFLICTS), "most": REFUSALS_SHOWN}
    return {
        "runs": together.models_of(runs.defer(*LONG)),
        "leases": together.models_of(Lease.objects.filter(run__in=ids)),
        "budgets": together.models_of(Budget.objects.filter(run__in=ids)),
        "refused": together.sql_of(sql, asked, columns=3),
    }


def lines_of(found: dict[str, Any]) -> list[Line]:
    refused = {UUID(run): (n, conflicts) for run, n, conflicts in found["refused"]}
    return _lines(found["runs"], found["leases"], found["budgets"], refused, found["now"])


def newer_read(first: str) -> dict[str, Read[Any]]:
    """How many runs came after this place, or are there at all without one, where nothing is
    filtered: by the list's own index. Raises cursors.BadCursor."""
    newer = Run.objects.filter(kept(DatabaseNow()))
    if first:
        newer = newer.filter(beyond(first, newer=True))
    # The id stands in the index that is gone through.
    return {
        "newer": together.values_of(
            newer.order_by("-created_at", "-id").values_list("id")[:NEW_MAX]
        )
    }


def describe(runs: list[Run], *, now: datetime) -> list[Line]:
    """Runs with lease, budget and refusals: three queries, however many rows."""
    ids = [run.id for run in runs]
    leases, budgets = Lease.objects.filter(run__in=ids), Budget.objects.filter(run__in=ids)
    return _lines(runs, leases, budgets, refusals_of(ids), now)


def _lines(
    runs: list[Run],
    held: Iterable[Lease],
    caps: Iterable[Budget],
    refused: dict[UUID, tuple[int, int]],
    now: datetime,
) -> list[Line]:
    leases = {lease.run_id: lease for lease in held}
    budgets: dict[UUID | None, Budget] = {}
    for budget in caps:
        best = budgets.get(budget.run_id)
        if best is None or _used(budget) > _used(best):
            budgets[budget.run_id] = budget
    return [
        Line(
            run=run,
            lease=leases.get(run.id),
            budget=budgets.get(run.id),
            refusals=refused.get(run.id, (0, 0))[0],
            conflicts=refused.get(run.id, (0, 0))[1],
            now=now,
        )
        for run in runs
    ]


def _used(budget: Budget) -> float:
    return (budget.spent + budget.reserved) / budget.cap if budget.cap else 1.0


# At most 100 rows of each run are looked at: a hot run has any number of them. In no order, or the
# planner would walk all refusals from the newest for a run that has none.
COUNT_REFUSALS = """
SELECT run.id, refused.n, refused.conflicts FROM unnest(%(runs)s::uuid[]) AS run(id)
CROSS JOIN LATERAL (
    SELECT count(*) AS n, count(*) FILTER (WHERE code = ANY(%(conflicts)s)) AS conflicts
    FROM (SELECT code FROM agentstate_refusal WHERE run_id = run.id LIMIT %(most)s) AS looked
) AS refused
"""


# In the place of the runs' numbers, for who knows their keys.
RUNS_NAMED = "(SELECT id FROM agentstate_run WHERE key = ANY(%(keys)s))"


def refusals_of(ids: list[UUID]) -> dict[UUID, tuple[int, int]]:
    """Refused commands of each run, and how many of them were conflicts, counted up to 100."""
    facts: dict[str, Any] = {"runs": ids, "conflicts": sorted(CONFLICTS), "most": REFUSALS_SHOWN}
    with connection.cursor() as cursor:
        cursor.execute(COUNT_REFUSALS, facts)
        return {run: (refused, conflicts) for run, refused, conflicts in cursor.fetchall()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The numbers above an open list: a count for each status, those overdue, and how many runs
    came since it was opened (None: that is read otherwise). outdated: statuses have moved since."""

    statuses: list[Count]
    overdue: Count
    newer: int | None
    outdated: bool


def read_tally(wanted: filters.Filter, *, first: str, now: datetime, milliseconds: int) -> Tally:
    """They are counted for all who have the list open, and not at each refresh: that takes more
    statements than its rows do. Raises cursors.BadCursor.
    """
    if not wanted.clauses:
        count = partial(_tally_all, wanted, now=now, milliseconds=milliseconds)
        fill = partial(_as_of_now, count)
        found = copies.count("tally", fill=fill, read=_tally_of)
    else:
        variant = hashlib.sha256(f"{wanted.text}\0{first}".encode()).hexdigest()
        count = partial(_tally_filtered, wanted, first=first, now=now, milliseconds=milliseconds)
        fill = partial(_as_of_now, count)
        found = copies.count("filtered", fill=fill, read=_tally_of, variant=variant)
    return found


def _tally_all(wanted: filters.Filter, *, now: datetime, milliseconds: int) -> list[Any]:
    """All of them in one statement; if that takes too long, none is known."""
    runs = matching(wanted, now=now)
    rows = {str(s): _countable(runs.filter(status=s), capped=s in TERMINAL) for s in Status}
    overdue = matching(wanted.with_only("overdue", "yes"), now=now)
    rows["overdue"] = _countable(overdue, capped=True)
    try:
        numbers: list[Any] = list(_count_all(rows, milliseconds=milliseconds))
    except TooSlow:
        numbers = [None] * len(rows)
    capped = [*(s in TERMINAL for s in Status), True]
    counts = [
        _told(_count(name, number, capped=most))
        for name, number, most in zip(rows, numbers, capped, strict=True)
    ]
    return [counts[:-1], counts[-1], None]


def _as_of_now(fill: Callable[[], list[Any]]) -> list[Any]:
    """With what says later whether a write has come since it was counted."""
    generation = copies.generation("statuses")
    return [*fill(), generation]


def _tally_filtered(
    wanted: filters.Filter, *, first: str, now: datetime, milliseconds: int
) -> list[Any]:
    statuses = count_statuses(wanted, now=now, milliseconds=milliseconds)
    overdue = count_overdue(wanted, now=now, milliseconds=milliseconds)
    newer = count_newer(wanted, first=first, now=now) if first else 0
    return [[_told(one) for one in statuses], _told(overdue), newer]


def _told(count: Count) -> list[Any]:
    return [count.status, count.count, count.capped]


def _tally_of(found: list[Any]) -> Tally:
    statuses, overdue, newer, generation = found
    counts = [Count(status=s, count=n, capped=c) for s, n, c in (*statuses, overdue)]
    outdated = generation != copies.generation("statuses")
    return Tally(statuses=counts[:-1], overdue=counts[-1], newer=newer, outdated=outdated)


def count_statuses(
    wanted: filters.Filter, *, now: datetime, milliseconds: int | None = None
) -> list[Count]:
    """Runs per status under the rest of the filter, within so much time.

    Exact, except where another condition or a terminal status makes that dear: then up to 10,000.
    All at once; if that takes too long, each by itself, so that only the slow ones are missing.
    Those without another condition, which every open list asks for, are copied.
    """
    rest = wanted.without("status")
    capped = {s: bool(rest.clauses) or s in TERMINAL for s in Status}
    if rest.clauses:
        found, bounded = countable(rest, now=now)
        numbers = _count_statuses(found, capped, milliseconds=milliseconds)
    else:
        found, bounded = matching(rest, now=now), False
        fill = partial(_count_statuses, found, capped, singly=True)
        numbers = copies.count("statuses", fill=fill, read=_numbers_of)
    return [
        _count(status, number, capped=capped[status], bounded=bounded)
        for status, number in zip(Status, numbers, strict=True)
    ]


def count_overdue(
    wanted: filters.Filter, *, now: datetime, milliseconds: int | None = None
) -> Count:
    """Runs past their deadline and not ended, under the rest of the filter, up to 10,000."""
    rest = wanted.without("status", "overdue")
    overdue, bounded = countable(rest.with_only("overdue", "yes"), now=now)
    number = _count_one(_countable(overdue, capped=True), milliseconds=milliseconds)
    return _count("overdue", number, capped=True, bounded=bounded)


def countable(wanted: filters.Filter, *, now: datetime) -> tuple[QuerySet[Run], bool]:
    """What of a filter is counted: of a dear one what a search looks at, and whether that is less
    than all."""
    found = matching(wanted, now=now)
    stop = reach(wanted, now=now, start=Q())
    if stop is None:
        return found, False
    return found.filter(beyond(stop.place, newer=True, inclusive=True)), True


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
    found: QuerySet[Run],
    capped: dict[Status, bool],
    *,
    milliseconds: int | None = None,
    singly: bool = False,
) -> list[int | None]:
    rows = {s: _countable(found.filter(status=s), capped=capped[s]) for s in Status}
    try:
        return list(_count_all(rows, milliseconds=milliseconds))
    except TooSlow:
        return [_count_one(rows[s]) if singly else None for s in Status]


def _countable(rows: QuerySet[Run], *, capped: bool) -> QuerySet[Run, Any]:
    plain = rows.order_by().values("pk")
    return plain[: COUNT_MAX + 1] if capped else plain


_COUNT_OF = "(SELECT count(*) FROM ({}) AS counted)"


def _count_all(
    rows: Mapping[Any, QuerySet[Run, Any]], *, milliseconds: int | None = None
) -> list[int]:
    """One statement for all of them. Raises TooSlow."""
    compiled = [_compiled(found) for found in rows.values()]
    counts = ", ".join(_COUNT_OF.format(sql) for sql, _ in compiled)
    with at_most(milliseconds or COUNTS_MS), connection.cursor() as cursor:
        # Composed of what the ORM compiled; its values stay parameters.
        values = [value for _, found in compiled for value in found]
        cursor.execute("SELECT " + counts, values)
        return list(cursor.fetchone())


def _compiled(found: QuerySet[Run, Any]) -> tuple[str, Sequence[Any]]:
    """As SQL; where the ORM sees by itself that nothing can match, one that finds nothing."""
    try:
        return found.query.sql_with_params()
    except EmptyResultSet:
        return "SELECT WHERE false", ()


def _count_one(rows: QuerySet[Run, Any], *, milliseconds: int | None = None) -> int | None:
    try:
        with at_most(milliseconds or COUNTS_MS):
            return rows.count()
    except TooSlow:
        return None


def _count(status: str, number: int | None, *, capped: bool, bounded: bool = False) -> Count:
    over = capped and number is not None and number > COUNT_MAX
    return Count(status=status, count=COUNT_MAX if over else number, capped=over or bounded)


def count_newer(wanted: filters.Filter, *, first: str, now: datetime) -> int:
    """How many matching runs came after this place, up to 100. Raises cursors.BadCursor."""
    newer = matching(wanted, now=now).filter(beyond(first, newer=True))
    try:
        with at_most(COUNTS_MS):
            return newer.values("pk")[:NEW_MAX].count()
    except TooSlow:
        return 0


def neighbours(wanted: filters.Filter, run: Run, *, now: datetime) -> tuple[str | None, str | None]:
    """The keys of the runs before and after this one in a list: the newer and the older one.

    None: there is none, or it is too far away to be looked for here.
    """
    newer, older = (_next_key(wanted, run, now=now, newer=newer) for newer in (True, False))
    return newer, older


def _next_key(wanted: filters.Filter, run: Run, *, now: datetime, newer: bool) -> str | None:
    start = beyond(place(run), newer=newer)
    order = ("created_at", "id") if newer else ("-created_at", "-id")
    try:
        with at_most(NEIGHBOURS_MS):
            stop = reach(wanted, now=now, start=start, newer=newer, runs=NEIGHBOURS_RUNS)
            found = matching(wanted, now=now).filter(start)
            if stop is not None:
                found = found.filter(beyond(stop.place, newer=not newer, inclusive=True))
            return found.order_by(*order).values_list("key", flat=True).first()
    except TooSlow:
        return None


def any_run() -> bool:
    return Run.objects.exists()
