"""One run's whole story: head, events, terms, refusals, budgets, and what operators did."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Model, Q, QuerySet, Subquery

from agentstate.store.models import (
    Budget,
    BudgetEntry,
    Event,
    Lease,
    LeaseTerm,
    OpenEffect,
    OperatorAction,
    Refusal,
    RefusedAction,
    Run,
    SeenVersion,
    Telemetry,
    Worker,
)
from dashboard.moments import AsOf
from dashboard.queries import together
from dashboard.queries.terms import Term, as_they_were, newest_terms, read_newest
from dashboard.queries.together import Read, first

ROWS_SHOWN = 100
# Columns that may be long, and that the row of another run needs not.
LONG = ("attrs", "result", "notes")
TERMS_SHOWN = 200
EFFECTS_SHOWN = 20
CHILDREN_SHOWN = 8
REFUSALS_DRAWN = 500
# So far back they are looked through for those of a part of the run.
REFUSALS_LOOKED = 20_000
PARTS_DRAWN = 60
DEPLOYS_DRAWN = 100


# As far back a run's last move is looked for.
MOVE_EVENTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Who gave a run its status, when, and with which words; reason: "" where there were none."""

    who: str
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A run with what stands beside it, now; or as of a moment (past.py), which is `now` then."""

    run: Run
    lease: Lease | None
    budgets: list[Budget]
    parent_key: str | None
    now: datetime
    telemetry: Telemetry | None = None
    children: list[str] = field(default_factory=list)
    more_children: bool = False
    as_of: AsOf | None = None

    @property
    def until(self) -> datetime | None:
        """After it nothing is shown, if it is the head of a moment that is over."""
        return self.as_of.at if self.as_of else None

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


def last_move(run: Run) -> Move | None:
    """Who gave it the status that it has; None when that was longer ago than `MOVE_EVENTS`."""
    kept = Event.objects.filter(run_id=run.id, seq__gt=run.last_seq - MOVE_EVENTS)
    event = kept.filter(type=f"run.{run.status}").order_by("-seq").first()
    if event is None:
        return None
    reason = json.loads(event.data).get("reason")
    return Move(
        who=event.actor.partition(":")[2],
        at=event.at,
        reason=reason if isinstance(reason, str) else "",
    )


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


def head_reads(key: str, run: UUID) -> dict[str, Read[Any]]:
    """The same, to be read together with something else. run: what the key stands for, as whoever
    asks knows it; what is found says whether it still does."""
    mine = Run.objects.filter(key=key)
    parent = Subquery(mine.values("parent_id")[:1])
    parts = Run.objects.filter(parent=run).order_by("created_at", "id").values_list("key")
    return {
        "run": together.models_of(mine.defer("attrs")),
        "parent": together.models_of(Run.objects.filter(id=parent).defer(*LONG)),
        "telemetry": together.models_of(Telemetry.objects.filter(run=run)),
        "children": together.values_of(parts[: CHILDREN_SHOWN + 1]),
        "lease": together.models_of(Lease.objects.filter(unit=f"run:{key}")),
        "budgets": together.models_of(Budget.objects.filter(run=run).order_by("name")),
    }


def head_of(found: dict[str, Any], run: UUID) -> Head | None:
    """What `head_reads` found; None if the key does not stand for this run."""
    there: Run | None = first(found["run"])
    if there is None or there.id != run:
        return None
    parent = first(found["parent"])
    there.parent = parent
    children = [key for (key,) in found["children"]]
    return Head(
        run=there,
        lease=first(found["lease"]),
        budgets=found["budgets"],
        parent_key=parent.key if parent else None,
        now=found["now"],
        telemetry=first(found["telemetry"]),
        children=children[:CHILDREN_SHOWN],
        more_children=len(children) > CHILDREN_SHOWN,
    )


COUNTS = """
SELECT (SELECT count(*) FROM (
        SELECT FROM agentstate_leaseterm WHERE unit = %(unit)s LIMIT %(most)s) AS terms),
    (SELECT count(*) FROM (
        SELECT FROM agentstate_refusal WHERE run_id = %(run)s LIMIT %(most)s) AS refused),
    (SELECT count(*) FROM (
        SELECT FROM agentstate_operatoraction WHERE run_id = %(run)s LIMIT %(most)s) AS actions),
    (SELECT count(*) FROM (
        SELECT FROM agentstate_refusedaction WHERE run_id = %(run)s LIMIT %(most)s) AS tries)
"""
DRAINS = """
SELECT drain_reason, drain_by, drain_at FROM agentstate_worker
WHERE name IN (SELECT unnest(ARRAY[owner, split_part(owner, '~', 1)])
    FROM agentstate_lease WHERE unit = %(unit)s) AND drain_at IS NOT NULL
"""


def beside_reads(key: str, run: UUID) -> dict[str, Read[Any]]:
    """What else of an open page changes: counts, signals, and effects that have not ended."""
    asked = {"unit": f"run:{key}", "run": run, "most": ROWS_SHOWN}
    begun = OpenEffect.objects.filter(run_id=run).order_by("seq")
    events = Event.objects.filter(run_id=run, seq__in=begun.values("seq")[:EFFECTS_SHOWN])
    return {
        "counts": together.sql_of(COUNTS, asked, columns=4),
        "drains": together.sql_of(DRAINS, asked, columns=3),
        "begun": together.values_of(begun.values_list("seq")[: EFFECTS_SHOWN + 1]),
        "effects": together.models_of(events.order_by("seq").defer("data", "add")),
    }


def tokens_read(key: str) -> Read[list[list[Any]]]:
    """The terms' tokens, the newest first: by them events have their colours."""
    tokens = LeaseTerm.objects.filter(unit=f"run:{key}").order_by("-token").values_list("token")
    return together.values_of(tokens[:TERMS_SHOWN])


def counts_of(found: dict[str, Any]) -> dict[str, int]:
    ((ownership, refused, actions, tries),) = found["counts"]
    return _counts(ownership, refused, actions, tries)


def signals_of(found: dict[str, Any]) -> list[Signal]:
    lease: Lease | None = first(found["lease"])
    drains = [(reason, by, together.moment(at)) for reason, by, at in found["drains"]]
    return [] if lease is None else _signals(lease, drains)


def open_effects_of(found: dict[str, Any]) -> OpenEffects:
    return OpenEffects(events=found["effects"], more=len(found["begun"]) > EFFECTS_SHOWN)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEffects:
    """The events that began what has not ended, the first first. more: there are others."""

    events: list[Event]
    more: bool


def read_open_effects(run: UUID) -> OpenEffects:
    found = OpenEffect.objects.filter(run_id=run).order_by("seq").values_list("seq", flat=True)
    return effects_of(run, list(found[: EFFECTS_SHOWN + 1]))


def effects_of(run: UUID, numbers: list[int]) -> OpenEffects:
    """Of these events, by number, as many as are shown."""
    if not numbers:
        return OpenEffects(events=[], more=False)
    events = Event.objects.filter(run_id=run, seq__in=numbers[:EFFECTS_SHOWN]).defer("data")
    return OpenEffects(events=list(events.order_by("seq")), more=len(numbers) > EFFECTS_SHOWN)


def read_terms(head: Head) -> list[Term]:
    """Terms of ownership, the first ones first; of very many the last 200."""
    unit, run = f"run:{head.run.key}", head.run
    if head.as_of is None:
        return newest_terms(unit, limit=TERMS_SHOWN)[::-1]
    terms = newest_terms(unit, limit=TERMS_SHOWN, last_token=run.last_token or 0)
    return as_they_were(terms, head.as_of.at, open_token=run.token)[::-1]


def read_refusals(
    run: UUID, *, limit: int = ROWS_SHOWN, until: datetime | None = None
) -> list[Refusal]:
    """The newest commands that were refused on this run, newest first."""
    found = _before(Refusal.objects.filter(run_id=run), until)
    return list(found.order_by("-id")[:limit])


def _before[M: Model](found: QuerySet[M], until: datetime | None) -> QuerySet[M]:
    """What had happened at `until`; all of it without one."""
    return found if until is None else found.filter(at__lte=until)


def read_refusals_between(run: UUID, start: datetime, end: datetime) -> list[Refusal]:
    """The newest of those in a part of its time, of the last twenty thousand."""
    newest = Refusal.objects.filter(run_id=run).order_by("-id").values("id")[:REFUSALS_LOOKED]
    found = Refusal.objects.filter(id__in=newest, at__gte=start, at__lte=end)
    return list(found.order_by("-id")[:REFUSALS_DRAWN])


def read_parts(run: UUID, *, until: datetime | None = None) -> list[Run]:
    """The first runs that are parts of this one, as far as they are drawn."""
    found = Run.objects.filter(parent_id=run).order_by("created_at", "id")
    if until is not None:
        found = found.filter(created_at__lte=until)
    return list(found.only("key", "status", "created_at", "ended_at")[:PARTS_DRAWN])


def drawn_reads(key: str, run: UUID) -> dict[str, Read[Any]]:
    """What all of a timeline is drawn from beside its events, to be read with the head."""
    created = Run.objects.filter(id=run).values("created_at")[:1]
    deploys = SeenVersion.objects.filter(first_seen_at__gte=Subquery(created))
    refused = Refusal.objects.filter(run_id=run).defer("wanted", "found")
    parts = Run.objects.filter(parent_id=run).order_by("created_at", "id")
    return {
        "actions": together.models_of(
            OperatorAction.objects.filter(run_id=run).order_by("-id")[:ROWS_SHOWN]
        ),
        "terms": read_newest(f"run:{key}", limit=TERMS_SHOWN),
        "refusals": together.models_of(refused.order_by("-id")[:REFUSALS_DRAWN]),
        "parts": together.models_of(parts.defer(*LONG)[:PARTS_DRAWN]),
        "deploys": together.models_of(deploys.order_by("-first_seen_at")[:DEPLOYS_DRAWN]),
    }


def read_actions(run: UUID, *, until: datetime | None = None) -> list[OperatorAction]:
    found = _before(OperatorAction.objects.filter(run_id=run), until)
    return list(found.order_by("-id")[:ROWS_SHOWN])


def read_ledger(budgets: Iterable[Budget], *, until: datetime | None = None) -> list[BudgetEntry]:
    """The newest lines of these budgets, newest first."""
    ids = [budget.id for budget in budgets]
    lines = BudgetEntry.objects.select_related("budget").filter(budget__in=ids)
    return list(_before(lines, until).order_by("-at", "-n")[:ROWS_SHOWN])


def count_story(head: Head) -> dict[str, int]:
    """How many terms, refusals and rows of the audit there are, each up to 100."""
    run, until = head.run, head.until
    terms = LeaseTerm.objects.filter(unit=f"run:{run.key}")
    if until is not None:
        terms = terms.filter(token__lte=run.last_token or 0)
    refused = _before(Refusal.objects.filter(run_id=run.id), until)
    actions = _before(OperatorAction.objects.filter(run_id=run.id), until)
    tries = _before(RefusedAction.objects.filter(run_id=run.id), until)
    return _counts(*(found[:ROWS_SHOWN].count() for found in (terms, refused, actions, tries)))


def _counts(ownership: int, refused: int, actions: int, tries: int) -> dict[str, int]:
    audit = min(actions + tries, ROWS_SHOWN)
    return {"ownership": ownership, "refused": refused, "audit": audit}


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
    drains: list[Drain] = []
    if lease.owner:
        names = {lease.owner, lease.owner.split("~")[0]}
        found = Worker.objects.filter(name__in=names, drain_at__isnull=False)
        drains = [(one.drain_reason, one.drain_by, one.drain_at) for one in found]
    return _signals(lease, drains)


type Drain = tuple[str | None, str | None, datetime | None]


def _signals(lease: Lease, drains: Sequence[Drain]) -> list[Signal]:
    asked = [
        (one["signal"], one["reason"], one["by"], datetime.fromisoformat(one["at"]))
        for one in json.loads(lease.signals or "[]")
    ]
    asked += [("drain", reason or "", by or "", at) for reason, by, at in drains if at]
    return [
        Signal(signal=signal, reason=reason, by=by, at=at, told=_told(lease, at))
        for signal, reason, by, at in sorted(asked, key=lambda one: one[3])
    ]


def _told(lease: Lease, at: datetime) -> bool:
    return lease.token is not None and lease.renewed_at is not None and lease.renewed_at > at
