"""Checks that re-derive everything from the events and the ledger, and report each difference.

What they look for must never happen; `./run demo --seconds`, `GET …/verify` and the tests ask them.
Read-only, one statement per check, so each is one snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from agentstate.store import distribution
from agentstate.store.effects import SIGN_BEGUN, SIGN_ENDED
from agentstate.store.errors import NotFound, RunExpired
from agentstate.store.rules.history import counters_after, status_after
from agentstate.store.schema.releases import has_restores, without_restores


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that does not add up. check: its name; what: run, unit or budget."""

    check: str
    what: str
    expected: Any
    found: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdraft:
    """A budget over its cap, with the ledger line that took it there (allowed, and flagged)."""

    budget: str
    cap: int
    used: int
    entry: int | None
    actor: str | None


# A run's events are 1, 2, 3 … last_seq; the last one carries the run's version.
_SEQUENCES = """
SELECT r.key, 'numbers 1 to ' || r.last_seq, 'numbers ' || coalesce(min(e.seq)::text, 'none')
        || ' to ' || coalesce(max(e.seq)::text, 'none') || ', ' || count(e.seq) || ' of them'
FROM agentstate_run r LEFT JOIN agentstate_event e ON e.run_id = r.id
WHERE (%(run)s::text IS NULL OR r.key = %(run)s)
GROUP BY r.id, r.key, r.last_seq HAVING count(e.seq) <> r.last_seq
    OR max(e.seq) IS DISTINCT FROM r.last_seq OR min(e.seq) IS DISTINCT FROM 1
"""
_VERSIONS = """
SELECT r.key, r.version, e.version FROM agentstate_run r
JOIN agentstate_event e ON e.run_id = r.id AND e.seq = r.last_seq
WHERE e.version <> r.version AND (%(run)s::text IS NULL OR r.key = %(run)s)
"""
_LEDGERS = """
SELECT coalesce(r.key || '/', '') || b.name,
    'spent ' || coalesce(sum(e.spent), 0) || ', reserved ' || coalesce(sum(e.reserved), 0)
        || ', lines ' || count(e.n),
    'spent ' || b.spent || ', reserved ' || b.reserved || ', lines ' || b.entries
FROM agentstate_budget b LEFT JOIN agentstate_budgetentry e ON e.budget_id = b.id
LEFT JOIN agentstate_run r ON r.id = b.run_id
WHERE %(run)s::text IS NULL OR r.key = %(run)s
GROUP BY b.id, r.key
HAVING coalesce(sum(e.spent), 0) <> b.spent OR coalesce(sum(e.reserved), 0) <> b.reserved
    OR count(e.n) <> b.entries OR max(e.n) IS DISTINCT FROM nullif(b.entries, 0)
"""
_CAPS = """
SELECT coalesce(r.key || '/', '') || b.name, 'at most ' || b.cap, b.spent + b.reserved
FROM agentstate_budget b LEFT JOIN agentstate_run r ON r.id = b.run_id
WHERE b.spent + b.reserved > b.cap AND NOT b.overdrawn
    AND (%(run)s::text IS NULL OR r.key = %(run)s)
"""
# A split budget: what it has used itself and the caps of its slots are its cap, never more; when
# more is used than that, no slot has room and every row says so.
_SLOTS = """
SELECT b.name, 'caps of ' || greatest(b.cap, b.spent + b.reserved + s.used) || ' in ' || b.slots
        || ' slots, overdrawn in all or none',
    'caps of ' || b.spent + b.reserved + s.cap || ' in ' || s.slots || ' slots, overdrawn in '
        || s.flagged
FROM agentstate_budget b CROSS JOIN LATERAL (
    SELECT count(*) AS slots, coalesce(sum(cap), 0) AS cap, coalesce(sum(spent + reserved), 0)
        AS used, count(*) FILTER (WHERE overdrawn) AS flagged
    FROM agentstate_budget WHERE slot_of_id = b.id
) s
WHERE %(run)s::text IS NULL AND (b.slots > 1 OR s.slots > 0) AND (s.slots <> b.slots
    OR b.spent + b.reserved + s.cap <> greatest(b.cap, b.spent + b.reserved + s.used)
    OR b.overdrawn <> (b.spent + b.reserved + s.used > b.cap)
    OR s.flagged <> CASE WHEN b.overdrawn THEN s.slots ELSE 0 END)
"""
_TERMS = """
SELECT a.unit, 'terms that do not overlap', 'tokens ' || a.token || ' and ' || b.token
FROM agentstate_leaseterm a JOIN agentstate_leaseterm b
    ON b.unit = a.unit AND b.token > a.token AND b.held && a.held
WHERE %(run)s::text IS NULL OR a.unit = 'run:' || %(run)s
"""
# Tokens only grow: a later term of a unit has a higher one.
_TOKENS = """
SELECT unit, 'growing tokens', before || ' before ' || token FROM (
    SELECT unit, token, lag(token) OVER (PARTITION BY unit ORDER BY lower(held)) AS before
    FROM agentstate_leaseterm WHERE %(run)s::text IS NULL OR unit = 'run:' || %(run)s) t
WHERE before > token
"""
# Written under a token: only after the acquire that gave it, and before whatever ended it.
_FENCES = """
SELECT r.key, 'event ' || e.seq || ' under the token of event '
        || coalesce(e.last_lease_event::text, '(none)'),
    'token ' || e.token || ' after ' || coalesce(a.type, 'no lease') || ' ' || coalesce(a.token, 0)
FROM (
    SELECT run_id, seq, type, origin, token, max(seq) FILTER (
            WHERE origin = 'store'
            AND type IN ('lease.acquired', 'lease.released', 'lease.reclaimed'))
        OVER (PARTITION BY run_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        AS last_lease_event
    FROM agentstate_event
    WHERE %(run)s::text IS NULL OR run_id = (SELECT id FROM agentstate_run WHERE key = %(run)s)
) e JOIN agentstate_run r ON r.id = e.run_id
LEFT JOIN agentstate_event a ON a.run_id = e.run_id AND a.seq = e.last_lease_event
WHERE e.token IS NOT NULL AND NOT (e.origin = 'store' AND e.type = 'lease.acquired')
    AND (a.type IS DISTINCT FROM 'lease.acquired' OR a.token <> e.token)
"""
_COPIES = """
SELECT r.key, 'owner ' || coalesce(l.owner, 'nobody') || ', token ' || coalesce(l.token::text, '-'),
    'owner ' || coalesce(r.owner, 'nobody') || ', token ' || coalesce(r.token::text, '-')
FROM agentstate_run r LEFT JOIN agentstate_lease l ON l.run_id = r.id
WHERE (l.token IS DISTINCT FROM r.token OR l.owner IS DISTINCT FROM r.owner)
    AND (%(run)s::text IS NULL OR r.key = %(run)s)
"""
# Begun and never ended, as the log has it, and as it was kept for the next holder.
_EFFECTS = f"""
SELECT r.key,
    CASE WHEN l.seq IS NULL THEN 'no' ELSE 'an' END || ' open effect of event '
        || coalesce(l.seq, o.seq),
    CASE WHEN o.seq IS NULL THEN 'none' ELSE 'one' END
FROM (
    SELECT b.run_id, b.seq FROM agentstate_event b
    WHERE starts_with(b.event_id, '{SIGN_BEGUN}') AND NOT EXISTS (
        SELECT FROM agentstate_event e
        WHERE e.run_id = b.run_id AND e.event_id = '{SIGN_ENDED}' || substr(b.event_id, 2))
    AND (%(run)s::text IS NULL OR b.run_id = (SELECT id FROM agentstate_run WHERE key = %(run)s))
) l FULL JOIN (
    SELECT run_id, seq FROM agentstate_openeffect
    WHERE %(run)s::text IS NULL OR run_id = (SELECT id FROM agentstate_run WHERE key = %(run)s)
) o ON o.run_id = l.run_id AND o.seq = l.seq
JOIN agentstate_run r ON r.id = coalesce(l.run_id, o.run_id)
WHERE l.seq IS NULL OR o.seq IS NULL
"""
_FEED = """
SELECT 'feed', 'positions 1 to ' || max(position), count(*) || ' of them, from ' || min(position)
FROM agentstate_feed HAVING count(*) <> max(position) - min(position) + 1 - coalesce((
    SELECT sum(r.feed_begins - r.feed_after) FROM agentstate_restore r
    WHERE r.feed_after >= min(position) AND r.feed_begins < max(position)), 0)
"""
_FEED_ORDER = """
SELECT run_key, 'after ' || before, 'starts at ' || first_seq FROM (
    SELECT run_key, run_id, first_seq, lag(last_seq) OVER (PARTITION BY run_id ORDER BY position)
        AS before FROM agentstate_feed) f
WHERE before IS NOT NULL AND first_seq <> before + 1
"""

# How the checks name one run. Citus does not find a run's worker by a look into another table.
_ID_OF = "(SELECT id FROM agentstate_run WHERE key = %(run)s)"
_EXPIRED = """
SELECT coalesce(expires_at <= agentstate_now() AND NOT hold, false) FROM agentstate_run
WHERE key = %s
"""

OPEN_EFFECTS = "open effects are those of the log"
CHECKS: dict[str, str] = {
    "numbers without a hole": _SEQUENCES,
    "version of the last event": _VERSIONS,
    "spent is the sum of the ledger": _LEDGERS,
    "within the cap, or flagged": _CAPS,
    "caps of the slots add up": _SLOTS,
    "terms never overlap": _TERMS,
    "tokens only grow": _TOKENS,
    "nothing from an overtaken worker": _FENCES,
    "run and lease agree on the holder": _COPIES,
    OPEN_EFFECTS: _EFFECTS,
}
HOLES_OF_FEED = "feed without a hole"
FEED_CHECKS: dict[str, str] = {
    HOLES_OF_FEED: _FEED,
    "feed in every run's order": _FEED_ORDER,
}


def verify(*, run: str | None = None) -> list[Difference]:
    """Every difference that the checks find, for one run or for all. Empty is good.

    One snapshot for all checks. Raises NotFound for an unknown run.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return differences(run=run)


def differences(*, run: str | None = None) -> list[Difference]:
    """The same, in whatever transaction the caller is."""
    checks = CHECKS if run is not None else CHECKS | FEED_CHECKS
    found: list[Difference] = []
    with connection.cursor() as cursor:
        if run is not None:
            cursor.execute(_EXPIRED, [run])
            there = cursor.fetchone()
            if there is None:
                raise NotFound(f"no run {run}", run=run)
            if there[0]:
                raise RunExpired(f"the run {run} is past its retention", run=run)
        run_id = _id_of(cursor, run)
        for name, statement in checks.items():
            if run_id is not None:
                statement = statement.replace(_ID_OF, "%(id)s::uuid")
            if name == HOLES_OF_FEED and not has_restores():
                statement = without_restores(statement)
            cursor.execute(statement, {"run": run, "id": run_id})
            found += [
                Difference(check=name, what=what, expected=expected, found=got)
                for what, expected, got in cursor.fetchall()
            ]
        found += _heads(cursor, run)
    return found


def verify_run(key: str) -> list[Difference]:
    """`verify` for one run."""
    return verify(run=key)


def _id_of(cursor: Any, run: str | None) -> UUID | None:
    """The run's id, where a distributed log needs it named."""
    if run is None or not distribution.is_distributed():
        return None
    cursor.execute(f"SELECT {_ID_OF}", {"run": run})
    found: UUID | None = cursor.fetchone()[0]
    return found


def _heads(cursor: Any, run: str | None) -> list[Difference]:
    """Status and counters, made again from the events that carry them."""
    cursor.execute(
        "SELECT r.key, r.status, r.counters::text, e.type, e.origin, e.data::text, e.add::text"
        " FROM agentstate_run r JOIN agentstate_event e ON e.run_id = r.id"
        " WHERE (%(run)s::text IS NULL OR r.key = %(run)s)"
        " AND (e.add IS NOT NULL OR (e.origin = 'store' AND e.type LIKE 'run.%%'))"
        " ORDER BY r.id, e.seq",
        {"run": run},
    )
    found: list[Difference] = []
    rows: list[Sequence[Any]] = []
    for row in cursor:
        if rows and rows[0][0] != row[0]:
            found += _head(rows)
            rows = []
        rows.append(row)
    return found + (_head(rows) if rows else [])


def _head(rows: Sequence[Sequence[Any]]) -> list[Difference]:
    key, status, counters_text = rows[0][:3]
    counters = counters_after(row[6] for row in rows)
    expected = status_after((row[3], row[4], row[5]) for row in rows)
    found = []
    if expected != status:
        found.append(
            Difference(check="status from the events", what=key, expected=expected, found=status)
        )
    stored = counters_after([counters_text])
    if counters != stored:
        found.append(
            Difference(check="counters from the events", what=key, expected=counters, found=stored)
        )
    return found


# A split budget as a whole; the line is the first of any of its ledgers that was over the cap.
_OVERDRAFTS = """
SELECT coalesce(r.key || '/', '') || b.name, b.cap, b.used, e.n, e.actor
FROM (
    SELECT coalesce(slot_of_id, id) AS id, array_agg(id) AS ledgers,
        sum(spent + reserved)::bigint AS used,
        max(cap) FILTER (WHERE slot_of_id IS NULL) AS cap,
        max(name) FILTER (WHERE slot_of_id IS NULL) AS name
    FROM agentstate_budget GROUP BY 1
) b JOIN agentstate_budget own ON own.id = b.id LEFT JOIN agentstate_run r ON r.id = own.run_id
LEFT JOIN LATERAL (
    SELECT n, actor FROM agentstate_budgetentry
    WHERE budget_id = ANY(b.ledgers) AND overdrawn ORDER BY at, n LIMIT 1
) e ON true
WHERE b.used > b.cap ORDER BY 1
"""


def overdrafts() -> list[Overdraft]:
    """Budgets that are over their cap because more was really used than was held."""
    with connection.cursor() as cursor:
        cursor.execute(_OVERDRAFTS)
        return [
            Overdraft(budget=budget, cap=cap, used=used, entry=entry, actor=actor)
            for budget, cap, used, entry, actor in cursor.fetchall()
        ]
