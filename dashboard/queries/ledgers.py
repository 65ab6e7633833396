"""How budgets go, by their ledgers: the rate, the course over time, the requests, the lines.

A ledger may have millions of lines, and no index on their times. But they are numbered without a
hole in the order of their times: where a part of the time begins is found by halving, twenty
look-ups a ledger, and what is read after that is bounded. Where that cuts something, it is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store.models import OperatorAction
from agentstate.store.rows import BudgetRow
from dashboard import cursors, forecast
from dashboard.forecast import Burn
from dashboard.queries.refused import Refused, RefusedCharge
from dashboard.replay import Kind, Request
from dashboard.windows import Window

PAGE_ROWS = 50
# Of each ledger for its rate, of all of a budget for a chart, and for deciding its requests again.
BURN_LINES_MAX = 20_000
COURSE_LINES_MAX = 100_000
REPLAYED_MAX = 6_000
SALT = "ledger"
NEVER = 2**63 - 1
SLOT_MAX = 2**31 - 1

# Of each ledger (a budget's, and those of its slots) the first line that is not before each bound.
_FOUND = """
WITH RECURSIVE ledger AS (
    SELECT id, coalesce(slot_of_id, id) AS whole, slot, entries, spent + reserved AS used
    FROM agentstate_budget WHERE id = ANY(%(ids)s) OR slot_of_id = ANY(%(ids)s)
), halving AS (
    SELECT l.*, b.bound, 1::bigint AS low, l.entries + 1 AS high
    FROM ledger l, unnest(%(bounds)s::timestamptz[]) AS b (bound)
    UNION ALL
    SELECT h.id, h.whole, h.slot, h.entries, h.used, h.bound,
        CASE WHEN coalesce(e.at < h.bound, true) THEN h.middle + 1 ELSE h.low END,
        CASE WHEN coalesce(e.at < h.bound, true) THEN h.high ELSE h.middle END
    FROM (SELECT *, (low + high) / 2 AS middle FROM halving WHERE low < high) AS h
    LEFT JOIN LATERAL (
        SELECT at FROM agentstate_budgetentry WHERE budget_id = h.id AND n = h.middle LIMIT 1
    ) AS e ON true
), found AS (SELECT * FROM halving WHERE low = high)
"""


# --- how fast it goes ----------------------------------------------------------------------------

BURNED = f"""{_FOUND}, begun AS (
    SELECT *, greatest(low, entries + 1 - %(most)s) AS first FROM found
), cut AS (
    SELECT whole, max(CASE WHEN first > low THEN (
        SELECT at FROM agentstate_budgetentry WHERE budget_id = id AND n = first) END) AS at
    FROM begun GROUP BY whole
)
SELECT b.whole, coalesce(sum(e.spent), 0)::bigint, count(*) FILTER (WHERE e.spent > 0), c.at,
    (SELECT at FROM agentstate_budgetentry WHERE budget_id = b.whole AND n = 1)
FROM begun b JOIN cut c USING (whole)
LEFT JOIN LATERAL (
    SELECT spent, at FROM agentstate_budgetentry WHERE budget_id = b.id AND n >= b.first
    ORDER BY n DESC LIMIT %(most)s
) AS e ON c.at IS NULL OR e.at >= c.at
GROUP BY b.whole, c.at
"""  # noqa: S608  our own


def read_burns(budgets: Sequence[UUID], *, now: datetime) -> dict[UUID, Burn]:
    """What was spent of each in the last minutes, by its ledger."""
    since = now - forecast.OVER
    facts: dict[str, Any] = {"ids": list(budgets), "bounds": [since], "most": BURN_LINES_MAX}
    with connection.cursor() as cursor:
        cursor.execute(BURNED, facts)
        return {
            whole: Burn(
                spent=spent,
                charges=charges,
                over=now - max(at for at in (since, cut_at, opened_at) if at is not None),
            )
            for whole, spent, charges, cut_at, opened_at in cursor.fetchall()
        }


# --- a part of the time --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The lines of one ledger in a part of the time: from number `first` to before `last`.

    slot: of a split budget; entries, used: of the ledger when they were found.
    """

    id: UUID
    slot: int | None
    first: int
    last: int
    entries: int
    used: int


PLACES = f"""{_FOUND}
SELECT id, slot, entries, used, bound, low FROM found ORDER BY slot NULLS FIRST, bound
"""  # noqa: S608  our own


def read_spans(budget: UUID, *, since: datetime, until: datetime) -> list[Span]:
    """Where this part of the time stands in the budget's ledgers."""
    with connection.cursor() as cursor:
        cursor.execute(PLACES, {"ids": [budget], "bounds": [since, until]})
        rows = cursor.fetchall()
    spans: dict[UUID, Span] = {}
    for id_, slot, entries, used, _, low in rows:  # by the bounds, the earlier one first
        first = spans[id_].first if id_ in spans else low
        spans[id_] = Span(id=id_, slot=slot, first=first, last=low, entries=entries, used=used)
    return list(spans.values())


# Since when all of these ledgers are read, of those whose beginning was left out.
BEGINS = """
SELECT max(e.at) FROM unnest(%(ids)s::uuid[], %(firsts)s::bigint[]) AS f (id, first)
JOIN LATERAL (
    SELECT at FROM agentstate_budgetentry WHERE budget_id = f.id AND n = f.first LIMIT 1
) AS e ON true
"""


def _bounded(spans: Sequence[Span], most: int) -> tuple[list[int], datetime | None]:
    """From which line of each ledger on is read, so that it is not more in all; and since when all
    of them are, None: from the beginning of the part.
    """
    firsts = [span.first for span in spans]
    if sum(span.last - span.first for span in spans) <= most:
        return firsts, None
    firsts = [max(span.first, span.last - most // len(spans)) for span in spans]
    cut = [(s.id, first) for s, first in zip(spans, firsts, strict=True) if first > s.first]
    with connection.cursor() as cursor:
        cursor.execute(BEGINS, {"ids": [i for i, _ in cut], "firsts": [n for _, n in cut]})
        begins_at: datetime | None = cursor.fetchone()[0]
    return firsts, begins_at


# --- its course ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A column of time. used, cap: at its end; None: not known, or there was no budget yet."""

    at: datetime
    spent: int = 0
    used: int | None = None
    cap: int | None = None
    refused: int = 0
    refused_amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a budget went. begins_at: the ledger was read from there on only, None: all of the part.
    refused_cut: and so were its refusals.
    """

    points: list[Point]
    begins_at: datetime | None = None
    refused_cut: bool = False

    @property
    def spent(self) -> int:
        return sum(point.spent for point in self.points)

    @property
    def refused(self) -> int:
        return sum(point.refused for point in self.points)


COURSE = """
SELECT floor(extract(epoch FROM e.at - %(since)s::timestamptz) / %(slot)s)::bigint,
    sum(e.spent)::bigint, sum(e.spent + e.reserved)::bigint,
    (array_agg(e.cap ORDER BY e.n DESC) FILTER (WHERE e.cap IS NOT NULL AND f.id = %(id)s))[1]
FROM unnest(%(ids)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS f (id, first, last),
LATERAL (
    SELECT n, spent, reserved, cap, at FROM agentstate_budgetentry
    WHERE budget_id = f.id AND n >= f.first AND n < f.last ORDER BY n LIMIT %(most)s
) AS e GROUP BY 1
"""
OPENED = "SELECT at FROM agentstate_budgetentry WHERE budget_id = %(id)s AND n = 1"
MOVED = """
SELECT coalesce(sum(e.spent + e.reserved), 0)::bigint
FROM unnest(%(ids)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS f (id, first, last),
LATERAL (
    SELECT spent, reserved FROM agentstate_budgetentry
    WHERE budget_id = f.id AND n >= f.first AND n < f.last ORDER BY n LIMIT %(most)s
) AS e
"""


def read_course(
    budget: BudgetRow, key: str | None, *, window: Window, now: datetime, refused: Refused
) -> Course:
    """What was spent in each column, and how full it was at its end. key: the run's, if it has one.

    How full it was long ago is known by what has moved since; after too much of that it is not.
    """
    spans = read_spans(budget.id, since=window.since, until=window.until)
    firsts, begins_at = _bounded(spans, COURSE_LINES_MAX)
    facts = _ranges(spans, firsts, [span.last for span in spans]) | {
        "id": budget.id,
        "since": window.since,
        "slot": window.slot.total_seconds(),
        "most": COURSE_LINES_MAX,
    }
    with connection.cursor() as cursor:
        cursor.execute(COURSE, facts)
        rows = {int(row[0]): row[1:] for row in cursor.fetchall()}
    opened_at = read_opened(budget.id)
    course = _points(
        window,
        rows,
        used=_used_at_end(spans),
        cap=_cap_before(budget, key, window.since),
        known=(max(opened_at, begins_at or opened_at), now),
    )
    return Course(
        points=_with_refused(course, refused.charges, window),
        begins_at=begins_at,
        refused_cut=refused.is_cut,
    )


def read_opened(budget: UUID) -> datetime:
    """When the budget was made: its first line's time; the beginning of all if that is gone."""
    with connection.cursor() as cursor:
        cursor.execute(OPENED, {"id": budget})
        found = cursor.fetchone()
    return found[0] if found else datetime.min.replace(tzinfo=UTC)


def _ranges(spans: Sequence[Span], firsts: list[int], lasts: list[int]) -> dict[str, Any]:
    return {"ids": [span.id for span in spans], "firsts": firsts, "lasts": lasts}


def _used_at_end(spans: Sequence[Span]) -> int | None:
    """What was spent and reserved at the end of the part."""
    after = sum(span.entries + 1 - span.last for span in spans)
    used = sum(span.used for span in spans)
    if not after:
        return used
    if after > COURSE_LINES_MAX:
        return None
    ends = _ranges(spans, [s.last for s in spans], [s.entries + 1 for s in spans])
    with connection.cursor() as cursor:
        cursor.execute(MOVED, ends | {"most": COURSE_LINES_MAX})
        return used - int(cursor.fetchone()[0])


def _cap_before(budget: BudgetRow, key: str | None, at: datetime) -> int:
    """The cap that was then: what the first change since found."""
    name = budget.name if key is None else f"{key}/{budget.name}"
    changes = OperatorAction.objects.filter(
        action="budget.cap-changed", object=name, run=budget.run_id, at__gte=at
    )
    first = changes.order_by("at", "id").values_list("before", flat=True).first()
    return int(first["cap"]) if first else budget.cap


def _points(
    window: Window,
    rows: dict[int, Any],
    *,
    used: int | None,
    cap: int,
    known: tuple[datetime, datetime],
) -> list[Point]:
    """The columns, from what moved in each. known: outside of it how full it was is not told: it
    was not opened yet, or not read, or is still to come.
    """
    moved = [rows[n][1] if n in rows else 0 for n in range(window.count)]
    found: list[Point] = []
    for n, at in enumerate(window.starts):
        row = rows.get(n)
        cap = row[2] if row and row[2] is not None else cap
        is_told = known[0] < at + window.slot and at <= known[1]
        ahead = sum(moved[n + 1 :])
        found.append(
            Point(
                at=at,
                spent=row[0] if row else 0,
                used=used - ahead if used is not None and is_told else None,
                cap=cap if is_told else None,
            )
        )
    return found


def _with_refused(
    points: list[Point], charges: Sequence[RefusedCharge], window: Window
) -> list[Point]:
    counts = [[0, 0] for _ in points]
    for charge in charges:
        if window.since <= charge.at < window.until:
            count = counts[window.at(charge.at)]
            count[0] += 1
            count[1] += charge.amount or 0
    return [
        Point(
            at=point.at,
            spent=point.spent,
            used=point.used,
            cap=point.cap,
            refused=refused,
            refused_amount=amount,
        )
        for point, (refused, amount) in zip(points, counts, strict=True)
    ]


# --- its requests in order -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was asked of a budget, in order. charges: the refused ones among the requests, by their
    place. begins_at: further back was not read, None: all of the part was.
    """

    requests: list[Request]
    charges: dict[int, RefusedCharge]
    begins_at: datetime | None


STORY = """
SELECT e.at, e.n, f.slot, e.kind, e.spent + e.reserved, e.entry_id, e.run_id
FROM unnest(%(ids)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[], %(slots)s::int[])
    AS f (id, first, last, slot),
LATERAL (
    SELECT n, kind, spent, reserved, entry_id, run_id, at FROM agentstate_budgetentry
    WHERE budget_id = f.id AND n >= f.first AND n < f.last ORDER BY n LIMIT %(most)s
) AS e
WHERE e.kind = ANY(%(kinds)s)
ORDER BY e.at, f.slot, e.n
"""
KINDS = {
    "spend": Kind.CHARGE,
    "reserve": Kind.HOLD,
    "commit": Kind.SETTLED,
    "release": Kind.SETTLED,
    "drop": Kind.SETTLED,
    "late": Kind.SETTLED,
}


def read_story(budget: UUID, *, since: datetime, until: datetime, refused: Refused) -> Story | None:
    """The requests of a part of the time, to be decided again. None: too long ago for that.

    refused: the charges of the same part that were refused. Where either was cut, it begins later.
    """
    spans = read_spans(budget, since=since, until=until)
    used = _used_at_end(spans)
    if used is None:
        return None
    firsts, begins_at = _bounded(spans, REPLAYED_MAX)
    facts = _ranges(spans, firsts, [span.last for span in spans]) | {
        "slots": [-1 if span.slot is None else span.slot for span in spans],
        "kinds": list(KINDS),
        "most": REPLAYED_MAX,
    }
    with connection.cursor() as cursor:
        cursor.execute(STORY, facts)
        lines = cursor.fetchall()
    begins = [begins_at, refused.charges[-1].at if refused.is_cut else None]
    known = max((at for at in begins if at is not None), default=None)
    return _in_order(lines, refused.charges, used=used, begins_at=known)


def _in_order(
    lines: Sequence[tuple[Any, ...]],
    charges: Sequence[RefusedCharge],
    *,
    used: int,
    begins_at: datetime | None,
) -> Story:
    """Lines and refusals by time, each with what was used before it; of one moment lines first.

    A refusal says itself how full the budget was, so its place among the lines of a moment does
    not matter to it.
    """
    before = used - sum(line[4] for line in lines)
    placed: list[tuple[datetime, int, Request, RefusedCharge | None]] = []
    for number, (at, _, _, kind, moves, name, run) in enumerate(lines):
        known = KINDS[kind]
        request = Request(kind=known, used=before, moves=moves, name=_named(known, name, run))
        placed.append((at, number, request, None))
        before += moves
    for charge in reversed(charges):
        if charge.used is not None:
            kind = Kind.CHARGE if charge.is_charge else Kind.HOLD
            request = Request(
                kind=Kind.REFUSED,
                used=charge.used,
                moves=charge.amount,
                name=_named(kind, charge.name, charge.run_id),
            )
            placed.append((charge.at, len(lines), request, charge))
    placed.sort(key=lambda one: one[:2])
    kept = [one for one in placed if begins_at is None or one[0] >= begins_at]
    return Story(
        requests=[request for _, _, request, _ in kept],
        charges={n: charge for n, (_, _, _, charge) in enumerate(kept) if charge is not None},
        begins_at=begins_at,
    )


def _named(kind: Kind, name: str | None, run: UUID | None) -> str | None:
    """A charge's id is its run's, and so is a hold's; the two are not the same."""
    if name is None:
        return None
    return f"{'charge' if kind is Kind.CHARGE else 'hold'} {run} {name}"


# --- its lines -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a ledger; run: the key of the run that it is about; slot: None outside slots."""

    n: int
    kind: str
    amount: int
    cap: int | None
    entry_id: str | None
    token: int | None
    note: str
    overdrawn: bool
    actor: str
    at: datetime
    run: str | None
    slot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Lines, newest first. older: the place to go on from, if there are more. damaged: the place
    that was asked for is none of this ledger."""

    lines: list[Entry]
    older: str | None
    damaged: bool = False


# One order over a budget and its slots: by time, then slot, then number. Within the slot of the
# place its number bounds the index scan.
LEDGER = """
SELECT e.n, e.kind, e.amount, e.cap, e.entry_id, e.token, e.note, e.overdrawn, e.actor, e.at,
    r.key, b.slot
FROM unnest(%(ids)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS f (id, first, last)
JOIN agentstate_budget b ON b.id = f.id, LATERAL (
    SELECT * FROM agentstate_budgetentry
    WHERE budget_id = b.id AND n >= f.first
        AND n < CASE WHEN coalesce(b.slot, -1) = %(slot)s THEN least(f.last, %(n)s) ELSE f.last END
        AND (at, coalesce(b.slot, -1)) <= (%(at)s, %(slot)s)
    ORDER BY n DESC LIMIT %(limit)s
) AS e LEFT JOIN agentstate_run r ON r.id = e.run_id
ORDER BY e.at DESC, coalesce(b.slot, -1) DESC, e.n DESC LIMIT %(limit)s
"""


def read_ledger(
    budget: UUID, *, now: datetime, after: str = "", part: Window | None = None
) -> Ledger:
    """A page of the ledger, newest first; of a part of the time alone. Raises cursors.BadCursor."""
    facts: dict[str, Any] = {"at": now + timedelta(days=1), "slot": SLOT_MAX, "n": NEVER}
    if after:
        facts = read_place(budget, after)
    since, until = (part.since, part.until) if part else (now, now)
    spans = read_spans(budget, since=since, until=until)
    firsts = [span.first if part else 1 for span in spans]
    lasts = [span.last if part else NEVER for span in spans]
    facts |= _ranges(spans, firsts, lasts) | {"limit": PAGE_ROWS + 1}
    with connection.cursor() as cursor:
        cursor.execute(LEDGER, facts)
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    lines = [Entry(run=row.pop("key"), **row) for row in rows[:PAGE_ROWS]]
    last = lines[-1] if len(rows) > PAGE_ROWS else None
    slot = -1 if last is None or last.slot is None else last.slot
    older = write_place(budget, last.at, slot=slot, n=last.n) if last else None
    return Ledger(lines=lines, older=older)


def write_place(budget: UUID, at: datetime, *, slot: int, n: int) -> str:
    """The place of a line, good for the ledger of this budget alone: numbers count within one.
    slot: -1 for a line of the budget itself."""
    return cursors.write(at, f"{slot}:{n}", salt=_salt(budget))


def read_place(budget: UUID, text: str) -> dict[str, Any]:
    """at, slot and n of a place. Raises cursors.BadCursor."""
    at, tie = cursors.read(text, salt=_salt(budget))
    slot, _, number = tie.partition(":")
    return {"at": at, "slot": int(slot), "n": int(number)}


def _salt(budget: UUID) -> str:
    return f"{SALT}.{budget.hex}"
