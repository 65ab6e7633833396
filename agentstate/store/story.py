"""The single table of the first text, as a view: partition key, sort key, and the row.

`run#42` holds `budget` (the first; more are `budget#<name>`), `evt#000001` … and `meta`;
`unit#7` holds `lease`; `budget#<name>` holds a shared budget. One statement and one snapshot; the
order is by kind and number, never by the text of a label, so it is right past event 999,999 as
well. Rows come as JSON texts that PostgreSQL wrote, with each payload to the letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.db import connection

from agentstate.store import distribution
from agentstate.store.effects import BEGUN, COUNTED_MAX, ENDED, SIGN_BEGUN, SIGN_ENDED
from agentstate.store.errors import Invalid, NotFound, RunExpired
from agentstate.store.payloads import RawJSON
from agentstate.store.rules import names

BUDGET, EVENT, META = 0, 1, 2
PAGE_BYTES = 1024 * 1024
LABEL, DIGITS_MAX = "evt#", 16

_TIME = "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"


def _budget_body(reserved: str = "b.reserved", spent: str = "b.spent") -> str:
    return (
        f"'name', b.name, 'unit', b.unit, 'cap', b.cap, 'reserved', {reserved}, 'spent', {spent},"
        " 'overdrawn', b.overdrawn, 'version', b.version"
    )


def _payload(name: str, column: str) -> str:
    """The payload, for those who may see it, and its size."""
    return (
        f"'{name}', CASE WHEN %(payloads)s THEN {column} END,"
        f" '{name}_bytes', octet_length({column}::text)"
    )


_EFFECT = (
    f"CASE left(e.event_id, 1) WHEN '{SIGN_BEGUN}' THEN '{BEGUN}' WHEN '{SIGN_ENDED}'"
    f" THEN '{ENDED}' END"
)
# The events' numbers come as ranges, for those whose labels begin with a prefix.
STORY = f"""
WITH r AS (
    SELECT *, coalesce(expires_at <= agentstate_now() AND NOT hold, false) AS expired
    FROM agentstate_run WHERE key = %(key)s
), b AS (
    SELECT b.*, CASE b.n WHEN 1 THEN 'budget' ELSE 'budget#' || b.name END AS sk
    FROM (SELECT b.*, row_number() OVER (ORDER BY b.id) AS n
        FROM agentstate_budget b JOIN r ON r.id = b.run_id) b
), e AS (
    SELECT e.*, 'evt#' || lpad(e.seq::text, greatest(6, length(e.seq::text)), '0') AS sk
    FROM unnest(%(lows)s::bigint[], %(highs)s::bigint[]) AS w (low, high) CROSS JOIN LATERAL (
        SELECT * FROM agentstate_event e
        WHERE e.run_id = (SELECT id FROM r) AND e.seq > %(after_seq)s
            AND e.seq BETWEEN w.low AND w.high
        ORDER BY e.seq LIMIT %(events)s
    ) e ORDER BY e.seq LIMIT %(events)s
), bounded AS (
    SELECT e.*, sum(octet_length(e.data::text)) OVER (ORDER BY e.seq) AS bytes FROM e
), items AS (
    SELECT {BUDGET} AS kind, b.n, b.sk,
        json_build_object('pk', 'run#' || r.key, 'sk', b.sk, {_budget_body()}) AS body
    FROM b JOIN r ON true
    UNION ALL
    SELECT {EVENT}, e.seq, e.sk,
        json_build_object('pk', 'run#' || r.key, 'sk', e.sk, 'seq', e.seq, 'type', e.type,
            'origin', e.origin, {_payload("data", "e.data")},
            'id', CASE WHEN {_EFFECT} IS NULL THEN e.event_id END,
            'effect', CASE WHEN {_EFFECT} IS NOT NULL THEN json_build_object(
                'key', substr(e.event_id, 2), 'state', {_EFFECT}) END, 'token', e.token,
            'add', e.add, 'version', e.version, 'actor', e.actor, 'at', {_TIME.format("e.at")})
    FROM bounded e JOIN r ON true
    WHERE e.bytes <= {PAGE_BYTES} OR e.seq = (SELECT min(seq) FROM e)
    UNION ALL
    SELECT {META}, 1, 'meta',
        json_build_object('pk', 'run#' || r.key, 'sk', 'meta', 'task', r.task, 'status', r.status,
            'version', r.version, 'last_seq', r.last_seq, 'counters', r.counters, 'tags', r.tags,
            'notes', r.notes, {_payload("attrs", "r.attrs")}, {_payload("result", "r.result")},
            'owner', r.owner, 'token', r.token, 'attempt', r.attempt,
            'open_effects_count', (SELECT count(*) FROM (SELECT FROM agentstate_openeffect o
                WHERE o.run_id = r.id LIMIT {COUNTED_MAX}) counted),
            'created_at', {_TIME.format("r.created_at")},
            'updated_at', {_TIME.format("r.updated_at")},
            'ended_at', {_TIME.format("r.ended_at")})
    FROM r
)
SELECT r.expired, r.last_seq, (SELECT count(*) FROM e) > (SELECT count(*) FROM bounded WHERE
        bytes <= {PAGE_BYTES} OR seq = (SELECT min(seq) FROM e)) AS cut,
    i.kind, i.n, i.sk, i.body::text
FROM r LEFT JOIN items i ON (i.kind, i.n) > (%(after_kind)s, %(after_n)s)
    AND starts_with(i.sk, %(prefix)s)
ORDER BY i.kind, i.n
"""
UNIT = f"""
SELECT json_build_object('pk', 'unit#' || l.unit, 'sk', 'lease', 'owner', l.owner, 'token', l.token,
    'expires_at', {_TIME.format("l.expires_at")}, 'expires_in_ms', greatest(0,
        floor(extract(epoch FROM l.expires_at - agentstate_now()) * 1000)::bigint),
    'ttl_seconds', l.ttl_seconds, 'renewals', l.renewals)::text
FROM agentstate_lease l WHERE l.unit = %(key)s
"""
# Of a split one, what it and its slots have.
SHARED_BUDGET = f"""
SELECT json_build_object('pk', 'budget#' || b.name, 'sk', 'budget',
    {_budget_body("b.reserved + s.reserved", "b.spent + s.spent")})::text
FROM agentstate_budget b CROSS JOIN LATERAL (
    SELECT coalesce(sum(reserved), 0)::bigint AS reserved, coalesce(sum(spent), 0)::bigint AS spent
    FROM agentstate_budget WHERE slot_of_id = b.id
) s WHERE b.run_id IS NULL AND b.name = %(key)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Rows in the single table's order, and the run's last number in the same snapshot.

    next_seq: where the next page goes on (`after_seq`), None when every event is there.
    """

    items: tuple[RawJSON, ...]
    as_of_seq: int
    next_seq: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Rows of one partition key; after: the sort key to go on after, None at the end."""

    items: tuple[RawJSON, ...]
    after: str | None


def story(key: str, *, after_seq: int = 0, limit: int = 500, payloads: bool = True) -> Story:
    """Everything about a run: budgets, up to `limit` events (1 MiB at most), and the head.

    Raises NotFound, RunExpired.
    """
    rows = _read(key, after_seq=after_seq, events=limit, payloads=payloads)
    last_seq = int(rows[0][1])
    numbers = [n for *_, kind, n, _, _ in rows if kind == EVENT]
    last = numbers[-1] if numbers else after_seq
    return Story(
        items=tuple(RawJSON(body) for *_, body in rows if body is not None),
        as_of_seq=last_seq,
        next_seq=last if last < last_seq and numbers else None,
    )


def items(
    pk: str, *, sk_prefix: str = "", after: str | None = None, limit: int = 100,
    payloads: bool = True,
) -> Items:  # fmt: skip
    """The rows under any partition key whose sort key begins with `sk_prefix`.

    Raises Invalid (a key of another shape), NotFound, RunExpired.
    """
    kind, _, key = pk.partition("#")
    if kind == "run":
        return _items_of_run(
            names.check_run_key("pk", key), sk_prefix, after, limit, payloads=payloads
        )
    if kind == "unit":
        return _single(UNIT, names.check_unit("pk", key), "lease", sk_prefix, after)
    if kind == "budget":
        return _single(
            SHARED_BUDGET, names.check_budget_name("pk", key), "budget", sk_prefix, after
        )
    raise Invalid("pk", "run#<key>, unit#<unit> or budget#<name>")


def _items_of_run(key: str, prefix: str, after: str | None, limit: int, *, payloads: bool) -> Items:
    after_kind, after_n = _position(key, after)
    rows = _read(
        key,
        prefix=prefix,
        after_kind=after_kind,
        after_n=after_n,
        after_seq=after_n if after_kind == EVENT else 0,
        events=limit + 1 if after_kind < META else 0,
        payloads=payloads,
    )
    # Cut off by its size: what comes after the events comes with the last of them.
    cut = rows[0][2]
    found = [
        (sk, RawJSON(body))
        for *_, kind, _, sk, body in rows
        if body is not None and not (cut and kind == META)
    ]
    page = found[:limit]
    more = cut or len(found) > limit
    return Items(
        items=tuple(body for _, body in page), after=page[-1][0] if more and page else None
    )


def _position(key: str, after: str | None) -> tuple[int, int]:
    """(kind, number) of a sort key."""
    if after is None:
        return BUDGET, 0
    if after == "meta":
        return META, 1
    event = re.fullmatch(r"evt#([0-9]{6,18})", after)
    if event:
        return EVENT, int(event[1])
    if after == "budget":
        return BUDGET, 1
    if after.startswith("budget#"):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n FROM (SELECT b.name, row_number() OVER (ORDER BY b.id) AS n"
                " FROM agentstate_budget b JOIN agentstate_run r ON r.id = b.run_id"
                " WHERE r.key = %s) b WHERE name = %s",
                [key, after.removeprefix("budget#")],
            )
            row = cursor.fetchone()
            if row:
                return BUDGET, int(row[0])
    raise Invalid("after", "a sort key of this partition")


def _ranges(prefix: str) -> list[tuple[int, int]]:
    """The numbers whose labels begin with `prefix`, ascending, both ends included.

    A label has at least six digits: `evt#1` begins those of 100000 to 199999, of 1000000 to
    1999999, and so on; `evt#00001` those of 10 to 19 alone.
    """
    if LABEL.startswith(prefix):
        return [(1, 10**DIGITS_MAX - 1)]
    digits = prefix.removeprefix(LABEL)
    if not prefix.startswith(LABEL) or not re.fullmatch(rf"[0-9]{{1,{DIGITS_MAX}}}", digits):
        return []
    number, missing = int(digits), max(0, 6 - len(digits))
    if digits.startswith("0"):
        lengths = range(missing, missing + 1) if len(digits) <= 6 else range(0)
    else:
        lengths = range(missing, DIGITS_MAX - len(digits) + 1)
    return [(number * 10**n, (number + 1) * 10**n - 1) for n in lengths]


def _read(key: str, **values: Any) -> list[tuple[Any, ...]]:
    defaults: dict[str, Any] = {
        "key": key, "prefix": "", "after_kind": BUDGET, "after_n": 0, "after_seq": 0,
    }  # fmt: skip
    ranges = _ranges(values.get("prefix", ""))
    values |= {"lows": [low for low, _ in ranges], "highs": [high for _, high in ranges]}
    with connection.cursor() as cursor:
        statement = STORY
        if distribution.is_distributed():
            # Citus finds a run's worker by an id that it is told, not by a look into another table.
            cursor.execute("SELECT id FROM agentstate_run WHERE key = %s", [key])
            values["run_id"] = next((run_id for (run_id,) in cursor.fetchall()), None)
            statement = STORY.replace("(SELECT id FROM r)", "%(run_id)s::uuid")
        cursor.execute(statement, defaults | values)
        rows = cursor.fetchall()
    if not rows:
        raise NotFound(f"no run {key}", run=key)
    if rows[0][0]:
        raise RunExpired(f"the run {key} expired", run=key)
    return list(rows)


def _single(statement: str, key: str, sk: str, prefix: str, after: str | None) -> Items:
    with connection.cursor() as cursor:
        cursor.execute(statement, {"key": key})
        row = cursor.fetchone()
    if row is None:
        raise NotFound(f"nothing under this key: {key}")
    there = sk.startswith(prefix) and (after is None or after < sk)
    return Items(items=(RawJSON(row[0]),) if there else (), after=None)
