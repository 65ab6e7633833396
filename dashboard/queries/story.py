"""One run's whole story: head, events, terms, refusals, budgets, and what operators did."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q

from agentstate.caching import copies
from agentstate.store.models import (
    Budget,
    BudgetEntry,
    Event,
    Lease,
    LeaseTerm,
    OpenEffect,
    OperatorAction,
    Refusal,
    Run,
    Telemetry,
    Worker,
)
from dashboard.queries.terms import Term, newest_terms

EVENTS_SHOWN = 200
PREVIEW_CHARS = 600
# A payload that takes more than this on disk is not opened for a list.
PREVIEW_STORED_OCTETS_MAX = 32 * 1024
ROWS_SHOWN = 100
TERMS_SHOWN = 200
EFFECTS_SHOWN = 20
CHILDREN_SHOWN = 8
REFUSALS_DRAWN = 500
MARKS_EXACT = 2_000
MARKS_SAMPLED = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """An event as a row. preview None: too large to be opened here; octets: at least, then."""

    seq: int
    at: datetime
    type: str
    origin: str
    token: int | None
    actor: str
    preview: str | None
    octets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """origin: worker, store or "" (both); type: how it begins."""

    origin: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events in order; earlier, later: whether there are more on either side."""

    lines: list[EventLine]
    earlier: bool
    later: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Events of one token that are drawn as one: `count` from `first_seq` on."""

    at: datetime
    token: int | None
    origin: str
    type: str
    first_seq: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    run: Run
    lease: Lease | None
    budgets: list[Budget]
    parent_key: str | None
    now: datetime
    telemetry: Telemetry | None = None
    children: list[str] = field(default_factory=list)
    more_children: bool = False

    @property
    def overdue(self) -> bool:
        run = self.run
        return run.deadline_at is not None and run.deadline_at <= self.now and not run.ended_at

    @property
    def braked(self) -> bool:
        return self.run.brake_until is not None and self.now < self.run.brake_until

    @property
    def held(self) -> bool:
        return self.lease is not None and self.lease.token is not None

    @property
    def live(self) -> bool:
        return is_live(self.lease, self.now)


def is_live(lease: Lease | None, now: datetime) -> bool:
    """Held at `now`. At the expiry itself it is over."""
    return (
        lease is not None
        and lease.token is not None
        and lease.expires_at is not None
        and now < lease.expires_at
    )


def read_head(key: str, *, now: datetime) -> Head | None:
    run = Run.objects.select_related("parent", "telemetry").filter(key=key).first()
    if run is None:
        return None
    parts = Run.objects.filter(parent=run).order_by("created_at", "id")
    children = list(parts.values_list("key", flat=True)[: CHILDREN_SHOWN + 1])
    return Head(
        run=run,
        lease=Lease.objects.filter(unit=f"run:{key}").first(),
        budgets=list(Budget.objects.filter(run=run).order_by("name")),
        parent_key=run.parent.key if run.parent else None,
        now=now,
        telemetry=getattr(run, "telemetry", None),
        children=children[:CHILDREN_SHOWN],
        more_children=len(children) > CHILDREN_SHOWN,
    )


def expiry_of(key: str) -> datetime | None:
    """When a run that is still stored went past its retention, or will."""
    return Run.objects.filter(key=key).values_list("expires_at", flat=True).first()


def nearest_keys(key: str, *, limit: int = 5) -> list[str]:
    """Runs whose keys begin as this one does, the longest common beginning first."""
    for length in range(len(key), 0, -max(1, len(key) // 6)):
        found = Run.objects.filter(
            Q(expires_at__isnull=True) | Q(hold=True), key__startswith=key[:length]
        ).order_by("-created_at")
        if keys := list(found.values_list("key", flat=True)[:limit]):
            return keys
    return []


# The size of a large payload is what it takes on disk (compressed): opening it for its length
# would read all of it.
EVENTS = """
SELECT seq, at, type, origin, token, actor,
    CASE WHEN pg_column_size(data) <= %(stored)s THEN left(data::text, %(chars)s) END,
    CASE WHEN pg_column_size(data) <= %(stored)s THEN octet_length(data::text)
        ELSE pg_column_size(data) END
FROM agentstate_event
WHERE run_id = %(run)s AND seq > %(after)s AND seq < %(before)s AND seq <= %(newest)s
    AND (%(origin)s = '' OR origin = %(origin)s)
    AND (%(type)s = '' OR starts_with(type, %(type)s))
"""
EVENTS_UP = EVENTS + "ORDER BY seq LIMIT %(limit)s"
EVENTS_DOWN = EVENTS + "ORDER BY seq DESC LIMIT %(limit)s"
NEVER = 2**63 - 1


def read_events(
    run: UUID,
    *,
    wanted: EventFilter = EventFilter(),
    after: int | None = None,
    before: int | None = None,
    newest: int | None = None,
    limit: int = EVENTS_SHOWN,
) -> EventPage:
    """A page of events in order: those after a number, those before one, or the newest.

    newest: the last one there is, as far as the caller knows.
    """
    facts: dict[str, Any] = {
        "run": run,
        "after": -1 if after is None else after,
        "before": NEVER if before is None else before,
        "newest": NEVER if newest is None else newest,
        "origin": wanted.origin,
        "type": wanted.type,
        "limit": limit + 1,
        "stored": PREVIEW_STORED_OCTETS_MAX,
        "chars": PREVIEW_CHARS,
    }
    with connection.cursor() as cursor:
        cursor.execute(EVENTS_DOWN if after is None else EVENTS_UP, facts)
        rows = [_event_line(row) for row in cursor.fetchall()]
    more, rows = len(rows) > limit, rows[:limit]
    if after is None:
        rows.reverse()
        return EventPage(lines=rows, earlier=more, later=before is not None)
    return EventPage(lines=rows, earlier=after > 0, later=more)


def _event_line(row: tuple[Any, ...]) -> EventLine:
    seq, at, type_, origin, token, actor, text, octets = row
    return EventLine(
        seq=seq,
        at=at,
        type=type_,
        origin=origin,
        token=token,
        actor=actor,
        preview=text,
        octets=octets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEffects:
    """The events that began what has not ended, the first first. more: there are others."""

    events: list[Event]
    more: bool


def read_open_effects(run: UUID) -> OpenEffects:
    found = OpenEffect.objects.filter(run_id=run).order_by("seq").values_list("seq", flat=True)
    numbers = list(found[: EFFECTS_SHOWN + 1])
    if not numbers:
        return OpenEffects(events=[], more=False)
    events = Event.objects.filter(run_id=run, seq__in=numbers[:EFFECTS_SHOWN]).defer("data")
    return OpenEffects(events=list(events.order_by("seq")), more=len(numbers) > EFFECTS_SHOWN)


def read_event(run: UUID, seq: int) -> Event | None:
    return Event.objects.filter(run_id=run, seq=seq).first()


# Exact for a run of ordinary length. Of a long one every n-th event stands for those after it: as
# many look-ups as can be told apart on screen, however long the run is. LATERAL with its LIMIT, or
# the planner, who does not know how short the series is, reads all of the run.
MARKS = """
SELECT at, token, origin, type, seq, 1 FROM agentstate_event
WHERE run_id = %(run)s AND seq <= %(last)s ORDER BY seq
"""
SAMPLED_MARKS = """
SELECT at, token, origin, type, event.seq, least(%(step)s, %(last)s - event.seq + 1)
FROM generate_series(1, %(last)s, %(step)s) AS sample (seq)
CROSS JOIN LATERAL (
    SELECT * FROM agentstate_event WHERE run_id = %(run)s AND seq = sample.seq LIMIT 1) AS event
ORDER BY event.seq
"""


def read_marks(run: Run) -> list[Mark]:
    """The events of a run for its timeline, at most two thousand marks however long it is."""
    return copies.of_run(
        "marks", run.id, run.version, fill=lambda: _read_marks(run), read=_marks_of
    )


def _marks_of(rows: list[list[Any]]) -> list[Mark]:
    return [
        Mark(
            at=datetime.fromisoformat(at),
            token=token,
            origin=origin,
            type=type_,
            first_seq=seq,
            count=count,
        )
        for at, token, origin, type_, seq, count in rows
    ]


def _read_marks(run: Run) -> list[list[Any]]:
    step = -(-run.last_seq // MARKS_SAMPLED)
    facts: dict[str, Any] = {"run": run.id, "last": run.last_seq, "step": step}
    with connection.cursor() as cursor:
        cursor.execute(MARKS if run.last_seq <= MARKS_EXACT else SAMPLED_MARKS, facts)
        return [[at.isoformat(), *rest] for at, *rest in cursor.fetchall()]


def read_terms(unit: str) -> list[Term]:
    """Terms of ownership, the first ones first; of very many the last 200."""
    return newest_terms(unit, limit=TERMS_SHOWN)[::-1]


def read_refusals(run: UUID, *, limit: int = ROWS_SHOWN) -> list[Refusal]:
    """The newest commands that were refused on this run, newest first."""
    return list(Refusal.objects.filter(run_id=run).order_by("-id")[:limit])


def read_actions(run: UUID) -> list[OperatorAction]:
    return list(OperatorAction.objects.filter(run_id=run).order_by("-id")[:ROWS_SHOWN])


def read_ledger(budgets: Iterable[Budget]) -> list[BudgetEntry]:
    """The newest lines of these budgets, newest first."""
    ids = [budget.id for budget in budgets]
    lines = BudgetEntry.objects.select_related("budget").filter(budget__in=ids)
    return list(lines.order_by("-at", "-n")[:ROWS_SHOWN])


def count_story(run: UUID, unit: str) -> dict[str, int]:
    """How many terms, refusals and operator actions there are, each up to 100."""
    return {
        "ownership": LeaseTerm.objects.filter(unit=unit)[:ROWS_SHOWN].count(),
        "refused": Refusal.objects.filter(run_id=run)[:ROWS_SHOWN].count(),
        "audit": OperatorAction.objects.filter(run_id=run)[:ROWS_SHOWN].count(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a holder is to be told. told: it has renewed since."""

    signal: str
    reason: str
    by: str
    at: datetime
    told: bool


def read_signals(lease: Lease | None) -> list[Signal]:
    """The signals of a run and the drain of its holder, the oldest first."""
    if lease is None:
        return []
    asked = [
        (one["signal"], one["reason"], one["by"], datetime.fromisoformat(one["at"]))
        for one in json.loads(lease.signals or "[]")
    ]
    if lease.owner:
        names = {lease.owner, lease.owner.split("~")[0]}
        drains = Worker.objects.filter(name__in=names, drain_at__isnull=False)
        asked += [("drain", d.drain_reason, d.drain_by, d.drain_at) for d in drains if d.drain_at]
    return [
        Signal(signal=signal, reason=reason, by=by, at=at, told=_told(lease, at))
        for signal, reason, by, at in sorted(asked, key=lambda one: one[3])
    ]


def _told(lease: Lease, at: datetime) -> bool:
    return lease.token is not None and lease.renewed_at is not None and lease.renewed_at > at
