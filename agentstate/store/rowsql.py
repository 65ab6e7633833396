"""The SQL of `execute`: lock and read rows, and write decided ones, several at a time.

Rows go in as one JSON text (`json_to_recordset`): arrays of Python strings are slower to bind
(perf.md). Payloads are quoted a second time inside it, so that they arrive to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from json.encoder import encode_basestring
from typing import Any
from uuid import UUID

from agentstate.store.delivering import TargetRow
from agentstate.store.effects import COUNTED_MAX, TOLD_BYTES_MAX, TOLD_MAX
from agentstate.store.errors import Invalid
from agentstate.store.made import KeptRule, read_definition
from agentstate.store.payloads import moment
from agentstate.store.quiet import KeptQuiet, Quiet
from agentstate.store.rows import (
    BudgetRow,
    EntryRow,
    EventRow,
    HoldRow,
    LeaseRow,
    RunRow,
    TermRow,
)

RUN_COLUMNS = (
    "id, key, task, status, version, last_seq, counters::text, tags, notes, attrs::text,"
    " result::text, owner, token, holder, last_token, ended_token, attempt, max_attempts,"
    " parent_id, deadline_at, deadline_policy, retain_seconds, created_by, created_at, updated_at,"
    " ended_at, hold, expires_at, paced_at, brake_per_second, brake_until"
)
LEASE_COLUMNS = (
    "unit, run_id, owner, holder, token, ttl_seconds, acquired_at, renewed_at, expires_at,"
    " renewals, progress::text, noted_token, term_ended_at, hold_off_owner, hold_off_until,"
    " signals::text"
)
TERM_COLUMNS = (
    "token, unit, run_id, owner, holder, lower(held), nullif(upper(held), 'infinity'), renewals,"
    " ended, ended_by, reason"
)
BUDGET_COLUMNS = (
    "id, run_id, name, unit, cap, reserved, spent, overdrawn, version, entries, parent_id, depth,"
    " slots, slot_of_id, slot"
)
EVENT_COLUMNS = (
    "run_id, seq, version, type, origin, data::text, event_id, token, add::text, actor,"
    " request_id, at"
)
HOLD_COLUMNS = (
    "budget_id, n, reservation_id, run_id, amount, actual, state, token, actor, expires_at,"
    " created_at, settled_at, slot_id"
)
ENTRY_COLUMNS = (
    "budget_id, n, kind, amount, spent, reserved, cap, entry_id, run_id, token, note, overdrawn,"
    " actor, request_id, at"
)


def _names(columns: str) -> list[str]:
    names = []
    for column in columns.split(","):
        name = column.strip().removesuffix("::text")
        if name.startswith("lower(held"):
            name = "starts_at"
        elif name.startswith("nullif("):
            name = "ends_at"
        elif name.startswith("'infinity')"):
            continue
        names.append(name)
    return names


def _reader(cls: Any, columns: str, **convert: Callable[[Any], Any]) -> Callable[..., Any]:
    names = _names(columns)

    whole = {field.name for field in fields(cls)} == set(names)

    def read(row: Sequence[Any]) -> Any:
        values = dict(zip(names, row, strict=True))
        for name, change in convert.items():
            values[name] = change(values[name])
        if not whole:
            return cls(**values)
        # With each field given there is nothing for `__init__` to do but to take its time.
        made = object.__new__(cls)
        made.__dict__.update(values)
        return made

    return read


read_run: Callable[[Sequence[Any]], RunRow] = _reader(
    RunRow, RUN_COLUMNS, counters=json.loads, tags=tuple
)
read_lease: Callable[[Sequence[Any]], LeaseRow] = _reader(LeaseRow, LEASE_COLUMNS)
read_term: Callable[[Sequence[Any]], TermRow] = _reader(TermRow, TERM_COLUMNS)
read_budget: Callable[[Sequence[Any]], BudgetRow] = _reader(BudgetRow, BUDGET_COLUMNS)
read_event: Callable[[Sequence[Any]], EventRow] = _reader(EventRow, EVENT_COLUMNS)
read_entry: Callable[[Sequence[Any]], EntryRow] = _reader(EntryRow, ENTRY_COLUMNS)

read_hold: Callable[[Sequence[Any]], HoldRow] = _reader(HoldRow, HOLD_COLUMNS)


# --- lock ----------------------------------------------------------------------------------------

# Statement 1. A lock that is not had in time is a 503, not a hang. Whatever is asked here names its
# rows: by their indexes, also while a table is small or was never analyzed. A plan is kept with the
# connection, so one that reads the whole log, as a hash join over a young log may, would be kept
# while the log grows [3 ms a batch at 10,000 events, 0.3 by the index]. Plans are made once: else
# an ANALYZE may have them made anew at every call, for a better one [0.8 to 1.5 ms an append].
# Not by Citus, which finds the shard by what is asked.
BEGIN = """
SELECT set_config('lock_timeout', %s, true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', CASE WHEN to_regclass('pg_catalog.pg_dist_partition') IS NULL
        THEN 'force_generic_plan' ELSE 'auto' END, true)
"""
TRY_LOCKS = """
SELECT k, pg_try_advisory_xact_lock(hashtextextended(k, 7205)) FROM unnest(%s::text[]) AS k
"""

MAKE_UNITS = """
INSERT INTO agentstate_lease (unit, ttl_seconds, renewals)
SELECT unit, 60, 0 FROM unnest(%s::text[]) AS unit ORDER BY unit
ON CONFLICT (unit) DO NOTHING
"""

# Sorted, so that two callers never wait for each other in a ring. NO KEY: child rows may go on.
LOCK_UNITS = f"""
SELECT {LEASE_COLUMNS} FROM agentstate_lease WHERE unit = ANY(%s) ORDER BY unit FOR NO KEY UPDATE
"""
LOCK_RUNS = f"""
SELECT {RUN_COLUMNS} FROM agentstate_run WHERE key = ANY(%s) OR id = ANY(%s)
ORDER BY id FOR NO KEY UPDATE
"""
LOCK_RUNS_BY_KEY = f"""
SELECT {RUN_COLUMNS} FROM agentstate_run WHERE key = ANY(%s) ORDER BY id FOR NO KEY UPDATE
"""
# Root to leaf: everybody who needs a tree of budgets meets at its root first. A split one is locked
# only when it is wanted whole; asked of the row itself, so that one that was split meanwhile is not
# taken for one that is not.
_UNLESS_SPLIT = "(slots = 1 OR id = ANY(%s) OR (run_id IS NULL AND name = ANY(%s)))"
# A side at a time: for IS NOT DISTINCT FROM there is no index, and all budgets would be read.
_NAMED = """
    SELECT b.id, b.parent_id FROM json_to_recordset(%s) AS w (run_id uuid, name text)
    CROSS JOIN LATERAL (
        SELECT id, parent_id FROM agentstate_budget
        WHERE run_id = w.run_id AND (name = w.name OR (w.name IS NULL AND reserved > 0))
        UNION ALL
        SELECT id, parent_id FROM agentstate_budget
        WHERE w.run_id IS NULL AND run_id IS NULL AND name = w.name) b
"""
_OF_IDS = "SELECT id, parent_id FROM agentstate_budget WHERE id = ANY(%s)"


def _lock_trees(first: str) -> str:
    """With those that stand above them."""
    return f"""
SELECT {BUDGET_COLUMNS} FROM agentstate_budget WHERE id = ANY(ARRAY(
    WITH RECURSIVE tree AS (
        {first}
        UNION
        SELECT b.id, b.parent_id FROM tree CROSS JOIN LATERAL (
            SELECT id, parent_id FROM agentstate_budget WHERE id = tree.parent_id LIMIT 1) b
    ) SELECT id FROM tree
)) AND {_UNLESS_SPLIT} ORDER BY depth, id FOR NO KEY UPDATE
"""


LOCK_BUDGETS = _lock_trees(_NAMED)
LOCK_BUDGETS_BY_ID = _lock_trees(_OF_IDS)
# Locked out of order when a charge would else be refused: never waited for.
LOCK_BUDGETS_AT_HAND = LOCK_BUDGETS_BY_ID + " SKIP LOCKED"

# Split budgets, by id or by name.
_ROOTS = """
(l.id = ANY(%(roots)s) OR (l.run_id IS NULL AND l.slot_of_id IS NULL AND l.name = ANY(%(names)s)))
AND l.slots > 1
"""
# Which slot a hold counts in never changes: so it may be looked up before the slot is locked.
SLOTS_OF_HOLDS = f"""
SELECT slot_id FROM agentstate_reservation
WHERE state = 'held' AND run_id = ANY(%(ending)s) AND slot_id IS NOT NULL
UNION
SELECT slot_id FROM agentstate_reservation
WHERE reservation_id = ANY(%(holds)s) AND slot_id IS NOT NULL AND budget_id IN (
    SELECT unnest(%(budgets)s::uuid[])
    UNION ALL
    SELECT s.id FROM agentstate_budget l JOIN agentstate_budget s ON s.slot_of_id = l.id
    WHERE {_ROOTS})
"""
# After every other budget, each sorted: the whole, or the slot that charges go to and those named.
# Beside each its budget, and what all of its slots had before it was waited for.
_SLOTS_OF = """
SELECT array_agg(id ORDER BY slot) AS ids, array_agg(spent ORDER BY slot) AS spent,
    array_agg(reserved ORDER BY slot) AS reserved
FROM agentstate_budget WHERE slot_of_id = l.id
"""
_ROOT_COLUMNS = ", ".join(f"l.{column.strip()}" for column in BUDGET_COLUMNS.split(","))
LOCK_SLOTS = f"""
SELECT {_ROOT_COLUMNS.replace("l.", "s.")}, w.ids, w.spent, w.reserved, {_ROOT_COLUMNS}
FROM agentstate_budget s JOIN agentstate_budget l ON l.id = s.slot_of_id
CROSS JOIN LATERAL ({_SLOTS_OF}) w
WHERE s.id = ANY(%(slots)s::uuid[] || ARRAY(
    SELECT s.id FROM agentstate_budget l JOIN agentstate_budget s ON s.slot_of_id = l.id
    WHERE {_ROOTS} AND (l.id = ANY(%(whole)s)
        OR (%(charging)s AND s.slot = %(number)s %% l.slots))))
ORDER BY s.depth, s.id FOR NO KEY UPDATE OF s
"""
# The same after these locks: no slot is added any more, and a slot of ours stays as it is.
SPLITS = f"""
SELECT w.ids, w.spent, w.reserved, {_ROOT_COLUMNS}
FROM agentstate_budget l CROSS JOIN LATERAL ({_SLOTS_OF}) w WHERE {_ROOTS}
"""
# An id that is new to a split budget itself: two of its slots would not know of each other.
TRY_IDS = """
SELECT budget_id FROM json_to_recordset(%s) AS w (budget_id uuid, id text)
WHERE NOT pg_try_advisory_xact_lock(hashtextextended(w.budget_id || ' ' || w.id, 7206))
"""

# A hold is dead once its ttl or its token is over; a token that is over never comes back, so this
# may look at the run without its lock.
_DEAD = """
h.state = 'held' AND (h.expires_at <= agentstate_now() OR (h.token IS NOT NULL
    AND h.token IS DISTINCT FROM (SELECT r.token FROM agentstate_run r WHERE r.id = h.run_id)))
"""
DEAD_HOLDS = f"""
SELECT h.budget_id, h.reservation_id, h.slot_id FROM agentstate_reservation h WHERE {_DEAD}
ORDER BY h.expires_at LIMIT %s
"""
DEAD_HOLDS_BELOW = f"""
WITH RECURSIVE tree AS (
    SELECT id FROM agentstate_budget WHERE id = ANY(%s)
    UNION
    SELECT b.id FROM agentstate_budget b
    JOIN tree ON (b.parent_id = tree.id OR b.slot_of_id = tree.id) AND b.reserved > 0
)
SELECT h.budget_id, h.reservation_id, h.slot_id
FROM agentstate_reservation h JOIN tree ON tree.id = h.budget_id
WHERE {_DEAD} LIMIT %s
"""

# Oldest first; SKIP LOCKED, so that a hundred claimers take a hundred different runs. What waits
# and what has lapsed is found by an index each, however many are finished. The clock in it only
# narrows the choice: what is locked is decided on again in Python.
_CLAIMABLE = """
    AND l.unit <> ALL(%(taken)s)
    AND (%(task)s::text IS NULL OR r.task = %(task)s)
    AND (%(tag)s::text IS NULL OR r.tags @> ARRAY[%(tag)s::text])
    AND (l.hold_off_until IS NULL OR l.hold_off_until <= agentstate_now()
         OR split_part(l.hold_off_owner, '~', 1) <> split_part(%(owner)s, '~', 1))
ORDER BY r.created_at, r.id LIMIT %(limit)s FOR NO KEY UPDATE OF l SKIP LOCKED
"""
CLAIM_UNITS = f"""
WITH waiting AS MATERIALIZED (
    SELECT l.unit, r.created_at, r.id FROM agentstate_run r
    JOIN agentstate_lease l ON l.run_id = r.id
    WHERE r.token IS NULL AND l.token IS NULL
        AND (r.status = 'pending' OR (r.status = 'running' AND r.last_token IS NOT NULL))
        {_CLAIMABLE}
), lapsed AS MATERIALIZED (
    SELECT l.unit, r.created_at, r.id FROM agentstate_lease l
    JOIN agentstate_run r ON r.id = l.run_id
    WHERE l.token IS NOT NULL AND l.expires_at <= agentstate_now()
        AND r.status IN ('pending', 'running')
        {_CLAIMABLE}
)
SELECT unit FROM (SELECT * FROM waiting UNION ALL SELECT * FROM lapsed) AS both_
ORDER BY created_at, id LIMIT %(limit)s
"""
LAPSED_UNITS = """
SELECT unit FROM agentstate_lease
WHERE run_id IS NOT NULL AND token IS NOT NULL AND expires_at <= agentstate_now()
    AND noted_token IS DISTINCT FROM token
ORDER BY unit LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""

OVERDUE_UNITS = """
SELECT 'run:' || key FROM agentstate_run
WHERE deadline_at <= agentstate_now() AND ended_at IS NULL AND deadline_policy IN ('fail', 'cancel')
ORDER BY deadline_at LIMIT %(limit)s
"""

# --- look ----------------------------------------------------------------------------------------

# Statement 2, after every lock: the clock that decides, fresh tokens, and this transaction's id,
# by which a lost COMMIT can be asked about.
LOOK = """
SELECT agentstate_now(), pg_current_xact_id()::text,
    ARRAY(SELECT nextval('agentstate_fence') FROM generate_series(1, %s))
"""
RECORDS = """
SELECT principal, key, fingerprint, kind, answer::text FROM agentstate_idempotencyrecord
WHERE expires_at > agentstate_now()
    AND (principal, key) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
KNOWN_EVENTS = f"""
SELECT {EVENT_COLUMNS} FROM agentstate_event WHERE (run_id, event_id) IN (
    SELECT w.run_id, w.event_id FROM json_to_recordset(%s) AS w (run_id uuid, event_id text))
"""
KNOWN_EVENTS_BY_KEY = f"""
SELECT e.* FROM json_to_recordset(%s) AS w (run_key text, event_id text)
CROSS JOIN LATERAL (
    SELECT {EVENT_COLUMNS} FROM agentstate_event WHERE event_id = w.event_id
        AND run_id = (SELECT id FROM agentstate_run WHERE key = w.run_key) LIMIT 1) e
"""
KNOWN_CHARGES = f"""
SELECT e.* FROM json_to_recordset(%s) AS w (budget_id uuid, run_id uuid, entry_id text)
CROSS JOIN LATERAL (
    SELECT {ENTRY_COLUMNS} FROM agentstate_budgetentry
    WHERE kind = 'spend' AND budget_id = w.budget_id AND run_id = w.run_id AND entry_id = w.entry_id
    UNION ALL
    SELECT {ENTRY_COLUMNS} FROM agentstate_budgetentry
    WHERE kind = 'spend' AND budget_id = w.budget_id AND w.run_id IS NULL AND run_id IS NULL
        AND entry_id = w.entry_id) e
"""
HOLDS = f"""
SELECT {HOLD_COLUMNS} FROM agentstate_reservation WHERE (budget_id, reservation_id) IN (
    SELECT w.budget_id, w.reservation_id
    FROM json_to_recordset(%s) AS w (budget_id uuid, reservation_id text))
"""
HOLDS_OF_RUNS = f"""
SELECT {HOLD_COLUMNS} FROM agentstate_reservation WHERE state = 'held' AND run_id = ANY(%s)
"""
HOLDERS = f"SELECT {RUN_COLUMNS} FROM agentstate_run WHERE id = ANY(%s)"
TERMS = f"SELECT {TERM_COLUMNS} FROM agentstate_leaseterm WHERE token = ANY(%s)"

# Of the runs that a worker is given: which have open effects at all, and how many; then the first
# of each, with as much of their data as is told. In two, so that the log is seldom asked.
COUNT_OPEN_EFFECTS = f"""
SELECT w.run_id, (SELECT count(*) FROM (
    SELECT FROM agentstate_openeffect o WHERE o.run_id = w.run_id LIMIT {COUNTED_MAX}) counted)
FROM unnest(%s::uuid[]) AS w (run_id)
WHERE EXISTS (SELECT FROM agentstate_openeffect o WHERE o.run_id = w.run_id)
"""
OPEN_EFFECTS = f"""
SELECT run_id, event_id, seq, type, token, actor, at, size,
    CASE WHEN sum(size) OVER (PARTITION BY run_id ORDER BY seq) <= {TOLD_BYTES_MAX} THEN data END
FROM (
    SELECT e.* FROM unnest(%s::uuid[]) AS w (run_id)
    CROSS JOIN LATERAL (SELECT seq FROM agentstate_openeffect
        WHERE run_id = w.run_id ORDER BY seq LIMIT {TOLD_MAX}) o
    CROSS JOIN LATERAL (
        SELECT run_id, event_id, seq, type, token, actor, at, data::text AS data,
            octet_length(data::text) AS size
        FROM agentstate_event WHERE run_id = w.run_id AND seq = o.seq LIMIT 1) e
) told ORDER BY run_id, seq
"""

DRAINS = """
SELECT name, drain_reason, drain_by, drain_at FROM agentstate_worker
WHERE drain_at IS NOT NULL AND name = ANY(%s)
"""

# By name and not by row: a consumer has none before its first checkpoint.
LOCK_CONSUMERS = """
SELECT pg_advisory_xact_lock(hashtextextended('consumer ' || name, 0))
FROM (SELECT unnest(%s::text[]) AS name ORDER BY 1) AS named
"""
CONSUMERS = """
SELECT (SELECT position FROM agentstate_feedhead WHERE id = 1),
    (SELECT json_object_agg(name, position)::text FROM agentstate_feedconsumer WHERE name = ANY(%s))
"""

# --- write ---------------------------------------------------------------------------------------

_RUN_TYPES = {
    "id": "uuid", "key": "text", "task": "text", "status": "text", "version": "bigint",
    "last_seq": "bigint", "counters": "jsonb", "tags": "json", "notes": "text", "attrs": "text",
    "result": "text", "owner": "text", "token": "bigint", "holder": "text", "last_token": "bigint",
    "ended_token": "bigint", "attempt": "integer", "max_attempts": "integer", "parent_id": "uuid",
    "deadline_at": "timestamptz", "deadline_policy": "text", "retain_seconds": "bigint",
    "created_by": "text", "created_at": "timestamptz", "updated_at": "timestamptz",
    "ended_at": "timestamptz", "hold": "boolean", "expires_at": "timestamptz",
    "paced_at": "timestamptz", "brake_per_second": "integer", "brake_until": "timestamptz",
}  # fmt: skip
_LEASE_TYPES = {
    "unit": "text", "run_id": "uuid", "owner": "text", "holder": "text", "token": "bigint",
    "ttl_seconds": "integer", "acquired_at": "timestamptz", "renewed_at": "timestamptz",
    "expires_at": "timestamptz", "renewals": "integer", "progress": "text",
    "noted_token": "bigint", "term_ended_at": "timestamptz", "hold_off_owner": "text",
    "hold_off_until": "timestamptz", "signals": "text",
}  # fmt: skip
_TERM_TYPES = {
    "token": "bigint", "unit": "text", "run_id": "uuid", "owner": "text", "holder": "text",
    "starts_at": "timestamptz", "ends_at": "timestamptz", "renewals": "integer", "ended": "text",
    "ended_by": "text", "reason": "text",
}  # fmt: skip
_BUDGET_TYPES = {
    "id": "uuid", "run_id": "uuid", "name": "text", "unit": "text", "cap": "bigint",
    "reserved": "bigint", "spent": "bigint", "overdrawn": "boolean", "version": "bigint",
    "entries": "bigint", "parent_id": "uuid", "depth": "integer", "slots": "integer",
    "slot_of_id": "uuid", "slot": "integer",
}  # fmt: skip
_EVENT_TYPES = {
    "run_id": "uuid", "seq": "bigint", "version": "bigint", "type": "text", "origin": "text",
    "data": "text", "event_id": "text", "token": "bigint", "add": "text", "actor": "text",
    "request_id": "text", "at": "timestamptz",
}  # fmt: skip
_ENTRY_TYPES = {
    "budget_id": "uuid", "n": "bigint", "kind": "text", "amount": "bigint", "spent": "bigint",
    "reserved": "bigint", "cap": "bigint", "entry_id": "text", "run_id": "uuid", "token": "bigint",
    "note": "text", "overdrawn": "boolean", "actor": "text", "request_id": "text",
    "at": "timestamptz",
}  # fmt: skip
_HOLD_TYPES = {
    "budget_id": "uuid", "n": "bigint", "reservation_id": "text", "run_id": "uuid",
    "amount": "bigint", "actual": "bigint", "state": "text", "token": "bigint", "actor": "text",
    "expires_at": "timestamptz", "created_at": "timestamptz", "settled_at": "timestamptz",
    "slot_id": "uuid",
}  # fmt: skip
_OUTBOX_TYPES = {
    "run_id": "uuid", "run_key": "text", "first_seq": "bigint", "last_seq": "bigint",
    "version": "bigint", "types": "json", "at": "timestamptz",
}  # fmt: skip
_REFUSAL_TYPES = {
    "at": "timestamptz", "code": "text", "operation": "text", "run_id": "uuid", "unit": "text",
    "budget": "text", "actor": "text", "worker": "text", "token_sent": "bigint",
    "token_current": "bigint", "wanted": "jsonb", "found": "jsonb", "request_id": "text",
    "attempt": "integer", "met": "text", "about": "text",
}  # fmt: skip
_ACTION_TYPES = {
    "at": "timestamptz", "actor": "text", "action": "text", "object": "text", "run_id": "uuid",
    "reason": "text", "before": "jsonb", "after": "jsonb", "expected": "jsonb",
    "request_id": "text",
}  # fmt: skip

_TRY_TYPES = {
    "at": "timestamptz", "actor": "text", "action": "text", "object": "text", "run_id": "uuid",
    "outcome": "text", "code": "text", "reason": "text", "expected": "jsonb", "found": "jsonb",
    "request_id": "text",
}  # fmt: skip

_TAGS = "ARRAY(SELECT json_array_elements_text(w.{}))"
# How a member of the JSON text becomes a column, where that is more than its type.
_AS_COLUMN = {
    "tags": _TAGS.format("tags"),
    "types": _TAGS.format("types"),
    "attrs": "w.attrs::json",
    "result": "w.result::json",
    "data": "w.data::json",
    "add": "w.add::json",
    "progress": "w.progress::json",
    "signals": "w.signals::json",
}


def _from(types: Mapping[str, str]) -> str:
    declared = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    return f"json_to_recordset(%s) AS w ({declared})"


def _columns(types: Mapping[str, str]) -> str:
    return ", ".join(f'"{name}"' for name in types)


def _values(types: Mapping[str, str]) -> str:
    return ", ".join(_AS_COLUMN.get(name, f'w."{name}"') for name in types)


def _insert(table: str, types: Mapping[str, str], more: str = "") -> str:
    return (
        f"INSERT INTO agentstate_{table} ({_columns(types)})"
        f" SELECT {_values(types)} FROM {_from(types)} {more}"
    )


def _update(table: str, types: Mapping[str, str], key: str, fixed: Iterable[str] = ()) -> str:
    changed = [name for name in types if name != key and name not in fixed]
    sets = ", ".join(f'"{n}" = ' + _AS_COLUMN.get(n, f'w."{n}"') for n in changed)
    return f"UPDATE agentstate_{table} AS t SET {sets} FROM {_from(types)} WHERE t.{key} = w.{key}"


_RUN_FIXED = ("key", "task", "parent_id", "created_by", "created_at", "max_attempts")
INSERT_RUNS = _insert("run", _RUN_TYPES)
UPDATE_RUNS = _update("run", _RUN_TYPES, "id", _RUN_FIXED)
INSERT_EVENTS = _insert("event", _EVENT_TYPES)
# What an append alone changes of a run.
_GROWN = ("id", "version", "last_seq", "counters", "updated_at", "paced_at")
_GROWN_TYPES = {name: _RUN_TYPES[name] for name in _GROWN}
GROW_RUNS = _update("run", _GROWN_TYPES, "id")
_KEPT = tuple(name for name in _RUN_TYPES if name not in _GROWN)
# When a term was renewed: kept by SQL alone, because no command reads it. The last ones only, so
# that a row stays small enough to be updated in its page.
RENEWALS_KEPT = 40
_RENEWED_MS = f"""
CASE WHEN excluded.token IS NULL THEN agentstate_lease.renewed_ms
    WHEN excluded.token IS DISTINCT FROM agentstate_lease.token THEN '{{}}'
    WHEN excluded.renewals <= agentstate_lease.renewals THEN agentstate_lease.renewed_ms
    ELSE (agentstate_lease.renewed_ms || floor(extract(epoch FROM
            excluded.renewed_at - excluded.acquired_at) * 1000)::bigint)
        [greatest(1, cardinality(agentstate_lease.renewed_ms) + 2 - {RENEWALS_KEPT}):]
END
"""
SAVE_LEASES = _insert(
    "lease",
    _LEASE_TYPES,
    "ON CONFLICT (unit) DO UPDATE SET "
    + ", ".join(f"{n} = excluded.{n}" for n in _LEASE_TYPES if n != "unit")
    + f", renewed_ms = {_RENEWED_MS}",
)
DROP_LEASES = "DELETE FROM agentstate_lease WHERE unit = ANY(%s)"
_HELD = "tstzrange(w.starts_at, coalesce(w.ends_at, 'infinity'), '[)')"
INSERT_TERMS = f"""
INSERT INTO agentstate_leaseterm
    (token, unit, run_id, owner, holder, held, renewals, ended, ended_by, reason)
SELECT w.token, w.unit, w.run_id, w.owner, w.holder, {_HELD}, w.renewals, w.ended, w.ended_by,
    w.reason
FROM {_from(_TERM_TYPES)} ORDER BY w.token
"""
CLOSE_TERMS = f"""
UPDATE agentstate_leaseterm AS t
SET held = {_HELD}, renewals = w.renewals, ended = w.ended, ended_by = w.ended_by,
    reason = w.reason, renewed_ms = coalesce(l.renewed_ms, t.renewed_ms),
    ttl_seconds = coalesce(l.ttl_seconds, t.ttl_seconds)
FROM {_from(_TERM_TYPES)} LEFT JOIN agentstate_lease l ON l.unit = w.unit AND l.token = w.token
WHERE t.token = w.token
"""
INSERT_BUDGETS = _insert("budget", _BUDGET_TYPES)
UPDATE_BUDGETS = _update(
    "budget",
    _BUDGET_TYPES,
    "id",
    ("run_id", "name", "unit", "parent_id", "depth", "slot_of_id", "slot"),
)
SAVE_HOLDS = _insert(
    "reservation",
    _HOLD_TYPES,
    "ON CONFLICT (budget_id, n) DO UPDATE SET state = excluded.state, actual = excluded.actual,"
    " settled_at = excluded.settled_at",
)
INSERT_ENTRIES = _insert("budgetentry", _ENTRY_TYPES)
_OPEN_TYPES = {"run_id": "uuid", "seq": "bigint"}
BEGIN_EFFECTS = _insert("openeffect", _OPEN_TYPES)
END_EFFECTS = f"""
DELETE FROM agentstate_openeffect AS t USING {_from(_OPEN_TYPES)}
WHERE t.run_id = w.run_id AND t.seq = w.seq
"""
INSERT_OUTBOX = _insert("outbox", _OUTBOX_TYPES)
INSERT_ACTIONS = _insert("operatoraction", _ACTION_TYPES)
# Somebody who asks for a held unit or writes to a hot run again and again leaves one row a second,
# not thousands. The index on the newest rows finds them.
INSERT_REFUSALS = _insert(
    "refusal",
    _REFUSAL_TYPES,
    "WHERE w.code NOT IN ('lease-held', 'run-hot') OR NOT EXISTS (SELECT FROM agentstate_refusal o"
    " WHERE o.at > w.at - interval '1 second' AND o.code = w.code"
    " AND o.unit IS NOT DISTINCT FROM w.unit AND o.run_id IS NOT DISTINCT FROM w.run_id"
    " AND o.actor = w.actor AND o.worker IS NOT DISTINCT FROM w.worker)",
)
# The same try again within ten seconds is the same row; of one actor ten a minute are kept, of all
# together sixty. The index on the newest rows counts them. Two at once may each be the last one.
TRIES_OF_ONE, TRIES_OF_ALL = 10, 60
INSERT_TRIES = _insert(
    "refusedaction",
    _TRY_TYPES,
    "WHERE NOT EXISTS (SELECT FROM agentstate_refusedaction o"
    " WHERE o.at > w.at - interval '10 seconds' AND o.actor = w.actor AND o.action = w.action"
    " AND o.object = w.object AND o.code = w.code)"
    f" AND (SELECT count(*) FILTER (WHERE o.actor = w.actor) < {TRIES_OF_ONE}"
    f" AND count(*) < {TRIES_OF_ALL} FROM agentstate_refusedaction o"
    " WHERE o.at > w.at - interval '1 minute')",
)
KEEP_ANSWERS = """
INSERT INTO agentstate_idempotencyrecord
    (principal, key, fingerprint, kind, answer, request_id, created_at, expires_at, replays)
SELECT w.principal, w.key, decode(w.fingerprint, 'hex'), w.kind, w.answer::json, w.request_id,
    w.at, w.at + interval '24 hours', 0
FROM json_to_recordset(%s) AS w (principal text, key text, fingerprint text, kind text,
    answer text, request_id text, at timestamptz)
ON CONFLICT (principal, key) DO UPDATE SET fingerprint = excluded.fingerprint,
    kind = excluded.kind, answer = excluded.answer, request_id = excluded.request_id,
    created_at = excluded.created_at, expires_at = excluded.expires_at, replays = 0
"""
COUNT_REPLAYS = """
UPDATE agentstate_idempotencyrecord SET replays = replays + 1
WHERE (principal, key) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
WRITERS = """
SELECT e.run_id, e.seq, e.actor, e.token
FROM json_to_recordset(%s) AS w (run_id uuid, seq bigint)
JOIN agentstate_event e ON (e.run_id, e.seq) = (w.run_id, w.seq)
"""
TAKEN_KEYS = "SELECT name FROM agentstate_apikey WHERE name = ANY(%s)"
CREATE_KEY = """
INSERT INTO agentstate_apikey (id, name, scopes, salt, digest, hint, created_by, created_at,
    expires_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
REVOKE_KEY = """
UPDATE agentstate_apikey SET revoked_at = coalesce(revoked_at, %s) WHERE name = %s
"""
# Locked, so that two changes of a role wait for each other; read in a statement of its own, which
# sees what was committed while the lock was waited for.
LOCK_PEOPLE = "SELECT FROM auth_user WHERE username = ANY(%s) ORDER BY id FOR UPDATE"
READ_PEOPLE = """
SELECT username, (
    SELECT coalesce(string_agg(g.name, ',' ORDER BY g.name), '')
    FROM auth_user_groups AS m JOIN auth_group AS g ON g.id = m.group_id
    WHERE m.user_id = u.id AND g.name = ANY(%(roles)s)
) FROM auth_user AS u WHERE username = ANY(%(names)s)
"""
# Two that would make the first admin wait for each other here, and the second one sees the first's.
LOCK_SETUP = "SELECT pg_advisory_xact_lock(%s)"
SETUP = """
SELECT EXISTS (
    SELECT FROM auth_user AS u WHERE u.is_superuser OR EXISTS (
        SELECT FROM auth_user_groups AS m JOIN auth_group AS g ON g.id = m.group_id
        WHERE m.user_id = u.id AND g.name = 'admin')
), (SELECT digest FROM dashboard_setupcode)
"""
DROP_ROLES = """
DELETE FROM auth_user_groups AS m USING auth_user AS u, auth_group AS g
WHERE m.user_id = u.id AND m.group_id = g.id AND u.username = %s AND g.name = ANY(%s)
"""
GIVE_ROLE = """
INSERT INTO auth_user_groups (user_id, group_id)
SELECT u.id, g.id FROM auth_user AS u, auth_group AS g WHERE u.username = %s AND g.name = %s
"""
END_SESSIONS = """
DELETE FROM dashboard_session WHERE user_id = (SELECT id FROM auth_user WHERE username = %s)
"""
MAKE_PERSON = """
INSERT INTO auth_user (username, password, is_active, is_staff, is_superuser, first_name,
    last_name, email, date_joined)
VALUES (%s, %s, true, false, false, '', '', '', %s)
"""
DROP_SETUP_CODE = "DELETE FROM dashboard_setupcode"
SAVE_TELEMETRY = """
INSERT INTO agentstate_telemetry AS t
    (run_id, host, model, progress, worker_time, skew_ms, token, at)
VALUES (%(run_id)s, %(host)s, %(model)s, %(progress)s::json, %(worker_time)s, %(skew_ms)s,
    %(token)s, %(at)s)
ON CONFLICT (run_id) DO UPDATE SET host = coalesce(excluded.host, t.host),
    model = coalesce(excluded.model, t.model), progress = coalesce(excluded.progress, t.progress),
    worker_time = coalesce(excluded.worker_time, t.worker_time),
    skew_ms = coalesce(excluded.skew_ms, t.skew_ms), token = excluded.token, at = excluded.at
"""
SAVE_WORKER = """
INSERT INTO agentstate_worker AS t (name, version, host, slots, worker_time, skew_ms, principal,
    first_seen_at, seen_at)
VALUES (%(name)s, %(version)s, %(host)s, %(slots)s, %(worker_time)s, %(skew_ms)s, %(by)s, %(at)s,
    %(at)s)
ON CONFLICT (name) DO UPDATE SET version = coalesce(excluded.version, t.version),
    host = coalesce(excluded.host, t.host), slots = coalesce(excluded.slots, t.slots),
    worker_time = excluded.worker_time, skew_ms = excluded.skew_ms,
    principal = excluded.principal, seen_at = excluded.seen_at
"""
# A row is written when a version is new, and once a day while it is seen. Whoever finds another at
# it leaves it: so nobody waits here, and two batches with two new versions do not wait in a ring.
NOTE_VERSION = """
INSERT INTO agentstate_seenversion AS t (what, version, first_seen_at, seen_at)
SELECT %(what)s, %(version)s, %(at)s, %(at)s
WHERE CASE WHEN NOT EXISTS (SELECT FROM agentstate_seenversion WHERE what = %(what)s
        AND version = %(version)s AND seen_at > %(at)s - interval '1 day')
    THEN pg_try_advisory_xact_lock(%(lock)s) ELSE false END
ON CONFLICT (what, version) DO UPDATE SET seen_at = greatest(t.seen_at, excluded.seen_at)
"""
SAVE_DRAIN = """
INSERT INTO agentstate_worker AS t (name, principal, first_seen_at, seen_at, drain_at, drain_by,
    drain_reason)
VALUES (%(name)s, %(by)s, %(at)s, %(at)s, %(drain_at)s, %(drain_by)s, %(reason)s)
ON CONFLICT (name) DO UPDATE SET drain_at = excluded.drain_at, drain_by = excluded.drain_by,
    drain_reason = excluded.drain_reason
"""
SAVE_CHECKPOINT = """
INSERT INTO agentstate_feedconsumer (name, position, principal, at)
VALUES (%(name)s, %(position)s, %(by)s, %(at)s)
ON CONFLICT (name) DO UPDATE SET position = excluded.position, principal = excluded.principal,
    at = excluded.at
"""
LOCK_ALERTS = """
SELECT rule, state, version FROM agentstate_alert WHERE rule = ANY(%s) ORDER BY rule FOR UPDATE
"""
ACKNOWLEDGE = """
UPDATE agentstate_alert SET acknowledged_at = %(at)s, acknowledged_by = %(by)s,
    acknowledged_why = %(why)s WHERE rule = %(rule)s
"""
SNOOZE = """
UPDATE agentstate_alert SET snoozed_until = %(until)s,
    snoozed_by = CASE WHEN %(until)s::timestamptz IS NOT NULL THEN %(by)s END,
    snoozed_why = CASE WHEN %(until)s::timestamptz IS NOT NULL THEN %(why)s END
WHERE rule = %(rule)s
"""
# A row for each rule whose bounds are asked for, so that two who change one meet there.
MAKE_RULES = """
INSERT INTO agentstate_alertrule (rule, version) SELECT name, 0 FROM unnest(%s::text[]) AS t (name)
ORDER BY name ON CONFLICT (rule) DO NOTHING
"""
# Of a rule that is to be made there is no row yet: two who make it meet here.
LOCK_MADE = "SELECT pg_advisory_xact_lock(7210, hashtext(name)) FROM unnest(%s::text[]) AS t (name)"
COUNT_MADE = "SELECT count(*) FROM agentstate_alertrule WHERE definition IS NOT NULL"
PUT_RULE = """
INSERT INTO agentstate_alertrule AS r (rule, warn, alert, version, changed_at, changed_by,
    changed_why, definition)
VALUES (%(rule)s, %(warn)s, %(alert)s, %(version)s, %(at)s, %(by)s, %(why)s, %(definition)s)
ON CONFLICT (rule) DO UPDATE SET warn = excluded.warn, alert = excluded.alert,
    version = excluded.version, changed_at = excluded.changed_at,
    changed_by = excluded.changed_by, changed_why = excluded.changed_why,
    definition = excluded.definition
"""
# How it stood and what it was judged by go with it; what changed and what was told stay.
DELETE_RULE = """
WITH gone AS (DELETE FROM agentstate_alertrule WHERE rule = %(rule)s),
    figures AS (DELETE FROM agentstate_alertfigure WHERE rule = %(rule)s)
DELETE FROM agentstate_alert WHERE rule = %(rule)s
"""
LOCK_RULES = """
SELECT rule, warn, alert, version, definition::text FROM agentstate_alertrule WHERE rule = ANY(%s)
ORDER BY rule FOR UPDATE
"""
CHANGE_RULE = """
UPDATE agentstate_alertrule SET warn = %(warn)s, alert = %(alert)s, version = %(version)s,
    changed_at = %(at)s, changed_by = %(by)s, changed_why = %(why)s
WHERE rule = %(rule)s
"""
# Targets before their deliveries, everywhere.
LOCK_TARGETS = """
SELECT id, name, kind, hint, least, rules, enabled, version, person,
    (SELECT d.id FROM agentstate_delivery d WHERE d.target_id = t.id AND d.what = 'test'
        AND d.state = 'waiting' ORDER BY d.id LIMIT 1)
FROM agentstate_alerttarget t WHERE name = ANY(%(names)s)
    OR id IN (SELECT target_id FROM agentstate_delivery WHERE id = ANY(%(deliveries)s))
ORDER BY name FOR UPDATE
"""
COUNT_TARGETS = "SELECT count(*) FROM agentstate_alerttarget"
LOCK_DELIVERIES = """
SELECT d.id, t.name, d.what FROM agentstate_delivery d
JOIN agentstate_alerttarget t ON t.id = d.target_id
WHERE d.id = ANY(%s) ORDER BY d.id FOR UPDATE OF d
"""
CREATE_TARGET = """
INSERT INTO agentstate_alerttarget (id, name, kind, address, secret, hint, least, rules, enabled,
    failures, version, created_by, created_at, person)
VALUES (%(id)s, %(name)s, %(kind)s, %(address)s, %(secret)s, %(hint)s, %(least)s, %(rules)s, true,
    0, 1, %(by)s, %(at)s, %(person)s)
"""
# Switched on, it begins anew: what failed before was another time.
CHANGE_TARGET = """
UPDATE agentstate_alerttarget SET least = %(least)s, rules = %(rules)s, version = %(version)s,
    person = %(person)s,
    off_at = CASE WHEN %(enabled)s THEN NULL WHEN enabled THEN %(at)s ELSE off_at END,
    off_why = CASE WHEN %(enabled)s THEN NULL WHEN enabled THEN %(off_why)s ELSE off_why END,
    failures = CASE WHEN %(enabled)s AND NOT enabled THEN 0 ELSE failures END,
    failing_since = CASE WHEN %(enabled)s AND NOT enabled THEN NULL ELSE failing_since END,
    enabled = %(enabled)s
WHERE id = %(id)s
"""
ROTATE_TARGET = """
UPDATE agentstate_alerttarget SET secret = %(secret)s, version = %(version)s WHERE id = %(id)s
"""
DELETE_TARGET = """
WITH quiet AS (DELETE FROM agentstate_alertquiet q USING agentstate_alerttarget t
    WHERE t.id = %(id)s AND q.whose = 'target:' || t.name)
DELETE FROM agentstate_alerttarget WHERE id = %(id)s
"""
# Two who set the same for the first time meet here; there is no row yet to meet at.
LOCK_QUIET = "SELECT pg_advisory_xact_lock(7211, hashtext(%s))"
READ_QUIET = """
SELECT whose, zone, begins, ends, days, critical, "then", version, changed_at, changed_by
FROM agentstate_alertquiet WHERE %(whose)s::text[] IS NULL OR whose = ANY(%(whose)s) ORDER BY whose
"""
SAVE_QUIET = """
INSERT INTO agentstate_alertquiet (whose, zone, begins, ends, days, critical, "then", version,
    changed_at, changed_by)
VALUES (%(whose)s, %(zone)s, %(begins)s, %(ends)s, %(days)s, %(critical)s, %(then)s, %(version)s,
    %(at)s, %(by)s)
ON CONFLICT (whose) DO UPDATE SET zone = excluded.zone, begins = excluded.begins,
    ends = excluded.ends, days = excluded.days, critical = excluded.critical,
    "then" = excluded."then", version = excluded.version, changed_at = excluded.changed_at,
    changed_by = excluded.changed_by
"""
# Kinds are held against each other, so whoever changes one meets whoever changes another.
LOCK_AGES = "SELECT pg_advisory_xact_lock(7215)"
SAVE_AGE = """
INSERT INTO agentstate_retentionage (kind, days, version, whole_from, changed_at, changed_by,
    changed_why)
VALUES (%(kind)s, %(days)s, %(version)s, %(whole_from)s, %(changed_at)s, %(changed_by)s,
    %(changed_why)s)
ON CONFLICT (kind) DO UPDATE SET days = excluded.days, version = excluded.version,
    whole_from = excluded.whole_from, changed_at = excluded.changed_at,
    changed_by = excluded.changed_by, changed_why = excluded.changed_why
"""
RESEND = """
UPDATE agentstate_delivery SET state = 'waiting', settled_at = NULL, next_at = %(at)s,
    held_until = NULL,
    attempts_max = attempts + %(more)s
WHERE id = %(id)s
"""
LOCK_BULKS = "SELECT id, state FROM agentstate_bulkaction WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
CREATE_BULK = """
INSERT INTO agentstate_bulkaction (id, kind, filter, seen_at, shown, is_all, tags, hold_off_seconds,
    reason, created_by, scopes, created_at, state)
VALUES (%(id)s, %(kind)s, %(filter)s, %(seen_at)s, %(shown)s, %(is_all)s, %(tags)s,
    %(hold_off_seconds)s, %(reason)s, %(by)s, %(scopes)s, %(at)s, %(state)s)
"""
# In the order in which they were picked. Of those that are gone there is no row.
PICK_ROWS = """
WITH picked AS (
    INSERT INTO agentstate_bulkitem (bulk_id, n, run_id, run_key, seen, outcome, found_at)
    SELECT %(id)s, row_number() OVER (ORDER BY t.n), r.id, r.key, t.seen, 'waiting', %(at)s
    FROM json_to_recordset(%(rows)s) AS t (n integer, run text, seen jsonb)
    JOIN agentstate_run r ON r.key = t.run
    RETURNING n
)
UPDATE agentstate_bulkaction SET found = (SELECT count(*) FROM picked),
    todo = (SELECT count(*) FROM picked)
WHERE id = %(id)s
"""
STOP_BULK = """
UPDATE agentstate_bulkaction SET state = 'stopped', ended_at = %(at)s, stopped_by = %(by)s,
    stopped_why = %(why)s
WHERE id = %(id)s AND state IN ('collecting', 'working')
"""
XACT_STATUS = "SELECT pg_xact_status(%s::xid8)"


def read_rule(row: Sequence[Any]) -> KeptRule:
    """Of LOCK_RULES."""
    _, warn, alert, version, text = row
    definition = read_definition(json.loads(text)) if text is not None else None
    return KeptRule(warn=warn, alert=alert, version=version, definition=definition)


def read_quiet(row: Sequence[Any]) -> KeptQuiet:
    """Of READ_QUIET. What this machine cannot judge, as it knows not the zone, is none."""
    whose, zone, begins, ends, days, critical, then, version, changed_at, changed_by = row
    try:
        quiet = Quiet(
            zone=zone, begins=begins, ends=ends, days=tuple(days), critical=critical, then=then
        )
    except Invalid:
        quiet = None
    return KeptQuiet(
        whose=whose,
        quiet=quiet if days else None,
        version=version,
        changed_at=changed_at,
        changed_by=changed_by,
    )


def read_target(row: Sequence[Any]) -> TargetRow:
    """Of LOCK_TARGETS."""
    names = (
        "id", "name", "kind", "hint", "least", "rules", "enabled", "version", "person", "testing",
    )  # fmt: skip
    values = dict(zip(names, row, strict=True))
    return TargetRow(**values | {"rules": tuple(values["rules"])})


# What a worker's calls ask again and again: prepared (`flights.py`).
PREPARED = frozenset(
    {
        BEGIN, TRY_LOCKS, MAKE_UNITS, LOCK_UNITS, LOCK_RUNS, LOCK_RUNS_BY_KEY, LOOK, RECORDS,
        LOCK_BUDGETS, CLAIM_UNITS, KNOWN_EVENTS, KNOWN_EVENTS_BY_KEY, KNOWN_CHARGES, HOLDS, TERMS,
        DRAINS, COUNT_OPEN_EFFECTS, INSERT_RUNS, UPDATE_RUNS, GROW_RUNS, INSERT_EVENTS,
        BEGIN_EFFECTS, END_EFFECTS, CLOSE_TERMS, SAVE_LEASES, DROP_LEASES, INSERT_TERMS,
        UPDATE_BUDGETS, INSERT_ENTRIES, SAVE_HOLDS, INSERT_OUTBOX, INSERT_REFUSALS, KEEP_ANSWERS,
    }
)  # fmt: skip


def records(rows: Iterable[Any]) -> str:
    """Rows (of rows.py, or mappings) as the text that json_to_recordset reads."""
    return json.dumps([_members(row) for row in rows], default=_encode, ensure_ascii=False)


def only_grew(before: RunRow, now: RunRow) -> bool:
    """Whether nothing is another but what an append changes (GROW_RUNS). `replace` keeps the rest
    as the same objects; what is equal only by its value counts as changed, which does no harm."""
    was, is_now = before.__dict__, now.__dict__
    return all(was[name] is is_now[name] for name in _KEPT)


def event_records(events: Iterable[EventRow]) -> str:
    """The same text as `records`, in a third of the time: an append waits for it."""
    text, at, told = encode_basestring, None, ""
    rows = []
    for e in events:
        if e.at is not at:
            at, told = e.at, moment(e.at)
        rows.append(
            f'{{"run_id":"{e.run_id}","seq":{e.seq},"version":{e.version},"type":{text(e.type)},'
            f'"origin":{text(e.origin)},"data":{text(e.data)},"event_id":{_or_null(e.event_id)},'
            f'"token":{"null" if e.token is None else e.token},"add":{_or_null(e.add)},'
            f'"actor":{text(e.actor)},"request_id":{_or_null(e.request_id)},"at":"{told}"}}'
        )
    return f"[{','.join(rows)}]"


def grown_records(runs: Iterable[RunRow]) -> str:
    """What GROW_RUNS takes of each: `_GROWN`."""
    rows = []
    for run in runs:
        paced = "null" if run.paced_at is None else f'"{moment(run.paced_at)}"'
        rows.append(
            f'{{"id":"{run.id}","version":{run.version},"last_seq":{run.last_seq},'
            f'"counters":{json.dumps(run.counters)},"updated_at":"{moment(run.updated_at)}",'
            f'"paced_at":{paced}}}'
        )
    return f"[{','.join(rows)}]"


def _or_null(value: str | None) -> str:
    return "null" if value is None else encode_basestring(value)


def _members(row: Any) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    members: Mapping[str, Any] = row.__dict__
    return members


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no column takes {type(value).__name__}")
