"""What was refused in a window: how much, of what kind, on which runs, by which workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store.models import Refusal
from dashboard.families import FAMILIES, family_of

ROWS_READ_MAX = 50_000
TOP = 12
NEWEST = 30
WRITES_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run, worker, operation or code, and what was refused of it, by family."""

    name: str
    total: int
    families: dict[str, int]
    is_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A column of the chart."""

    at: datetime
    total: int
    families: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """writes: changes that were accepted in the same window (capped: at least)."""

    since: datetime
    now: datetime
    slot_seconds: int
    total: int
    families: dict[str, int]
    slots: list[Slot]
    codes: list[Row]
    runs: list[Row]
    workers: list[Row]
    operations: list[Row]
    newest: list[Refusal] = field(default_factory=list)
    writes: int = 0
    writes_capped: bool = False

    @property
    def capped(self) -> bool:
        """Only the newest were counted."""
        return self.total >= ROWS_READ_MAX


# Grouped by the database into slots of the chart; the names are few beside the rows.
GROUPED = """
SELECT floor(extract(epoch FROM newest.at - %(since)s::timestamptz) / %(slot)s)::int, newest.code,
    newest.operation, coalesce(run.key, newest.unit, ''), run.key IS NOT NULL,
    coalesce(newest.worker, newest.actor), count(*)
FROM (SELECT * FROM agentstate_refusal WHERE at >= %(since)s AND at <= %(now)s
    ORDER BY at DESC, id DESC LIMIT %(limit)s) AS newest
LEFT JOIN agentstate_run AS run ON run.id = newest.run_id
GROUP BY 1, 2, 3, 4, 5, 6
"""

# From the newest change backwards, as far as the window and the limit go.
WRITES = """
SELECT count(*) FROM (
    SELECT at FROM agentstate_feed ORDER BY position DESC LIMIT %(limit)s) AS newest
WHERE at >= %(since)s
"""


def read(*, now: datetime, window: timedelta, slots: int) -> Contention:
    """Everything refused in the window, counted in `slots` columns."""
    since, slot = now - window, window.total_seconds() / slots
    facts: dict[str, Any] = {"since": since, "now": now, "slot": slot, "limit": ROWS_READ_MAX}
    with connection.cursor() as cursor:
        cursor.execute(GROUPED, facts)
        groups = cursor.fetchall()
        cursor.execute(WRITES, {"since": since, "limit": WRITES_MAX + 1})
        writes = cursor.fetchone()[0]
    by_slot: dict[int, Counter[str]] = defaultdict(Counter)
    tables: dict[str, dict[tuple[str, bool], Counter[str]]] = {
        name: defaultdict(Counter) for name in ("code", "operation", "run", "worker")
    }
    families: Counter[str] = Counter()
    for at, code, operation, thing, is_run, worker, count in groups:
        family = family_of(code)
        families[family] += count
        by_slot[min(max(at, 0), slots - 1)][family] += count
        tables["code"][code, False][family] += count
        tables["operation"][operation, False][family] += count
        tables["worker"][worker, False][family] += count
        if thing:
            tables["run"][thing, is_run][family] += count
    return Contention(
        since=since,
        now=now,
        slot_seconds=int(slot),
        total=sum(families.values()),
        families={family.name: families[family.name] for family in FAMILIES},
        slots=[
            Slot(
                at=since + timedelta(seconds=slot * number),
                total=sum(by_slot[number].values()),
                families=dict(by_slot[number]),
            )
            for number in range(slots)
        ],
        codes=_top(tables["code"]),
        runs=_top(tables["run"]),
        workers=_top(tables["worker"]),
        operations=_top(tables["operation"]),
        newest=list(
            Refusal.objects.select_related("run")
            .filter(at__gte=since)
            .order_by("-at", "-id")[:NEWEST]
        ),
        writes=min(writes, WRITES_MAX),
        writes_capped=writes > WRITES_MAX,
    )


def _top(table: dict[tuple[str, bool], Counter[str]]) -> list[Row]:
    rows = [
        Row(name=name, total=sum(counts.values()), families=dict(counts), is_run=is_run)
        for (name, is_run), counts in table.items()
    ]
    return sorted(rows, key=lambda row: (-row.total, row.name))[:TOP]
