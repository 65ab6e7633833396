"""What was proposed and what became of it, read from the audit (see proposals.py).

One look at the index of the newest rows: at most an hour of what operators and keys did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store.proposals import (
    DECLINED,
    PROPOSAL_SECONDS,
    PROPOSED,
    ProposalRow,
    Proposed,
)

READ = """
SELECT a.action, a.after->>'proposal', a.object, a.actor, a.at, a.expected->>'owner',
    (a.expected->>'token')::bigint, a.reason,
    l.owner, l.token, coalesce(l.expires_at > agentstate_now(), false)
FROM agentstate_operatoraction a LEFT JOIN agentstate_lease l ON l.unit = a.object
WHERE a.at > agentstate_now() - make_interval(secs => %(seconds)s)
    AND a.action IN (%(proposed)s, %(declined)s)
    AND (%(units)s::text[] IS NULL OR a.object = ANY(%(units)s::text[]))
ORDER BY a.at, a.id
"""
COLUMNS = 11
OF_ALL: dict[str, Any] = {
    "seconds": PROPOSAL_SECONDS,
    "proposed": PROPOSED,
    "declined": DECLINED,
    "units": None,
}
COUNT = """
SELECT actor, count(*) FROM agentstate_operatoraction
WHERE at > agentstate_now() - make_interval(secs => %(seconds)s)
    AND action = %(proposed)s AND actor = ANY(%(makers)s)
GROUP BY actor
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProposal:
    """A proposal whose unit is still with the holder that was seen. live: by its lease, now."""

    row: ProposalRow
    live: bool


def read(cursor: Any, *, units: Collection[str], makers: Collection[str] = ()) -> Proposed:
    """Of these units, for a decision; the caller has them locked."""
    by_unit: dict[str, list[ProposalRow]] = defaultdict(list)
    for row in _read(cursor, units):
        by_unit[row.unit].append(row)
    made: Counter[str] = Counter()
    if makers:
        cursor.execute(COUNT, OF_ALL | {"makers": sorted(makers)})
        made.update(dict(cursor.fetchall()))
    return Proposed(by_unit=dict(by_unit), made=made)


def read_open() -> list[OpenProposal]:
    """Those that a person can still confirm or decline, the newest first: all of them, which is at
    most PROPOSALS_MAX of each key."""
    with connection.cursor() as cursor:
        cursor.execute(READ, OF_ALL)
        return open_of(cursor.fetchall())


def open_of(found: Iterable[Sequence[Any]]) -> list[OpenProposal]:
    """The same, of the rows that READ found; a moment in them may be its text."""
    told = list(found)
    holders = {unit: (owner, token, live) for _, _, unit, *_, owner, token, live in told}
    still = [
        OpenProposal(row=row, live=holders[row.unit][2])
        for row in _rows(told)
        if row.declined_by is None and holders[row.unit][:2] == (row.owner, row.token)
    ]
    return still[::-1]


def find(unit: str, proposal: UUID) -> ProposalRow | None:
    """One that is not too old, whatever became of it."""
    with connection.cursor() as cursor:
        return next((row for row in _read(cursor, [unit]) if row.id == proposal), None)


def _read(cursor: Any, units: Collection[str]) -> list[ProposalRow]:
    cursor.execute(READ, OF_ALL | {"units": sorted(units)})
    return _rows(cursor.fetchall())


def _rows(found: Iterable[Sequence[Any]]) -> list[ProposalRow]:
    """The oldest first, each with who declined it."""
    rows: dict[UUID, ProposalRow] = {}
    for action, text, unit, actor, at, owner, token, reason, *_ in found:
        number = UUID(text)
        if action == PROPOSED:
            rows[number] = ProposalRow(
                id=number,
                unit=unit,
                by=actor,
                at=at if isinstance(at, datetime) else datetime.fromisoformat(at),
                owner=owner,
                token=token,
                reason=reason,
            )
        elif number in rows:
            rows[number] = replace(rows[number], declined_by=actor, declined_reason=reason)
    return list(rows.values())
