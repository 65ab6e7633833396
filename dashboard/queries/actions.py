"""What people did and what they were refused, newest first: the audit, both tables in one order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from dashboard import cursors
from dashboard.audit_filter import AuditFilter, OfRun
from dashboard.queries.clock import TooSlow, at_most
from dashboard.timings import TIMED_OUT, timed

PAGE_ROWS = 50
EXPORT_ROWS = 500
NEW_MAX = 100
PAGE_MS, EXPORT_MS, NEW_MS = 2_000, 10_000, 500
SALT = "audit"
DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A row of the audit. outcome: done, refused or forbidden, with the refusal's code.

    run: the key of the run that it was about, if that is still there. before, after: of what was
    done. found: what a refused try met in place of what it expected.
    """

    at: datetime
    source: int
    number: int
    actor: str
    action: str
    object: str
    run: str | None
    reason: str
    outcome: str
    code: str
    before: dict[str, Any]
    after: dict[str, Any]
    expected: dict[str, Any]
    found: dict[str, Any]
    request_id: str | None

    @property
    def place(self) -> str:
        return cursors.write(self.at, f"{self.source}.{self.number}", salt=SALT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """older, newer: the place to read on from, if there are more."""

    rows: list[Try]
    newer: str | None
    older: str | None

    @property
    def first(self) -> str:
        return self.rows[0].place if self.rows else ""


# Each table by its own index, as far as the page needs; then the two are merged.
ROWS = """
SELECT t.at, t.source, t.id, t.actor, t.action, t.object, r.key, t.reason, t.outcome, t.code,
    t.before::text, t.after::text, t.expected::text, t.found::text, t.request_id
FROM (
    (SELECT at, 0 AS source, id, actor, action, object, run_id, reason, 'done' AS outcome,
        '' AS code, before, after, expected, '{{}}'::jsonb AS found, request_id
    FROM agentstate_operatoraction WHERE {done} ORDER BY at {way}, id {way} LIMIT %(limit)s)
    UNION ALL
    (SELECT at, 1, id, actor, action, object, run_id, reason, outcome, code,
        '{{}}'::jsonb, '{{}}'::jsonb, expected, found, request_id
    FROM agentstate_refusedaction WHERE {refused} ORDER BY at {way}, id {way} LIMIT %(limit)s)
    ORDER BY at {way}, source {way}, id {way} LIMIT %(limit)s
) t LEFT JOIN agentstate_run r ON r.id = t.run_id
ORDER BY t.at {way}, t.source {way}, t.id {way}
"""
COUNT = """
SELECT count(*) FROM (
    (SELECT FROM agentstate_operatoraction WHERE {done} LIMIT %(limit)s)
    UNION ALL (SELECT FROM agentstate_refusedaction WHERE {refused} LIMIT %(limit)s)
) n
"""


def read_page(wanted: AuditFilter | OfRun, *, after: str = "", before: str = "") -> Page:
    """A page of the list; after, before: places. Where no full page is newer than `before` it is
    the first page, so that the way back ends with that. Raises BadCursor, TooSlow.
    """
    with timed("rows") as outcome:
        try:
            with at_most(PAGE_MS):
                rows = _read(wanted, limit=PAGE_ROWS + 1, after=after, before=before)
        except TooSlow:
            outcome.append(TIMED_OUT)
            raise
    if before and len(rows) <= PAGE_ROWS:
        return read_page(wanted)
    more, rows = len(rows) > PAGE_ROWS, rows[:PAGE_ROWS]
    if before:
        rows.reverse()
        return Page(rows=rows, newer=rows[0].place, older=rows[-1].place)
    return Page(
        rows=rows,
        newer=rows[0].place if rows and after else None,
        older=rows[-1].place if more else None,
    )


def count_newer(wanted: AuditFilter, *, first: str) -> int:
    """How many there are now that are newer than a place (all, without one), NEW_MAX at most.

    Raises BadCursor, TooSlow.
    """
    values = {"limit": NEW_MAX} | wanted.values() | _place(first)
    way = "newer" if first else ""
    statement = COUNT.format(done=_where(wanted, 0, way), refused=_where(wanted, 1, way))
    with at_most(NEW_MS), connection.cursor() as cursor:
        cursor.execute(statement, values)
        return min(int(cursor.fetchone()[0]), NEW_MAX)


def export(wanted: AuditFilter) -> Iterator[Try]:
    """All that match, newest first, read page by page: who is slow holds no connection.

    What happens meanwhile is newer than where it began, and is not in it. Raises TooSlow.
    """
    after = ""
    while True:
        with at_most(EXPORT_MS):
            rows = _read(wanted, limit=EXPORT_ROWS, after=after)
        yield from rows
        if len(rows) < EXPORT_ROWS:
            return
        after = rows[-1].place


def _read(
    wanted: AuditFilter | OfRun, *, limit: int, after: str = "", before: str = ""
) -> list[Try]:
    place = before or after
    way = "" if not place else "newer" if before else "older"
    values = {"limit": limit} | wanted.values() | _place(place)
    statement = ROWS.format(
        done=_where(wanted, 0, way),
        refused=_where(wanted, 1, way),
        way="ASC" if before else "DESC",
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [_try(row) for row in cursor.fetchall()]


def _try(row: tuple[Any, ...]) -> Try:
    *plain, before, after, expected, found, request_id = row
    at, source, number, actor, action, thing, run, reason, outcome, code = plain
    return Try(
        at=at,
        source=source,
        number=number,
        actor=actor,
        action=action,
        object=thing,
        run=run,
        reason=reason,
        outcome=outcome,
        code=code,
        before=json.loads(before),
        after=json.loads(after),
        expected=json.loads(expected),
        found=json.loads(found),
        request_id=request_id,
    )


def _place(place: str) -> dict[str, Any]:
    if not place:
        return {}
    at, tie = cursors.read(place, salt=SALT)
    source, dot, number = tie.partition(".")
    if not (dot and source.isdecimal() and number.isdecimal()):
        raise cursors.BadCursor
    return {"place_at": at, "place_source": int(source), "place_id": int(number)}


# The first half is what the index on (at, id) understands.
_BEYOND = (
    "at {sign}= %(place_at)s AND (at, {source}, id)"
    " {sign} (%(place_at)s, %(place_source)s, %(place_id)s)"
)


def _where(wanted: AuditFilter | OfRun, source: int, way: str) -> str:
    clauses = wanted.clauses(outcomes="'done'" if source == 0 else "outcome")
    if way:
        clauses.append(_BEYOND.format(source=source, sign=">" if way == "newer" else "<"))
    return " AND ".join(clauses) or "true"


def facts(one: Try) -> dict[str, Any]:
    """A row of a file, by name."""
    return {
        "at": one.at,
        "actor": one.actor,
        "action": one.action,
        "object": one.object,
        "run": one.run,
        "reason": one.reason,
        "result": one.outcome,
        "code": one.code or None,
        "before": one.before,
        "after": one.after,
        "expected": one.expected,
        "found": one.found,
        "request_id": one.request_id,
    }


COLUMNS = (
    "at", "actor", "action", "object", "run", "reason", "result", "code", "before", "after",
    "expected", "found", "request_id",
)  # fmt: skip
