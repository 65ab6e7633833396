"""Idempotency keys on a short way: who may go on as if nobody had asked before.

The short ways carry out what comes for the first time. A request whose key is in use, or was
answered before, is left to `execute`, which knows what that means.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentstate.store import flights
from agentstate.store import rowsql as sql
from agentstate.store.asks import Ask

STATEMENTS = frozenset({sql.TRY_LOCKS, sql.RECORDS, sql.KEEP_ANSWERS})
BETWEEN = "\x1f"


def key_of(ask: Ask) -> tuple[str, str] | None:
    """Principal and key, which is its record's key; None without one."""
    key = ask.under.idempotency_key
    return (ask.by.principal, key) if key is not None else None


def first_of_each(asks: Sequence[Ask]) -> set[int]:
    """The places of those without a key, and of each key's first."""
    seen: set[tuple[str, str]] = set()
    found = set()
    for n, ask in enumerate(asks):
        key = key_of(ask)
        if key is None or key not in seen:
            found.add(n)
        if key is not None:
            seen.add(key)
    return found


def unanswered(cursor: flights.Cursor, asks: Sequence[Ask]) -> set[int]:
    """The places of those that nobody has answered or is answering.

    Takes the lock of each key until the transaction ends; the records are read after that.
    """
    keys = {key: n for n, ask in enumerate(asks) if (key := key_of(ask)) is not None}
    everyone = set(range(len(asks)))
    if not keys:
        return everyone
    names = {BETWEEN.join(key): n for key, n in keys.items()}
    locked = cursor.later(sql.TRY_LOCKS, [sorted(names)])
    kept = cursor.later(sql.RECORDS, [[p for p, _ in keys], [k for _, k in keys]])
    taken = {names[name] for name, had in locked.rows() if not had}
    return everyone - taken - {keys[row[0], row[1]] for row in kept.rows()}
