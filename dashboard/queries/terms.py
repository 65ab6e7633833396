"""Terms of ownership, and how they were renewed. No end is `infinity` there and None here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term: half-open, and none of a unit overlaps another. ended None: it is still open.

    renewed_ms: its last renewals, since it began. ttl_seconds None: nobody knows it any more.
    """

    token: int
    unit: str
    owner: str
    starts_at: datetime
    ends_at: datetime | None
    renewals: int
    renewed_ms: list[int]
    ttl_seconds: int | None
    ended: str | None
    ended_by: str | None
    reason: str | None


NEWEST = """
SELECT t.token, t.unit, t.owner, lower(t.held), nullif(upper(t.held), 'infinity'),
    coalesce(l.renewals, t.renewals), coalesce(l.renewed_ms, t.renewed_ms),
    coalesce(l.ttl_seconds, t.ttl_seconds), t.ended, t.ended_by, t.reason
FROM agentstate_leaseterm t
LEFT JOIN agentstate_lease l ON l.unit = t.unit AND l.token = t.token AND t.ended IS NULL
WHERE t.unit = %s ORDER BY t.token DESC LIMIT %s
"""


def newest_terms(unit: str, *, limit: int) -> list[Term]:
    """The last terms of a unit, the newest first."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST, [unit, limit])
        return [_term(row) for row in cursor.fetchall()]


def _term(row: tuple[Any, ...]) -> Term:
    names = ("token", "unit", "owner", "starts_at", "ends_at", "renewals", "renewed_ms")
    more = ("ttl_seconds", "ended", "ended_by", "reason")
    return Term(**dict(zip((*names, *more), row, strict=True)))
