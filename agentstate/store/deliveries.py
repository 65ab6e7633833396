"""Deliveries as they are kept: written with the change that they tell of, taken, tried, settled.

A delivery is a row in the transaction of its alert's change, so none is lost and none tells of
what was never kept. Whoever takes one claims it for a while; nobody else does meanwhile. It is
tried at least once: one that died in between may have been heard, so each carries an id by which
the receiver knows it again. Rules: delivering.py. The way out: `tasks/deliveries.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from agentstate.store import rowsql as sql
from agentstate.store.alerting import RULES, Notice, Rule, What
from agentstate.store.delivering import (
    ATTEMPTS,
    CLAIM_SECONDS,
    DELIVERED,
    DROPPED,
    NO_WORD,
    TARGET_OFF,
    TOO_MANY,
    WAITING,
    WAITING_MAX,
    Answer,
    Health,
    Sent,
    TargetRow,
    after,
    id_told,
    is_told,
    message_of,
    trial_message,
)
from agentstate.store.errors import Invalid
from agentstate.store.ids import made_at, uuid7
from agentstate.store.payloads import write
from agentstate.store.quiet import (
    DROPPED_THEN,
    OVERTAKEN,
    PERSON,
    TARGET,
    Held,
    KeptQuiet,
    Quiet,
    held,
)
from agentstate.store.rows import ActionRow
from agentstate.store.sealing import Unreadable, unseal

JOB = "deliver alerts"
ACTOR = "system:deliveries"
PER_TARGET = 4
ROWS_READ = 50
DUE_MAX = 10_000


# --- written with what they tell of --------------------------------------------------------------

TARGETS_ON = """
SELECT id, name, person, least, rules,
    (SELECT count(*) FROM agentstate_delivery d WHERE d.target_id = t.id AND d.state = 'waiting')
FROM agentstate_alerttarget t WHERE enabled ORDER BY name
"""
INSERT = """
INSERT INTO agentstate_delivery (id, target_id, target, rule, what, message, state, attempts,
    attempts_max, next_at, answer, created_at, settled_at, held_until)
SELECT w.id, w.target_id, w.target, w.rule, w.what, w.message, w.state, 0, w.attempts_max,
    coalesce(w.held_until, w.at), w.answer, w.at, CASE WHEN w.state <> 'waiting' THEN w.at END,
    w.held_until
FROM json_to_recordset(%s) AS w (id uuid, target_id uuid, target text, rule text, what text,
    message json, state text, attempts_max integer, at timestamptz, answer text,
    held_until timestamptz)
"""
# It is told something newer now: what is held back of the same rule is told no more.
END_HELD = """
UPDATE agentstate_delivery SET state = 'dropped', settled_at = %(now)s, answer = %(why)s
WHERE target_id = %(target)s AND rule = ANY(%(rules)s) AND state = 'waiting'
    AND held_until > %(now)s
"""


def enqueue(
    cursor: Any,
    notices: Iterable[Notice],
    now: datetime,
    *,
    rules: Mapping[str, Rule] = RULES,
) -> int:
    """Write what the targets that are on are to be told, in the caller's transaction; how many."""
    due = list(notices)
    if not due:
        return 0
    cursor.execute(TARGETS_ON)
    targets = cursor.fetchall()
    quiets = _quiets(cursor)
    rows: list[dict[str, Any]] = []
    for target_id, name, person, least, wanted, waiting in targets:
        told = [notice for notice in due if is_told(notice, least=least, rules=wanted)]
        hours = quiets_of(quiets, target=name, person=person)
        holds = {n.standing.rule: held(hours, n.severity, now) for n in told}
        if hours and (through := [rule for rule, hold in holds.items() if hold is None]):
            values = {"target": target_id, "rules": through, "now": now, "why": OVERTAKEN}
            cursor.execute(END_HELD, values)
        for place, notice in enumerate(told, waiting + 1):
            rule = rules[notice.standing.rule]
            message = message_of(notice, rule, now, console=settings.CONSOLE_URL)
            row = new_row(target_id, name, message, rule=rule.name, what=notice.what, now=now)
            full = {"state": DROPPED, "answer": TOO_MANY} if place > WAITING_MAX else {}
            rows.append(row | _held(holds[rule.name]) | full)
    if rows:
        cursor.execute(INSERT, [sql.records(rows)])
    return len(rows)


def _held(hold: Held | None) -> dict[str, Any]:
    """What quiet hours make of a row."""
    if hold is None:
        return {}
    if hold.until is None:
        return {"state": DROPPED, "answer": DROPPED_THEN}
    return {"held_until": hold.until}


def _quiets(cursor: Any) -> dict[str, Quiet]:
    cursor.execute(sql.READ_QUIET, {"whose": None})
    kept = [sql.read_quiet(row) for row in cursor.fetchall()]
    return {one.whose: one.quiet for one in kept if one.quiet}


def quiets_of(quiets: Mapping[str, Quiet], *, target: str, person: str) -> list[Quiet]:
    """Those that a target has: its own, and those of the person whose it is."""
    keys = (f"{TARGET}{target}", f"{PERSON}{person}" if person else "")
    return [quiets[key] for key in keys if key in quiets]


def read_quiets(*, whose: Sequence[str] | None = None) -> dict[str, KeptQuiet]:
    """Quiet hours by whose they are, of these or of all; also those that were ended."""
    with connection.cursor() as cursor:
        cursor.execute(sql.READ_QUIET, {"whose": list(whose) if whose is not None else None})
        return {row[0]: sql.read_quiet(row) for row in cursor.fetchall()}


OF_WHOM = """
SELECT id, name, person FROM agentstate_alerttarget
WHERE %(whose)s IN ('target:' || name, 'person:' || person) ORDER BY name
"""
HOLD_ANEW = """
UPDATE agentstate_delivery SET held_until = %(until)s, next_at = coalesce(%(until)s, %(now)s)
WHERE target_id = %(target)s AND state = 'waiting' AND held_until > %(now)s
"""


def hold_anew(cursor: Any, whose: str, now: datetime) -> None:
    """Other quiet hours: what is held back goes by them from now on; it is dropped no more."""
    cursor.execute(OF_WHOM, {"whose": whose})
    targets = cursor.fetchall()
    quiets = _quiets(cursor)
    for target_id, name, person in targets:
        ends = [quiet.until(now) for quiet in quiets_of(quiets, target=name, person=person)]
        until = max((end for end in ends if end), default=None)
        cursor.execute(HOLD_ANEW, {"target": target_id, "until": until, "now": now})


def enqueue_test(cursor: Any, target: TargetRow, now: datetime, *, id: UUID, by: str) -> None:
    """Write a test for the target, in the caller's transaction."""
    message = trial_message(target.name, now, by=by, console=settings.CONSOLE_URL)
    row = new_row(target.id, target.name, message, rule="", what=What.TEST, now=now, attempts_max=1)
    cursor.execute(INSERT, [sql.records([row | {"id": id}])])


def new_row(
    target_id: UUID,
    target: str,
    message: Mapping[str, Any],
    *,
    rule: str,
    what: str,
    now: datetime,
    attempts_max: int = ATTEMPTS,
) -> dict[str, Any]:
    """A delivery that is due now, for INSERT."""
    return {
        "id": uuid7(now),
        "target_id": target_id,
        "target": target,
        "rule": rule,
        "what": str(what),
        "message": json.loads(write(message)),
        "state": WAITING,
        "attempts_max": attempts_max,
        "at": now,
        "answer": "",
        "held_until": None,
    }


# --- taken ---------------------------------------------------------------------------------------

# Of a target that is off, nothing goes out but what was asked for to see whether it can be reached.
_ON = "EXISTS (SELECT FROM agentstate_alerttarget t WHERE t.id = d.target_id{enabled})"
_MAY_GO = f"CASE WHEN d.what = 'test' THEN {_ON.format(enabled='')}" + (
    f" ELSE {_ON.format(enabled=' AND t.enabled')} END"
)
DROP_ORPHANS = f"""
UPDATE agentstate_delivery SET state = 'dropped', settled_at = agentstate_now(),
    claimed_until = NULL, answer = %(why)s
WHERE id IN (SELECT id FROM agentstate_delivery d WHERE state = 'waiting' AND NOT {_MAY_GO}
    AND coalesce(claimed_until <= agentstate_now(), true) LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""
END_UNHEARD = """
UPDATE agentstate_delivery SET state = 'failed', settled_at = agentstate_now(),
    claimed_until = NULL, answer = %(why)s
WHERE id IN (SELECT id FROM agentstate_delivery WHERE state = 'waiting'
    AND claimed_until <= agentstate_now() AND attempts >= attempts_max
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""
IN_WORK = """
SELECT EXISTS (SELECT FROM agentstate_delivery
    WHERE state = 'waiting' AND claimed_until > agentstate_now())
"""
# Of one rule, a target is told one after the other, so that "over" never comes before "firing"; and
# of one target only so many are taken at once, so that one that is slow does not hold up the rest.
CLAIM = f"""
WITH due AS (
    SELECT id FROM (
        SELECT d.id, d.next_at, row_number() OVER (PARTITION BY d.target_id ORDER BY d.id) AS n
        FROM agentstate_delivery d
        WHERE d.state = 'waiting' AND d.next_at <= agentstate_now() AND d.attempts < d.attempts_max
            AND coalesce(d.claimed_until <= agentstate_now(), true) AND {_MAY_GO}
            AND NOT EXISTS (SELECT FROM agentstate_delivery e WHERE e.state = 'waiting'
                AND e.target_id = d.target_id AND e.rule = d.rule AND e.id < d.id)
    ) AS ready WHERE n <= %(per_target)s ORDER BY next_at, id LIMIT %(limit)s
), taken AS (
    SELECT d.id FROM agentstate_delivery d JOIN due USING (id)
    WHERE d.state = 'waiting' AND coalesce(d.claimed_until <= agentstate_now(), true)
    FOR UPDATE OF d SKIP LOCKED
)
UPDATE agentstate_delivery d SET attempts = d.attempts + 1, tried_at = agentstate_now(),
    claimed_until = agentstate_now() + make_interval(secs => %(claim)s)
FROM taken, agentstate_alerttarget t
WHERE d.id = taken.id AND t.id = d.target_id
RETURNING d.id, d.attempts, t.kind, t.address, t.secret, d.message::text, d.target, d.tried_at
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A delivery that is this process's to try until its claim is over.

    address, secret: None when they cannot be read, which is a failed try as well.
    now: the database's clock when it was taken.
    """

    id: UUID
    attempt: int
    kind: str
    address: str | None = field(repr=False)
    secret: str | None = field(repr=False)
    message: str
    target: str
    now: datetime


def claim(*, limit: int) -> list[Claim]:
    """Take what is due, at most `limit`, for CLAIM_SECONDS. Two at once take different ones; while
    somebody is at it, nobody else begins, so that slow receivers hold up one worker and not all.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(IN_WORK)
        if cursor.fetchone()[0]:
            return []
        cursor.execute(DROP_ORPHANS, {"why": TARGET_OFF, "limit": DUE_MAX})
        cursor.execute(END_UNHEARD, {"why": NO_WORD, "limit": DUE_MAX})
        wanted = {"limit": limit, "per_target": PER_TARGET, "claim": CLAIM_SECONDS}
        cursor.execute(CLAIM, wanted)
        return [_claim(row) for row in cursor.fetchall()]


def _claim(row: Sequence[Any]) -> Claim:
    delivery_id, attempt, kind, address, secret, message, target, now = row
    return Claim(
        id=delivery_id,
        attempt=attempt,
        kind=kind,
        address=_opened(address),
        secret=_opened(secret),
        message=message,
        target=target,
        now=now,
    )


def _opened(sealed: str | None) -> str | None:
    try:
        return unseal(sealed) if sealed is not None else None
    except Unreadable:
        return None


DUE = """
SELECT count(*) FROM (SELECT FROM agentstate_delivery WHERE state = 'waiting'
    AND next_at <= agentstate_now() AND coalesce(claimed_until <= agentstate_now(), true)
    LIMIT %s) AS due
"""


def count_due() -> int:
    """How many are due and not being tried, counted up to DUE_MAX."""
    with connection.cursor() as cursor:
        cursor.execute(DUE, [DUE_MAX])
        return int(cursor.fetchone()[0])


# --- settled -------------------------------------------------------------------------------------

# The target before its deliveries: the order in which commands lock them, too.
LOCK_TARGET_OF = """
SELECT id, name, enabled, failures, failing_since FROM agentstate_alerttarget
WHERE id = (SELECT target_id FROM agentstate_delivery WHERE id = %s) FOR NO KEY UPDATE
"""
LOCK = """
SELECT what, state, attempts, attempts_max, next_at, agentstate_now()
FROM agentstate_delivery WHERE id = %s FOR UPDATE
"""
SETTLE = """
UPDATE agentstate_delivery SET state = %(state)s, next_at = %(next_at)s, claimed_until = NULL,
    status = %(status)s, answer = %(answer)s, took_ms = %(took_ms)s,
    settled_at = CASE WHEN %(state)s <> 'waiting' THEN agentstate_now() END
WHERE id = %(id)s
"""
SAVE_HEALTH = """
UPDATE agentstate_alerttarget SET failures = %(failures)s, failing_since = %(failing_since)s,
    delivered_at = CASE WHEN %(arrived)s THEN agentstate_now() ELSE delivered_at END,
    enabled = %(enabled)s, version = version + CASE WHEN enabled <> %(enabled)s THEN 1 ELSE 0 END,
    off_at = CASE WHEN enabled AND NOT %(enabled)s THEN agentstate_now() ELSE off_at END,
    off_why = coalesce(%(off_why)s, off_why)
WHERE id = %(id)s
"""
# It answers again: what waits for its next try need not wait any longer.
HURRY = """
UPDATE agentstate_delivery SET next_at = agentstate_now()
WHERE target_id = %s AND state = 'waiting' AND claimed_until IS NULL
    AND next_at > agentstate_now() AND coalesce(held_until <= agentstate_now(), true)
"""


def settle(claim: Claim, answer: Answer) -> str | None:
    """Keep how a try ended; the delivery's state now, None when that was not this try's to say.

    What arrived has arrived, whoever else is trying meanwhile; a failure is only told by who has
    the claim.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(LOCK_TARGET_OF, [claim.id])
        target = cursor.fetchone()
        cursor.execute(LOCK, [claim.id])
        row = cursor.fetchone()
        if row is None or not _is_ones_own(claim, answer, row):
            return None
        *of, now = row
        sent = Sent(**dict(zip(("what", "state", "attempts", "attempts_max", "next_at"), of,
                               strict=True)))  # fmt: skip
        health = Health(
            enabled=target is not None and target[2],
            failures=target[3] if target else 0,
            failing_since=target[4] if target else None,
        )
        draw = random.random()  # noqa: S311
        sent, healed = after(sent, health, answer, now, draw=draw)
        cursor.execute(SETTLE, _settled(claim, sent, answer))
        if target is not None:
            _keep_health(cursor, target, healed, answer, now, was=health)
        return sent.state


def _is_ones_own(claim: Claim, answer: Answer, row: Sequence[Any]) -> bool:
    _, state, attempts, *_ = row
    if answer.arrived:
        return bool(state != DELIVERED)
    return bool(state == WAITING and attempts == claim.attempt)


def _settled(claim: Claim, sent: Sent, answer: Answer) -> dict[str, Any]:
    return {
        "id": claim.id,
        "state": sent.state,
        "next_at": sent.next_at,
        "status": answer.status,
        "answer": answer.text,
        "took_ms": answer.took_ms,
    }


def _keep_health(
    cursor: Any,
    target: Sequence[Any],
    now_is: Health,
    answer: Answer,
    now: datetime,
    *,
    was: Health,
) -> None:
    target_id, name, *_ = target
    values = {
        "id": target_id,
        "arrived": answer.arrived,
        "enabled": now_is.enabled,
        "failures": now_is.failures,
        "failing_since": now_is.failing_since,
        "off_why": now_is.off_why,
    }
    cursor.execute(SAVE_HEALTH, values)
    if answer.arrived and was.failures:
        cursor.execute(HURRY, [target_id])
    if now_is.off_why is not None:
        action = ActionRow(
            actor=ACTOR,
            action="target.switched-off",
            object=name,
            run_id=None,
            request_id=None,
            at=now,
            reason=now_is.off_why,
            before={"enabled": True},
            after={"enabled": False, "failures": now_is.failures},
        )
        cursor.execute(sql.INSERT_ACTIONS, [sql.records([action])])


# --- what is read --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A line of the log. id: as the receiver is told it. trying: somebody is at it now."""

    id: str
    target: str
    rule: str
    what: str
    state: str
    attempts: int
    attempts_max: int
    next_at: datetime
    tried_at: datetime | None
    took_ms: int | None
    status: int | None
    answer: str
    created_at: datetime
    settled_at: datetime | None
    held_until: datetime | None
    trying: bool
    resendable: bool

    @property
    def held(self) -> bool:
        """Whether it waits for the end of quiet hours; it may have gone out by now."""
        return self.state == WAITING and self.held_until is not None and not self.attempts


_LOG = """
SELECT d.id, d.target, d.rule, d.what, d.state, d.attempts, d.attempts_max, d.next_at, d.tried_at,
    d.took_ms, d.status, d.answer, d.created_at, d.settled_at,
    d.held_until, d.state = 'waiting' AND coalesce(d.claimed_until > agentstate_now(), false),
    EXISTS (SELECT FROM agentstate_alerttarget t WHERE t.id = d.target_id)
FROM agentstate_delivery d
"""
READ = f"""{_LOG}
WHERE (%(target)s::text IS NULL OR d.target = %(target)s)
    AND (%(before)s::uuid IS NULL OR (d.created_at, d.id) < (
        SELECT coalesce(b.created_at, %(made_before)s::timestamptz), %(before)s::uuid
        FROM (VALUES (1)) AS one (n) LEFT JOIN agentstate_delivery b ON b.id = %(before)s))
ORDER BY d.created_at DESC, d.id DESC LIMIT %(limit)s
"""
READ_ONE = f"{_LOG} WHERE d.id = %(id)s"


def read(
    *, target: str | None = None, before: str | None = None, limit: int = ROWS_READ
) -> list[Delivery]:
    """The newest deliveries. before: the id of the last one that was read, to go on from there,
    also when it is not kept any more. Raises Invalid for a text that is no id of a delivery.
    """
    at = read_id(before) if before is not None else None
    values = {
        "target": target,
        "before": at,
        "made_before": None if before is None else _made_before(at),
        "limit": limit,
    }
    with connection.cursor() as cursor:
        cursor.execute(READ, values)
        return [_line(row) for row in cursor.fetchall()]


def find(delivery: str) -> Delivery | None:
    """One of them by its id."""
    at = read_id(delivery)
    if at is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(READ_ONE, {"id": at})
        row = cursor.fetchone()
        return _line(row) if row else None


def read_id(text: str) -> UUID | None:
    """What `id_told` made the text of; None for a text that it never makes."""
    digits = text.removeprefix("msg_")
    if len(digits) != 32 or text == digits or set(digits) - set("0123456789abcdef"):
        return None
    return UUID(digits)


def _made_before(delivery: UUID | None) -> datetime:
    """When one was made at the latest, by its id: of what is older than a deleted one none is lost.
    Raises Invalid."""
    try:
        if delivery is not None:
            return made_at(delivery) + timedelta(milliseconds=1)
    except OverflowError:
        pass
    raise Invalid("before", "the id of a delivery, as `next` of the page before tells it")


def _line(row: Sequence[Any]) -> Delivery:
    names = (
        "id", "target", "rule", "what", "state", "attempts", "attempts_max", "next_at", "tried_at",
        "took_ms", "status", "answer", "created_at", "settled_at",
        "held_until", "trying", "resendable",
    )  # fmt: skip
    values = dict(zip(names, row, strict=True))
    return Delivery(**values | {"id": id_told(values["id"])})
