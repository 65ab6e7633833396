"""Terms of ownership. A range without an end is `infinity` in the database, and None here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term: half-open, and none of a unit overlaps another. ended None: it is still open."""

    token: int
    unit: str
    owner: str
    starts_at: datetime
    ends_at: datetime | None
    renewals: int
    ended: str | None
    ended_by: str | None
    reason: str | None


NEWEST = """
SELECT token, unit, owner, lower(held), nullif(upper(held), 'infinity'), renewals, ended, ended_by,
    reason
FROM agentstate_leaseterm WHERE unit = %s ORDER BY token DESC LIMIT %s
"""


def newest_terms(unit: str, *, limit: int) -> list[Term]:
    """The last terms of a unit, the newest first."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST, [unit, limit])
        return [_term(row) for row in cursor.fetchall()]


def _term(row: tuple[Any, ...]) -> Term:
    token, unit, owner, starts_at, ends_at, renewals, ended, ended_by, reason = row
    return Term(
        token=token,
        unit=unit,
        owner=owner,
        starts_at=starts_at,
        ends_at=ends_at,
        renewals=renewals,
        ended=ended,
        ended_by=ended_by,
        reason=reason,
    )
