"""Reads what the store holds into a Final, straight from its tables, in one snapshot."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg

from bench.torture.final import Budget, Entry, EventLine, FeedRow, Final, Head, Term

RUNS = "SELECT key, version, last_seq, status, token, counters::text FROM agentstate_run"
# The mark is wherever the call that wrote the event could put one (load.py).
EVENTS = """
SELECT r.key, e.seq, e.version, e.type, e.origin, e.token, e.add::text,
    CASE
        WHEN e.origin = 'worker' THEN e.data ->> 'op'
        WHEN e.type = 'run.created' THEN e.data -> 'tags' ->> 0
        WHEN e.type = 'run.changed' THEN e.data ->> 'notes'
        WHEN e.type = 'lease.acquired' THEN substring(e.data ->> 'owner' FROM '[^~]*$')
        WHEN e.type IN ('lease.released', 'lease.reclaimed') THEN 'token ' || (e.data ->> 'token')
        WHEN e.data ->> 'reason' LIKE 'op %' THEN substring(e.data ->> 'reason' FROM 4)
    END,
    CASE WHEN e.type = 'run.changed' THEN e.data -> 'attrs' ->> 'reg' END,
    CASE WHEN e.type = 'run.created' THEN e.data ->> 'status'
        WHEN e.origin = 'store' AND substring(e.type FROM 5) IN
            ('pending', 'running', 'paused', 'completed', 'failed', 'cancelled')
        THEN substring(e.type FROM 5) END
FROM agentstate_event e JOIN agentstate_run r ON r.id = e.run_id ORDER BY e.run_id, e.seq
"""
TERMS = """
SELECT unit, token, owner, lower(held), nullif(upper(held), 'infinity'), ended
FROM agentstate_leaseterm ORDER BY unit, token
"""
BUDGETS = """
SELECT b.id, coalesce(r.key, '') || '/' || b.name, b.cap, b.spent, b.reserved, b.version,
    b.overdrawn, '/' || p.name, '/' || s.name
FROM agentstate_budget b LEFT JOIN agentstate_run r ON r.id = b.run_id
LEFT JOIN agentstate_budget p ON p.id = b.parent_id
LEFT JOIN agentstate_budget s ON s.id = b.slot_of_id
"""
ENTRIES = """
SELECT budget_id, n, kind, spent, reserved, cap,
    CASE WHEN kind IN ('spend', 'cap') THEN note ELSE coalesce(entry_id, '') END,
    overdrawn, token, at
FROM agentstate_budgetentry ORDER BY budget_id, n
"""
HOLDS = "SELECT budget_id, reservation_id, state FROM agentstate_reservation"
FEED = """
SELECT position, run_key, first_seq, last_seq, version FROM agentstate_feed ORDER BY position
"""
CONSUMERS = "SELECT name, position FROM agentstate_feedconsumer"


def read_store(conninfo: str) -> Final:
    """Everything of the runs, units, budgets, the feed and its consumers."""
    final = Final()
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        _read_runs(cursor, final)
        for unit, token, owner, starts, ends, ended in cursor.execute(TERMS).fetchall():
            term = Term(
                token=token,
                owner=owner,
                starts_at=starts.timestamp(),
                ends_at=_seconds(ends),
                ended=ended,
            )
            final.terms.setdefault(unit, []).append(term)
        _read_budgets(cursor, final)
        for position, run, first, last, version in cursor.execute(FEED).fetchall():
            final.feed.append(
                FeedRow(position=position, run=run, first_seq=first, last_seq=last, version=version)
            )
        final.consumers = dict(cursor.execute(CONSUMERS).fetchall())
    return final


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _read_runs(cursor: psycopg.Cursor[Any], final: Final) -> None:
    for key, version, last_seq, status, token, counters in cursor.execute(RUNS).fetchall():
        final.heads[key] = Head(
            version=version,
            last_seq=last_seq,
            status=status,
            token=token,
            counters=json.loads(counters),
        )
        final.events[key] = []
    for key, seq, version, kind, origin, token, add, mark, cas, status in cursor.execute(EVENTS):
        line = EventLine(
            seq=seq,
            version=version,
            type=kind,
            origin=origin,
            mark=mark or "",
            token=token,
            cas=cas,
            status=status,
            add=json.loads(add) if add else {},
        )
        final.events[key].append(line)


def _read_budgets(cursor: psycopg.Cursor[Any], final: Final) -> None:
    by_id: dict[Any, Budget] = {}
    for id, name, cap, spent, reserved, version, overdrawn, parent, slot_of in cursor.execute(
        BUDGETS
    ).fetchall():
        by_id[id] = final.budgets[name] = Budget(
            cap=cap,
            spent=spent,
            reserved=reserved,
            version=version,
            overdrawn=overdrawn,
            parent=parent,
            slot_of=slot_of,
        )
    for id, n, kind, spent, reserved, cap, mark, overdrawn, token, at in cursor.execute(ENTRIES):
        entry = Entry(
            n=n,
            kind=kind,
            spent=spent,
            reserved=reserved,
            cap=cap,
            mark=mark,
            overdrawn=overdrawn,
            token=token,
            at=at.timestamp(),
        )
        by_id[id].entries.append(entry)
    for id, hold, state in cursor.execute(HOLDS):
        by_id[id].holds[hold] = state
