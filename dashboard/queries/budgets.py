"""Budgets: those near their cap, the shared ones as a tree with its sums, runs without any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store import filters, reads, rowsql
from agentstate.store.reads import BudgetView
from agentstate.store.rows import BudgetRow
from dashboard import forecast
from dashboard.forecast import Burn, Forecast
from dashboard.queries.ledgers import read_burns

SHARED_ROWS = 200
NEAR_PERCENT = 80
NEAR_SHOWN = 50
CHILDREN_SHOWN = 50
UNCAPPED_SHOWN = 20
LEVELS_MAX = 20
# Sums over runs' budgets are of so many at most, and say so.
SUMMED_MAX = 1_000
COUNTED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Budgets directly below one, added up. cut: there are more than were read."""

    count: int = 0
    cap: int = 0
    spent: int = 0
    reserved: int = 0
    cut: bool = False

    @property
    def used(self) -> int:
        return self.spent + self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A budget in a list. run: whose it is, None for a shared one; depth: below its parents.

    slots: 1 unless it is split. burn, forecast: what the last minutes took of it, and when it is
    dry at that rate; None: not asked for.
    shared, runs: the shared budgets directly below it and those of runs, added up.
    """

    budget: BudgetRow
    slots: int = 1
    run: str | None = None
    parent: str | None = None
    depth: int = 0
    burn: Burn | None = None
    forecast: Forecast | None = None
    shared: Sums = Sums()
    runs: Sums = Sums()

    @property
    def is_overbooked(self) -> bool:
        """Whether the caps directly below it are more than its own: not all can be used up."""
        return self.shared.cap + self.runs.cap > self.budget.cap


def foreseen(lines: Sequence[Line], burns: dict[UUID, Burn], now: datetime) -> list[Line]:
    """The lines with what the last minutes took of each, and when it is dry at that rate."""
    found: list[Line] = []
    for line in lines:
        burn = burns.get(line.budget.id, Burn())
        when = forecast.foresee(left=line.budget.left, burn=burn, now=now)
        found.append(replace(line, burn=burn, forecast=when))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPage:
    """Shared budgets, each below its parent where that is on the page. later: where to go on."""

    lines: list[Line]
    later: str | None


def read_shared(*, now: datetime, after: str = "") -> SharedPage:
    """A page of the shared budgets, by name."""
    place = reads.Place(key=(after,)) if after else None
    page = reads.shared_budgets(limit=SHARED_ROWS, place=place)
    ids = [view.budget.id for view in page.items]
    shared, runs = _sum_shared(ids), _sum_runs(ids)
    lines = [
        replace(
            line,
            shared=shared.get(line.budget.id, line.shared),
            runs=runs.get(line.budget.id, line.runs),
        )
        for line in _tree(page.items)
    ]
    return SharedPage(
        lines=foreseen(lines, read_burns(ids, now=now), now),
        later=page.next.key[0] if page.next else None,
    )


def _tree(views: Sequence[BudgetView]) -> list[Line]:
    """Parents before their children, each by name."""
    names = {view.budget.name for view in views}
    below: dict[str | None, list[BudgetView]] = {}
    for view in views:
        below.setdefault(view.parent if view.parent in names else None, []).append(view)
    lines: list[Line] = []

    def add(parent: str | None, depth: int) -> None:
        for view in below.get(parent, ()):
            slots = len(view.slots) or 1
            line = Line(budget=view.budget, slots=slots, parent=view.parent, depth=depth)
            lines.append(line)
            add(view.budget.name, depth + 1)

    add(None, 0)
    return lines


# Shared budgets are few; their slots count in them and are no budgets below. A sum of caps knows no
# bound, so it is no bigint.
SHARED_SUMS = """
SELECT parent_id, count(*), sum(cap), sum(spent), sum(reserved), false
FROM agentstate_budget
WHERE run_id IS NULL AND slot_of_id IS NULL AND parent_id = ANY(%(ids)s) GROUP BY parent_id
"""
RUN_SUMS = """
SELECT p.id, least(count(*), %(most)s), sum(b.cap) FILTER (WHERE b.at <= %(most)s),
    sum(b.spent) FILTER (WHERE b.at <= %(most)s),
    sum(b.reserved) FILTER (WHERE b.at <= %(most)s), count(*) > %(most)s
FROM unnest(%(ids)s::uuid[]) AS p (id), LATERAL (
    SELECT cap, spent, reserved, row_number() OVER () AS at FROM agentstate_budget
    WHERE parent_id = p.id AND run_id IS NOT NULL LIMIT %(most)s + 1
) AS b GROUP BY p.id
"""


def _sum_shared(budgets: Sequence[UUID]) -> dict[UUID, Sums]:
    return _sums(SHARED_SUMS, {"ids": list(budgets)})


def _sum_runs(budgets: Sequence[UUID]) -> dict[UUID, Sums]:
    """Of the budgets of runs below each, up to a thousand of them."""
    return _sums(RUN_SUMS, {"ids": list(budgets), "most": SUMMED_MAX})


def _sums(statement: str, facts: dict[str, Any]) -> dict[UUID, Sums]:
    with connection.cursor() as cursor:
        cursor.execute(statement, facts)
        return {
            id_: Sums(count=count, cap=int(cap), spent=int(spent), reserved=int(reserved), cut=cut)
            for id_, count, cap, spent, reserved, cut in cursor.fetchall()
        }


NEAR = f"""
SELECT key, parent, {rowsql.BUDGET_COLUMNS} FROM (
    SELECT r.key, p.name AS parent, b.* FROM agentstate_budget b
    JOIN agentstate_run r ON r.id = b.run_id
    LEFT JOIN agentstate_budget p ON p.id = b.parent_id
    WHERE r.status = ANY(%(live)s) AND (b.spent + b.reserved) * 100 >= b.cap * %(percent)s
) AS b
ORDER BY (spent + reserved)::float / greatest(cap, 1) DESC, key, name LIMIT %(limit)s
"""  # noqa: S608  the store's own list of columns


def read_near(*, now: datetime) -> list[Line]:
    """Budgets of runs that go on of which at least 80 % are used, the fullest first."""
    lines = _lines(NEAR, live=list(filters.LIVE), percent=NEAR_PERCENT, limit=NEAR_SHOWN)
    return foreseen(lines, read_burns([line.budget.id for line in lines], now=now), now)


def _lines(statement: str, **facts: Any) -> list[Line]:
    with connection.cursor() as cursor:
        cursor.execute(statement, facts)
        return [
            Line(run=key, parent=parent, budget=rowsql.read_budget(columns))
            for key, parent, *columns in cursor.fetchall()
        ]


def read_burn(budget: UUID, *, now: datetime) -> Burn:
    return read_burns([budget], now=now).get(budget, Burn())


# --- runs without a cap --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncapped:
    """A run that goes on and that no budget bounds."""

    key: str
    task: str
    status: str
    owner: str | None
    last_seq: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UncappedRuns:
    """The newest of them; count: how many there are, counted up to 10,000. of: runs that go on."""

    runs: list[Uncapped]
    count: int
    of: int

    @property
    def is_cut(self) -> bool:
        return self.of >= COUNTED_MAX


# Of the newest runs that go on, however many there are.
UNCAPPED = """
WITH going AS MATERIALIZED (
    SELECT r.id, r.key, r.task, r.status, r.owner, r.last_seq, r.created_at,
        EXISTS (SELECT FROM agentstate_budget b WHERE b.run_id = r.id) AS capped
    FROM agentstate_run r WHERE r.status = ANY(%(live)s)
    ORDER BY r.created_at DESC, r.id DESC LIMIT %(counted)s
)
SELECT counted.*, u.key, u.task, u.status, u.owner, u.last_seq, u.created_at FROM (
    SELECT count(*) FILTER (WHERE NOT capped), count(*) FROM going
) AS counted LEFT JOIN LATERAL (
    SELECT * FROM going WHERE NOT capped ORDER BY created_at DESC, id DESC LIMIT %(limit)s
) AS u ON true
"""


def read_uncapped() -> UncappedRuns:
    """Runs that go on and have no budget: nothing stops what they spend."""
    facts: dict[str, Any] = {
        "live": list(filters.LIVE),
        "counted": COUNTED_MAX,
        "limit": UNCAPPED_SHOWN,
    }
    with connection.cursor() as cursor:
        cursor.execute(UNCAPPED, facts)
        rows = cursor.fetchall()
    count, of = rows[0][:2]
    names = [field.name for field in fields(Uncapped)]
    runs = [Uncapped(**dict(zip(names, row[2:], strict=True))) for row in rows if row[2]]
    return UncappedRuns(runs=runs, count=count, of=of)


# --- one among its levels ------------------------------------------------------------------------


def read_parents(view: BudgetView, *, now: datetime) -> list[Line]:
    """The budgets that are charged as well, the outermost first, with when each is dry."""
    found: list[BudgetView] = []
    while view.parent is not None and len(found) < LEVELS_MAX:
        view = reads.budget(run_key=None, name=view.parent)
        found.append(view)
    lines = [Line(budget=one.budget) for one in found[::-1]]
    return foreseen(lines, read_burns([line.budget.id for line in lines], now=now), now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """What is below a budget: the shared ones as a tree, the runs' with the most used first, and
    the sums of those directly below it.
    """

    shared: list[Line]
    runs: list[Line]
    shared_sums: Sums
    run_sums: Sums

    def __bool__(self) -> bool:
        return bool(self.shared or self.runs)


RUNS_BELOW = f"""
SELECT key, NULL, {rowsql.BUDGET_COLUMNS} FROM (
    SELECT r.key, b.* FROM agentstate_budget b JOIN agentstate_run r ON r.id = b.run_id
    WHERE b.parent_id = %(id)s
) AS b ORDER BY spent + reserved DESC, key, name LIMIT %(limit)s
"""  # noqa: S608  the store's own list of columns
SHARED_BELOW = f"""
WITH RECURSIVE below AS (
    SELECT id, name, 0 AS depth, ARRAY[name] AS path FROM agentstate_budget
    WHERE parent_id = %(id)s AND run_id IS NULL
    UNION ALL
    SELECT b.id, b.name, w.depth + 1, w.path || b.name FROM below w
    JOIN agentstate_budget b ON b.parent_id = w.id AND b.run_id IS NULL
    WHERE w.depth < %(levels)s
)
SELECT w.depth, {", ".join(f"b.{name.strip()}" for name in rowsql.BUDGET_COLUMNS.split(","))}
FROM below w JOIN agentstate_budget b ON b.id = w.id ORDER BY w.path LIMIT %(limit)s
"""  # noqa: S608  the store's own list of columns


def read_below(budget: UUID) -> Below:
    facts: dict[str, Any] = {"id": budget, "limit": SHARED_ROWS, "levels": LEVELS_MAX}
    with connection.cursor() as cursor:
        cursor.execute(SHARED_BELOW, facts)
        shared = [
            Line(depth=depth, budget=rowsql.read_budget(columns))
            for depth, *columns in cursor.fetchall()
        ]
    ids = [line.budget.id for line in shared] + [budget]
    sums, runs = _sum_shared(ids), _sum_runs(ids)
    none = Sums()
    return Below(
        shared=[
            replace(
                line,
                shared=sums.get(line.budget.id, none),
                runs=runs.get(line.budget.id, none),
            )
            for line in shared
        ],
        runs=_lines(RUNS_BELOW, id=budget, limit=CHILDREN_SHOWN),
        shared_sums=sums.get(budget, none),
        run_sums=runs.get(budget, none),
    )
