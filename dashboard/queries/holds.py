"""What is held of budgets and not spent yet, by whom, and what gives back what dead workers hold.

A hold is dead for the store once its own time, or the lease that it was made under, is over: it is
given back by the next pass of a job, or by the first charge that needs the room. A worker may be
gone before that: its lease has run out and nobody took the unit, or it gives no sign any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store.upkeep import JOBS
from dashboard.queries.leases import SILENT

SHOWN = 100
BOARD_SHOWN = 50
# More than any fleet holds at a time; the sums of a board are of these.
READ_MAX = 20_000
SWEEP = "drop dead holds"
SWEEP_SECONDS = JOBS[SWEEP]
# The worst first: given back in a moment, then when somebody comes, then perhaps.
STATES = ("over", "overtaken", "lapsed", "silent", "live")
DEAD = ("over", "overtaken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An amount that is held.

    state: over (its own time is), overtaken (the lease that it was made under is over), lapsed
    (that lease has run out, and nobody took the unit), silent (no sign of its worker) or live.
    lease_ends_at: of the lease that it was made under, while that stands. holder: who has the run.
    """

    id: str
    amount: int
    unit: str
    actor: str
    token: int | None
    expires_at: datetime
    created_at: datetime
    budget: str
    budget_run: str | None
    run: str | None
    owner: str | None
    holder: str | None
    lease_ends_at: datetime | None
    state: str

    @property
    def dead(self) -> bool:
        return self.state in DEAD

    @property
    def who(self) -> str:
        return self.owner or self.actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    count: int = 0
    amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The worst first, and sums by state of all that there is, not only of those shown."""

    holds: list[Hold]
    sums: dict[str, Sum]

    @property
    def all(self) -> Sum:
        return _sum(self.sums.values())

    @property
    def dead(self) -> Sum:
        """What is given back as soon as somebody needs it."""
        return _sum(self.sums[state] for state in DEAD if state in self.sums)

    @property
    def waiting(self) -> Sum:
        """What workers hold that seem to be gone, and that nothing gives back yet."""
        return _sum(self.sums[state] for state in ("lapsed", "silent") if state in self.sums)


def _sum(sums: Iterable[Sum]) -> Sum:
    each = list(sums)
    return Sum(count=sum(one.count for one in each), amount=sum(one.amount for one in each))


_HELD = """
held AS (
    SELECT h.reservation_id, h.amount, b.unit, h.actor, h.token, h.expires_at, h.created_at,
        split_part(b.name, '#', 1) AS budget, o.key AS budget_run, r.key AS run, t.owner,
        r.owner AS holder, l.expires_at AS lease_ends_at,
        CASE WHEN h.expires_at <= %(now)s THEN 'over'
            WHEN h.token IS NOT NULL AND h.token IS DISTINCT FROM r.token THEN 'overtaken'
            WHEN l.expires_at <= %(now)s THEN 'lapsed'
            WHEN greatest(w.seen_at, l.renewed_at, l.acquired_at) < %(quiet)s
                AND w.seen_at IS NOT NULL THEN 'silent'
            ELSE 'live' END AS state
    FROM chosen h JOIN agentstate_budget b ON b.id = h.budget_id
    LEFT JOIN agentstate_run o ON o.id = b.run_id
    LEFT JOIN agentstate_run r ON r.id = h.run_id
    LEFT JOIN agentstate_leaseterm t ON t.token = h.token
    LEFT JOIN agentstate_lease l ON l.run_id = h.run_id AND l.token = h.token
    -- A row that an operator's drain made is no sign of the worker.
    LEFT JOIN agentstate_worker w ON w.name = t.owner AND w.principal NOT LIKE 'person:%%'
)
SELECT *, count(*) OVER (PARTITION BY state), sum(amount) OVER (PARTITION BY state)::bigint
FROM held ORDER BY array_position(%(states)s, state), amount DESC, created_at, reservation_id
"""
# A hold stands in the innermost budget and counts in every one above it: from the few budgets in
# which something is held upwards.
OF_BUDGET = f"""
WITH RECURSIVE up AS (
    SELECT b.id AS inner_id, b.id, b.parent_id, b.slot_of_id FROM agentstate_budget b
    WHERE b.id IN (SELECT budget_id FROM agentstate_reservation WHERE state = 'held')
    UNION ALL
    SELECT up.inner_id, p.id, p.parent_id, p.slot_of_id
    FROM up JOIN agentstate_budget p ON p.id = coalesce(up.parent_id, up.slot_of_id)
), chosen AS (
    SELECT * FROM agentstate_reservation
    WHERE state = 'held' AND budget_id IN (SELECT inner_id FROM up WHERE id = %(id)s)
    ORDER BY expires_at LIMIT %(most)s
), {_HELD}
"""  # noqa: S608  our own
OF_ALL = f"""
WITH chosen AS (
    SELECT * FROM agentstate_reservation WHERE state = 'held' ORDER BY expires_at LIMIT %(most)s
), {_HELD}
"""  # noqa: S608  our own


def read_held(budget: UUID, *, now: datetime) -> Held:
    """What is held of a budget and below it, what dead workers hold first."""
    return _read(OF_BUDGET, {"id": budget}, now=now, shown=SHOWN)


def read_stranded(*, now: datetime) -> Held:
    """What dead, overtaken and silent workers hold of any budget; the sums are of all holds."""
    found = _read(OF_ALL, {}, now=now, shown=BOARD_SHOWN)
    return Held(holds=[hold for hold in found.holds if hold.state != "live"], sums=found.sums)


def _read(statement: str, facts: dict[str, Any], *, now: datetime, shown: int) -> Held:
    facts |= {"now": now, "quiet": now - SILENT, "states": list(STATES), "most": READ_MAX}
    with connection.cursor() as cursor:
        cursor.execute(statement, facts)
        names = [column.name for column in cursor.description][:-2]
        rows = cursor.fetchall()
    return Held(
        holds=[_hold(dict(zip(names, row, strict=False))) for row in rows[:shown]],
        sums={row[len(names) - 1]: Sum(count=row[-2], amount=row[-1]) for row in rows},
    )


def _hold(row: dict[str, Any]) -> Hold:
    return Hold(id=row.pop("reservation_id"), **row)
