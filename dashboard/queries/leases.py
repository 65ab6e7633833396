"""Leases: who holds what, the stuck ones first; and one unit's past."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from agentstate.store.models import Event, Heartbeat, Lease, OperatorAction, Refusal, Run, Worker
from dashboard import cursors, sentences
from dashboard.moments import AsOf
from dashboard.queries.runs import REFUSALS_SHOWN
from dashboard.queries.story import OpenEffects, read_open_effects
from dashboard.queries.terms import Term, newest_terms

# Drawn anew for every refresh. Longer: everybody who looks at anything waits for it.
PAGE_ROWS = 50
LAPSED_SHOWN, LAPSED_SHOWN_ALONE = 50, 200
URGENT_SHOWN = 50
BADGE_MAX = 99
TERMS_SHOWN = 50
STRIP_SECONDS = 120
STRIP_LEASES_MAX = 500
SALT = "leases"
SWEEP = "note lapsed leases"
STATES = ("lapsed", "late", "silent", "live")
# A worker announces itself every ten seconds: so long without a sign of any kind is silence.
SILENT = timedelta(seconds=45)
# Who was told within this time that somebody else holds the unit is taken to wait for it.
WAITING = timedelta(minutes=5)
# How far back a holder's last write is looked for; another's events stand between at most.
EVENTS_SEARCHED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUnit:
    """A unit that somebody holds, or held until it ran out.

    state: lapsed, late (renewing late), silent (the holder announces itself no more) or live.
    waiting: how many workers asked for it in the last minutes. refusals: of its run, up to 100.
    """

    lease: Lease
    state: str
    refusals: int
    waiting: int
    now: datetime

    @property
    def part_left(self) -> int:
        """Percent of the lease that is left."""
        if self.lease.expires_at is None:
            return 0
        left = (self.lease.expires_at - self.now).total_seconds()
        return max(0, min(100, round(100 * left / self.lease.ttl_seconds)))

    @property
    def rhythm_seconds(self) -> float | None:
        return rhythm_seconds(self.lease)


def rhythm_seconds(lease: Lease | None) -> float | None:
    """How often the holder has renewed on average, once it has done so twice."""
    if lease is None or lease.renewals < 2 or not lease.renewed_at or not lease.acquired_at:
        return None
    return (lease.renewed_at - lease.acquired_at).total_seconds() / lease.renewals


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """lapsed: the longest ago first. held: the late and the silent ones, then those that run out
    first on top, in pages; later: the place of the next one. A lease that is renewed meanwhile
    moves down, so it may be seen twice. totals: how many there are in each state."""

    lapsed: list[HeldUnit]
    held: list[HeldUnit]
    totals: dict[str, int]
    later: str | None

    @property
    def held_total(self) -> int:
        return sum(self.totals[state] for state in STATES[1:])


def held() -> QuerySet[Lease]:
    return Lease.objects.filter(token__isnull=False)


def count_lapsed(now: datetime) -> int:
    """Units whose holder let them run out, up to 100; for the badge."""
    return held().filter(expires_at__lte=now)[: BADGE_MAX + 1].count()


def read_board(*, now: datetime, owner: str = "", after: str = "", only: str = "") -> Board:
    """The lapsed units and one page of the others. only: of one state. Raises BadCursor."""
    found = held().select_related("run").filter(owner__startswith=owner).annotate(**SIGNS)
    state = in_state(now)
    lapsed = found.filter(state["lapsed"]).order_by("expires_at", "unit")
    urgent = found.filter(state["late"] | state["silent"] if only in ("", "live") else state[only])
    page = found.filter(state["live"]).order_by("expires_at", "unit")
    if after:
        at, unit = cursors.read(after, salt=SALT)
        page = page.filter(Q(expires_at__gt=at) | Q(expires_at=at, unit__gt=unit))
    shown = LAPSED_SHOWN_ALONE if only else LAPSED_SHOWN
    stuck = list(lapsed[:shown]) if only in ("", "lapsed") else []
    first = urgent.order_by("expires_at", "unit")[:URGENT_SHOWN]
    pressing = [] if after or only in ("lapsed", "live") else list(first)
    rows = list(page[: PAGE_ROWS + 1]) if only in ("", "live") else []
    units = describe([*stuck, *pressing, *rows[:PAGE_ROWS]], now=now)
    last = rows[PAGE_ROWS - 1] if len(rows) > PAGE_ROWS else None
    return Board(
        lapsed=units[: len(stuck)],
        held=sorted(units[len(stuck) :], key=lambda unit: STATES.index(unit.state)),
        totals=found.aggregate(**{name: Count("unit", filter=state[name]) for name in STATES}),
        later=cursors.write(last.expires_at or now, last.unit, salt=SALT) if last else None,
    )


# What was last heard of a holder: of the lease, and of itself. A row that an operator's drain made
# is no sign of the worker.
SIGNS = {
    "sign_at": Coalesce("renewed_at", "acquired_at"),
    "seen_at": Subquery(
        Worker.objects.filter(name=OuterRef("owner"))
        .exclude(principal__startswith="person:")
        .values("seen_at")
    ),
}


def in_state(now: datetime) -> dict[str, Q]:
    """Which held leases are in which state; every one is in exactly one. Needs SIGNS."""
    due = now - F("ttl_seconds") * timedelta(seconds=sentences.LATE_PART)
    late, on_time = Q(sign_at__lt=due), Q(sign_at__gte=due)
    quiet = Q(seen_at__lt=now - SILENT, sign_at__lt=now - SILENT)
    heard = Q(seen_at__isnull=True) | Q(seen_at__gte=now - SILENT) | Q(sign_at__gte=now - SILENT)
    live = Q(expires_at__gt=now)
    return {
        "lapsed": Q(expires_at__lte=now),
        "late": live & late,
        "silent": live & on_time & quiet,
        "live": live & on_time & heard,
    }


def state_of(lease: Lease, now: datetime) -> str:
    """The same of a lease that was read with its holder's `seen_at`."""
    state = sentences.lease_state(lease, now)
    seen_at = getattr(lease, "seen_at", None)
    if state != "live" or seen_at is None:
        return state
    return "silent" if now - max(seen_at, lease.renewed_at or seen_at) > SILENT else "live"


def describe(leases: list[Lease], *, now: datetime) -> list[HeldUnit]:
    refused = count_refusals(leases, now=now)
    return [
        HeldUnit(
            lease=lease,
            state=state_of(lease, now),
            refusals=refused.get(lease.unit, (0, 0))[0],
            waiting=refused.get(lease.unit, (0, 0))[1],
            now=now,
        )
        for lease in leases
    ]


# Of a run's newest refusals: a flood of them costs no more than a hundred.
REFUSED = """
SELECT lease.unit, count(*),
    count(DISTINCT coalesce(found.worker, found.actor))
        FILTER (WHERE found.code = 'lease-held' AND found.at >= %(since)s)
FROM agentstate_lease AS lease CROSS JOIN LATERAL (
    SELECT code, at, worker, actor FROM agentstate_refusal
    WHERE run_id = lease.run_id ORDER BY id DESC LIMIT %(limit)s) AS found
WHERE lease.unit = ANY(%(units)s) AND lease.run_id IS NOT NULL GROUP BY lease.unit
UNION ALL
SELECT unit, count(*),
    count(DISTINCT coalesce(worker, actor)) FILTER (WHERE code = 'lease-held')
FROM (
    SELECT unit, code, worker, actor FROM agentstate_refusal
    WHERE at >= %(since)s AND run_id IS NULL AND unit IS NOT NULL
    ORDER BY at DESC, id DESC LIMIT 5000) AS newest
WHERE unit = ANY(%(others)s) GROUP BY unit
"""


def count_refusals(leases: list[Lease], *, now: datetime) -> dict[str, tuple[int, int]]:
    """By unit: what was refused, up to 100 (of a unit without a run: in the last minutes), and how
    many workers asked for it in the last minutes."""
    facts: dict[str, Any] = {
        "units": [lease.unit for lease in leases if lease.run_id],
        "others": [lease.unit for lease in leases if not lease.run_id],
        "since": now - WAITING,
        "limit": REFUSALS_SHOWN,
    }
    with connection.cursor() as cursor:
        cursor.execute(REFUSED, facts)
        return {unit: (refused, waiting) for unit, refused, waiting in cursor.fetchall()}


def read_last_sweep() -> datetime | None:
    """When lapsed leases were last looked for."""
    return Heartbeat.objects.filter(name=SWEEP).values_list("started_at", flat=True).first()


@dataclass(frozen=True, slots=True, kw_only=True)
class StripMark:
    """Where a lease stands on the strip of the next two minutes, 0 to 1000."""

    x: float
    state: str
    title: str


def read_strip(*, now: datetime) -> list[StripMark]:
    """The leases that run out within 120 s unless they are renewed."""
    until = now + timedelta(seconds=STRIP_SECONDS)
    near = held().filter(expires_at__gt=now, expires_at__lte=until).annotate(**SIGNS)
    return [
        StripMark(
            x=round((lease.expires_at - now).total_seconds() / STRIP_SECONDS * 1000, 1),
            state=state_of(lease, now),
            title=f"{lease.unit}, {lease.owner}",
        )
        for lease in near.order_by("expires_at")[:STRIP_LEASES_MAX]
        if lease.expires_at
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStory:
    """One unit: its lease now (None: never leased, or long ago), and its past; or the same as of a
    moment (past.py), which is `now` then."""

    unit: str
    lease: Lease | None
    run: Run | None
    terms: list[Term]
    actions: list[OperatorAction]
    now: datetime
    as_of: AsOf | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What else tells whether the holder of a unit is well, and whom a takeover concerns.

    seen_at: when it announced itself. wrote_at, wrote_seq: its last accepted event. waiting: who
    asked for the unit in the last minutes, the last one first. effects: begun and not ended.
    """

    seen_at: datetime | None
    wrote_at: datetime | None
    wrote_seq: int | None
    waiting: list[str]
    effects: OpenEffects | None


def read_holding(story: UnitStory) -> Holding:
    lease, run = story.lease, story.run
    owner = lease.owner if lease else None
    beat = Worker.objects.filter(name=owner).exclude(principal__startswith="person:")
    wrote = _last_write(run, lease.token) if run and lease and lease.token else None
    return Holding(
        seen_at=beat.values_list("seen_at", flat=True).first() if owner else None,
        wrote_at=wrote.at if wrote else None,
        wrote_seq=wrote.seq if wrote else None,
        waiting=_waiting(story),
        effects=read_open_effects(run.id) if run else None,
    )


def _last_write(run: Run, token: int) -> Event | None:
    newest = Event.objects.filter(run_id=run.id, seq__gt=run.last_seq - EVENTS_SEARCHED)
    own = newest.filter(token=token, origin="worker").order_by("-seq")
    return own.only("run_id", "seq", "at").first()


def _waiting(story: UnitStory) -> list[str]:
    asked = _refused(story).filter(code="lease-held", at__gte=story.now - WAITING)
    names = asked.order_by("-at", "-id").values_list("worker", "actor")[:REFUSALS_SHOWN]
    return list(dict.fromkeys(worker or actor for worker, actor in names))


def refusals_of_unit(story: UnitStory, *, limit: int = REFUSALS_SHOWN) -> list[Refusal]:
    """What was refused on the unit, newest first."""
    return list(_refused(story).order_by("-id")[:limit])


def _refused(story: UnitStory) -> QuerySet[Refusal]:
    found = Refusal.objects.filter(unit=story.unit, run__isnull=True)
    if story.run is not None:
        found = Refusal.objects.select_related("run").filter(run=story.run)
    return found if story.as_of is None else found.filter(at__lte=story.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """What followed a reclaim: who has the unit now, and what its former holder still tried."""

    term: Term
    at: datetime
    spent_token: int | None
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
    act = next((a for a in story.actions if a.before.get("token") == term.token), None)
    reclaimed_at = (act and act.at) or term.ends_at or story.now
    late_writes = _refused(story).filter(
        Q(token_sent=term.token) | Q(worker=term.owner), at__gte=reclaimed_at, code__in=FENCED
    )
    last = late_writes.order_by("-id").values_list("at", flat=True).first()
    ttl = story.lease.ttl_seconds if story.lease else 60
    return Takeover(
        term=term,
        at=reclaimed_at,
        spent_token=act.after.get("spent_token") if act else None,
        successor=story.terms[at - 1] if at else None,
        fenced=late_writes[: REFUSALS_SHOWN + 1].count(),
        last_fenced_at=last,
        quiet_seconds=(story.now - (last or reclaimed_at)).total_seconds(),
        watch_seconds=2 * ttl,
    )


FENCED = ("stale-fence", "lease-lost", "fence-required")
