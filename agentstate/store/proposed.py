"""What was proposed and what became of it, read from the audit (see proposals.py).

One look at the index of the newest rows: at most an hour of what operators and keys did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store.proposals import (
    DECLINED,
    OPEN_SHOWN,
    PROPOSAL_SECONDS,
    PROPOSED,
    ProposalRow,
    Proposed,
)

READ = """
SELECT a.action, a.after->>'proposal', a.object, a.actor, a.at, a.expected->>'owner',
    (a.expected->>'token')::bigint, a.reason
FROM agentstate_operatoraction a
WHERE a.at > agentstate_now() - make_interval(secs => %(seconds)s)
    AND a.action IN (%(proposed)s, %(declined)s)
    AND (%(units)s::text[] IS NULL OR a.object = ANY(%(units)s))
ORDER BY a.at, a.id
"""
COUNT = """
SELECT actor, count(*) FROM agentstate_operatoraction
WHERE at > agentstate_now() - make_interval(secs => %(seconds)s)
    AND action = %(proposed)s AND actor = ANY(%(makers)s)
GROUP BY actor
"""
HOLDERS = """
SELECT agentstate_now(), unit, owner, token, coalesce(expires_at > agentstate_now(), false)
FROM agentstate_lease WHERE unit = ANY(%s)
"""
_ASKED = {"seconds": PROPOSAL_SECONDS, "proposed": PROPOSED, "declined": DECLINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProposal:
    """A proposal whose unit is still with the holder that was seen. live: by its lease, now."""

    row: ProposalRow
    live: bool
    now: datetime


def read(cursor: Any, *, units: Collection[str], makers: Collection[str] = ()) -> Proposed:
    """Of these units, for a decision; the caller has them locked."""
    by_unit: dict[str, list[ProposalRow]] = defaultdict(list)
    for row in _read(cursor, units):
        by_unit[row.unit].append(row)
    made: Counter[str] = Counter()
    if makers:
        cursor.execute(COUNT, _ASKED | {"makers": sorted(makers)})
        made.update(dict(cursor.fetchall()))
    return Proposed(by_unit=dict(by_unit), made=made)


def read_open(*, unit: str | None = None, limit: int = OPEN_SHOWN) -> list[OpenProposal]:
    """Those that a person can still confirm or decline, the newest first."""
    with connection.cursor() as cursor:
        rows = [row for row in _read(cursor, unit and [unit]) if row.declined_by is None]
        if not rows:
            return []
        cursor.execute(HOLDERS, [sorted({row.unit for row in rows})])
        held = {name: (now, owner, token, live) for now, name, owner, token, live in cursor}
    found = [
        OpenProposal(row=row, live=held[row.unit][3], now=held[row.unit][0])
        for row in rows
        if row.unit in held and held[row.unit][1:3] == (row.owner, row.token)
    ]
    return found[::-1][:limit]


def find(unit: str, proposal: UUID) -> ProposalRow | None:
    """One that is not too old, whatever became of it."""
    with connection.cursor() as cursor:
        return next((row for row in _read(cursor, [unit]) if row.id == proposal), None)


def _read(cursor: Any, units: Collection[str] | None) -> list[ProposalRow]:
    """The oldest first, each with who declined it."""
    cursor.execute(READ, _ASKED | {"units": None if units is None else sorted(units)})
    rows: dict[UUID, ProposalRow] = {}
    for action, text, unit, actor, at, owner, token, reason in cursor.fetchall():
        number = UUID(text)
        if action == PROPOSED:
            rows[number] = ProposalRow(
                id=number, unit=unit, by=actor, at=at, owner=owner, token=token, reason=reason
            )
        elif number in rows:
            rows[number] = replace(rows[number], declined_by=actor, declined_reason=reason)
    return list(rows.values())
