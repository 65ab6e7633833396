"""Bulks: what one would do before it is begun, how one stands, its rows, all of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet

from agentstate.store import bulking
from agentstate.store.bulking import KINDS, Kind, RunSeen, Seen, Work
from agentstate.store.bulks import look_at_keys, read_stretch
from agentstate.store.filters import Filter
from agentstate.store.models import BulkAction, BulkItem
from dashboard.queries.clock import at_most

LIST_ROWS, PAGE_ROWS, EXPORT_ROWS = 50, 50, 1_000
SAMPLE_ROWS = 8
WHYS_SHOWN = 12
STRETCH_RUNS = 2_500
# Of each statement, and of all of them: what was not looked at by then is not counted.
LOOK_MS, LOOK_SECONDS = 2_000, 1.5
EXPORT_MS = 10_000
# At work and not touched for so long: nobody works on it.
WAITS_SECONDS = 20


# --- before --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dry:
    """What a bulk would do to what matches now, as of `work.at`.

    is_all: everything that matches was looked at; else the numbers are of the newest that were.
    whys: why it would not be done, with how often. gone: of those that were picked.
    """

    work: Work
    matched: int
    is_all: bool
    eligible: int
    whys: list[tuple[str, int]]
    sample: list[RunSeen]
    left_out: list[tuple[RunSeen, str]]
    picked: list[RunSeen] | None = None
    gone: int = 0

    @property
    def skipped(self) -> int:
        return self.matched - self.eligible

    @property
    def size(self) -> int:
        """How many are asked about: of those that were picked, each one is tried."""
        return self.eligible if self.picked is None else self.matched

    @property
    def asks_for_more(self) -> bool:
        return bulking.asks_for_more(self.size, is_all=self.is_all)

    @property
    def typed(self) -> str:
        return bulking.typed_for(self.size, is_all=self.is_all)


def try_filter(wanted: Filter, work: Work, *, scopes: Set[str]) -> Dry:
    """Look at what a filter lets through, at most bulking.LOOKED_MAX runs and for 1.5 s.

    Raises TooSlow.
    """
    ends = time.monotonic() + LOOK_SECONDS
    runs: list[RunSeen] = []
    after: tuple[datetime, UUID] | None = None
    with at_most(LOOK_MS):
        while True:
            # One more than is counted tells whether that was all.
            limit = min(STRETCH_RUNS, bulking.LOOKED_MAX + 1 - len(runs))
            stretch = read_stretch(wanted, at=work.at, after=after, limit=limit)
            runs += stretch.runs
            after = stretch.next
            if after is None or len(runs) > bulking.LOOKED_MAX or time.monotonic() > ends:
                break
    return _judged(runs[: bulking.LOOKED_MAX], work, scopes=scopes, is_all=after is None)


def try_keys(keys: Sequence[str], work: Work, *, scopes: Set[str]) -> Dry:
    """Look at runs that were picked. Raises TooSlow."""
    with at_most(LOOK_MS):
        runs = look_at_keys(keys, at=work.at)
    return _judged(runs, work, scopes=scopes, is_all=True, picked=runs, gone=len(keys) - len(runs))


def _judged(
    runs: Sequence[RunSeen], work: Work, *, scopes: Set[str], is_all: bool, **more: Any
) -> Dry:
    whys: Counter[str] = Counter()
    sample: list[RunSeen] = []
    left_out: list[tuple[RunSeen, str]] = []
    for run in runs:
        why = bulking.stands_against(work, run, scopes)
        if why:
            whys[why] += 1
            if whys[why] <= SAMPLE_ROWS // 2 and len(left_out) < SAMPLE_ROWS:
                left_out.append((run, why))
        elif len(sample) < SAMPLE_ROWS:
            sample.append(run)
    return Dry(
        work=work,
        matched=len(runs),
        is_all=is_all,
        eligible=len(runs) - whys.total(),
        whys=whys.most_common(),
        sample=sample,
        left_out=left_out,
        **more,
    )


# --- one, and all --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A bulk as it stands. left: how many rows wait for their turn, or never had one."""

    row: BulkAction
    now: datetime

    @property
    def name(self) -> str:
        return bulking.name_of(self.row.id)

    @property
    def kind(self) -> Kind:
        return KINDS[self.row.kind]

    @property
    def at_work(self) -> bool:
        return self.row.state in bulking.AT_WORK

    @property
    def settled(self) -> int:
        return self.row.done + self.row.skipped + self.row.refused

    @property
    def left(self) -> int:
        return self.row.found - self.settled

    @property
    def waits(self) -> bool:
        """It is at work, and nobody works on it."""
        since = self.row.worked_at or self.row.created_at
        return self.at_work and self.now - since > timedelta(seconds=WAITS_SECONDS)

    @property
    def took(self) -> timedelta:
        return (self.row.ended_at or self.now) - self.row.created_at

    @property
    def still_needs(self) -> timedelta | None:
        """About so long, by how fast it was until now; None: that cannot be told."""
        done, begun = self.settled, self.row.begun_at
        if self.row.state != bulking.WORKING or begun is None or not done or not self.left:
            return None
        needs = (self.now - begun) / done * self.left
        return needs if needs >= timedelta(seconds=1) else None

    def part(self, count: int) -> float:
        """Of the bar's 100."""
        return 100 * count / self.row.found if self.row.found else 0.0

    @property
    def bar(self) -> list[tuple[str, float, float]]:
        """(outcome, from where, how wide), one beside the other."""
        found, at = [], 0.0
        for outcome in (bulking.DONE, bulking.REFUSED, bulking.SKIPPED):
            wide = self.part(getattr(self.row, outcome))
            found.append((outcome, at, wide))
            at += wide
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """lines: the newest first. older: the id to go on from."""

    lines: list[Line]
    older: str | None
    now: datetime


def read_list(*, now: datetime, before: UUID | None = None) -> Page:
    found = BulkAction.objects.order_by("-id")
    if before is not None:
        found = found.filter(id__lt=before)
    rows = list(found[: LIST_ROWS + 1])
    more, rows = len(rows) > LIST_ROWS, rows[:LIST_ROWS]
    return Page(
        lines=[Line(row=row, now=now) for row in rows],
        older=rows[-1].id.hex if more else None,
        now=now,
    )


def read_at_work(*, now: datetime) -> list[Line]:
    """Those that have not ended, the oldest first; a few."""
    found = BulkAction.objects.filter(state__in=bulking.AT_WORK).order_by("created_at")
    return [Line(row=row, now=now) for row in found[:SAMPLE_ROWS]]


def count_at_work() -> int:
    return BulkAction.objects.filter(state__in=bulking.AT_WORK)[:100].count()


def find(bulk: UUID, *, now: datetime) -> Line | None:
    row = BulkAction.objects.filter(id=bulk).first()
    return Line(row=row, now=now) if row else None


# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Rows in the order in which they were found. next: the number to go on after."""

    rows: list[BulkItem]
    next: int | None


def read_items(bulk: UUID, *, outcome: str = "", after: int = 0) -> Items:
    rows = list(_items(bulk, outcome=outcome, after=after)[: PAGE_ROWS + 1])
    more, rows = len(rows) > PAGE_ROWS, rows[:PAGE_ROWS]
    return Items(rows=rows, next=rows[-1].n if more else None)


def _items(bulk: UUID, *, outcome: str, after: int) -> QuerySet[BulkItem]:
    found = BulkItem.objects.filter(bulk_id=bulk, n__gt=after).order_by("n")
    return found.filter(outcome=outcome) if outcome else found


WHYS = """
SELECT outcome, why, count(*) FROM agentstate_bulkitem
WHERE bulk_id = %(bulk)s AND outcome IN ('skipped', 'refused') AND why <> ''
GROUP BY outcome, why ORDER BY count(*) DESC, why LIMIT %(limit)s
"""


def read_whys(bulk: UUID) -> list[tuple[str, str, int]]:
    """(outcome, why, how often) of what was not done, the most frequent first."""
    with connection.cursor() as cursor:
        cursor.execute(WHYS, {"bulk": bulk, "limit": WHYS_SHOWN})
        return list(cursor.fetchall())


COLUMNS = (
    "n", "run", "outcome", "why", "status_seen", "holder_seen", "token_seen", "tries", "found_at",
    "settled_at",
)  # fmt: skip


def export(bulk: UUID, *, outcome: str = "") -> Iterator[dict[str, Any]]:
    """Every row by the names of COLUMNS, read page by page. Raises TooSlow."""
    after = 0
    while True:
        with at_most(EXPORT_MS):
            rows = list(_items(bulk, outcome=outcome, after=after)[:EXPORT_ROWS])
        for row in rows:
            seen = Seen(**row.seen)
            yield {
                "n": row.n,
                "run": row.run_key,
                "outcome": row.outcome,
                "why": row.why,
                "status_seen": seen.status,
                "holder_seen": seen.owner,
                "token_seen": seen.token,
                "tries": row.tries,
                "found_at": row.found_at,
                "settled_at": row.settled_at,
            }
        if len(rows) < EXPORT_ROWS:
            return
        after = rows[-1].n


# --- what was picked, as the form carries it -----------------------------------------------------


def write_picked(runs: Sequence[RunSeen]) -> str:
    """Runs as they were seen, as one text."""
    return json.dumps([[run.key, run.status, run.owner, run.token] for run in runs])
