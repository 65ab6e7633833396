"""Leases: who holds what, the stuck ones first; and one unit's past."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q, QuerySet

from agentstate.store.models import Lease, OperatorAction, Refusal, Run
from dashboard import cursors, sentences
from dashboard.queries.runs import REFUSALS_SHOWN, refusals_of
from dashboard.queries.terms import Term, newest_terms

PAGE_ROWS = 100
LAPSED_SHOWN = 100
BADGE_MAX = 99
TERMS_SHOWN = 50
STRIP_SECONDS = 120
STRIP_LEASES_MAX = 500
SALT = "leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUnit:
    """A unit that somebody holds, or held until it ran out. state: live, late or lapsed."""

    lease: Lease
    state: str
    silent_seconds: float
    refusals: int
    now: datetime

    @property
    def part_left(self) -> int:
        """Percent of the lease that is left."""
        if self.lease.expires_at is None:
            return 0
        left = (self.lease.expires_at - self.now).total_seconds()
        return max(0, min(100, round(100 * left / self.lease.ttl_seconds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """lapsed: the longest ago first. live: those that run out first on top, in pages; later: the
    place of the next one. A lease that is renewed meanwhile moves down, so it may be seen twice."""

    lapsed: list[HeldUnit]
    lapsed_total: int
    live: list[HeldUnit]
    live_total: int
    late_total: int
    later: str | None


def held() -> QuerySet[Lease]:
    return Lease.objects.filter(token__isnull=False)


def count_lapsed(now: datetime) -> int:
    """Units whose holder let them run out, up to 100; for the badge."""
    return held().filter(expires_at__lte=now)[: BADGE_MAX + 1].count()


def read_board(*, now: datetime, owner: str = "", after: str = "") -> Board:
    """The lapsed units and one page of the live ones. Raises cursors.BadCursor."""
    found = held().select_related("run").filter(owner__startswith=owner)
    lapsed = found.filter(expires_at__lte=now)
    live = found.filter(expires_at__gt=now)
    page = live.order_by("expires_at", "unit")
    if after:
        at, unit = cursors.read(after, salt=SALT)
        page = page.filter(Q(expires_at__gt=at) | Q(expires_at=at, unit__gt=unit))
    rows = list(page[: PAGE_ROWS + 1])
    first = list(lapsed.order_by("expires_at", "unit")[:LAPSED_SHOWN])
    units = describe([*first, *rows[:PAGE_ROWS]], now=now)
    last = rows[PAGE_ROWS - 1] if len(rows) > PAGE_ROWS else None
    return Board(
        lapsed=units[: len(first)],
        lapsed_total=lapsed.count(),
        live=units[len(first) :],
        live_total=live.count(),
        late_total=late(live, now).count(),
        later=cursors.write(last.expires_at or now, last.unit, salt=SALT) if last else None,
    )


def late(live: QuerySet[Lease], now: datetime) -> QuerySet[Lease]:
    """Those of whom nothing was heard for longer than is usual."""
    late_part = sentences.LATE_PART
    return live.filter(
        renewed_at__lt=now - F("ttl_seconds") * timedelta(seconds=late_part),
    )


def describe(leases: list[Lease], *, now: datetime) -> list[HeldUnit]:
    refused = refusals_of([lease.run_id for lease in leases if lease.run_id])
    return [
        HeldUnit(
            lease=lease,
            state=sentences.lease_state(lease, now),
            silent_seconds=sentences.since_renewal_seconds(lease, now),
            refusals=refused.get(lease.run_id, 0) if lease.run_id else 0,
            now=now,
        )
        for lease in leases
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StripMark:
    """Where a lease stands on the strip of the next two minutes, 0 to 1000."""

    x: float
    state: str
    title: str


def read_strip(*, now: datetime) -> list[StripMark]:
    """The leases that run out within 120 s unless they are renewed."""
    until = now + timedelta(seconds=STRIP_SECONDS)
    near = held().filter(expires_at__gt=now, expires_at__lte=until).order_by("expires_at")
    return [
        StripMark(
            x=round((lease.expires_at - now).total_seconds() / STRIP_SECONDS * 1000, 1),
            state=sentences.lease_state(lease, now),
            title=f"{lease.unit}, {lease.owner}",
        )
        for lease in near[:STRIP_LEASES_MAX]
        if lease.expires_at
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStory:
    """One unit: its lease now (None: never leased, or long ago), and its past."""

    unit: str
    lease: Lease | None
    run: Run | None
    terms: list[Term]
    actions: list[OperatorAction]
    now: datetime

    @property
    def state(self) -> str:
        return sentences.lease_state(self.lease, self.now)


def read_unit(unit: str, *, now: datetime) -> UnitStory | None:
    """Everything about a unit, or None if it was never heard of."""
    lease = Lease.objects.select_related("run").filter(unit=unit).first()
    terms = newest_terms(unit, limit=TERMS_SHOWN)
    run = Run.objects.filter(key=unit.removeprefix("run:")).first() if unit[:4] == "run:" else None
    if lease is None and not terms and run is None:
        return None
    return UnitStory(
        unit=unit,
        lease=lease,
        run=run,
        terms=terms,
        actions=list(OperatorAction.objects.filter(object=unit).order_by("-id")[:TERMS_SHOWN]),
        now=now,
    )


def refusals_of_unit(story: UnitStory, *, limit: int = REFUSALS_SHOWN) -> list[Refusal]:
    """What was refused on the unit, newest first."""
    return list(_refused(story).order_by("-id")[:limit])


def _refused(story: UnitStory) -> QuerySet[Refusal]:
    if story.run is not None:
        return Refusal.objects.select_related("run").filter(run=story.run)
    return Refusal.objects.filter(unit=story.unit, run__isnull=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """What followed a reclaim: who has the unit now, and what its former holder still tried."""

    term: Term
    at: datetime
    successor: Term | None
    fenced: int
    last_fenced_at: datetime | None
    quiet_seconds: float
    watch_seconds: int

    @property
    def is_quiet(self) -> bool:
        """Nothing from the former holder for twice its lease."""
        return self.quiet_seconds >= self.watch_seconds


def read_takeover(story: UnitStory) -> Takeover | None:
    """The last reclaim of the unit, unless its new holder is gone as well."""
    at = next((i for i, term in enumerate(story.terms[:2]) if term.ended == "reclaimed"), None)
    if at is None:
        return None
    term = story.terms[at]
    acted_at = next((a.at for a in story.actions if a.before.get("token") == term.token), None)
    reclaimed_at = acted_at or term.ends_at or story.now
    late_writes = _refused(story).filter(
        Q(token_sent=term.token) | Q(worker=term.owner), at__gte=reclaimed_at, code__in=FENCED
    )
    last = late_writes.order_by("-id").values_list("at", flat=True).first()
    ttl = story.lease.ttl_seconds if story.lease else 60
    return Takeover(
        term=term,
        at=reclaimed_at,
        successor=story.terms[at - 1] if at else None,
        fenced=late_writes[: REFUSALS_SHOWN + 1].count(),
        last_fenced_at=last,
        quiet_seconds=(story.now - (last or reclaimed_at)).total_seconds(),
        watch_seconds=2 * ttl,
    )


FENCED = ("stale-fence", "lease-lost", "fence-required")
