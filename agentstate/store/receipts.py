"""What became of a request: found by its Idempotency-Key or by its id, wherever it left a trace.

Everything that a command writes carries the id of its request: events, ledger lines, operators'
actions, refusals, and the answer that is kept for a key. What writes nothing that is kept (reads,
renewals, telemetry) leaves no trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from agentstate.store import distribution
from agentstate.store.answers import REFUSED

ROWS_MAX = 200

KEPT_BY_KEY = """
SELECT key, kind, answer::text, replays, request_id, created_at, expires_at
FROM agentstate_idempotencyrecord WHERE principal = %(principal)s AND key = %(key)s
"""
# Without an index of its own: records live for a day, and this is asked by people.
KEPT_BY_REQUEST = """
SELECT i.key, i.kind, i.answer::text, i.replays, i.request_id, i.created_at, i.expires_at
FROM agentstate_idempotencyrecord i WHERE i.request_id = %(request_id)s
ORDER BY i.created_at, i.key LIMIT %(limit)s
"""
# Runs past their retention are hidden here too.
WRITES = """
SELECT r.key, min(e.seq), max(e.seq), max(e.version), array_agg(e.type ORDER BY e.seq),
    min(e.actor), e.at
FROM agentstate_event e JOIN agentstate_run r ON r.id = e.run_id
WHERE e.request_id = %(request_id)s AND e.actor = coalesce(%(actor)s, e.actor)
    AND (r.expires_at IS NULL OR r.expires_at > agentstate_now() OR r.hold)
GROUP BY r.key, e.at ORDER BY e.at, r.key LIMIT %(limit)s
"""
CHARGES = """
SELECT coalesce(split.name, b.name), r.key, e.n, e.kind, e.amount, e.actor, e.at
FROM agentstate_budgetentry e JOIN agentstate_budget b ON b.id = e.budget_id
LEFT JOIN agentstate_budget split ON split.id = b.slot_of_id
LEFT JOIN agentstate_run r ON r.id = b.run_id
WHERE e.request_id = %(request_id)s AND e.actor = coalesce(%(actor)s, e.actor)
    AND e.kind <> 'shift' AND (e.kind <> 'open' OR split.id IS NULL)
    AND (r.expires_at IS NULL OR r.expires_at > agentstate_now() OR r.hold)
ORDER BY e.at, b.run_id IS NULL, b.depth DESC, e.n LIMIT %(limit)s
"""
ACTIONS = """
SELECT action, object, actor, at FROM agentstate_operatoraction
WHERE request_id = %(request_id)s AND actor = coalesce(%(actor)s, actor) ORDER BY id LIMIT %(limit)s
"""
REFUSALS = """
SELECT f.code, f.operation, r.key, f.unit, f.budget, f.actor, f.attempt, f.at
FROM agentstate_refusal f LEFT JOIN agentstate_run r ON r.id = f.run_id
WHERE f.request_id = %(request_id)s AND f.actor = coalesce(%(actor)s, f.actor)
ORDER BY f.id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """The first answer to an Idempotency-Key. code, detail: of a refusal, else None."""

    key: str
    code: str | None
    detail: str | None
    replays: int
    request_id: str | None
    at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Wrote:
    """Events that one write added to a run; version: the run's, once the last was written."""

    run: str
    first_seq: int
    last_seq: int
    version: int
    types: list[str]
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Charged:
    """A line of a ledger; run: whose budget it is, None for a shared one."""

    budget: str
    run: str | None
    n: int
    kind: str
    amount: int
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Acted:
    """What an operator did."""

    action: str
    object: str
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Refused:
    """A try that was refused."""

    code: str
    operation: str
    run: str | None
    unit: str | None
    budget: str | None
    actor: str
    attempt: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Every trace of a request, each list in the order in which it was written."""

    kept: tuple[Kept, ...] = ()
    writes: tuple[Wrote, ...] = ()
    charges: tuple[Charged, ...] = ()
    actions: tuple[Acted, ...] = ()
    refusals: tuple[Refused, ...] = ()

    @property
    def state(self) -> str:
        """applied, refused (and nothing of it applied), or unknown."""
        done = any(kept.code is None for kept in self.kept)
        if done or self.writes or self.charges or self.actions:
            return "applied"
        return "refused" if self.kept or self.refusals else "unknown"


def by_key(*, principal: str, key: str) -> Receipt:
    """What became of the request that this caller sent with this Idempotency-Key."""
    kept = _kept(KEPT_BY_KEY, principal=principal, key=key)
    request_id = kept[0].request_id if kept else None
    if request_id is None:
        return Receipt(kept=kept)
    return _traces(kept, request_id=request_id, actor=principal)


def by_request(request_id: str) -> Receipt:
    """What became of the request with this id; several requests may have had the same one."""
    kept = _kept(KEPT_BY_REQUEST, request_id=request_id)
    return _traces(kept, request_id=request_id, actor=None)


def _traces(kept: tuple[Kept, ...], **of: str | None) -> Receipt:
    return Receipt(
        kept=kept,
        writes=tuple(Wrote(*row) for row in _rows(WRITES, **of)),
        charges=tuple(Charged(*row) for row in _rows(CHARGES, **of)),
        actions=tuple(Acted(*row) for row in _rows(ACTIONS, **of)),
        refusals=tuple(Refused(*row) for row in _rows(REFUSALS, **of)),
    )


def _kept(statement: str, **params: Any) -> tuple[Kept, ...]:
    found = []
    for key, kind, answer, *rest in _rows(statement, **params):
        told = json.loads(answer) if kind == REFUSED else {}
        found.append(Kept(key, told.get("code"), told.get("detail"), *rest))
    return tuple(found)


def _rows(statement: str, **params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        asked = {"limit": ROWS_MAX, **params}
        if statement is WRITES:
            statement, asked = distribution.by_one_clock(cursor, statement, asked)
        cursor.execute(statement, asked)
        return list(cursor.fetchall())
