"""Derived copies made again from what they were derived from: the log, the ledger, the leases.

Never the other way round: events, ledger lines and leases are the truth and are not touched. What
`audit.verify` reports and this cannot mend is real damage, and stays reported.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import connection, transaction

from agentstate.store import audit
from agentstate.store.effects import SIGN_BEGUN, SIGN_ENDED
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
# Of a split budget and its slots the flag is that of the whole, set by _SPLIT.
_BUDGETS = """
UPDATE agentstate_budget b SET spent = l.spent, reserved = l.reserved, entries = l.entries,
    cap = coalesce(l.cap, b.cap), overdrawn = l.spent + l.reserved > coalesce(l.cap, b.cap)
        OR (b.overdrawn AND (b.slots > 1 OR b.slot_of_id IS NOT NULL))
FROM (
    SELECT budget_id, coalesce(sum(spent), 0) AS spent, coalesce(sum(reserved), 0) AS reserved,
        count(*) AS entries,
        (array_agg(cap ORDER BY n DESC) FILTER (WHERE cap IS NOT NULL))[1] AS cap
    FROM agentstate_budgetentry GROUP BY budget_id
) l
WHERE l.budget_id = b.id AND (b.spent, b.reserved, b.entries, b.overdrawn) IS DISTINCT FROM
    (l.spent, l.reserved, l.entries, l.spent + l.reserved > coalesce(l.cap, b.cap)
        OR (b.overdrawn AND (b.slots > 1 OR b.slot_of_id IS NOT NULL)))
    AND (%(run)s::text IS NULL OR b.run_id = (SELECT id FROM agentstate_run WHERE key = %(run)s))
"""
_SPLIT = """
UPDATE agentstate_budget b SET overdrawn = w.over OR b.spent + b.reserved > b.cap,
    slots = CASE WHEN b.slot_of_id IS NULL THEN w.slots ELSE 1 END
FROM (
    SELECT l.id, count(*)::int AS slots,
        l.spent + l.reserved + sum(s.spent + s.reserved) > l.cap AS over
    FROM agentstate_budget l JOIN agentstate_budget s ON s.slot_of_id = l.id GROUP BY l.id
) w
WHERE w.id = coalesce(b.slot_of_id, b.id) AND %(run)s::text IS NULL
    AND (b.overdrawn, b.slots) IS DISTINCT FROM (w.over OR b.spent + b.reserved > b.cap,
        CASE WHEN b.slot_of_id IS NULL THEN w.slots ELSE 1 END)
"""
_HOLDERS = """
UPDATE agentstate_run r SET owner = l.owner, token = l.token, holder = l.holder,
    last_token = greatest(r.last_token, l.token)
FROM agentstate_lease l
WHERE l.run_id = r.id AND (l.owner, l.token, l.holder) IS DISTINCT FROM (r.owner, r.token, r.holder)
    AND (%(run)s::text IS NULL OR r.key = %(run)s)
"""
_OPEN = f"""
SELECT b.run_id, b.seq FROM agentstate_event b
WHERE b.run_id = %(id)s AND starts_with(b.event_id, '{SIGN_BEGUN}') AND NOT EXISTS (
    SELECT FROM agentstate_event e
    WHERE e.run_id = b.run_id AND e.event_id = '{SIGN_ENDED}' || substr(b.event_id, 2))
"""
_OPEN_EFFECTS = (
    f"INSERT INTO agentstate_openeffect (run_id, seq) {_OPEN} ON CONFLICT DO NOTHING",
    f"DELETE FROM agentstate_openeffect WHERE run_id = %(id)s AND (run_id, seq) NOT IN ({_OPEN})",
)


def repair_projections(*, run: str | None = None) -> int:
    """Make heads, budgets, holders and open effects again where they differ; how many rows.

    One run at a time under its lock, so writers go on. Repeating it is harmless.
    """
    found = audit.verify(run=run)
    keys = {d.what for d in found if d.check in MENDED_BY_HEAD}
    mended = sum(_mend_head(key) for key in sorted(keys))
    keys = {d.what for d in found if d.check == audit.OPEN_EFFECTS}
    mended += sum(_mend_effects(key) for key in sorted(keys))
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in (_HOLDERS, _BUDGETS, _SPLIT):
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


def _mend_effects(key: str) -> int:
    mended = 0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK, [key])
        (run_id,) = cursor.fetchone()
        for statement in _OPEN_EFFECTS:
            cursor.execute(statement, {"id": run_id})
            mended += int(cursor.rowcount)
    return mended
