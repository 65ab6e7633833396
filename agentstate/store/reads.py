"""Shared reads, for the API and the console: SELECT only, each page in one snapshot of its own.

Lists are read by keyset, never by offset: a `Place` is a point between two rows (or on one), so
rows that come or go meanwhile neither repeat nor hide others. What depends on the time is computed
by the database's clock in the same statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.store import rowsql
from agentstate.store.effects import COUNTED_MAX
from agentstate.store.errors import NotFound, RunExpired
from agentstate.store.payloads import PAYLOAD_BYTES_MAX
from agentstate.store.rows import (
    BudgetRow,
    EntryRow,
    EventRow,
    HoldRow,
    LeaseRow,
    RunRow,
    TermRow,
    run_key_of,
)
from agentstate.store.upkeep import JOBS

EVENTS_PAGE_BYTES = 1024 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point in a list. key: what the list is sorted by, exactly. backward: read towards the
    start. inclusive: the row at `key` itself belongs to the page."""

    key: tuple[Any, ...]
    backward: bool = False
    inclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page[R]:
    """Rows in the list's order. next, prev: where the pages after and before begin, if any."""

    items: tuple[R, ...]
    now: datetime
    next: Place | None = None
    prev: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Everything about a run but its events, as of `now`. parent: its key.

    open_effects: how many were begun and not ended, counted up to 1,000.
    """

    run: RunRow
    parent: str | None
    lease: LeaseRow | None
    budgets: tuple[BudgetView, ...]
    now: datetime
    telemetry: Telemetry | None = None
    open_effects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The newest that a run's holder said of itself. progress: a JSON text.

    skew_ms: how far its clock was ahead of the database's.
    """

    host: str | None
    model: str | None
    progress: str | None
    worker_time: datetime | None
    skew_ms: int | None
    token: int | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """A slot of a split budget, by its number: what it may admit of the whole, and what it has."""

    slot: int
    cap: int
    spent: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """A budget and the name of the shared one above it, if there is one.

    slots: of a split one, whose own figures are those of the whole: what it and its slots have,
    in one snapshot.
    """

    budget: BudgetRow
    parent: str | None = None
    slots: tuple[SlotView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs: every condition that is given holds. newest_first: by creation.

    created_after, created_before, updated_after: exclusive. text: part of the key or task, in any
    case. overdue: past its deadline and not ended; False: all the others.
    """

    statuses: tuple[str, ...] = ()
    task: str | None = None
    tag: str | None = None
    owner: str | None = None
    parent: str | None = None
    text: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    updated_after: datetime | None = None
    overdue: bool | None = None
    newest_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of a run: numbers between `after` and `before`, both exclusive.

    beginning_open_effects: those alone that began an effect which has not ended.
    """

    after: int = 0
    before: int | None = None
    types: tuple[str, ...] = ()
    origin: str | None = None
    newest_first: bool = False
    beginning_open_effects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events and the run's last number; sizes: bytes of each payload, in the same order."""

    items: tuple[EventRow, ...]
    sizes: tuple[int, ...]
    last_seq: int


def now() -> datetime:
    """The database's clock, which decides everything."""
    found: datetime = _rows("SELECT agentstate_now()", {})[0][0]
    return found


# --- runs ----------------------------------------------------------------------------------------


def _of(alias: str, columns: str, **instead: str) -> str:
    """`a.id, a.key, …` from a list of columns of rowsql.py; instead: SQL in place of a column."""
    names = [column.strip() for column in columns.split(",")]
    return ", ".join(instead.get(name.removesuffix("::text"), f"{alias}.{name}") for name in names)


# Hidden from the moment that its retention is over; the rows go later, with their week.
EXPIRED = "coalesce(r.expires_at <= agentstate_now() AND NOT r.hold, false)"
_RUN_WIDTH = len(rowsql.RUN_COLUMNS.split(","))
_LEASE_WIDTH = len(rowsql.LEASE_COLUMNS.split(","))
TELEMETRY_COLUMNS = "host, model, progress::text, worker_time, skew_ms, token, at"

BUDGETS = f"""
SELECT p.name, {_of("b", rowsql.BUDGET_COLUMNS)} FROM agentstate_budget b
LEFT JOIN agentstate_budget p ON p.id = b.parent_id
"""
RUN = f"""
SELECT agentstate_now(), p.key,
    (SELECT json_agg(b ORDER BY b.name)::text FROM ({BUDGETS} WHERE b.run_id = r.id)
        AS b (parent, {rowsql.BUDGET_COLUMNS})),
    (SELECT count(*) FROM (SELECT FROM agentstate_openeffect o WHERE o.run_id = r.id
        LIMIT {COUNTED_MAX}) counted),
    {_of("r", rowsql.RUN_COLUMNS)}, {_of("l", rowsql.LEASE_COLUMNS)},
    {_of("t", TELEMETRY_COLUMNS)}
FROM agentstate_run r
LEFT JOIN agentstate_run p ON p.id = r.parent_id
LEFT JOIN agentstate_lease l ON l.unit = 'run:' || r.key
LEFT JOIN agentstate_telemetry t ON t.run_id = r.id
WHERE r.key = %(key)s
"""


def run(key: str) -> RunView:
    """One run with its lease, budgets and telemetry. Raises NotFound, RunExpired."""
    rows = _rows(RUN, {"key": key})
    if not rows:
        raise NotFound(f"no run {key}", run=key)
    view = _run_view(rows[0])
    if view.run.expired(view.now):
        raise _expired(key)
    return view


def _expired(key: str) -> RunExpired:
    return RunExpired(f"the run {key} is past its retention", run=key)


def _run_view(row: Sequence[Any]) -> RunView:
    at, parent, budgets, open_effects, *columns = row
    lease = columns[_RUN_WIDTH : _RUN_WIDTH + _LEASE_WIDTH]
    telemetry = columns[_RUN_WIDTH + _LEASE_WIDTH :]
    return RunView(
        run=rowsql.read_run(columns[:_RUN_WIDTH]),
        parent=parent,
        lease=rowsql.read_lease(lease) if lease[0] is not None else None,
        budgets=tuple(_aggregated(b) for b in json.loads(budgets or "[]")),
        now=at,
        telemetry=_telemetry(telemetry),
        open_effects=open_effects,
    )


def _telemetry(columns: Sequence[Any]) -> Telemetry | None:
    if not columns or columns[-1] is None:
        return None
    names = [name.strip().removesuffix("::text") for name in TELEMETRY_COLUMNS.split(",")]
    return Telemetry(**dict(zip(names, columns, strict=True)))


_BUDGET_IDS = ("id", "run_id", "parent_id", "slot_of_id")


def _aggregated(members: dict[str, Any]) -> BudgetView:
    """A budget that came as JSON, within the row of its run: in the snapshot of that row."""
    parent = members.pop("parent")
    ids = {name: members[name] and UUID(members[name]) for name in _BUDGET_IDS}
    return BudgetView(budget=BudgetRow(**members | ids), parent=parent)


def runs(*, wanted: RunFilter, limit: int, place: Place | None = None) -> Page[RunView]:
    """A page of runs with their leases, but without budgets, attrs, result, progress, telemetry.

    Places: (microseconds since 1970, id as hex).
    """
    params = _run_params(wanted)
    order = _Order(("r.created_at", "r.id"), newest_first=wanted.newest_first)
    if place is not None:
        params |= {"at0": _EPOCH + _MICROSECOND * place.key[0], "at1": UUID(place.key[1])}
    given = [sql for name, sql in _RUN_CONDITIONS.items() if params.get(name) is not None]
    conditions = [f"NOT {EXPIRED}", *given]
    statement = _page(_LIST_RUNS, conditions, order, place)
    rows = _rows(statement, params | {"limit": limit + 1})
    views = [_run_view(row) for row in rows]
    return _paged(views, limit=limit, place=place, key=_run_key, at=_read_at(rows))


def runs_by_id(ids: Sequence[UUID]) -> list[RunView]:
    """These runs as `runs` tells them, in this order; those that are gone are left out."""
    views = map(_run_view, _rows(f"{_LIST_RUNS} WHERE r.id = ANY(%(ids)s)", {"ids": list(ids)}))
    found = {view.run.id: view for view in views}
    return [found[one] for one in ids if one in found]


_LIST_RUNS = f"""
SELECT agentstate_now(), p.key, NULL, 0,
    {_of("r", rowsql.RUN_COLUMNS, attrs="'{}'", result="NULL")},
    {_of("l", rowsql.LEASE_COLUMNS, progress="NULL")}
FROM agentstate_run r
LEFT JOIN agentstate_run p ON p.id = r.parent_id
LEFT JOIN agentstate_lease l ON l.unit = 'run:' || r.key
"""
_RUN_CONDITIONS = {
    "statuses": "r.status = ANY(%(statuses)s)",
    "task": "r.task = %(task)s",
    "tag": "r.tags @> ARRAY[%(tag)s]::text[]",
    "owner": "r.owner = %(owner)s",
    "parent": "r.parent_id = (SELECT id FROM agentstate_run WHERE key = %(parent)s)",
    "text": "(r.key ILIKE %(text)s OR r.task ILIKE %(text)s)",
    "created_after": "r.created_at > %(created_after)s",
    "created_before": "r.created_at < %(created_before)s",
    "updated_after": "r.updated_at > %(updated_after)s",
    "overdue": "r.deadline_at <= agentstate_now() AND r.ended_at IS NULL",
    "in_time": "coalesce(r.deadline_at > agentstate_now(), true) OR r.ended_at IS NOT NULL",
}


def _run_params(wanted: RunFilter) -> dict[str, Any]:
    return {
        "statuses": list(wanted.statuses) or None,
        "task": wanted.task,
        "tag": wanted.tag,
        "owner": wanted.owner,
        "parent": wanted.parent,
        "text": None if wanted.text is None else f"%{_literal(wanted.text)}%",
        "created_after": wanted.created_after,
        "created_before": wanted.created_before,
        "updated_after": wanted.updated_after,
        "overdue": wanted.overdue or None,
        "in_time": wanted.overdue is False or None,
    }


def _literal(text: str) -> str:
    """The text for LIKE, so that % and _ mean themselves."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _run_key(view: RunView) -> tuple[Any, ...]:
    return (view.run.created_at - _EPOCH) // _MICROSECOND, view.run.id.hex


# --- events --------------------------------------------------------------------------------------

RUN_HEAD = f"SELECT r.id, r.last_seq, {EXPIRED} FROM agentstate_run r WHERE r.key = %(key)s"
# The inner page is bounded by count, the outer one by bytes as well; its first row always comes.
# Numbers up to `last_seq` only: what is appended between the two statements is for the next page.
EVENTS = """
SELECT {columns}, size FROM (
    SELECT *, sum(size) OVER (ORDER BY seq {order}) - size AS ahead FROM (
        SELECT *, octet_length(data::text) AS size FROM agentstate_event
        WHERE run_id = %(run_id)s AND seq > %(after)s AND seq < %(before)s {conditions}
        ORDER BY seq {order} LIMIT %(limit)s
    ) page
) page WHERE ahead + size <= %(bytes_max)s OR ahead = 0 ORDER BY seq {order}
"""
# By their numbers, so that the log is asked for these alone, however long it is.
_OPEN = """ AND seq = ANY(ARRAY(SELECT seq FROM agentstate_openeffect
    WHERE run_id = %(run_id)s AND seq > %(after)s AND seq < %(before)s))"""
_WITHOUT_PAYLOAD = rowsql.EVENT_COLUMNS.replace("data::text", "''::text AS data")


def events(
    *, run_key: str, wanted: EventFilter, limit: int, with_payloads: bool = True
) -> EventPage:
    """A page of a run's events, bounded by `limit` and by 1 MiB of payloads.

    with_payloads: else `data` is empty, and only the sizes tell of it. Raises NotFound, RunExpired.
    """
    run_id, last_seq = _head(run_key)
    before = last_seq + 1 if wanted.before is None else min(wanted.before, last_seq + 1)
    params = {
        "run_id": run_id,
        "after": wanted.after,
        "before": before,
        "types": list(wanted.types) or None,
        "origin": wanted.origin,
        "limit": limit,
        "bytes_max": EVENTS_PAGE_BYTES if with_payloads else limit * PAYLOAD_BYTES_MAX,
    }
    rows = _rows(_events_statement(wanted, with_payloads), params)
    return EventPage(
        items=tuple(rowsql.read_event(row[:-1]) for row in rows),
        sizes=tuple(row[-1] for row in rows),
        last_seq=last_seq,
    )


# An event's time has no index, but a run's events are in the order of their times: the last one
# that had happened is found by halving, in as many look-ups as its number has bits.
LAST_EVENT = """
WITH RECURSIVE halved AS (
    SELECT 0::bigint AS low, %(last)s::bigint AS high
    UNION ALL
    SELECT CASE WHEN e.at <= %(at)s THEN m.middle ELSE h.low END,
        CASE WHEN e.at <= %(at)s THEN h.high ELSE m.middle - 1 END
    FROM halved h CROSS JOIN LATERAL (SELECT (h.low + h.high + 1) / 2 AS middle) AS m
    CROSS JOIN LATERAL (SELECT at FROM agentstate_event
        WHERE run_id = %(run)s AND seq = m.middle LIMIT 1) AS e
    WHERE h.low < h.high
)
SELECT low FROM halved WHERE low = high
"""


def last_event(run: UUID, *, last_seq: int, at: datetime) -> int:
    """The number of the last event that had happened at an instant, 0 for none. Where the clock was
    set back it is one that had, and not each one after it has a later time."""
    rows = _rows(LAST_EVENT, {"run": run, "last": last_seq, "at": at})
    return int(rows[0][0]) if rows else 0


def _head(key: str) -> tuple[UUID, int]:
    """A run's id and last number. Raises NotFound, RunExpired."""
    heads = _rows(RUN_HEAD, {"key": key})
    if not heads:
        raise NotFound(f"no run {key}", run=key)
    run_id, last_seq, expired = heads[0]
    if expired:
        raise _expired(key)
    return run_id, last_seq


def _events_statement(wanted: EventFilter, with_payloads: bool) -> str:
    conditions = "AND type = ANY(%(types)s)" if wanted.types else ""
    if wanted.origin is not None:
        conditions += " AND origin = %(origin)s"
    if wanted.beginning_open_effects:
        conditions += _OPEN
    return EVENTS.format(
        columns=rowsql.EVENT_COLUMNS if with_payloads else _WITHOUT_PAYLOAD,
        conditions=conditions,
        order="DESC" if wanted.newest_first else "ASC",
    )


# --- budgets -------------------------------------------------------------------------------------

_BUDGETS_OF_RUN = f"{BUDGETS} WHERE b.run_id = %(run_id)s ORDER BY b.name"
# Of a split one, the figures of the whole.
SHARED_BUDGETS = f"""
SELECT agentstate_now(), p.name, s.each, {
    _of("b", rowsql.BUDGET_COLUMNS, spent="b.spent + s.spent", reserved="b.reserved + s.reserved")
} FROM agentstate_budget b
LEFT JOIN agentstate_budget p ON p.id = b.parent_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(spent), 0)::bigint AS spent, coalesce(sum(reserved), 0)::bigint AS reserved,
        json_agg(json_build_object('slot', slot, 'cap', cap, 'spent', spent, 'reserved', reserved)
            ORDER BY slot)::text AS each
    FROM agentstate_budget WHERE slot_of_id = b.id
) s
"""
SHARED_BUDGET = f"{SHARED_BUDGETS} WHERE b.run_id IS NULL AND b.name = %(name)s"
LEDGER = f"""
SELECT r.key, {_of("e", rowsql.ENTRY_COLUMNS)} FROM agentstate_budgetentry e
LEFT JOIN agentstate_run r ON r.id = e.run_id
WHERE e.budget_id = %(budget_id)s AND e.n > %(after)s ORDER BY e.n LIMIT %(limit)s
"""
RESERVATIONS = f"""
SELECT agentstate_now(), r.key, {_of("h", rowsql.HOLD_COLUMNS)} FROM agentstate_reservation h
LEFT JOIN agentstate_run r ON r.id = h.run_id
WHERE h.budget_id = %(budget_id)s AND h.n > %(after)s
    AND (%(state)s::text IS NULL OR h.state = %(state)s)
ORDER BY h.n LIMIT %(limit)s
"""
# A shared budget's lines and those of its slots, each ledger after its own number: so a reader
# misses none, although a line of one slot may be written after a later one of another was read.
# Never against the order of a ledger, should a clock have gone back.
_LEDGERS = """
WITH ledger AS (
    SELECT id, slot, coalesce((%(after)s::bigint[])[coalesce(slot + 2, 1)], 0) AS after
    FROM agentstate_budget WHERE id = %(budget_id)s OR slot_of_id = %(budget_id)s
)
"""
SHARED_LEDGER = f"""{_LEDGERS}
SELECT agentstate_now(), r.key, l.slot, {_of("e", rowsql.ENTRY_COLUMNS)}
FROM ledger l CROSS JOIN LATERAL (
    SELECT *, max(at) OVER (ORDER BY n) AS since FROM (
        SELECT * FROM agentstate_budgetentry
        WHERE budget_id = l.id AND n > l.after ORDER BY n LIMIT %(limit)s) lines
) e
LEFT JOIN agentstate_run r ON r.id = e.run_id
ORDER BY e.since, l.slot NULLS FIRST, e.n LIMIT %(limit)s
"""
SHARED_RESERVATIONS = f"""{_LEDGERS}
SELECT agentstate_now(), r.key, l.slot, {_of("h", rowsql.HOLD_COLUMNS)}
FROM ledger l CROSS JOIN LATERAL (
    SELECT *, max(created_at) OVER (ORDER BY n) AS since FROM (
        SELECT * FROM agentstate_reservation
        WHERE budget_id = l.id AND n > l.after
            AND (%(state)s::text IS NULL OR state = %(state)s) ORDER BY n LIMIT %(limit)s) holds
) h
LEFT JOIN agentstate_run r ON r.id = h.run_id
ORDER BY h.since, l.slot NULLS FIRST, h.n LIMIT %(limit)s
"""

# Of the level that refused. A run's own budget of that name is another one than a shared one.
REFUSED_CHARGES = """
SELECT f.at, f.operation, r.key AS run, f.actor, f.worker, f.token_sent AS token, f.request_id,
    coalesce((f.wanted->>'asked')::bigint,
        (SELECT sum(a.value::bigint)::bigint FROM jsonb_each_text(f.wanted->'amount') AS a))
        AS amount,
    (f.found->>'cap')::bigint AS cap, (f.found->>'spent')::bigint AS spent,
    (f.found->>'reserved')::bigint AS reserved
FROM agentstate_refusal f LEFT JOIN agentstate_run r ON r.id = f.run_id
WHERE f.code = 'budget-exhausted' AND f.budget = %(name)s
    AND (r.key = %(run)s OR (%(run)s::text IS NULL AND (f.run_id IS NULL OR NOT EXISTS (
        SELECT FROM agentstate_budget own
        WHERE own.run_id = f.run_id AND own.name = f.budget))))
    AND (%(since)s::timestamptz IS NULL OR f.at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR f.at < %(until)s)
ORDER BY f.at, f.id LIMIT %(limit)s
"""
REFUSED_CHARGES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCharge:
    """A charge that a budget refused, and how full it was found. amount: what was asked for."""

    at: datetime
    operation: str
    run: str | None
    actor: str
    worker: str | None
    token: int | None
    request_id: str | None
    amount: int | None
    cap: int | None
    spent: int | None
    reserved: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """Lines in their order; `refused` what was refused in the time that they cover, the first 100.

    A refusal has no line of its own: it changes no figure, and a storm of them must not lock the
    budget to be numbered. next: where to go on.
    """

    items: tuple[EntryView, ...]
    refused: tuple[RefusedCharge, ...]
    next: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """A line of a ledger, and the key of the run that it is about, if there is one.

    slot: in whose ledger it stands, of a split budget; None: in the budget's own.
    """

    entry: EntryRow
    run: str | None
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldView:
    """A reservation, and the key of the run that it was made for, if there is one.

    slot: the one of a split budget by whose ledger it was made.
    """

    hold: HoldRow
    run: str | None
    slot: int | None = None


def budgets(*, run_key: str) -> tuple[BudgetView, ...]:
    """The run's own budgets, by name. Raises NotFound, RunExpired."""
    run_id, _ = _head(run_key)
    return tuple(
        BudgetView(budget=rowsql.read_budget(columns), parent=parent)
        for parent, *columns in _rows(_BUDGETS_OF_RUN, {"run_id": run_id})
    )


def budget(*, run_key: str | None, name: str) -> BudgetView:
    """One budget: a run's, or with None a shared one. Raises NotFound, RunExpired."""
    if run_key is None:
        return _shared_budget(name)
    for view in budgets(run_key=run_key):
        if view.budget.name == name:
            return view
    raise NotFound(f"the run {run_key} has no budget {name}", run=run_key, budget=name)


def _shared_budget(name: str) -> BudgetView:
    for row in _rows(SHARED_BUDGET, {"name": name}):
        return _shared_view(row)
    raise NotFound(f"no shared budget {name}", budget=name)


def shared_budgets(*, limit: int, place: Place | None = None) -> Page[BudgetView]:
    """A page of the budgets that many runs share, by name. Places: (name,)."""
    order = _Order(('b.name COLLATE "C"',), newest_first=False)
    params = {"limit": limit + 1, "at0": place.key[0] if place else None}
    shared = ["b.run_id IS NULL", "b.slot_of_id IS NULL"]
    rows = _rows(_page(SHARED_BUDGETS, shared, order, place), params)
    views = [_shared_view(row) for row in rows]
    return _paged(
        views, limit=limit, place=place, key=lambda v: (v.budget.name,), at=_read_at(rows)
    )


def _shared_view(row: Sequence[Any]) -> BudgetView:
    _, parent, slots, *columns = row
    each = tuple(SlotView(**members) for members in json.loads(slots or "[]"))
    return BudgetView(budget=rowsql.read_budget(columns), parent=parent, slots=each)


def ledger(*, run_key: str, name: str, after: int, limit: int) -> LedgerPage:
    """Lines of a run's budget with numbers above `after`. Raises NotFound, RunExpired."""
    found = budget(run_key=run_key, name=name).budget
    params = {"budget_id": found.id, "after": after, "limit": limit + 1}
    views = [
        EntryView(entry=rowsql.read_entry(columns), run=key)
        for key, *columns in _rows(LEDGER, params)
    ]
    return _ledger_page(views, limit, run=run_key, name=name, first=after == 0)


def _ledger_page(
    views: list[EntryView],
    limit: int,
    *,
    run: str | None,
    name: str,
    first: bool,
    next_place: Place | None = None,
) -> LedgerPage:
    """The page, with what was refused from its first line to the first one of the next page."""
    since = None if first or not views else views[0].entry.at
    until = views[limit].entry.at if len(views) > limit else None
    refused: list[RefusedCharge] = []
    if first or views:
        params = {"run": run, "name": name, "since": since, "until": until}
        rows = _rows(REFUSED_CHARGES, params | {"limit": REFUSED_CHARGES_MAX})
        names = [f.name for f in dataclass_fields(RefusedCharge)]
        refused = [RefusedCharge(**dict(zip(names, row, strict=True))) for row in rows]
    return LedgerPage(items=tuple(views[:limit]), refused=tuple(refused), next=next_place)


def reservations(
    *, run_key: str | None, name: str, state: str | None, after: int, limit: int
) -> tuple[tuple[HoldView, ...], datetime]:
    """What was reserved of a budget, by the lines of its ledger that are above `after`, and now.

    state: held, committed, released, dropped, late, or all. Raises NotFound, RunExpired.
    """
    found = budget(run_key=run_key, name=name).budget
    params = {"budget_id": found.id, "state": state, "after": after, "limit": limit}
    rows = _rows(RESERVATIONS, params)
    views = tuple(HoldView(hold=rowsql.read_hold(row[2:]), run=row[1]) for row in rows)
    return views, _read_at(rows) or now()


def shared_ledger(*, name: str, place: Place | None, limit: int) -> LedgerPage:
    """A page of a shared budget's lines and those of its slots, by time.

    Places: (own, of slot 0, of slot 1, …), the last number read of each ledger; forward only.
    Raises NotFound.
    """
    rows = _lines(SHARED_LEDGER, name, place, limit)
    views = [EntryView(entry=rowsql.read_entry(row[3:]), run=row[1], slot=row[2]) for row in rows]
    read = _numbers_read(place, [(view.slot, view.entry.n) for view in views[:limit]])
    return _ledger_page(
        views,
        limit,
        run=None,
        name=name,
        first=place is None,
        next_place=read if len(rows) > limit else None,
    )


def shared_reservations(
    *, name: str, state: str | None, place: Place | None, limit: int
) -> Page[HoldView]:
    """A page of what was reserved of a shared budget itself, by time; places as of its ledger.

    state: held, committed, released, dropped, late, or all. Raises NotFound.
    """
    rows = _lines(SHARED_RESERVATIONS, name, place, limit, state=state)
    views = [
        HoldView(hold=rowsql.read_hold(row[3:]), run=row[1], slot=row[2]) for row in rows[:limit]
    ]
    read = _numbers_read(place, [(view.slot, view.hold.n) for view in views])
    return _forward(views, read, more=len(rows) > limit, at=_read_at(rows))


def _lines(
    statement: str, name: str, place: Place | None, limit: int, **more: Any
) -> list[Sequence[Any]]:
    found = _shared_budget(name).budget
    after = list(place.key) if place else []
    return _rows(statement, {"budget_id": found.id, "after": after, "limit": limit + 1} | more)


def _numbers_read(place: Place | None, lines: Sequence[tuple[int | None, int]]) -> Place:
    """The place after these lines, each a slot (None: no slot) and a number in its ledger."""
    last = list(place.key) if place else []
    for slot, n in lines:
        at = 0 if slot is None else slot + 1
        last += [0] * (at + 1 - len(last))
        last[at] = n
    return Place(key=tuple(last))


def _forward[R](views: list[R], read: Place, *, more: bool, at: datetime | None) -> Page[R]:
    return Page(items=tuple(views), now=at or now(), next=read if more else None)


# --- leases --------------------------------------------------------------------------------------

LEASES = f"SELECT agentstate_now(), {_of('l', rowsql.LEASE_COLUMNS)} FROM agentstate_lease l"
_LEASE_STATES = {
    "live": "l.token IS NOT NULL AND l.expires_at > agentstate_now()",
    "lapsed": "l.token IS NOT NULL AND l.expires_at <= agentstate_now()",
    "free": "l.token IS NULL",
}
TERMS = f"""
SELECT {rowsql.TERM_COLUMNS} FROM agentstate_leaseterm
WHERE unit = %(unit)s AND token < %(before)s ORDER BY token DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A unit's lease as of `now`."""

    lease: LeaseRow
    now: datetime = field(compare=False)


def lease(unit: str) -> LeaseView:
    """One unit's lease. Raises NotFound for a unit that nobody holds or lately held."""
    rows = _rows(f"{LEASES} WHERE l.unit = %(unit)s", {"unit": unit})
    if not rows and (key := run_key_of(unit)) is not None:
        run(key)  # unknown, or past its retention: says so
    if not rows:
        raise NotFound(f"nobody holds {unit}, or has lately held it", unit=unit)
    return _lease_view(rows[0])


def leases(
    *, state: str | None, owner: str | None, limit: int, place: Place | None = None
) -> Page[LeaseView]:
    """A page of leases, by unit. state: live, lapsed, free, or all. Places: (unit,)."""
    params = {"owner": owner, "limit": limit + 1, "at0": place.key[0] if place else None}
    conditions = [_LEASE_STATES[state]] if state is not None else []
    if owner is not None:
        conditions.append("l.owner = %(owner)s")
    # By bytes: another order would depend on the locale of the database.
    order = _Order(('l.unit COLLATE "C"',), newest_first=False)
    rows = _rows(_page(LEASES, conditions, order, place), params)
    views = [_lease_view(row) for row in rows]
    return _paged(views, limit=limit, place=place, key=lambda v: (v.lease.unit,), at=_read_at(rows))


def terms(*, unit: str, before: int | None, limit: int) -> tuple[TermRow, ...]:
    """Terms of ownership, newest first, with tokens below `before`. Raises NotFound for none."""
    bound = 2**63 - 1 if before is None else before
    rows = _rows(TERMS, {"unit": unit, "before": bound, "limit": limit})
    if not rows and before is None:
        lease(unit)
    return tuple(rowsql.read_term(row) for row in rows)


def _lease_view(row: Sequence[Any]) -> LeaseView:
    return LeaseView(lease=rowsql.read_lease(row[1:]), now=row[0])


# --- workers -------------------------------------------------------------------------------------

WORKERS = """
SELECT agentstate_now(), w.name, w.version, w.host, w.slots,
    (SELECT count(*) FROM agentstate_lease l
        WHERE l.owner = w.name AND l.expires_at > agentstate_now()),
    w.worker_time, w.skew_ms, w.principal, w.first_seen_at, w.seen_at, w.drain_at, w.drain_by,
    w.drain_reason
FROM agentstate_worker w
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker process as it announced itself. units: how many it holds under a live lease."""

    worker: str
    version: str | None
    host: str | None
    slots: int | None
    units: int
    worker_time: datetime | None
    skew_ms: int | None
    principal: str
    first_seen_at: datetime
    seen_at: datetime
    drain_at: datetime | None
    drain_by: str | None
    drain_reason: str | None


def workers(*, limit: int, place: Place | None = None) -> Page[WorkerView]:
    """A page of the workers that announced themselves, by name. Places: (name,)."""
    order = _Order(('w.name COLLATE "C"',), newest_first=False)
    params = {"limit": limit + 1, "at0": place.key[0] if place else None}
    rows = _rows(_page(WORKERS, [], order, place), params)
    names = [column.name for column in dataclass_fields(WorkerView)]
    views = [WorkerView(**dict(zip(names, row[1:], strict=True))) for row in rows]
    return _paged(views, limit=limit, place=place, key=lambda v: (v.worker,), at=_read_at(rows))


# --- our own jobs --------------------------------------------------------------------------------

# One that has never run is waited for since the schema was last changed: a new release's jobs.
HEARTBEATS = """
SELECT name, coalesce(h.every_seconds, j.every_seconds), h.started_at, h.ended_at, h.took_ms,
    coalesce(h.did, 0), h.behind, coalesce(h.passes, 0), h.failed, coalesce(h.host, ''),
    coalesce(h.started_at > h.ended_at OR h.ended_at IS NULL, false) AND h.started_at IS NOT NULL,
    j.every_seconds IS NOT NULL
        AND coalesce(agentstate_now() - greatest(h.started_at, h.ended_at, since.at) >
            make_interval(secs => 3 * coalesce(h.every_seconds, j.every_seconds) + 5), true),
    extract(epoch FROM agentstate_now() - greatest(h.started_at, h.ended_at))::float8
FROM json_to_recordset(%(jobs)s) AS j (name text, every_seconds integer)
FULL JOIN agentstate_heartbeat h USING (name)
LEFT JOIN (SELECT max(applied) AS at FROM django_migrations WHERE app = 'agentstate') AS since
    ON h.name IS NULL
ORDER BY 2, name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatView:
    """When a periodic job of our own last ran; every time is the database's.

    started_at None: it never ran. did: what its last pass did, or for a job with many passes a
    second, what it did since the heartbeat before. behind: what it knows to be left (None: it
    cannot say). failed: why the last pass failed, in short. running: begun and not ended.
    silent: nothing heard for three periods and 5 s, of a job that there should be.
    quiet_seconds: since it was last heard of; None: it never ran.
    """

    name: str
    every_seconds: int
    started_at: datetime | None
    ended_at: datetime | None
    took_ms: int | None
    did: int
    behind: int | None
    passes: int
    failed: str | None
    host: str
    running: bool
    silent: bool
    quiet_seconds: float | None

    @property
    def late_seconds(self) -> float:
        """How long ago it should have been heard of again; 0 for one that is on time, and for one
        that never ran."""
        return max(0.0, (self.quiet_seconds or 0.0) - self.every_seconds)


def heartbeats() -> tuple[HeartbeatView, ...]:
    """Every job that there should be (`upkeep.JOBS`) or was, the most frequent first."""
    jobs = [{"name": name, "every_seconds": every} for name, every in JOBS.items()]
    names = [column.name for column in dataclass_fields(HeartbeatView)]
    rows = _rows(HEARTBEATS, {"jobs": json.dumps(jobs)})
    return tuple(HeartbeatView(**dict(zip(names, row, strict=True))) for row in rows)


# --- keyset pages --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Order:
    """The columns that a list is sorted by, all in one direction; the last one is unique."""

    columns: tuple[str, ...]
    newest_first: bool

    def by(self, *, backward: bool) -> str:
        direction = "DESC" if self.newest_first != backward else "ASC"
        return ", ".join(f"{column} {direction}" for column in self.columns)

    def beyond(self, place: Place) -> str:
        sign = "<" if self.newest_first != place.backward else ">"
        names = ", ".join(f"%(at{n})s" for n in range(len(self.columns)))
        return f"({', '.join(self.columns)}) {sign}{'=' * place.inclusive} ({names})"


def _page(select: str, conditions: Sequence[str], order: _Order, place: Place | None) -> str:
    """The statement of one page. It asks for a row more than fits, to know whether more follow."""
    where = [f"({condition})" for condition in conditions]
    where += [order.beyond(place)] if place else []
    clause = f"WHERE {' AND '.join(where)}" if where else ""
    by = order.by(backward=bool(place and place.backward))
    return f"{select} {clause} ORDER BY {by} LIMIT %(limit)s"


def _paged[R](
    found: list[R],
    *,
    limit: int,
    place: Place | None,
    key: Callable[[R], tuple[Any, ...]],
    at: datetime | None,
) -> Page[R]:
    """What was read, as a page in the list's order with the places beside it."""
    backward = bool(place and place.backward)
    more, items = len(found) > limit, found[:limit]
    if backward:
        items.reverse()
    if not items:
        return _empty(place, at or now())
    return Page(
        items=tuple(items),
        now=at or now(),
        next=Place(key=key(items[-1])) if more or backward else None,
        prev=Place(key=key(items[0]), backward=True) if place and (more or not backward) else None,
    )


def _empty[R](place: Place | None, at: datetime) -> Page[R]:
    """Nothing there any more: the way back leads to where the caller came from."""
    if place is None:
        return Page(items=(), now=at)
    back = Place(key=place.key, backward=not place.backward, inclusive=True)
    return Page(
        items=(), now=at, next=None if back.backward else back, prev=back if back.backward else None
    )


def _read_at(rows: Sequence[Sequence[Any]]) -> datetime | None:
    return rows[0][0] if rows else None


def _rows(statement: str, params: dict[str, Any]) -> list[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())
