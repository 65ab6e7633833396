"""How much a sweep has left: what was due a period before its pass began, and is due still.

For heartbeats; nothing is decided by it. What is not due for so long is no backlog: it is the next
pass's, or in the hands of somebody whose command is on its way, whom a sweep passes by. Counting
ends at COUNT_MAX, so that it costs as much when a sweep was away for a day.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection

COUNT_MAX = 10_000
_LIMIT = "LIMIT %(most)s) AS due"
LAPSED = f"""
SELECT count(*) FROM (SELECT FROM agentstate_lease l JOIN agentstate_run r ON r.id = l.run_id
    WHERE l.token IS NOT NULL AND l.expires_at <= %(before)s
        AND l.noted_token IS DISTINCT FROM l.token AND r.ended_at IS NULL {_LIMIT}
"""  # noqa: S608  our own
OVERDUE = f"""
SELECT count(*) FROM (SELECT FROM agentstate_run WHERE deadline_at <= %(before)s
    AND ended_at IS NULL AND deadline_policy IN ('fail', 'cancel') {_LIMIT}
"""  # noqa: S608  our own
DEAD_HOLDS = f"""
SELECT count(*) FROM (SELECT FROM agentstate_reservation h WHERE h.state = 'held'
    AND h.created_at <= %(before)s AND (h.expires_at <= %(before)s OR (h.token IS NOT NULL
        AND h.token IS DISTINCT FROM (SELECT r.token FROM agentstate_run r WHERE r.id = h.run_id)))
    {_LIMIT}
"""  # noqa: S608  our own
# The mover is nudged within a tenth of a second; what is older was left.
UNMOVED = f"""
SELECT count(*) FROM (SELECT FROM agentstate_outbox
    WHERE at <= agentstate_now() - interval '1 second' {_LIMIT}
"""  # noqa: S608  our own


def lapsed(before: datetime | None) -> int | None:
    """Leases that had run out and are not noted. before: `Pass.late_from`; None: unknown."""
    return _count(LAPSED, before)


def overdue(before: datetime | None) -> int | None:
    """Runs past their deadline, of a policy that ends them."""
    return _count(OVERDUE, before)


def dead_holds(before: datetime | None) -> int | None:
    """Holds on budgets whose time, or whose holder's token, is over."""
    return _count(DEAD_HOLDS, before)


def unmoved() -> int:
    """Changes that wait for their place in the feed."""
    with connection.cursor() as cursor:
        cursor.execute(UNMOVED, {"most": COUNT_MAX})
        return int(cursor.fetchone()[0])


def _count(statement: str, before: datetime | None) -> int | None:
    if before is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(statement, {"before": before, "most": COUNT_MAX})
        return int(cursor.fetchone()[0])
