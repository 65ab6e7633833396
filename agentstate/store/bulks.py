"""Bulks as they are worked off: their runs are found, then done one by one, in small steps.

Whoever works on a bulk claims it for a while, and each step is written with how far it came; so one
that is killed anywhere is followed by another, who goes on. Each run is one command under a key
made of the bulk and the run: done twice, it has one effect and gets the first answer, so nothing
depends on the claim. Rules: bulking.py. Why: docs/decisions/0026-bulk.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import Q
from psycopg.errors import QueryCanceled

from agentstate.store import bulking, filters, search
from agentstate.store import rowsql as sql
from agentstate.store.asks import Ask, Outcome
from agentstate.store.bulking import RunSeen, Seen, Work, name_of
from agentstate.store.callers import Caller, Circumstances
from agentstate.store.commands import Command, Patch, ReclaimLease, Transition
from agentstate.store.errors import IdempotencyInFlight, Refusal, Retry
from agentstate.store.execute import execute_all
from agentstate.store.permits import MOVES
from agentstate.store.rows import unit_of

JOB = "work bulks"
ACTOR = "system:bulks"
# Longer than any step: then whoever was at it is dead, and another one may go on.
CLAIM_SECONDS = 15
# What has not begun by then is tried again later: a run that somebody keeps locked holds up little.
STEP_SECONDS = 5.0
FOUND_AT_ONCE = 500
# One transaction locks so many runs at once, and a worker of one of them waits for it.
DONE_AT_ONCE = 20
SEARCH_MS = 10_000
TOO_SLOW = f"its search took longer than {SEARCH_MS // 1_000} s"

log = logging.getLogger(__name__)

CLAIM = """
UPDATE agentstate_bulkaction SET claim = claim + 1, worked_at = agentstate_now(),
    begun_at = coalesce(begun_at, agentstate_now()),
    claimed_until = agentstate_now() + make_interval(secs => %(seconds)s)
WHERE id = (SELECT id FROM agentstate_bulkaction WHERE state IN ('collecting', 'working')
        AND NOT EXISTS (SELECT FROM agentstate_bulkaction
            WHERE state IN ('collecting', 'working') AND claimed_until > agentstate_now())
    ORDER BY worked_at NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, claim, kind, filter, seen_at, shown, is_all, tags, hold_off_seconds, reason,
    created_by, scopes
"""
# Who lost the claim, or works on what was stopped, writes nothing more of it.
_MINE = "id = %(id)s AND claim = %(claim)s"
_GO_ON = "claimed_until = agentstate_now() + make_interval(secs => %(seconds)s)"
RELEASE = f"UPDATE agentstate_bulkaction SET claimed_until = NULL WHERE {_MINE}"
READ_CURSOR = f"""
SELECT state, cursor_at, cursor_id, found, todo FROM agentstate_bulkaction WHERE {_MINE}
"""
MOVE_CURSOR = f"""
UPDATE agentstate_bulkaction SET cursor_at = coalesce(%(at)s, cursor_at),
    cursor_id = coalesce(%(tie)s, cursor_id), found = found + %(found)s, todo = todo + %(todo)s,
    skipped = skipped + %(skipped)s, cut = cut OR %(cut)s,
    state = CASE WHEN %(over)s THEN 'working' ELSE state END, worked_at = agentstate_now(), {_GO_ON}
WHERE {_MINE} AND state = 'collecting' AND cursor_id IS NOT DISTINCT FROM %(was)s
RETURNING agentstate_now()
"""
ADD_ITEMS = """
INSERT INTO agentstate_bulkitem (bulk_id, n, run_id, run_key, seen, outcome, why, found_at,
    settled_at)
SELECT %(id)s, t.n, t.run_id, t.run_key, t.seen, t.outcome, t.why, %(at)s,
    CASE WHEN t.outcome <> 'waiting' THEN %(at)s END
FROM json_to_recordset(%(rows)s) AS t (n integer, run_id uuid, run_key text, seen jsonb,
    outcome text, why text)
"""
# Runs with their leases, as they are now.
LOOK = """
SELECT r.id, r.key, r.status, r.tags, r.hold, l.owner, l.token,
    CASE WHEN l.token IS NOT NULL THEN l.expires_at END
FROM agentstate_run r LEFT JOIN agentstate_lease l ON l.run_id = r.id WHERE r.id = ANY(%s)
"""
# Those that could not be tried come after all others.
NEXT = """
SELECT i.n, i.run_id, i.run_key, i.seen FROM agentstate_bulkitem i
JOIN agentstate_bulkaction b ON b.id = i.bulk_id AND b.state = 'working' AND b.claim = %(claim)s
WHERE i.bulk_id = %(id)s AND i.outcome = 'waiting' ORDER BY i.tries, i.n LIMIT %(limit)s
"""
ANSWERED = """
SELECT key FROM agentstate_idempotencyrecord WHERE principal = %(by)s AND key = ANY(%(keys)s)
"""
# Who changed a run last, of those who are written down.
LAST_ACTORS = """
SELECT DISTINCT ON (run_id) run_id, actor, request_id FROM agentstate_operatoraction
WHERE run_id = ANY(%s) ORDER BY run_id, id DESC
"""
# Only what still waits is settled: of two who did the same row, one counts it.
SETTLE = """
WITH told AS (
    SELECT n, outcome, why, tries FROM json_to_recordset(%(rows)s)
        AS t (n integer, outcome text, why text, tries integer)
), settled AS (
    UPDATE agentstate_bulkitem i SET tries = i.tries + told.tries, why = told.why,
        outcome = CASE WHEN told.outcome = 'waiting' AND i.tries + told.tries >= %(most)s
            THEN 'refused' ELSE told.outcome END,
        settled_at = CASE WHEN told.outcome <> 'waiting' OR i.tries + told.tries >= %(most)s
            THEN agentstate_now() END
    FROM told WHERE i.bulk_id = %(id)s AND i.n = told.n AND i.outcome = 'waiting'
    RETURNING i.outcome
)
UPDATE agentstate_bulkaction SET
    done = done + (SELECT count(*) FROM settled WHERE outcome = 'done'),
    skipped = skipped + (SELECT count(*) FROM settled WHERE outcome = 'skipped'),
    refused = refused + (SELECT count(*) FROM settled WHERE outcome = 'refused'),
    worked_at = agentstate_now(),
    claimed_until = CASE WHEN claim = %(claim)s AND state = 'working'
        THEN agentstate_now() + make_interval(secs => %(seconds)s) ELSE claimed_until END
WHERE id = %(id)s
"""
END = f"""
UPDATE agentstate_bulkaction SET state = 'done', ended_at = agentstate_now(), claimed_until = NULL
WHERE {_MINE} AND state = 'working' AND NOT EXISTS (SELECT FROM agentstate_bulkitem i
    WHERE i.bulk_id = agentstate_bulkaction.id AND i.outcome = 'waiting')
"""
GIVE_UP = f"""
UPDATE agentstate_bulkaction SET state = 'stopped', ended_at = agentstate_now(),
    claimed_until = NULL, stopped_by = '{ACTOR}', stopped_why = %(why)s
WHERE {_MINE} AND state IN ('collecting', 'working')
"""
LEFT = """
SELECT count(*) FROM (SELECT FROM agentstate_bulkaction b JOIN agentstate_bulkitem i
    ON i.bulk_id = b.id AND i.outcome = 'waiting'
    WHERE b.state IN ('collecting', 'working') LIMIT %s) AS left_over
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A bulk that is this process's to work on until its claim is over."""

    id: UUID
    claim: int
    work: Work
    filter: str | None
    shown: int
    is_all: bool
    reason: str
    by: Caller

    @property
    def mine(self) -> dict[str, Any]:
        return {"id": self.id, "claim": self.claim, "seconds": CLAIM_SECONDS}


def claim() -> Claim | None:
    """Take the bulk that waits the longest for its next step. None: there is none, or somebody is
    at one: however many are begun, they cost the others no more than one."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(CLAIM, {"seconds": CLAIM_SECONDS})
        row = cursor.fetchone()
    return _claim(*row) if row else None


def _claim(
    id: UUID,
    claim: int,
    kind: str,
    filter: str | None,
    seen_at: datetime,
    shown: int,
    is_all: bool,
    tags: Sequence[str],
    hold_off_seconds: int,
    reason: str,
    created_by: str,
    scopes: Sequence[str],
) -> Claim:
    whose, _, name = created_by.partition(":")
    return Claim(
        id=id,
        claim=claim,
        work=Work(kind=kind, at=seen_at, tags=tuple(tags), hold_off_seconds=hold_off_seconds),
        filter=filter,
        shown=shown,
        is_all=is_all,
        reason=reason,
        by=Caller(kind=_KINDS_OF_CALLERS[whose], name=name, scopes=frozenset(scopes)),
    )


_KINDS_OF_CALLERS: dict[str, Any] = {"person": "person", "key": "key", "system": "system"}


def release(claim: Claim) -> None:
    """Let others go on with it at once."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(RELEASE, claim.mine)


def step(claim: Claim) -> int | None:
    """Find some more of its runs, or do some; how many rows. None: it is over, or not ours.

    At most FOUND_AT_ONCE are found, or DONE_AT_ONCE done.
    """
    with connection.cursor() as cursor:
        cursor.execute(READ_CURSOR, claim.mine)
        row = cursor.fetchone()
    if row is None or row[0] not in bulking.AT_WORK:
        return None
    if row[0] == bulking.COLLECTING:
        return _find_more(claim, *row[1:])
    return _do_some(claim)


def left() -> int:
    """How many rows of bulks that are at work wait, counted up to bulking.LOOKED_MAX."""
    with connection.cursor() as cursor:
        cursor.execute(LEFT, [bulking.LOOKED_MAX])
        return int(cursor.fetchone()[0])


# --- found ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Runs under a filter from some place on, newest first, and where to go on; None: at its end.

    A dear search may come to its edge with few or none.
    """

    runs: list[RunSeen]
    next: tuple[datetime, UUID] | None


def read_stretch(
    wanted: filters.Filter, *, at: datetime, after: tuple[datetime, UUID] | None, limit: int
) -> Stretch:
    """The next runs that a filter lets through, as of `at`: none that was made later.

    Inside a transaction, whose time limit counts.
    """
    start = Q(created_at__lte=at)
    if after is not None:
        start &= search.side(*after, newer=False)
    edge = search.edge(wanted, now=at, start=start)
    found = search.matching(wanted, now=at).filter(start)
    if edge is not None:
        found = found.filter(search.side(edge.created_at, edge.id, newer=True, inclusive=True))
    places = list(found.order_by("-created_at", "-id").values_list("created_at", "id")[:limit])
    go_on = (edge.created_at, edge.id) if edge is not None else None
    if len(places) == limit:
        go_on = places[-1]
    seen = look_at([run_id for _, run_id in places])
    runs = [seen[run_id] for _, run_id in places if run_id in seen]
    return Stretch(runs=runs, next=go_on)


def look_at(ids: Sequence[UUID]) -> dict[UUID, RunSeen]:
    """These runs with their leases as they are now; none that is gone."""
    with connection.cursor() as cursor:
        cursor.execute(LOOK, [list(ids)])
        return {row[0]: _run_seen(*row) for row in cursor.fetchall()}


def look_at_keys(keys: Sequence[str], *, at: datetime) -> list[RunSeen]:
    """Runs by their keys, in that order; what is hidden or gone is left out."""
    ids = dict(search.of_keys(keys, now=at).values_list("key", "id"))
    seen = look_at(list(ids.values()))
    return [seen[ids[key]] for key in keys if key in ids and ids[key] in seen]


def _run_seen(
    id: UUID,
    key: str,
    status: str,
    tags: Sequence[str],
    hold: bool,
    owner: str | None,
    token: int | None,
    expires_at: datetime | None,
) -> RunSeen:
    return RunSeen(
        id=id,
        key=key,
        status=status,
        tags=tuple(tags),
        hold=hold,
        owner=owner,
        token=token,
        expires_at=expires_at,
    )


def _find_more(
    claim: Claim, cursor_at: datetime | None, cursor_id: UUID | None, found: int, todo: int
) -> int | None:
    after = (cursor_at, cursor_id) if cursor_at is not None and cursor_id is not None else None
    limit = min(FOUND_AT_ONCE, bulking.ROWS_MAX - found)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(SEARCH_MS)])
            wanted = filters.parse(claim.filter or "")
            stretch = read_stretch(wanted, at=claim.work.at, after=after, limit=limit)
    except OperationalError as slow:
        if not isinstance(slow.__cause__, QueryCanceled):
            raise
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(GIVE_UP, claim.mine | {"why": TOO_SLOW})
        return None
    rows = list(_items(claim, stretch.runs, first=found + 1, todo=todo))
    skipped = sum(row["outcome"] == bulking.SKIPPED for row in rows)
    full = stretch.next is not None and found + len(rows) >= bulking.ROWS_MAX
    told = {
        "at": stretch.next[0] if stretch.next else None,
        "tie": stretch.next[1] if stretch.next else None,
        "found": len(rows),
        "todo": len(rows) - skipped,
        "skipped": skipped,
        "cut": full,
        "over": full or stretch.next is None,
        "was": cursor_id,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(MOVE_CURSOR, claim.mine | told)
        row = cursor.fetchone()
        if row is None:
            return None
        if rows:
            values = {"id": claim.id, "at": row[0], "rows": sql.records(rows)}
            cursor.execute(ADD_ITEMS, values)
    return len(rows)


def _items(
    claim: Claim, runs: Sequence[RunSeen], *, first: int, todo: int
) -> Iterator[dict[str, Any]]:
    for n, run in enumerate(runs, first):
        why = bulking.stands_against(claim.work, run, claim.by.scopes)
        if not why and claim.is_all and todo >= claim.shown:
            why = bulking.MORE_THAN_SHOWN
        todo += not why
        yield {
            "n": n,
            "run_id": run.id,
            "run_key": run.key,
            "seen": {"status": run.status, "owner": run.owner, "token": run.token},
            "outcome": bulking.SKIPPED if why else bulking.WAITING,
            "why": why,
        }


# --- done ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """A row on its way. key: of its command, the same whoever gives it and however often."""

    n: int
    run_id: UUID
    run_key: str
    seen: Seen
    key: str


def _do_some(claim: Claim) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(NEXT, claim.mine | {"limit": DONE_AT_ONCE})
        items = [_item(claim, *row) for row in cursor.fetchall()]
        if not items:
            cursor.execute(END, claim.mine)
            return None
    told = _leave_out(claim, items)
    tried = [item for item in items if item.n not in told]
    if tried:
        begin_by = time.monotonic() + STEP_SECONDS
        outcomes = execute_all([_ask(claim, item, begin_by=begin_by) for item in tried])
        told |= {
            item.n: _told(outcome)
            for item, outcome in zip(tried, outcomes, strict=True)
            # Another one, whose claim was over, has it in hand: how it ends is for that one to say.
            if not isinstance(outcome, IdempotencyInFlight)
        }
    rows = [
        {"n": n, "outcome": outcome, "why": why, "tries": int(outcome == bulking.WAITING)}
        for n, (outcome, why) in sorted(told.items())
    ]
    values = {"rows": sql.records(rows), "most": bulking.TRIES}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(SETTLE, claim.mine | values)
    return len(items)


def _item(claim: Claim, n: int, run_id: UUID, run_key: str, seen: str | dict[str, Any]) -> _Item:
    facts = json.loads(seen) if isinstance(seen, str) else seen
    key = f"{name_of(claim.id)}-{run_id.hex}"
    return _Item(n=n, run_id=run_id, run_key=run_key, seen=Seen(**facts), key=key)


def _leave_out(claim: Claim, items: Sequence[_Item]) -> dict[int, tuple[str, str]]:
    """Those to which it cannot be done as they are now, with why: they never become a command.

    A row that has an answer already was done by one who died before it was written here: it gets
    that answer again, whatever its run is now.
    """
    runs = look_at([item.run_id for item in items])
    with connection.cursor() as cursor:
        # After the look: an effect that was seen by it has its answer by now.
        asked: dict[str, Any] = {"by": claim.by.principal, "keys": [item.key for item in items]}
        cursor.execute(ANSWERED, asked)
        answered = {key for (key,) in cursor.fetchall()}
    open_items = [item for item in items if item.key not in answered]
    moved: set[UUID] = set()
    told: dict[int, tuple[str, str]] = {}
    for item in open_items:
        run = runs.get(item.run_id)
        why = bulking.GONE if run is None else bulking.moved_on(claim.work, item.seen, run)
        if run is not None and why:
            moved.add(run.id)
        if run is not None and not why:
            why = bulking.stands_against(claim.work, run, claim.by.scopes)
        if why:
            told[item.n] = (bulking.SKIPPED, why)
    by = _last_actors(moved)
    for item in open_items:
        if item.run_id in by:
            told[item.n] = (bulking.SKIPPED, f"{told[item.n][1]}, by {by[item.run_id]}")
    return told


def _last_actors(moved: set[UUID]) -> Mapping[UUID, str]:
    """Who did something to each of these runs last, of operators, and in which bulk."""
    if not moved:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(LAST_ACTORS, [sorted(moved)])
        return {
            run_id: f"{actor} in {request_id}" if _is_bulk(request_id) else actor
            for run_id, actor, request_id in cursor.fetchall()
        }


def _is_bulk(request_id: str | None) -> bool:
    return request_id is not None and request_id.startswith(bulking.NAMED)


def _ask(claim: Claim, item: _Item, *, begin_by: float) -> Ask:
    under = Circumstances(
        request_id=name_of(claim.id),
        idempotency_key=item.key,
        fingerprint=hashlib.sha256(item.key.encode()).digest(),
        begin_by=begin_by,
    )
    return Ask(command=_command(claim, item), by=claim.by, under=under)


def _command(claim: Claim, item: _Item) -> Command[Any]:
    """What is asked of the store for one run; it says what was seen."""
    run, reason, work = item.run_key, claim.reason, claim.work
    match work.kind:
        case "tag":
            return Patch(run=run, tags_add=work.tags, reason=reason)
        case "untag":
            return Patch(run=run, tags_remove=work.tags, reason=reason)
        case "hold" | "let-go":
            return Patch(run=run, hold=work.kind == "hold", reason=reason)
        case "reclaim":
            return ReclaimLease(
                unit=unit_of(run),
                expected_token=item.seen.token or 0,
                expected_owner=item.seen.owner or "",
                reason=reason,
                hold_off_seconds=work.hold_off_seconds,
            )
        case kind:
            return Transition(run=run, to=MOVES[kind], from_status=item.seen.status, reason=reason)


def _told(outcome: Outcome) -> tuple[str, str]:
    """How a row stands after its command was tried. It waits while nothing was decided."""
    if not isinstance(outcome, Exception):
        return bulking.DONE, ""
    if isinstance(outcome, Refusal):
        again = outcome.retry is Retry.SAME_REQUEST
        return bulking.WAITING if again else bulking.REFUSED, outcome.detail
    log.error("a row of a bulk failed by a fault of ours", exc_info=outcome)
    return bulking.REFUSED, "a fault of ours: see the log of the workers"
