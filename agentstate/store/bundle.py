"""Everything about an incident as one file (docs/formats.md): a run, or a part of its time.

What is read page by page is bounded by what stands at the beginning, as in an export: however
slowly it is taken, it is as of one moment, and holds no transaction open. Of the settings those
that decide what happens to a run are told by name, and nothing else: no secret can slip in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from agentstate import __version__
from agentstate.store import alerts, bounds, reads, retention, rowsql
from agentstate.store.chain import seal
from agentstate.store.effects import effect_of
from agentstate.store.errors import Invalid
from agentstate.store.payloads import RawJSON, write
from agentstate.store.reads import BudgetView, EventFilter, RunView
from agentstate.store.rows import BudgetRow, EventRow

FORMAT = 1
PAGE = 500
LEVELS_MAX = 20
MICROSECOND = timedelta(microseconds=1)
# What a site may have set that decides what becomes of a run.
TOLD = (
    "DEFAULT_RETAIN_SECONDS",
    "RUN_WRITES_PER_SECOND",
    "KEY_REQUESTS_PER_SECOND",
    "REQUESTS_MAX",
    "ALERT_AGAIN_SECONDS",
    "AGENTSTATE_STANDBY",
)

type Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """since, until: both included; None: from the run's beginning, to now. payloads: else their
    digests stand in their place. by: who asks, as the file says."""

    run: str
    by: str
    since: datetime | None = None
    until: datetime | None = None
    payloads: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What stood at the beginning: nothing later is in the file."""

    view: RunView
    above: tuple[BudgetView, ...]
    since: datetime
    until: datetime
    refusals: int
    actions: int
    changes: int
    payloads: bool

    @property
    def window(self) -> dict[str, Any]:
        return {"since": self.since, "until": self.until}


def bundle(wanted: Wanted) -> Iterator[str]:
    """The lines, each with its line end. Raises NotFound, RunExpired, Invalid before the first."""
    frame = _read_frame(wanted)
    return seal(_lines(wanted, frame))


NEWEST = """
SELECT coalesce((SELECT max(id) FROM agentstate_refusal), 0),
    coalesce((SELECT max(id) FROM agentstate_operatoraction), 0),
    coalesce((SELECT max(id) FROM agentstate_alertchange), 0), current_setting('server_version')
"""


def _read_frame(wanted: Wanted) -> _Frame:
    view = reads.run(wanted.run)
    since = max(wanted.since or view.run.created_at, view.run.created_at)
    until = min(wanted.until or view.now, view.now)
    if since > until:
        raise Invalid("since", "before until, and both while the run was there")
    refusals, actions, changes, _ = _rows(NEWEST, {})[0]
    return _Frame(
        view=view,
        above=tuple(_above(view)),
        since=since,
        until=until,
        refusals=refusals,
        actions=actions,
        changes=changes,
        payloads=wanted.payloads,
    )


def _above(view: RunView) -> Iterator[BudgetView]:
    """The shared budgets that the run's own are charged to, each once."""
    waiting = [budget.parent for budget in view.budgets if budget.parent]
    seen: set[str] = set()
    while waiting and len(seen) < LEVELS_MAX:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            found = reads.budget(run_key=None, name=name)
            waiting += [found.parent] if found.parent else []
            yield found


def _lines(wanted: Wanted, frame: _Frame) -> Iterator[Line]:
    """The long part, events, comes last: a file that is cut off has the rest."""
    run = frame.view.run
    yield {
        "agentstate_bundle": FORMAT,
        "kind": "bundle",
        "run": run.key,
        "since": wanted.since,
        "until": wanted.until,
        "made_at": frame.view.now,
        "made_by": wanted.by,
        "console": settings.CONSOLE_URL or None,
        "release": __version__,
        "payloads": frame.payloads,
    }
    yield _settings()
    yield _run(frame)
    yield from _holder(frame)
    yield from _budgets(frame)
    for kind, pages in _RECORDS.items():
        yield from ({"kind": kind, **_some(row)} for row in pages(frame))
    yield from _events(frame)


def _some(members: Mapping[str, Any]) -> Line:
    """The members that say something."""
    return {name: value for name, value in members.items() if value is not None}


def _settings() -> Line:
    ages = {name: kept.keep.days for name, kept in retention.ages().items()}
    rules = [
        {"rule": rule.name, "warn": rule.warn, "alert": rule.alert}
        for rule in bounds.rules().values()
    ]
    return {
        "kind": "settings",
        **{name.removeprefix("AGENTSTATE_").lower(): getattr(settings, name) for name in TOLD},
        "default_budgets": [
            {name: value for name, value in budget.items() if name in ("name", "unit", "cap")}
            for budget in settings.DEFAULT_BUDGETS
        ],
        "postgresql": _rows(NEWEST, {})[0][3],
        "kept_days": ages,
        "rules": rules,
    }


def _payload(name: str, text: str | None, frame: _Frame) -> Line:
    """A payload as it is stored, or what it can be recognised by."""
    if text is None:
        return {}
    if frame.payloads:
        return {name: RawJSON(text)}
    octets = text.encode()
    return {f"{name}_sha256": hashlib.sha256(octets).hexdigest(), f"{name}_bytes": len(octets)}


def _run(frame: _Frame) -> Line:
    run = frame.view.run
    told = {
        "key": run.key,
        "task": run.task,
        "status": run.status,
        "version": run.version,
        "last_seq": run.last_seq,
        "counters": dict(run.counters),
        "tags": list(run.tags),
        "notes": run.notes or None,
        "owner": run.owner,
        "token": run.token,
        "attempt": run.attempt,
        "max_attempts": run.max_attempts,
        "parent": frame.view.parent,
        "deadline_at": run.deadline_at,
        "deadline_policy": run.deadline_policy,
        "retain_seconds": run.retain_seconds,
        "hold": run.hold,
        "brake_per_second": run.brake_per_second,
        "brake_until": run.brake_until,
        "open_effects": frame.view.open_effects,
        "created_by": run.created_by,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "ended_at": run.ended_at,
    }
    payloads = _payload("attrs", run.attrs, frame) | _payload("result", run.result, frame)
    return {"kind": "run", **_some(told), **payloads}


def _holder(frame: _Frame) -> Iterator[Line]:
    """Who has it now, until when, and what it last said of itself."""
    lease, said = frame.view.lease, frame.view.telemetry
    if lease is not None:
        told = {
            "owner": lease.owner,
            "token": lease.token,
            "ttl_seconds": lease.ttl_seconds,
            "acquired_at": lease.acquired_at,
            "renewed_at": lease.renewed_at,
            "expires_at": lease.expires_at,
            "renewals": lease.renewals,
            "hold_off_owner": lease.hold_off_owner,
            "hold_off_until": lease.hold_off_until,
            "signals": RawJSON(lease.signals) if lease.signals else None,
        }
        yield {"kind": "lease", **_some(told)}
    if said is not None:
        told = {
            "host": said.host,
            "model": said.model,
            "worker_time": said.worker_time,
            "skew_ms": said.skew_ms,
            "token": said.token,
            "at": said.at,
        }
        progress = _payload("progress", said.progress, frame)
        yield {"kind": "telemetry", **_some(told), **progress}


# --- budgets -------------------------------------------------------------------------------------

ENTRIES = f"""
SELECT {rowsql.ENTRY_COLUMNS} FROM agentstate_budgetentry
WHERE budget_id = %(id)s AND n > %(after)s AND n <= %(last)s
    AND at >= %(since)s AND at <= %(until)s
ORDER BY n LIMIT %(limit)s
"""


def _budgets(frame: _Frame) -> Iterator[Line]:
    """The run's own with their ledgers; of the shared ones above them how they stand now."""
    for view in frame.view.budgets:
        yield _budget(view, shared=False)
        yield from _entries(view.budget, frame)
    yield from (_budget(view, shared=True) for view in frame.above)


def _budget(view: BudgetView, *, shared: bool) -> Line:
    row = view.budget
    return {
        "kind": "budget",
        "name": row.name,
        "shared": shared,
        "unit": row.unit,
        "cap": row.cap,
        "spent": row.spent,
        "reserved": row.reserved,
        "overdrawn": row.overdrawn,
        "version": row.version,
        **_some({"parent": view.parent, "slots": len(view.slots) or None}),
    }


def _entries(budget: BudgetRow, frame: _Frame) -> Iterator[Line]:
    asked = frame.window | {"id": budget.id, "last": budget.entries}
    for columns in _pages(ENTRIES, asked, key=1):
        entry = rowsql.read_entry(columns)
        told = {
            "n": entry.n,
            "amount": entry.amount,
            "spent": entry.spent or None,
            "reserved": entry.reserved or None,
            "cap": entry.cap,
            "id": entry.entry_id,
            "token": entry.token,
            "note": entry.note or None,
            "overdrawn": entry.overdrawn or None,
            "actor": entry.actor,
            "request_id": entry.request_id,
            "at": entry.at,
        }
        yield {"kind": "entry", "budget": budget.name, "entry": entry.kind, **_some(told)}


# --- what happened to it -------------------------------------------------------------------------

TERMS = """
SELECT t.token, t.owner, lower(t.held), nullif(upper(t.held), 'infinity'),
    coalesce(l.renewals, t.renewals), coalesce(l.renewed_ms, t.renewed_ms),
    coalesce(l.ttl_seconds, t.ttl_seconds), t.ended, t.ended_by, t.reason
FROM agentstate_leaseterm t
LEFT JOIN agentstate_lease l ON l.unit = t.unit AND l.token = t.token AND t.ended IS NULL
WHERE t.unit = %(unit)s AND t.token > %(after)s
    AND t.held && tstzrange(%(since)s, %(until)s, '[]')
ORDER BY t.token LIMIT %(limit)s
"""
TERM_NAMES = (
    "token", "owner", "from", "to", "renewals", "renewed_ms", "ttl_seconds", "ended", "ended_by",
    "reason",
)  # fmt: skip
WORKERS = """
SELECT w.name, w.version, w.host, w.slots, w.skew_ms, w.seen_at, w.drain_at
FROM agentstate_worker w WHERE w.name IN (
    SELECT owner FROM agentstate_leaseterm WHERE unit = %(unit)s
        AND held && tstzrange(%(since)s, %(until)s, '[]'))
ORDER BY w.name LIMIT 200
"""
WORKER_NAMES = ("name", "version", "host", "slots", "skew_ms", "seen_at", "drain_at")
REFUSALS = """
SELECT id, at, code, operation, unit, budget, actor, worker, token_sent, token_current,
    wanted::text, found::text, request_id, attempt
FROM agentstate_refusal
WHERE run_id = %(run_id)s AND id > %(after)s AND id <= %(last)s
    AND at >= %(since)s AND at <= %(until)s
ORDER BY id LIMIT %(limit)s
"""
REFUSAL_NAMES = (
    "at", "code", "operation", "unit", "budget", "actor", "worker", "token_sent", "token_current",
    "wanted", "found", "request_id", "attempt",
)  # fmt: skip
# To the run itself, its unit, its budgets, and the shared ones above them.
ACTIONS = """
SELECT id, at, actor, action, object, reason, before::text, after::text, expected::text, request_id
FROM agentstate_operatoraction
WHERE (run_id = %(run_id)s OR object = ANY(%(objects)s)) AND id > %(after)s AND id <= %(last)s
    AND at >= %(since)s AND at <= %(until)s
ORDER BY id LIMIT %(limit)s
"""
ACTION_NAMES = (
    "at", "actor", "action", "object", "reason", "before", "after", "expected", "request_id",
)  # fmt: skip
# Of all rules: what else was going on.
CHANGES = """
SELECT id, rule, before, after, value, message, facts::text, at FROM agentstate_alertchange
WHERE at >= %(since)s AND at <= %(until)s AND id > %(after)s AND id <= %(last)s
ORDER BY id LIMIT %(limit)s
"""
CHANGE_NAMES = ("rule", "before", "after", "value", "message", "facts", "at")


def _terms(frame: _Frame) -> Iterator[Line]:
    asked = frame.window | {"unit": frame.view.run.unit}
    for row in _pages(TERMS, asked, key=0):
        yield dict(zip(TERM_NAMES, row, strict=True))


def _workers(frame: _Frame) -> Iterator[Line]:
    for row in _rows(WORKERS, frame.window | {"unit": frame.view.run.unit}):
        yield dict(zip(WORKER_NAMES, row, strict=True))


def _refusals(frame: _Frame) -> Iterator[Line]:
    asked = frame.window | {"run_id": frame.view.run.id, "last": frame.refusals}
    for _, *row in _pages(REFUSALS, asked, key=0):
        told = dict(zip(REFUSAL_NAMES, row, strict=True))
        wanted, found = told.pop("wanted"), told.pop("found")
        yield told | _payload("wanted", wanted, frame) | _payload("found", found, frame)


def _actions(frame: _Frame) -> Iterator[Line]:
    run = frame.view.run
    own = [f"{run.key}/{view.budget.name}" for view in frame.view.budgets]
    objects = [run.key, run.unit, *own, *(view.budget.name for view in frame.above)]
    asked = frame.window | {"run_id": run.id, "objects": objects, "last": frame.actions}
    for _, *row in _pages(ACTIONS, asked, key=0):
        told = dict(zip(ACTION_NAMES, row, strict=True))
        yield told | {name: RawJSON(told[name]) for name in ("before", "after", "expected")}


def _changes(frame: _Frame) -> Iterator[Line]:
    for _, *row in _pages(CHANGES, frame.window | {"last": frame.changes}, key=0):
        told = dict(zip(CHANGE_NAMES, row, strict=True))
        yield told | {"facts": RawJSON(told["facts"])}


def _alerts(frame: _Frame) -> Iterator[Line]:
    """What fires now and has begun by then."""
    for rule, standing in alerts.read().standings:
        if standing is None or not standing.firing or standing.since > frame.until:
            continue
        yield {
            "rule": rule.name,
            "title": rule.title,
            "state": str(standing.state),
            "value": standing.value,
            "message": standing.message,
            "facts": RawJSON(write(dict(standing.facts))),
            "since": standing.since,
            "acknowledged_at": standing.acknowledged_at,
            "acknowledged_by": standing.acknowledged_by,
            "acknowledged_why": standing.acknowledged_why,
        }


_RECORDS = {
    "term": _terms,
    "worker": _workers,
    "refusal": _refusals,
    "action": _actions,
    "change": _changes,
    "alert": _alerts,
}


# --- events --------------------------------------------------------------------------------------


def _events(frame: _Frame) -> Iterator[Line]:
    run = frame.view.run
    place = {"last_seq": run.last_seq}
    after = reads.last_event(run.id, at=frame.since - MICROSECOND, **place)
    last = reads.last_event(run.id, at=frame.until, **place)
    while after < last:
        wanted = EventFilter(after=after, before=last + 1)
        page = reads.events(run_key=run.key, wanted=wanted, limit=PAGE)
        yield from (_event(event, frame) for event in page.items)
        after = page.items[-1].seq


def _event(event: EventRow, frame: _Frame) -> Line:
    effect = effect_of(event.event_id)
    told = {
        "seq": event.seq,
        "version": event.version,
        "type": event.type,
        "origin": event.origin,
        "id": None if effect else event.event_id,
        "effect": {"key": effect.key, "state": effect.state} if effect else None,
        "token": event.token,
        "add": RawJSON(event.add) if event.add else None,
        "actor": event.actor,
        "request_id": event.request_id,
        "at": event.at,
    }
    return {"kind": "event", **_some(told), **_payload("data", event.data, frame)}


def _pages(statement: str, asked: Mapping[str, Any], *, key: int) -> Iterator[tuple[Any, ...]]:
    """Rows page by page. key: which column they go on after."""
    after = 0
    while True:
        rows = _rows(statement, {**asked, "after": after, "limit": PAGE})
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1][key]


def _rows(statement: str, asked: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, asked)
        return list(cursor.fetchall())
