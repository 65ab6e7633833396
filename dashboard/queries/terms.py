"""Terms of ownership, and how they were renewed. No end is `infinity` there and None here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from dashboard.queries import together
from dashboard.queries.together import Read


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

    @property
    def renewals_at(self) -> list[datetime]:
        """When it was renewed, as far as that is kept: to the millisecond, the last forty."""
        return [self.starts_at + timedelta(milliseconds=ms) for ms in self.renewed_ms]


NEWEST = """
SELECT t.token, t.unit, t.owner, lower(t.held), nullif(upper(t.held), 'infinity'),
    coalesce(l.renewals, t.renewals), coalesce(l.renewed_ms, t.renewed_ms),
    coalesce(l.ttl_seconds, t.ttl_seconds), t.ended, t.ended_by, t.reason
FROM agentstate_leaseterm t
LEFT JOIN agentstate_lease l ON l.unit = t.unit AND l.token = t.token AND t.ended IS NULL
WHERE t.unit = %(unit)s AND (%(until)s::timestamptz IS NULL OR lower(t.held) <= %(until)s)
    AND (%(last_token)s::bigint IS NULL OR t.token <= %(last_token)s)
ORDER BY t.token DESC LIMIT %(limit)s
"""


def newest_terms(
    unit: str, *, limit: int, until: datetime | None = None, last_token: int | None = None
) -> list[Term]:
    """The last terms of a unit, the newest first: of those that had begun at `until`, with this
    token at most."""
    asked: dict[str, Any] = {
        "unit": unit, "limit": limit, "until": until, "last_token": last_token,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(NEWEST, asked)
        return [_term(row) for row in cursor.fetchall()]


def read_newest(unit: str, *, limit: int) -> Read[list[Term]]:
    """All of them, to be read together with something else."""
    asked = {"unit": unit, "limit": limit, "until": None, "last_token": None}
    return together.then(together.sql_of(NEWEST, asked, columns=11), _terms_of)


def _terms_of(rows: list[list[Any]]) -> list[Term]:
    moment = together.moment
    return [_term((*row[:3], moment(row[3]), moment(row[4]), *row[5:])) for row in rows]


def as_they_were(terms: list[Term], at: datetime, *, open_token: int | None) -> list[Term]:
    """Terms, the newest first, as they stood at an instant; each had begun by then.

    open_token: of the one that had not ended yet: its end and what it renewed later are left out.
    """
    return [_as_it_was(term, at) if term.token == open_token else term for term in terms]


def _as_it_was(term: Term, at: datetime) -> Term:
    done = [ms for ms, on in zip(term.renewed_ms, term.renewals_at, strict=True) if on <= at]
    return replace(
        term,
        ends_at=None,
        ended=None,
        ended_by=None,
        reason=None,
        renewals=term.renewals - (len(term.renewed_ms) - len(done)),
        renewed_ms=done,
    )


def _term(row: tuple[Any, ...]) -> Term:
    names = ("token", "unit", "owner", "starts_at", "ends_at", "renewals", "renewed_ms")
    more = ("ttl_seconds", "ended", "ended_by", "reason")
    return Term(**dict(zip((*names, *more), row, strict=True)))
