"""Contention in a window: how much was turned away, when, on which runs, by which workers.

Counts come from the minute table alone (`store.rates`). Two things it does not hold are read from
the newest refusals, and no further: the columns that were fought over, and the list of the newest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store import rates
from agentstate.store.errors import CONFLICTS, SeqConflict
from agentstate.store.minutes import OK
from agentstate.store.models import Refusal
from agentstate.store.rates import FAILED, Figures, Group
from dashboard.families import FAMILIES, family_of

TOP = 12
HEAT_RUNS = 10
NEWEST = 30
REFUSALS_READ = 2_000
GROUPS = 10_000
# What a guard is on that is no column, by the name that the API gives it.
EXPECTED_SEQ, VERSION = "expected_seq", "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run, worker, operation, column or code. total: what was refused of it, by family.

    conflicts: of `writes` (0 where they are not known).
    """

    name: str
    total: int
    families: dict[str, int]
    conflicts: int = 0
    writes: int = 0
    is_run: bool = False

    @property
    def conflict_ratio(self) -> float:
        return self.conflicts / self.writes if self.writes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A column of the chart."""

    at: datetime
    total: int
    families: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What was contested (conflicts and fenced calls) on a run, slot by slot."""

    run: str
    cells: tuple[Figures, ...]

    @property
    def total(self) -> int:
        return sum(map(contested, self.cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """since, until: whole slots, the running one included. columns: of the newest conflicts, of
    which `columns_of` were read.
    """

    since: datetime
    until: datetime
    now: datetime
    slot: timedelta
    total: Figures
    families: dict[str, int]
    slots: tuple[Slot, ...]
    heat: tuple[Heat, ...]
    codes: tuple[Row, ...]
    runs: tuple[Row, ...]
    workers: tuple[Row, ...]
    operations: tuple[Row, ...]
    columns: tuple[Row, ...]
    columns_of: int
    newest: tuple[Refusal, ...]

    @property
    def contested(self) -> int:
        return contested(self.total)


def contested(figures: Figures) -> int:
    return figures.conflicts + figures.fenced


def read(*, now: datetime, window: timedelta, slot: timedelta) -> Contention:
    """Everything of the window: a multiple of `slot`, which is whole minutes that make an hour."""
    until = _floor(now, slot) + slot
    since = until - window
    asked: dict[str, Any] = {"since": since, "until": until}
    by_code = rates.read(**asked, by=("outcome",), limit=GROUPS)
    families: Counter[str] = Counter()
    for code, figures in _refused(by_code.groups):
        families[family_of(code)] += figures.writes
    columns, columns_of = _columns(since)
    runs = _top("run", asked)
    return Contention(
        since=since,
        until=until,
        now=now,
        slot=slot,
        total=by_code.total,
        families={family.name: families[family.name] for family in FAMILIES},
        slots=_slots(asked, slot),
        heat=_heat(asked, slot, [row.name for row in runs if row.is_run]),
        codes=_codes(by_code.groups),
        runs=runs,
        workers=_top("worker", asked),
        operations=_top("operation", asked),
        columns=columns,
        columns_of=columns_of,
        newest=tuple(
            Refusal.objects.select_related("run")
            .filter(at__gte=since)
            .order_by("-at", "-id")[:NEWEST]
        ),
    )


def _floor(at: datetime, slot: timedelta) -> datetime:
    step = int(slot.total_seconds())
    return datetime.fromtimestamp(int(at.timestamp()) // step * step, UTC)


def _refused(groups: Sequence[Group]) -> Iterator[tuple[str, Figures]]:
    for group in groups:
        if group.keys["outcome"] not in (OK, FAILED):
            yield group.keys["outcome"], group.figures


def _codes(groups: Sequence[Group]) -> tuple[Row, ...]:
    rows = [
        Row(name=code, total=figures.writes, families={family_of(code): figures.writes})
        for code, figures in _refused(groups)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total, row.name))[:TOP])


def _slots(asked: dict[str, Any], slot: timedelta) -> tuple[Slot, ...]:
    found = rates.read(**asked, by=("minute", "outcome"), step=slot, limit=GROUPS)
    counts: dict[datetime, Counter[str]] = {}
    for group in found.groups:
        if group.keys["outcome"] not in (OK, FAILED):
            at = counts.setdefault(group.keys["minute"], Counter())
            at[family_of(group.keys["outcome"])] += group.figures.writes
    return tuple(
        Slot(at=at, total=counts.get(at, Counter()).total(), families=dict(counts.get(at, {})))
        for at in _starts(asked, slot)
    )


def _starts(asked: dict[str, Any], slot: timedelta) -> list[datetime]:
    count = (asked["until"] - asked["since"]) // slot
    return [asked["since"] + n * slot for n in range(count)]


def _top(name: str, asked: dict[str, Any]) -> tuple[Row, ...]:
    """The most contested ones of which anything was refused; of no run or worker: left out."""
    found = rates.read(**asked, by=(name,), limit=TOP + 1)
    rows = [_row(group.keys[name], group.figures, is_run=name == "run") for group in found.groups]
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
        is_run=is_run,
    )


def _heat(asked: dict[str, Any], slot: timedelta, runs: Sequence[str]) -> tuple[Heat, ...]:
    if not runs:
        return ()
    by = ("run", "minute")
    found = rates.read(**asked, by=by, runs=runs[:HEAT_RUNS], step=slot, limit=GROUPS)
    cells = {(g.keys["run"], g.keys["minute"]): g.figures for g in found.groups}
    starts, none = _starts(asked, slot), Figures()
    heats = (
        Heat(run=run, cells=tuple(cells.get((run, at), none) for at in starts))
        for run in runs[:HEAT_RUNS]
    )
    return tuple(heat for heat in heats if heat.total)


# The newest refusals of the window, whatever they are about; of these the conflicts.
COLUMNS = """
SELECT code, wanted FROM (
    SELECT code, wanted FROM agentstate_refusal WHERE at >= %(since)s
    ORDER BY at DESC, id DESC LIMIT %(limit)s) AS newest
WHERE code = ANY(%(codes)s)
"""


def _columns(since: datetime) -> tuple[tuple[Row, ...], int]:
    """What the newest conflicts were about, by the columns that they wanted to change."""
    values: dict[str, Any] = {"since": since, "limit": REFUSALS_READ, "codes": sorted(CONFLICTS)}
    counts: Counter[str] = Counter()
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS, values)
        found = cursor.fetchall()
    for code, wanted in found:
        counts.update(set(columns_of(code, json.loads(wanted))))
    rows = (
        Row(name=name, total=count, families={"conflict": count}, conflicts=count)
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    )
    return tuple(rows), len(found)


def columns_of(code: str, wanted: Any) -> list[str]:
    """The columns that a refused command wanted to write, or what it expected of the run."""
    told = wanted if isinstance(wanted, dict) else {}
    if code == SeqConflict.code:
        return [EXPECTED_SEQ]
    for name in ("columns", "expect"):
        if told.get(name):
            return [str(column) for column in told[name]]
    return ["status"] if "to" in told else [VERSION]
