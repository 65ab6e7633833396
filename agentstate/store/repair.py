"""Derived copies made again from what they were derived from: the log, the ledger, the leases.

Never the other way round: events, ledger lines and leases are the truth and are not touched. What
`audit.verify` reports and this cannot mend is real damage, and stays reported.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import connection, transaction

from agentstate.store import audit
from agentstate.store.rules.history import counters_after, status_after

MENDED_BY_HEAD = frozenset(
    {"version of the last event", "status from the events", "counters from the events"}
)
_LOCK = "SELECT id FROM agentstate_run WHERE key = %s FOR NO KEY UPDATE"
_EVENTS = """
SELECT type, origin, data::text, add::text, seq, version, at FROM agentstate_event
WHERE run_id = %s ORDER BY seq
"""
_HEAD = """
UPDATE agentstate_run SET status = %s, counters = %s::jsonb, last_seq = %s, version = %s,
    updated_at = %s
WHERE id = %s
"""
_BUDGETS = """
UPDATE agentstate_budget b SET spent = l.spent, reserved = l.reserved, entries = l.entries,
    cap = coalesce(l.cap, b.cap), overdrawn = l.spent + l.reserved > coalesce(l.cap, b.cap)
FROM (
    SELECT budget_id, coalesce(sum(spent), 0) AS spent, coalesce(sum(reserved), 0) AS reserved,
        count(*) AS entries,
        (array_agg(cap ORDER BY n DESC) FILTER (WHERE cap IS NOT NULL))[1] AS cap
    FROM agentstate_budgetentry GROUP BY budget_id
) l
WHERE l.budget_id = b.id AND (b.spent, b.reserved, b.entries, b.overdrawn) IS DISTINCT FROM
    (l.spent, l.reserved, l.entries, l.spent + l.reserved > coalesce(l.cap, b.cap))
    AND (%(run)s::text IS NULL OR b.run_id = (SELECT id FROM agentstate_run WHERE key = %(run)s))
"""
_HOLDERS = """
UPDATE agentstate_run r SET owner = l.owner, token = l.token, holder = l.holder,
    last_token = greatest(r.last_token, l.token)
FROM agentstate_lease l
WHERE l.run_id = r.id AND (l.owner, l.token, l.holder) IS DISTINCT FROM (r.owner, r.token, r.holder)
    AND (%(run)s::text IS NULL OR r.key = %(run)s)
"""


def repair_projections(*, run: str | None = None) -> int:
    """Make heads, budgets and holders again where they differ; how many rows were mended.

    One run at a time under its lock, so writers go on. Repeating it is harmless.
    """
    keys = {d.what for d in audit.verify(run=run) if d.check in MENDED_BY_HEAD}
    mended = sum(_mend_head(key) for key in sorted(keys))
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in (_HOLDERS, _BUDGETS):
            cursor.execute(statement, {"run": run})
            mended += int(cursor.rowcount)
    return mended


def _mend_head(key: str) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK, [key])
        (run_id,) = cursor.fetchone()
        cursor.execute(_EVENTS, [run_id])
        events: list[tuple[Any, ...]] = cursor.fetchall()
        status = status_after((e[0], e[1], e[2]) for e in events)
        if not events or status is None:
            return 0
        counters = counters_after(e[3] for e in events)
        *_, seq, version, at = events[-1]
        cursor.execute(_HEAD, [status, json.dumps(counters), seq, version, at, run_id])
        return 1
