"""Contention in a window: how much was turned away, when, on which runs, by whom, because of whom.

Everything is read from the minute tables alone (`store.rates`, `store.collisions`), whose indexes
begin with the minute, so that a window costs what is in it and nothing of the years before. Only
the list of the newest refusals shows rows of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from agentstate.caching import copies
from agentstate.store import collisions, rates
from agentstate.store.collisions import Collision, Found
from agentstate.store.errors import CONFLICTS, FENCED, BudgetExhausted, LeaseHeld
from agentstate.store.minutes import OK
from agentstate.store.models import Budget, Refusal, Run
from agentstate.store.rates import FAILED, Figures, Group
from agentstate.store.rules.pacing import BRAKE_BURST_SECONDS
from agentstate.store.states import TERMINAL
from dashboard.families import FAMILIES, family_of

TOP = 12
HEAT_RUNS = 10
NEWEST = 30
GROUPS = 10_000
DAY = timedelta(days=1)
# A run is hot when so much of so many writes met another writer first.
HOT_WRITES_MIN, HOT_CONFLICTS_PART = 20, 0.2
# Whose loser and winner are both somebody: a charge that is refused has met nobody.
PERSONAL = CONFLICTS | FENCED | {LeaseHeld.code}
HELD, OVER_BUDGET = frozenset({LeaseHeld.code}), frozenset({BudgetExhausted.code})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run, worker, operation, column or code. total: what was refused of it, by family.

    conflicts: of `writes` (0 where they are not known). added_ms: what the store spent on them.
    """

    name: str
    total: int
    families: dict[str, int]
    conflicts: int = 0
    writes: int = 0
    added_ms: int = 0
    is_run: bool = False

    @property
    def conflict_ratio(self) -> float:
        return self.conflicts / self.writes if self.writes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A column of the charts. conflicts, added_ms: what latency they added to `accepted` writes."""

    at: datetime
    total: int
    families: dict[str, int]
    conflicts: int = 0
    added_ms: int = 0
    accepted: int = 0

    @property
    def added_per_write(self) -> float | None:
        """Milliseconds for each accepted write; None without one."""
        return self.added_ms / self.accepted if self.accepted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What was contested (conflicts and fenced calls) on a run, slot by slot."""

    run: str
    cells: tuple[Figures, ...]

    @property
    def total(self) -> int:
        return sum(map(contested, self.cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot:
    """A hot run, and what a brake would do to it. busiest_at: the slot with most writes, `busiest`.

    per_second: the least brake that lets through what was accepted in the busiest slot. waited: how
    many of `writes` it would have held up, as far as slots tell: at least so many.
    live: it goes on, so a brake can be put on it. braked: the rate of the brake that is on.
    """

    run: str
    writes: int
    conflicts: int
    busiest_at: datetime
    busiest: int
    per_second: int
    waited: int
    live: bool = True
    braked: int | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Clashes:
    """Who met whom in the window. more: the rarest pairs were left out."""

    pairs: tuple[Collision, ...] = ()
    more: bool = False
    shared_budgets: Set[str] = field(default_factory=frozenset)

    def of(self, codes: Set[str]) -> list[Collision]:
        return [pair for pair in self.pairs if pair.code in codes]

    @cached_property
    def columns(self) -> list[tuple[str, int]]:
        """What conflicts were about, the most frequent first. One of several counts for each."""
        counts: Counter[str] = Counter()
        for pair in self.of(CONFLICTS):
            counts.update(dict.fromkeys(pair.columns, pair.count))
        return sorted(counts.items(), key=lambda one: (-one[1], one[0]))

    @cached_property
    def losers(self) -> list[tuple[str, int]]:
        """Who met another writer, the most frequent first."""
        counts: Counter[str] = Counter()
        for pair in self.of(CONFLICTS):
            counts[pair.loser] += pair.count
        return sorted(counts.items(), key=lambda one: (-one[1], one[0]))

    @property
    def conflicts(self) -> int:
        return sum(pair.count for pair in self.of(CONFLICTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """since, until: whole slots, the running one included. by_code: figures of each outcome."""

    since: datetime
    until: datetime
    now: datetime
    slot: timedelta
    total: Figures
    by_code: Mapping[str, Figures]
    families: dict[str, int]
    slots: tuple[Slot, ...]
    heat: tuple[Heat, ...]
    hot: tuple[Hot, ...]
    codes: tuple[Row, ...]
    runs: tuple[Row, ...]
    workers: tuple[Row, ...]
    operations: tuple[Row, ...]
    columns: tuple[Row, ...]
    clashes: Clashes
    newest: tuple[Refusal, ...]

    @property
    def contested(self) -> int:
        return contested(self.total)

    def of(self, codes: Set[str]) -> Figures:
        """The figures of several outcomes as one."""
        return rates.add_up(self.by_code[code] for code in codes if code in self.by_code)


def contested(figures: Figures) -> int:
    return figures.conflicts + figures.fenced


def read(
    *, now: datetime, window: timedelta, slot: timedelta, until: datetime | None = None
) -> Contention:
    """Everything of the window: a multiple of `slot`, which is whole minutes that make an hour.

    until: where it ends, on the border of a slot; None: with the running one.
    """
    until = until or _floor(now, slot) + slot
    since = until - window
    asked: dict[str, Any] = {"since": since, "until": until}
    by_code = rates.outcomes(**asked)
    families: Counter[str] = Counter()
    for code, figures in by_code.items():
        if code not in (OK, FAILED):
            families[family_of(code)] += figures.writes
    clashes = _clashes(collisions.read(**asked))
    tops = rates.tops(**asked, limit=TOP + 1)
    runs = _top("run", tops)
    heat = _heat(asked, slot, [row.name for row in runs])
    return Contention(
        since=since,
        until=until,
        now=now,
        slot=slot,
        total=rates.add_up(by_code.values()),
        by_code=by_code,
        families={family.name: families[family.name] for family in FAMILIES},
        slots=_slots(rates.over_time(**asked, step=slot), asked, slot),
        heat=heat,
        hot=_hot(heat, asked, slot, now=now),
        codes=_codes(by_code),
        runs=runs,
        workers=_top("worker", tops),
        operations=_top("operation", tops),
        columns=tuple(
            Row(name=name, total=count, families={"conflict": count}, conflicts=count)
            for name, count in clashes.columns[:TOP]
        ),
        clashes=clashes,
        newest=tuple(
            Refusal.objects.select_related("run")
            .filter(at__gte=since, at__lt=until)
            .order_by("-at", "-id")[:NEWEST]
        ),
    )


def read_day_before(*, since: datetime, until: datetime) -> Figures | None:
    """The same time of the day before; None when nothing was written then, or is no longer kept."""

    def count() -> dict[str, Any]:
        found = rates.outcomes(since=since - DAY, until=until - DAY, latency=False)
        return asdict(rates.add_up(found.values()))

    def read(raw: dict[str, Any]) -> Figures:
        lists = {name: tuple(raw[name]) for name in ("attempts", "latency")}
        return Figures(**raw | lists)

    span = f"{since.timestamp():.0f}-{until.timestamp():.0f}"
    total = copies.count("yesterday", fill=count, read=read, variant=span)
    return total if total.writes else None


def _floor(at: datetime, slot: timedelta) -> datetime:
    step = int(slot.total_seconds())
    return datetime.fromtimestamp(int(at.timestamp()) // step * step, UTC)


def _clashes(found: Found) -> Clashes:
    """With which of the budgets that refused are shared: the minutes know a name alone."""
    names = {pair.about for pair in found.pairs if pair.code in OVER_BUDGET}
    shared = Budget.objects.filter(name__in=names, run__isnull=True) if names else []
    return Clashes(found.pairs, found.more, frozenset(budget.name for budget in shared))


def _codes(by_code: Mapping[str, Figures]) -> tuple[Row, ...]:
    rows = [
        Row(name=code, total=figures.writes, families={family_of(code): figures.writes})
        for code, figures in by_code.items()
        if code not in (OK, FAILED)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total, row.name))[:TOP])


def _slots(groups: Iterable[Group], asked: dict[str, Any], slot: timedelta) -> tuple[Slot, ...]:
    of: dict[datetime, list[Group]] = {}
    for group in groups:
        of.setdefault(group.keys["minute"], []).append(group)
    return tuple(_slot(at, of.get(at, [])) for at in _starts(asked, slot))


def _slot(at: datetime, groups: Sequence[Group]) -> Slot:
    families: Counter[str] = Counter()
    for group in groups:
        if group.keys["outcome"] not in (OK, FAILED):
            families[family_of(group.keys["outcome"])] += group.figures.writes
    whole = rates.add_up(group.figures for group in groups)
    return Slot(
        at=at,
        total=families.total(),
        families=dict(families),
        conflicts=whole.conflicts,
        added_ms=whole.conflict_ms,
        accepted=whole.accepted,
    )


def _starts(asked: dict[str, Any], slot: timedelta) -> list[datetime]:
    count = (asked["until"] - asked["since"]) // slot
    return [asked["since"] + n * slot for n in range(count)]


def _top(name: str, tops: Mapping[str, Sequence[Group]]) -> tuple[Row, ...]:
    """The most contested ones of which anything was refused; of no run or worker: left out."""
    rows = [_row(group.keys[name], group.figures, is_run=name == "run") for group in tops[name]]
    return tuple(row for row in rows if row.name and row.total)[:TOP]


def _row(name: str | None, figures: Figures, *, is_run: bool) -> Row:
    parts = {
        "fenced": figures.fenced,
        "conflict": figures.conflicts,
        "other": figures.refused - contested(figures),
    }
    return Row(
        name=name or "",
        total=figures.refused,
        families=parts,
        conflicts=figures.conflicts,
        writes=figures.writes,
        added_ms=figures.conflict_ms,
        is_run=is_run,
    )


def _heat(asked: dict[str, Any], slot: timedelta, runs: Sequence[str]) -> tuple[Heat, ...]:
    if not runs:
        return ()
    by = ("run", "minute")
    found = rates.read(
        **asked, by=by, runs=runs[:HEAT_RUNS], step=slot, limit=GROUPS, buckets=False
    )
    cells = {(g.keys["run"], g.keys["minute"]): g.figures for g in found.groups}
    starts, none = _starts(asked, slot), Figures()
    heats = (
        Heat(run=run, cells=tuple(cells.get((run, at), none) for at in starts))
        for run in runs[:HEAT_RUNS]
    )
    return tuple(heat for heat in heats if heat.total)


# --- hot runs, and what a brake would do ---------------------------------------------------------


def is_hot(figures: Figures) -> bool:
    part = figures.conflict_ratio or 0.0
    return figures.writes >= HOT_WRITES_MIN and part >= HOT_CONFLICTS_PART


def _hot(
    heat: Sequence[Heat], asked: dict[str, Any], slot: timedelta, *, now: datetime
) -> tuple[Hot, ...]:
    whole = {one.run: rates.add_up(one.cells) for one in heat}
    names = [run for run, figures in whole.items() if is_hot(figures)]
    stand = {run.key: run for run in Run.objects.filter(key__in=names)} if names else {}
    starts = _starts(asked, slot)
    found = []
    for one in heat:
        if one.run in names:
            brake = brake_for(one.cells, starts, slot)
            run = stand.get(one.run)
            is_on = run is not None and run.brake_until is not None and now < run.brake_until
            found.append(
                Hot(
                    run=one.run,
                    conflicts=whole[one.run].conflicts,
                    live=run is not None and run.status not in TERMINAL,
                    braked=run.brake_per_second if run is not None and is_on else None,
                    until=run.brake_until if run is not None and is_on else None,
                    **brake,
                )
            )
    return tuple(found)


def brake_for(
    cells: Sequence[Figures],
    starts: Sequence[datetime],
    slot: timedelta,
    *,
    per_second: int | None = None,
) -> dict[str, Any]:
    """What a brake would have done, by the slots' counts: fields of Hot.

    per_second: None for one that lets through what was accepted at the busiest time, so that it
    costs no work that was done. How the writes came within a slot nobody knows, so what is held up
    is what no order of them could have saved: more than the rate and a burst in all of the slot.
    """
    seconds = int(slot.total_seconds())
    at = max(range(len(cells)), key=lambda n: cells[n].writes)
    rate = per_second or max(1, -(-max(cell.accepted for cell in cells) // seconds))
    fits = rate * (seconds + BRAKE_BURST_SECONDS)
    return {
        "writes": sum(cell.writes for cell in cells),
        "busiest_at": starts[at],
        "busiest": cells[at].writes,
        "per_second": rate,
        "waited": sum(max(0, cell.writes - fits) for cell in cells),
    }


def read_hot(run: str, *, now: datetime, per_second: int | None) -> Hot | None:
    """One run's last hour, hot or not, and what a brake of this rate would have done; None when
    nothing was written to it."""
    slot, span = timedelta(minutes=1), timedelta(hours=1)
    until = _floor(now, slot) + slot
    asked: dict[str, Any] = {"since": until - span, "until": until}
    found = rates.read(**asked, by=("minute",), runs=[run], limit=GROUPS, buckets=False)
    if not found.total.writes:
        return None
    cells = {group.keys["minute"]: group.figures for group in found.groups}
    starts = _starts(asked, slot)
    at = [cells.get(start, Figures()) for start in starts]
    brake = brake_for(at, starts, slot, per_second=per_second)
    return Hot(run=run, conflicts=found.total.conflicts, **brake)


# --- who met whom --------------------------------------------------------------------------------


@dataclass(slots=True)
class Meeting:
    """How often one lost to another, by family; on which runs and about what most often."""

    loser: str
    winner: str
    families: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    about: Counter[str] = field(default_factory=Counter)
    latency_ms: int = 0

    @property
    def total(self) -> int:
        return self.families.total()

    @property
    def place(self) -> str:
        """`counters.steps of 42`: about what and where most often."""
        most = [counts.most_common(1) for counts in (self.about, self.runs) if counts]
        return " of ".join(name for ((name, _),) in most)


def meetings(clashes: Clashes) -> Iterator[Meeting]:
    """By loser and winner, the most frequent first; what was too much to tell apart left out."""
    found: dict[tuple[str, str], Meeting] = {}
    for pair in clashes.of(PERSONAL):
        if not pair.loser:
            continue
        names = (pair.loser, pair.winner)
        one = found.setdefault(names, Meeting(*names))
        one.families[family_of(pair.code)] += pair.count
        one.latency_ms += pair.latency_ms
        if pair.run:
            one.runs[pair.run] += pair.count
        one.about.update(dict.fromkeys(pair.columns, pair.count))
    yield from sorted(found.values(), key=lambda one: (-one.total, one.loser, one.winner))
