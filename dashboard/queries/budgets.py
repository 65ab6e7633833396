"""Budgets: what is left of each, how fast it goes, its ledger, what is held, what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store import reads, rowsql
from agentstate.store.models import Budget, Refusal
from agentstate.store.reads import BudgetView
from agentstate.store.rows import BudgetRow
from dashboard import cursors, filters

PAGE_ROWS = 50
SHARED_ROWS = 200
NEAR_PERCENT = 80
NEAR_SHOWN = 50
HOLDS_SHOWN = 100
REFUSED_SHOWN = 50
CHILDREN_SHOWN = 50
LEVELS_MAX = 20
BURN = timedelta(hours=1)
BURN_SLOTS = 12
REFUSED_WITHIN = timedelta(hours=24)
# The newest lines of a ledger that are looked at for its rate; more in an hour: at least so much.
BURN_LINES_MAX = 20_000
SALT = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A budget in a list. run: whose it is, None for a shared one; depth: below its parents.

    burned: what was spent of it in the last hour. slots: 1 unless it is split.
    """

    budget: BudgetRow
    slots: int = 1
    run: str | None = None
    parent: str | None = None
    depth: int = 0
    burned: int = 0

    @property
    def dry_in(self) -> timedelta | None:
        return dry_in(self.budget, self.burned)


def dry_in(budget: BudgetRow, burned: int) -> timedelta | None:
    """When it is used up if it goes on as in the last hour; None: nothing goes, or over a year."""
    if burned <= 0:
        return None
    hours = budget.left / burned
    return timedelta(hours=hours) if hours < 24 * 365 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPage:
    """Shared budgets, each below its parent where that is on the page. later: where to go on."""

    lines: list[Line]
    later: str | None


def read_shared(*, now: datetime, after: str = "") -> SharedPage:
    """A page of the shared budgets, by name."""
    place = reads.Place(key=(after,)) if after else None
    page = reads.shared_budgets(limit=SHARED_ROWS, place=place)
    burned = read_burned([view.budget.id for view in page.items], since=now - BURN)
    return SharedPage(
        lines=_tree(page.items, burned), later=page.next.key[0] if page.next else None
    )


def _tree(views: tuple[BudgetView, ...], burned: dict[UUID, int]) -> list[Line]:
    """Parents before their children, each by name."""
    names = {view.budget.name for view in views}
    below: dict[str | None, list[BudgetView]] = {}
    for view in views:
        below.setdefault(view.parent if view.parent in names else None, []).append(view)
    lines: list[Line] = []

    def add(parent: str | None, depth: int) -> None:
        for view in below.get(parent, ()):
            lines.append(
                Line(
                    budget=view.budget,
                    slots=len(view.slots) or 1,
                    parent=view.parent,
                    depth=depth,
                    burned=burned.get(view.budget.id, 0),
                )
            )
            add(view.budget.name, depth + 1)

    add(None, 0)
    return lines


NEAR = f"""
SELECT key, parent, {rowsql.BUDGET_COLUMNS} FROM (
    SELECT r.key, p.name AS parent, b.* FROM agentstate_budget b
    JOIN agentstate_run r ON r.id = b.run_id
    LEFT JOIN agentstate_budget p ON p.id = b.parent_id
    WHERE r.status = ANY(%(live)s) AND (b.spent + b.reserved) * 100 >= b.cap * %(percent)s
) AS b
ORDER BY (spent + reserved)::float / greatest(cap, 1) DESC, key, name LIMIT %(limit)s
"""  # noqa: S608  the store's own list of columns


def read_near() -> list[Line]:
    """Budgets of runs that go on of which at least 80 % are used, the fullest first."""
    return _lines(NEAR, live=list(filters.LIVE), percent=NEAR_PERCENT, limit=NEAR_SHOWN)


def _lines(statement: str, **facts: Any) -> list[Line]:
    with connection.cursor() as cursor:
        cursor.execute(statement, facts)
        return [
            Line(run=key, parent=parent, budget=rowsql.read_budget(columns))
            for key, parent, *columns in cursor.fetchall()
        ]


# A budget's lines are in the order of their times, so the newest are read from the end.
BURNED = """
SELECT coalesce(b.slot_of_id, b.id), sum(lines.spent)::bigint
FROM agentstate_budget b, LATERAL (
    SELECT spent, at FROM agentstate_budgetentry WHERE budget_id = b.id
    ORDER BY n DESC LIMIT %(max)s
) AS lines
WHERE (b.id = ANY(%(ids)s) OR b.slot_of_id = ANY(%(ids)s)) AND lines.at >= %(since)s
GROUP BY 1
"""


def read_burned(budgets: list[UUID], *, since: datetime) -> dict[UUID, int]:
    """What was spent of each since then, by the ledger."""
    with connection.cursor() as cursor:
        cursor.execute(BURNED, {"ids": budgets, "since": since, "max": BURN_LINES_MAX})
        return dict(cursor.fetchall())


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """What was spent in the last hour, in twelve parts, the last one now."""

    spent: int
    parts: list[int]

    @property
    def most(self) -> int:
        return max([*self.parts, 1])


BURN_PARTS = """
SELECT least(%(last)s,
        floor(extract(epoch FROM lines.at - %(since)s::timestamptz) / %(slot)s)::int),
    sum(lines.spent)::bigint
FROM agentstate_budget b, LATERAL (
    SELECT spent, at FROM agentstate_budgetentry WHERE budget_id = b.id
    ORDER BY n DESC LIMIT %(max)s
) AS lines
WHERE (b.id = %(id)s OR b.slot_of_id = %(id)s) AND lines.at >= %(since)s GROUP BY 1
"""


def read_burn(budget: UUID, *, now: datetime) -> Burn:
    facts: dict[str, Any] = {
        "id": budget,
        "since": now - BURN,
        "slot": BURN.total_seconds() / BURN_SLOTS,
        "last": BURN_SLOTS - 1,
        "max": BURN_LINES_MAX,
    }
    with connection.cursor() as cursor:
        cursor.execute(BURN_PARTS, facts)
        spent = dict(cursor.fetchall())
    parts = [spent.get(number, 0) for number in range(BURN_SLOTS)]
    return Burn(spent=sum(parts), parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a ledger; run: the key of the run that it is about; slot: None outside slots."""

    n: int
    kind: str
    amount: int
    cap: int | None
    entry_id: str | None
    token: int | None
    note: str
    overdrawn: bool
    actor: str
    at: datetime
    run: str | None
    slot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Lines, newest first. older: the place to go on from, if there are more."""

    lines: list[Entry]
    older: str | None


# One order over a budget and its slots: by time, then slot, then number. Within the slot of the
# place its number bounds the index scan.
LEDGER = """
SELECT e.n, e.kind, e.amount, e.cap, e.entry_id, e.token, e.note, e.overdrawn, e.actor, e.at,
    r.key, b.slot
FROM agentstate_budget b, LATERAL (
    SELECT * FROM agentstate_budgetentry
    WHERE budget_id = b.id
        AND n < CASE WHEN coalesce(b.slot, -1) = %(slot)s THEN %(n)s ELSE %(never)s END
        AND (at, coalesce(b.slot, -1)) <= (%(at)s, %(slot)s)
    ORDER BY n DESC LIMIT %(limit)s
) AS e LEFT JOIN agentstate_run r ON r.id = e.run_id
WHERE b.id = %(id)s OR b.slot_of_id = %(id)s
ORDER BY e.at DESC, coalesce(b.slot, -1) DESC, e.n DESC LIMIT %(limit)s
"""
NEVER = 2**63 - 1
SLOT_MAX = 2**31 - 1


def read_ledger(budget: UUID, *, now: datetime, after: str = "") -> Ledger:
    """A page of the ledger, newest first. Raises cursors.BadCursor."""
    facts: dict[str, Any] = {"at": now + timedelta(days=1), "slot": SLOT_MAX, "n": NEVER}
    if after:
        at, tie = cursors.read(after, salt=SALT)
        slot, _, number = tie.partition(":")
        facts = {"at": at, "slot": int(slot), "n": int(number)}
    facts |= {"id": budget, "never": NEVER, "limit": PAGE_ROWS + 1}
    with connection.cursor() as cursor:
        cursor.execute(LEDGER, facts)
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    lines = [Entry(run=row.pop("key"), **row) for row in rows[:PAGE_ROWS]]
    last = lines[-1] if len(rows) > PAGE_ROWS else None
    return Ledger(lines=lines, older=_place(last) if last else None)


def _place(entry: Entry) -> str:
    slot = -1 if entry.slot is None else entry.slot
    return cursors.write(entry.at, f"{slot}:{entry.n}", salt=SALT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An amount that is held. dead: its time or the lease that it was made under is over, and it
    is given back as soon as somebody needs the room."""

    id: str
    amount: int
    actor: str
    token: int | None
    expires_at: datetime
    created_at: datetime
    budget: str
    run: str | None
    owner: str | None
    dead: bool


# A hold stands in the innermost budget and counts in every one above it: from the few budgets in
# which something is held upwards.
HOLDS = """
WITH RECURSIVE up AS (
    SELECT b.id AS inner_id, b.id, b.parent_id, b.slot_of_id FROM agentstate_budget b
    WHERE b.id IN (SELECT budget_id FROM agentstate_reservation WHERE state = 'held')
    UNION ALL
    SELECT up.inner_id, p.id, p.parent_id, p.slot_of_id
    FROM up JOIN agentstate_budget p ON p.id = coalesce(up.parent_id, up.slot_of_id)
)
SELECT h.reservation_id, h.amount, h.actor, h.token, h.expires_at, h.created_at,
    split_part(b.name, '#', 1), r.key,
    t.owner, h.expires_at <= %(now)s OR (h.token IS NOT NULL AND h.token IS DISTINCT FROM r.token)
FROM agentstate_reservation h JOIN agentstate_budget b ON b.id = h.budget_id
LEFT JOIN agentstate_run r ON r.id = h.run_id
LEFT JOIN agentstate_leaseterm t ON t.token = h.token
WHERE h.state = 'held' AND h.budget_id IN (SELECT inner_id FROM up WHERE id = %(id)s)
ORDER BY 10 DESC, h.amount DESC, h.created_at LIMIT %(limit)s
"""


def read_holds(budget: UUID, *, now: datetime) -> list[Hold]:
    """What is held of a budget and below it, the dead ones first."""
    with connection.cursor() as cursor:
        cursor.execute(HOLDS, {"id": budget, "now": now, "limit": HOLDS_SHOWN})
        return [
            Hold(
                id=id_,
                amount=amount,
                actor=actor,
                token=token,
                expires_at=expires_at,
                created_at=created_at,
                budget=name,
                run=key,
                owner=owner,
                dead=dead,
            )
            for id_, amount, actor, token, expires_at, created_at, name, key, owner, dead in (
                cursor.fetchall()
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCharge:
    """A charge that was not admitted. amount None: it is not told."""

    at: datetime
    amount: int | None
    run: str | None
    who: str
    budget: str


def read_refused(budget: BudgetRow, *, since: datetime) -> list[RefusedCharge]:
    """Charges that this level refused, newest first.

    A refusal names the level. A run's own budget of a shared one's name is taken for its own.
    """
    found = Refusal.objects.select_related("run").filter(
        code="budget-exhausted", budget=budget.name, at__gte=since
    )
    if budget.run_id is not None:
        found = found.filter(run=budget.run_id)
    else:
        own = Budget.objects.filter(name=budget.name, run__isnull=False).values("run")
        found = found.exclude(run__in=own)
    return [refused_charge(refusal) for refusal in found.order_by("-at", "-id")[:REFUSED_SHOWN]]


def read_newest_refused(*, since: datetime) -> list[RefusedCharge]:
    """The newest charges that any budget refused."""
    found = Refusal.objects.select_related("run").filter(code="budget-exhausted", at__gte=since)
    return [refused_charge(refusal) for refusal in found.order_by("-at", "-id")[:REFUSED_SHOWN]]


def refused_charge(refusal: Refusal) -> RefusedCharge:
    asked = refusal.wanted.get("amount")
    amounts = list(asked.values()) if isinstance(asked, dict) else []
    return RefusedCharge(
        at=refusal.at,
        amount=amounts[0] if len(amounts) == 1 and isinstance(amounts[0], int) else None,
        run=refusal.run.key if refusal.run else None,
        who=refusal.worker or refusal.actor,
        budget=refusal.budget or "",
    )


def read_parents(view: BudgetView) -> list[BudgetRow]:
    """The budgets that are charged as well, the outermost first."""
    found: list[BudgetRow] = []
    while view.parent is not None and len(found) < LEVELS_MAX:
        view = reads.budget(run_key=None, name=view.parent)
        found.append(view.budget)
    return found[::-1]


CHILDREN = f"""
SELECT key, NULL, {rowsql.BUDGET_COLUMNS} FROM (
    SELECT r.key, b.* FROM agentstate_budget b LEFT JOIN agentstate_run r ON r.id = b.run_id
    WHERE b.parent_id = %(id)s
) AS b ORDER BY spent + reserved DESC, key NULLS FIRST, name LIMIT %(limit)s
"""  # noqa: S608  the store's own list of columns


def read_children(budget: UUID) -> list[Line]:
    """Budgets directly below, those with the most used first."""
    return _lines(CHILDREN, id=budget, limit=CHILDREN_SHOWN)
