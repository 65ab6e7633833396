"""What was spent and reserved of budgets at an instant, by their ledgers alone.

A ledger's lines are numbered without a hole, in the order of their times. So the last line that had
been written is found by halving, and only the shorter side of it is added up: what was written
until then, or what has been written since and is taken off what stands now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A budget's figures as they were read; what is written later does not count."""

    id: UUID
    entries: int
    version: int
    cap: int
    spent: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetThen:
    """A budget after line `entries` of its ledger."""

    entries: int
    version: int
    cap: int
    spent: int
    reserved: int

    @property
    def overdrawn(self) -> bool:
        return self.spent + self.reserved > self.cap


LINES = """
WITH RECURSIVE ledgers AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(entries)s::bigint[]) AS l (id, entries)
), halved AS (
    SELECT id, 0::bigint AS low, entries AS high FROM ledgers
    UNION ALL
    SELECT h.id, CASE WHEN e.at <= %(at)s THEN m.middle ELSE h.low END,
        CASE WHEN e.at <= %(at)s THEN h.high ELSE m.middle - 1 END
    FROM halved h CROSS JOIN LATERAL (SELECT (h.low + h.high + 1) / 2 AS middle) AS m
    CROSS JOIN LATERAL (SELECT at FROM agentstate_budgetentry
        WHERE budget_id = h.id AND n = m.middle LIMIT 1) AS e
    WHERE h.low < h.high
)
SELECT id, low FROM halved WHERE low = high AND low > 0
"""
# `first` and `last`: the side that is added up; `line`: the last line that had been written.
FIGURES = """
SELECT l.id, coalesce(s.spent, 0), coalesce(s.reserved, 0), before.cap, since.n IS NOT NULL
FROM unnest(%(ids)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[], %(lines)s::bigint[])
    AS l (id, first, last, line)
CROSS JOIN LATERAL (
    SELECT sum(spent)::bigint AS spent, sum(reserved)::bigint AS reserved
    FROM agentstate_budgetentry WHERE budget_id = l.id AND n >= l.first AND n <= l.last
) AS s
LEFT JOIN LATERAL (
    SELECT n FROM agentstate_budgetentry
    WHERE budget_id = l.id AND n > l.line AND n <= l.last AND cap IS NOT NULL LIMIT 1
) AS since ON l.first > 1
LEFT JOIN LATERAL (
    SELECT cap FROM agentstate_budgetentry
    WHERE budget_id = l.id AND n <= l.line AND cap IS NOT NULL ORDER BY n DESC LIMIT 1
) AS before ON l.first = 1 OR since.n IS NOT NULL
"""


def lines_then(ledgers: Sequence[Ledger], at: datetime) -> dict[UUID, int]:
    """The last line of each that had been written then; those that had none are left out."""
    asked: dict[str, Any] = {
        "ids": [ledger.id for ledger in ledgers],
        "entries": [ledger.entries for ledger in ledgers],
        "at": at,
    }
    with connection.cursor() as cursor:
        cursor.execute(LINES, asked)
        return dict(cursor.fetchall())


def figures_then(ledgers: Sequence[Ledger], at: datetime) -> dict[UUID, BudgetThen]:
    """Each as it was then; those that were not open yet are left out."""
    lines = lines_then(ledgers, at)
    there = [ledger for ledger in ledgers if ledger.id in lines]
    sides = [_side(ledger, lines[ledger.id]) for ledger in there]
    asked: dict[str, Any] = {
        "ids": [ledger.id for ledger in there],
        "firsts": [first for first, _ in sides],
        "lasts": [last for _, last in sides],
        "lines": [lines[ledger.id] for ledger in there],
    }
    with connection.cursor() as cursor:
        cursor.execute(FIGURES, asked)
        found = {row[0]: row[1:] for row in cursor.fetchall()}
    return {ledger.id: _then(ledger, lines[ledger.id], *found[ledger.id]) for ledger in there}


def _side(ledger: Ledger, line: int) -> tuple[int, int]:
    """The first and last line of the shorter side; the one before when both are as long."""
    return (1, line) if line * 2 <= ledger.entries else (line + 1, ledger.entries)


def _then(
    ledger: Ledger, line: int, spent: int, reserved: int, cap: int | None, changed: bool
) -> BudgetThen:
    since = line * 2 > ledger.entries
    if since and not changed:
        cap = ledger.cap
    return BudgetThen(
        entries=line,
        version=ledger.version - (ledger.entries - line),
        cap=cap or 0,
        spent=ledger.spent - spent if since else spent,
        reserved=ledger.reserved - reserved if since else reserved,
    )
