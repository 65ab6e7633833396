"""A budget's page as of a moment: by its ledger, what was held and refused by then, and no more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store import reads, rowsql
from agentstate.store.models import Run
from agentstate.store.payloads import moment
from agentstate.store.reads import BudgetView, SlotView
from dashboard import forecast, moments
from dashboard.forecast import Burn
from dashboard.moments import AsOf, Beside, Moment, NotThen
from dashboard.queries import holds, ledgers
from dashboard.queries.budgets import CHILDREN_SHOWN, LEVELS_MAX, Below, Line, Sums
from dashboard.queries.clock import at_most
from dashboard.queries.holds import Held
from dashboard.queries.past import place_in, refusals_gone
from dashboard.queries.past_ledgers import BudgetThen, Ledger, figures_then
from dashboard.windows import Window

READ_MS = 1_500

LEDGERS = """
SELECT coalesce(slot_of_id, id), id, slot, entries, version, cap, spent, reserved
FROM agentstate_budget WHERE id = ANY(%(ids)s) OR slot_of_id = ANY(%(ids)s)
ORDER BY 1, slot NULLS FIRST
"""
# The last line before an instant, and the first one after it, in each ledger.
BESIDE = """
SELECT (SELECT max(at) FROM (
        SELECT at FROM agentstate_budgetentry
        WHERE budget_id = l.id AND n <= l.line AND n > l.line - 1000 AND at < %(at)s
        ORDER BY n DESC LIMIT 1) AS before),
    (SELECT at FROM agentstate_budgetentry WHERE budget_id = l.id AND n = l.line + 1)
FROM unnest(%(ids)s::uuid[], %(lines)s::bigint[]) AS l (id, line)
"""
# Of each ledger so many lines at most; with more of them it is looked at since a later time.
BURN = """
WITH ledger AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(lines)s::bigint[]) AS l (id, line)
), cut AS (
    SELECT max(e.at) AS at FROM ledger l JOIN agentstate_budgetentry e
        ON e.budget_id = l.id AND e.n = l.line - %(most)s + 1
    WHERE l.line > %(most)s AND e.at > %(since)s
)
SELECT coalesce(sum(e.spent), 0)::bigint, count(*) FILTER (WHERE e.spent > 0),
    (SELECT at FROM cut),
    (SELECT at FROM agentstate_budgetentry WHERE budget_id = %(id)s AND n = 1)
FROM ledger l, LATERAL (
    SELECT spent, at FROM agentstate_budgetentry WHERE budget_id = l.id AND n <= l.line
    ORDER BY n DESC LIMIT %(most)s
) AS e
WHERE e.at >= greatest(%(since)s, (SELECT at FROM cut))
"""
# A hold was dead when its time was over, or its term of ownership: because the next one had begun,
# or because it had been given back or taken.
HOLDS = """
WITH RECURSIVE down AS (
    SELECT id FROM agentstate_budget WHERE id = %(id)s
    UNION ALL
    SELECT b.id FROM down JOIN agentstate_budget b ON b.parent_id = down.id
        OR b.slot_of_id = down.id
), chosen AS (
    SELECT * FROM agentstate_reservation h
    WHERE h.budget_id IN (SELECT id FROM down) AND h.created_at <= %(at)s
        AND (h.settled_at IS NULL OR h.settled_at > %(at)s)
    ORDER BY h.expires_at LIMIT %(most)s
), held AS (
    SELECT h.reservation_id AS id, h.amount, b.unit, h.actor, h.token, h.expires_at, h.created_at,
        split_part(b.name, '#', 1) AS budget, o.key AS budget_run, r.key AS run, t.owner,
        CASE WHEN h.expires_at <= %(at)s THEN 'over'
            WHEN h.token IS NOT NULL AND (t.token IS NULL
                OR (t.ended IN ('released', 'reclaimed', 'run-terminal')
                    AND upper(t.held) <= %(at)s)
                OR EXISTS (SELECT FROM agentstate_leaseterm next WHERE next.unit = t.unit
                    AND next.token > t.token AND lower(next.held) <= %(at)s)) THEN 'overtaken'
            ELSE 'live' END AS state
    FROM chosen h JOIN agentstate_budget b ON b.id = h.budget_id
    LEFT JOIN agentstate_run o ON o.id = b.run_id
    LEFT JOIN agentstate_run r ON r.id = h.run_id
    LEFT JOIN agentstate_leaseterm t ON t.token = h.token
)
SELECT *, count(*) OVER (PARTITION BY state), sum(amount) OVER (PARTITION BY state)::bigint
FROM held ORDER BY array_position(%(states)s, state), amount DESC, created_at, id
"""
# Those below that are used most now: of more nobody knows which were then, without adding up all.
CHILDREN = f"""
SELECT key, {rowsql.BUDGET_COLUMNS} FROM (
    SELECT r.key, b.* FROM agentstate_budget b LEFT JOIN agentstate_run r ON r.id = b.run_id
    WHERE b.parent_id = %(id)s
) AS b ORDER BY spent + reserved DESC, key NULLS FIRST, name LIMIT %(limit)s
"""  # noqa: S608  the store's own list of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PastBudget:
    """A budget as it was. lines: the last line of each of its ledgers by then, slots included."""

    view: BudgetView
    as_of: AsOf
    lines: dict[UUID, int]

    @property
    def at(self) -> datetime:
        return self.as_of.at


def read_budget(
    view: BudgetView, run: Run | None, asked: Moment, *, page: str, now: datetime
) -> PastBudget:
    """view: as it is now. Raises NotThen, TooSlow."""
    with at_most(READ_MS):
        at, seq = _instant(run, asked, now=now)
        own, slots = _ledgers([view.budget.id])[view.budget.id]
        found = figures_then([own, *slots.values()], at)
        if own.id not in found:
            raise NotThen("There was no such budget then", _opened(own.id))
        lines = {ledger: figures.entries for ledger, figures in found.items()}
        before, after = _beside(lines, at)
    exact = asked.at is None
    return PastBudget(
        view=_view(view, own, slots, found),
        as_of=AsOf(
            page=page,
            text=moments.of_event(seq) if exact and seq else moments.of_time(at),
            at=at,
            seq=seq if exact else None,
            last_seq=run.last_seq if run and exact else None,
            exact=exact,
            before=Beside(label="line before", text=moments.of_time(before)) if before else None,
            after=Beside(label="line after", text=moments.of_time(after)) if after else None,
            notes=tuple(refusals_gone(at, now=now)),
        ),
        lines=lines,
    )


def _instant(run: Run | None, asked: Moment, *, now: datetime) -> tuple[datetime, int | None]:
    if asked.at is not None:
        moments.check_has_come(asked.at, now)
        return asked.at, None
    if run is None:
        raise NotThen(
            "A shared budget has no numbered events", "Only a run has. Ask for a time.", 400
        )
    place = place_in(run, asked, now=now)
    return place.at, place.seq


type Ledgers = tuple[Ledger, dict[int, Ledger]]


def _ledgers(budgets: list[UUID]) -> dict[UUID, Ledgers]:
    """Of each its own, and those of its slots by their numbers, as they stand now."""
    names = ("id", "slot", "entries", "version", "cap", "spent", "reserved")
    own: dict[UUID, Ledger] = {}
    slots: dict[UUID, dict[int, Ledger]] = {}
    with connection.cursor() as cursor:
        cursor.execute(LEDGERS, {"ids": budgets})
        for budget, *columns in cursor.fetchall():
            told = dict(zip(names, columns, strict=True))
            slot = told.pop("slot")
            if slot is None:
                own[budget] = Ledger(**told)
            else:
                slots.setdefault(budget, {})[slot] = Ledger(**told)
    return {budget: (ledger, slots.get(budget, {})) for budget, ledger in own.items()}


def _then(views: list[BudgetView], at: datetime) -> dict[UUID, BudgetView]:
    """Those of these budgets that were open, as they were, by their ids."""
    found = _ledgers([view.budget.id for view in views])
    every = [one for own, slots in found.values() for one in (own, *slots.values())]
    figures = figures_then(every, at)
    return {
        view.budget.id: _view(view, *found[view.budget.id], figures)
        for view in views
        if view.budget.id in figures
    }


def _opened(budget: UUID) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT at FROM agentstate_budgetentry WHERE budget_id = %s AND n = 1", [budget]
        )
        row = cursor.fetchone()
    return f"It was opened at {moment(row[0])}." if row else "It has no line in its ledger."


def _view(
    view: BudgetView, own: Ledger, slots: dict[int, Ledger], found: dict[UUID, BudgetThen]
) -> BudgetView:
    """What it and its slots had together; the cap and the version are its own."""
    whole = found[own.id]
    there = {slot: found[ledger.id] for slot, ledger in slots.items() if ledger.id in found}
    spent = whole.spent + sum(one.spent for one in there.values())
    reserved = whole.reserved + sum(one.reserved for one in there.values())
    row = replace(
        view.budget,
        cap=whole.cap,
        spent=spent,
        reserved=reserved,
        version=whole.version,
        entries=whole.entries,
        slots=len(there) or 1,
        overdrawn=spent + reserved > whole.cap,
    )
    each = tuple(
        SlotView(slot=slot, cap=one.cap, spent=one.spent, reserved=one.reserved)
        for slot, one in there.items()
    )
    return replace(view, budget=row, slots=each)


def _beside(lines: dict[UUID, int], at: datetime) -> tuple[datetime | None, datetime | None]:
    asked: dict[str, Any] = {"ids": list(lines), "lines": list(lines.values()), "at": at}
    with connection.cursor() as cursor:
        cursor.execute(BESIDE, asked)
        rows = cursor.fetchall()
    before = [one for one, _ in rows if one is not None]
    after = [one for _, one in rows if one is not None]
    return max(before, default=None), min(after, default=None)


# --- its panels ----------------------------------------------------------------------------------


def read_burn(past: PastBudget) -> Burn:
    """What was spent of it in the last minutes before it."""
    since = past.at - forecast.OVER
    asked: dict[str, Any] = {
        "id": past.view.budget.id,
        "ids": list(past.lines),
        "lines": list(past.lines.values()),
        "since": since,
        "most": ledgers.BURN_LINES_MAX,
    }
    with connection.cursor() as cursor:
        cursor.execute(BURN, asked)
        spent, charges, cut_at, opened_at = cursor.fetchone()
    begun = max(at for at in (since, cut_at, opened_at) if at is not None)
    return Burn(spent=spent, charges=charges, over=past.at - begun)


def read_parents(past: PastBudget) -> list[Line]:
    """The budgets that were charged as well, the outermost first, without a forecast."""
    above: list[BudgetView] = []
    view = past.view
    while view.parent is not None and len(above) < LEVELS_MAX:
        view = reads.budget(run_key=None, name=view.parent)
        above.append(view)
    then = _then(above, past.at)
    there = [one.budget.id for one in above[::-1] if one.budget.id in then]
    return [Line(budget=then[budget].budget) for budget in there]


def read_held(past: PastBudget) -> Held:
    """What was held of it and below it, the dead ones first.

    Which worker gave no sign, and whose lease had lapsed without a successor, is not kept: such a
    hold counts as live.
    """
    asked: dict[str, Any] = {
        "id": past.view.budget.id,
        "at": past.at,
        "states": list(holds.STATES),
        "most": holds.READ_MAX,
    }
    with connection.cursor() as cursor:
        cursor.execute(HOLDS, asked)
        names = [column.name for column in cursor.description][:-2]
        rows = cursor.fetchall()
    shown = [dict(zip(names, row, strict=False)) for row in rows[: holds.SHOWN]]
    state = names.index("state")
    return Held(
        holds=[holds.Hold(**row, holder=None, lease_ends_at=None) for row in shown],
        sums={row[state]: holds.Sum(count=row[-2], amount=row[-1]) for row in rows},
    )


def read_below(past: PastBudget) -> Below:
    """Budgets directly below that were open then: of those that are used most now."""
    asked: dict[str, Any] = {"id": past.view.budget.id, "limit": CHILDREN_SHOWN}
    with connection.cursor() as cursor:
        cursor.execute(CHILDREN, asked)
        rows = [(key, rowsql.read_budget(columns)) for key, *columns in cursor.fetchall()]
    then = _then([BudgetView(budget=row) for _, row in rows], past.at)
    lines = [Line(run=key, budget=then[row.id].budget) for key, row in rows if row.id in then]
    lines.sort(key=lambda line: -line.budget.used)
    shared = [line for line in lines if line.run is None]
    runs = [line for line in lines if line.run is not None]
    is_cut = len(rows) == CHILDREN_SHOWN
    return Below(
        shared=shared, runs=runs, shared_sums=_sum(shared, is_cut), run_sums=_sum(runs, is_cut)
    )


def _sum(lines: list[Line], cut: bool) -> Sums:
    return Sums(
        count=len(lines),
        cap=sum(line.budget.cap for line in lines),
        spent=sum(line.budget.spent for line in lines),
        reserved=sum(line.budget.reserved for line in lines),
        cut=cut,
    )


def read_ledger(past: PastBudget, *, after: str = "", part: Window | None = None) -> ledgers.Ledger:
    """A page of the ledger, newest first, from the last line by then; of a part of the time alone.
    A place of later than that is that one. Raises cursors.BadCursor.
    """
    budget = past.view.budget.id
    if after and ledgers.read_place(budget, after)["at"] > past.at:
        after = ""
    if not after and len(past.lines) == 1:
        # Of one ledger the line is known: nothing that came later is read over.
        after = ledgers.write_place(budget, past.at, slot=-1, n=past.lines[budget] + 1)
    # Without a place it begins a day after `now`, whatever was written meanwhile.
    return ledgers.read_ledger(budget, now=past.at - timedelta(days=1), after=after, part=part)
