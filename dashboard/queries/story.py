"""One run's whole story: head, events, terms, refusals, budgets, and what operators did."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db.models import Model, Q, QuerySet

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
    Telemetry,
    Worker,
)
from dashboard.moments import AsOf
from dashboard.queries.terms import Term, as_they_were, newest_terms

ROWS_SHOWN = 100
TERMS_SHOWN = 200
EFFECTS_SHOWN = 20
CHILDREN_SHOWN = 8
REFUSALS_DRAWN = 500
# So far back they are looked through for those of a part of the run.
REFUSALS_LOOKED = 20_000
PARTS_DRAWN = 60


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
    audit = actions[:ROWS_SHOWN].count() + tries[:ROWS_SHOWN].count()
    return {
        "ownership": terms[:ROWS_SHOWN].count(),
        "refused": refused[:ROWS_SHOWN].count(),
        "audit": min(audit, ROWS_SHOWN),
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
