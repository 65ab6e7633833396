"""Leases: who holds what, the stuck ones first; and one unit's past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import (
    Case,
    Count,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from agentstate.store import proposed
from agentstate.store.models import Event, Heartbeat, Lease, OperatorAction, Refusal, Run, Worker
from dashboard import cursors, sentences
from dashboard.models import DatabaseNow
from dashboard.moments import AsOf
from dashboard.queries import together
from dashboard.queries.runs import LONG, REFUSALS_SHOWN
from dashboard.queries.story import OpenEffects, read_open_effects
from dashboard.queries.terms import Term, newest_terms, read_newest
from dashboard.queries.together import Read, first

# Drawn anew for every refresh. Longer: everybody who looks at anything waits for it.
PAGE_ROWS = 50
LAPSED_SHOWN, LAPSED_SHOWN_ALONE = 50, 200
URGENT_SHOWN = 50
BADGE_MAX = 99
# Of a unit: of its terms, of what operators did and of what was refused, each.
TERMS_SHOWN = UNIT_REFUSALS_SHOWN = 50
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

    @property
    def urgent_left_out(self) -> int:
        """How many late and silent ones there are beyond those on top."""
        return max(0, self.totals["late"] + self.totals["silent"] - URGENT_SHOWN)


def held() -> QuerySet[Lease]:
    return Lease.objects.filter(token__isnull=False)


def count_lapsed(now: datetime) -> int:
    """Units whose holder let them run out, up to 100; for the badge."""
    return held().filter(expires_at__lte=now)[: BADGE_MAX + 1].count()


def read_board(*, now: datetime, owner: str = "", after: str = "", only: str = "") -> Board:
    """The lapsed units and one page of the others. only: of one state. Raises BadCursor."""
    found = held().select_related("run").filter(owner__startswith=owner).annotate(**SIGNS)
    state = in_state(now)
    lists = _lists(found, state, after=after, only=only)
    return _board(
        *(list(rows) for rows in lists),
        totals=found.aggregate(**{name: Count("unit", filter=state[name]) for name in STATES}),
        now=now,
    )


def _lists(
    found: QuerySet[Lease], state: dict[str, Q], *, after: str, only: str
) -> tuple[QuerySet[Lease], QuerySet[Lease], QuerySet[Lease]]:
    """The lapsed ones, the first of the late and silent ones, and one more than a page of the
    others, or of the only state that is asked for."""
    lapsed = found.filter(state["lapsed"]) if only in ("", "lapsed") else found.none()
    urgent = found.filter(state["late"] | state["silent"]) if not only else found.none()
    page = found.filter(state[only or "live"]) if only != "lapsed" else found.none()
    if after:
        at, unit = cursors.read(after, salt=SALT)
        page = page.filter(Q(expires_at__gt=at) | Q(expires_at=at, unit__gt=unit))
        urgent = found.none()
    shown = LAPSED_SHOWN_ALONE if only else LAPSED_SHOWN
    order = ("expires_at", "unit")
    return (
        lapsed.order_by(*order)[:shown],
        urgent.order_by(*order)[:URGENT_SHOWN],
        page.order_by(*order)[: PAGE_ROWS + 1],
    )


def _board(
    stuck: list[Lease],
    pressing: list[Lease],
    rows: list[Lease],
    *,
    totals: dict[str, int],
    now: datetime,
) -> Board:
    units = describe([*stuck, *pressing, *rows[:PAGE_ROWS]], now=now)
    last = rows[PAGE_ROWS - 1] if len(rows) > PAGE_ROWS else None
    return Board(
        lapsed=units[: len(stuck)],
        held=sorted(units[len(stuck) :], key=lambda unit: STATES.index(unit.state)),
        totals=totals,
        later=cursors.write(last.expires_at or now, last.unit, salt=SALT) if last else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """All that a refresh of the board shows, as of one instant."""

    board: Board
    strip: list[StripMark]
    sweep: datetime | None
    now: datetime
    proposals: list[proposed.OpenProposal]


def read_refreshed(*, owner: str = "", after: str = "", only: str = "") -> Refreshed:
    """The board, strip, sweep and proposals of `read_board`, `read_strip`, `read_last_sweep` and
    `proposed.read_open` in two statements: everything, then what was refused on the units that are
    shown. Raises BadCursor."""
    now = DatabaseNow()
    found = held().filter(owner__startswith=owner).annotate(**SIGNS)
    state = in_state(now)
    stuck, pressing, page = _lists(found, state, after=after, only=only)
    which = Case(*(When(state[name], then=Value(name)) for name in STATES))
    totals = found.order_by().annotate(state=which).values_list("state").annotate(Count("unit"))
    near = _near(now)
    told = together.read(
        {
            "stuck": _with_signs(stuck),
            "pressing": _with_signs(pressing),
            "page": _with_signs(page),
            "totals": together.values_of(totals, 2),
            "near": _with_signs(near),
            "sweep": together.values_of(_sweeps()),
            "proposals": together.then(
                together.sql_of(proposed.READ, proposed.OF_ALL, proposed.COLUMNS),
                proposed.open_of,
            ),
        }
    )
    sweep = first(told["sweep"])
    return Refreshed(
        board=_board(
            told["stuck"],
            told["pressing"],
            told["page"],
            totals=dict.fromkeys(STATES, 0) | dict(told["totals"]),
            now=told["now"],
        ),
        strip=_strip(told["near"], told["now"]),
        sweep=together.moment(sweep[0]) if sweep else None,
        now=told["now"],
        proposals=told["proposals"],
    )


def _with_signs(rows: QuerySet[Lease]) -> Read[list[Lease]]:
    """Leases with their holder's last sign, and of their run what a row says."""

    def take(found: list[tuple[Lease, list[Any]]]) -> list[Lease]:
        for lease, (seen_at, task) in found:
            lease.seen_at = together.moment(seen_at)  # type: ignore[attr-defined]  # as annotated
            lease.run = Run(id=lease.run_id, task=task) if lease.run_id else None
        return [lease for lease, _ in found]

    return together.then(together.models_with(rows, ("seen_at", "run__task")), take)


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


def in_state(now: Any) -> dict[str, Q]:
    """Which held leases are in which state; every one is in exactly one. Needs SIGNS. now: an
    instant, or the expression that the database's clock is."""
    due = now - F("ttl_seconds") * timedelta(seconds=sentences.LATE_PART)
    late, on_time = Q(sign_at__lt=due), Q(sign_at__gte=due)
    silent = now - SILENT if isinstance(now, datetime) else now - Value(SILENT)
    quiet = Q(seen_at__lt=silent, sign_at__lt=silent)
    heard = Q(seen_at__isnull=True) | Q(seen_at__gte=silent) | Q(sign_at__gte=silent)
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
    return _sweeps().values_list("started_at", flat=True).first()


def _sweeps() -> QuerySet[Heartbeat, Any]:
    return Heartbeat.objects.filter(name=SWEEP).values_list("started_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class StripMark:
    """Where a lease stands on the strip of the next two minutes, 0 to 1000."""

    x: float
    state: str
    title: str


def read_strip(*, now: datetime) -> list[StripMark]:
    """The leases that run out within 120 s unless they are renewed."""
    return _strip(list(_near(now)), now)


def _near(now: Any) -> QuerySet[Lease]:
    span = timedelta(seconds=STRIP_SECONDS)
    until = now + (span if isinstance(now, datetime) else Value(span))
    near = held().filter(expires_at__gt=now, expires_at__lte=until).annotate(**SIGNS)
    return near.order_by("expires_at")[:STRIP_LEASES_MAX]


def _strip(near: list[Lease], now: datetime) -> list[StripMark]:
    return [
        StripMark(
            x=round((lease.expires_at - now).total_seconds() / STRIP_SECONDS * 1000, 1),
            state=state_of(lease, now),
            title=f"{lease.unit}, {lease.owner}",
        )
        for lease in near
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


def unit_reads(unit: str) -> dict[str, Read[Any]]:
    """The same and its refusals, to be read in one statement. What it is made of is far smaller
    than a unit's whole past, so that an open page may ask each second."""
    return _reads(unit, terms=TERMS_SHOWN) | {
        "actions": together.models_of(
            OperatorAction.objects.filter(object=unit).order_by("-id")[:TERMS_SHOWN]
        ),
        "refusals": together.models_of(_refusals(unit).order_by("-id")[:UNIT_REFUSALS_SHOWN]),
        "late": _late_writes(unit),
    }


def _late_writes(unit: str) -> Read[list[datetime | None]]:
    values = {
        "unit": unit,
        "key": unit.removeprefix("run:"),
        "terms": TERMS_SHOWN,
        "fenced": list(FENCED),
        "limit": REFUSALS_SHOWN + 1,
    }
    sql = LATE_WRITES.format(of_unit=OF_RUN if unit[:4] == "run:" else OF_UNIT)
    return together.then(
        together.sql_of(sql, values), lambda rows: [together.moment(row[0]) for row in rows]
    )


def facts_reads(unit: str, *, run: UUID | None) -> dict[str, Read[Any]]:
    """What the page that asks for a reclaim shows, to be read in one statement. run: the unit's,
    as whoever asks knows it: its log is in the part of that week."""
    lease = Lease.objects.filter(unit=unit)
    holder = Subquery(lease.values("owner")[:1])
    beat = Worker.objects.filter(name=holder).exclude(principal__startswith="person:")
    asked = _refusals(unit).filter(code="lease-held", at__gte=DatabaseNow() - Value(WAITING))
    names = asked.order_by("-at", "-id").values_list("worker", "actor")
    wrote = Event.objects.none()
    if run is not None:
        last_seq = Subquery(Run.objects.filter(id=run).values("last_seq")[:1])
        newest = Event.objects.filter(run_id=run, seq__gt=last_seq - EVENTS_SEARCHED)
        wrote = newest.filter(origin="worker", token=Subquery(lease.values("token")[:1]))
    return _reads(unit, terms=1) | {
        "seen": together.values_of(beat.values_list("seen_at")),
        "waiting": together.values_of(names[:REFUSALS_SHOWN], 2),
        "wrote": together.values_of(wrote.order_by("-seq").values_list("at", "seq")[:1], 2),
    }


def _reads(unit: str, *, terms: int) -> dict[str, Read[Any]]:
    runs = Run.objects.filter(key=unit.removeprefix("run:")).defer(*LONG)
    return {
        "lease": together.models_of(Lease.objects.filter(unit=unit)),
        "run": together.models_of(runs if unit[:4] == "run:" else runs.none()),
        "terms": read_newest(unit, limit=terms),
    }


def story_of(unit: str, found: dict[str, Any]) -> UnitStory | None:
    """The unit as `unit_reads` or `facts_reads` found it, or None if it was never heard of."""
    lease, run, terms = first(found["lease"]), first(found["run"]), found["terms"]
    if lease is None and not terms and run is None:
        return None
    return UnitStory(
        unit=unit,
        lease=lease,
        run=run,
        terms=terms,
        actions=found.get("actions", []),
        now=found["now"],
    )


def holding_of(found: dict[str, Any]) -> Holding:
    """What `facts_reads` found of the holder. The effects are no fact that is refreshed."""
    wrote, seen = first(found["wrote"]), first(found["seen"])
    return Holding(
        seen_at=together.moment(seen[0]) if seen else None,
        wrote_at=together.moment(wrote[0]) if wrote else None,
        wrote_seq=wrote[1] if wrote else None,
        waiting=_each_once(found["waiting"]),
        effects=None,
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
    return _each_once(names)


def _each_once(names: Iterable[Sequence[str | None]]) -> list[str]:
    return list(dict.fromkeys(worker or actor or "" for worker, actor in names))


def _refusals(unit: str) -> QuerySet[Refusal]:
    """What was refused on a unit, or on the run that it stands for, by name alone."""
    runs = Run.objects.filter(key=unit.removeprefix("run:")).values("id")[:1]
    if unit[:4] == "run:":
        return Refusal.objects.filter(run=Subquery(runs))
    return Refusal.objects.filter(unit=unit, run__isnull=True)


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


def read_takeover(story: UnitStory, late: list[datetime] | None = None) -> Takeover | None:
    """The last reclaim of the unit, unless its new holder is gone as well.

    late: when its former holder was refused since, the last time first, if that is known.
    """
    at = next((i for i, term in enumerate(story.terms[:2]) if term.ended == "reclaimed"), None)
    if at is None:
        return None
    term = story.terms[at]
    act = next((a for a in story.actions if a.before.get("token") == term.token), None)
    reclaimed_at = (act and act.at) or term.ends_at or story.now
    if late is None:
        fenced = _refused(story).filter(
            Q(token_sent=term.token) | Q(worker=term.owner), at__gte=reclaimed_at, code__in=FENCED
        )
        late = list(fenced.order_by("-id").values_list("at", flat=True)[: REFUSALS_SHOWN + 1])
    last = first(late)
    ttl = story.lease.ttl_seconds if story.lease else 60
    return Takeover(
        term=term,
        at=reclaimed_at,
        spent_token=act.after.get("spent_token") if act else None,
        successor=story.terms[at - 1] if at else None,
        fenced=len(late),
        last_fenced_at=last,
        quiet_seconds=(story.now - (last or reclaimed_at)).total_seconds(),
        watch_seconds=2 * ttl,
    )


FENCED = ("stale-fence", "lease-lost", "fence-required")

# The same late writes, for a unit that is known by its name alone.
LATE_WRITES = """
WITH term AS (
    SELECT token, owner, coalesce(
        (SELECT at FROM (
            SELECT id, at, before FROM agentstate_operatoraction
            WHERE object = %(unit)s ORDER BY id DESC LIMIT %(terms)s) AS act
         WHERE act.before->'token' = to_jsonb(newest.token) ORDER BY id DESC LIMIT 1),
        nullif(upper(held), 'infinity'), agentstate_now()) AS since
    FROM (
        SELECT token, owner, held, ended FROM agentstate_leaseterm
        WHERE unit = %(unit)s ORDER BY token DESC LIMIT 2) AS newest
    WHERE ended = 'reclaimed' ORDER BY token DESC LIMIT 1
)
SELECT refusal.at FROM agentstate_refusal AS refusal, term
WHERE {of_unit} AND refusal.code = ANY(%(fenced)s) AND refusal.at >= term.since
    AND (refusal.token_sent = term.token OR refusal.worker = term.owner)
ORDER BY refusal.id DESC LIMIT %(limit)s
"""
OF_RUN = "refusal.run_id = (SELECT id FROM agentstate_run WHERE key = %(key)s)"
OF_UNIT = "refusal.unit = %(unit)s AND refusal.run_id IS NULL"
