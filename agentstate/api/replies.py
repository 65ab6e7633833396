"""Answers: members from the store's rows and results, and HTTP around them.

Payloads are written as the text that the store holds, for those who may see them; others are told
their size. Every answer with a run's or a budget's version has it as its ETag, for If-Match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse

from agentstate.store import answers, permits
from agentstate.store.callers import Caller
from agentstate.store.commands import Result
from agentstate.store.effects import effect_of
from agentstate.store.payloads import RawJSON, write
from agentstate.store.reads import BudgetView, EntryView, HoldView, LedgerPage, RunView, Telemetry
from agentstate.store.rows import EventRow, LeaseRow, TermRow, run_key_of
from agentstate.store.rules.pacing import brake_of

MEDIA_TYPE = "application/json"
# Tells a change that somebody else's request had applied from one's own that was sent twice.
DUPLICATE = "Agentstate-Duplicate"
REPLAYED = "Idempotent-Replayed"


def reply(
    members: Mapping[str, Any], *, status: int = 200, replayed: bool = False, etag: str = ""
) -> HttpResponse:
    """An answer of these members. replayed: it is the first answer to a repeated request."""
    response = HttpResponse(write(members), content_type=MEDIA_TYPE, status=status)
    if replayed:
        response.headers[REPLAYED] = "true"
    if etag:
        response.headers["ETag"] = etag
    return response


def reply_result(result: Result, *, status: int = 200, etag: str = "") -> HttpResponse:
    """What a command answered; members that do not apply are left out."""
    response = reply(told(result), status=status, replayed=result.replayed, etag=etag)
    if getattr(result, "duplicate", False):
        response.headers[DUPLICATE] = "true"
    return response


def told(result: Result) -> dict[str, Any]:
    """A result's members without those that are None, in it and in the items of its lists."""
    members = answers.members(result)
    members.pop("duplicate", None)  # a header: the answer is the first one to the letter
    return _given(members)


def run_etag(version: int) -> str:
    return f'"v{version}"'


def budget_etag(version: int) -> str:
    return f'"b{version}"'


def run_members(view: RunView, caller: Caller) -> dict[str, Any]:
    """A run as GET /runs/{key} tells it."""
    run = view.run
    return {
        **listed_run_members(view, caller),
        "notes": run.notes,
        **_payload("attrs", run.attrs, caller),
        **_payload("result", run.result, caller),
        "retain_seconds": run.retain_seconds,
        "hold": run.hold,
        "expires_at": run.expires_at,
        "brake": brake_of(run, view.now),
        "budgets": [budget_members(budget) for budget in view.budgets],
        "telemetry": _telemetry_members(view.telemetry, caller),
        "open_effects_count": view.open_effects,
    }


def _telemetry_members(telemetry: Telemetry | None, caller: Caller) -> dict[str, Any] | None:
    if telemetry is None:
        return None
    return {
        "host": telemetry.host,
        "model": telemetry.model,
        **_payload("progress", telemetry.progress, caller),
        "worker_time": telemetry.worker_time,
        "skew_ms": telemetry.skew_ms,
        "token": telemetry.token,
        "at": telemetry.at,
    }


def listed_run_members(view: RunView, caller: Caller) -> dict[str, Any]:
    """A run as a list tells it."""
    run = view.run
    return {
        "key": run.key,
        "task": run.task,
        "status": run.status,
        "version": run.version,
        "last_seq": run.last_seq,
        "counters": run.counters,
        "tags": run.tags,
        "owner": run.owner,
        "token": run.token,
        "attempt": run.attempt,
        "max_attempts": run.max_attempts,
        "parent": view.parent,
        "deadline_at": run.deadline_at,
        "deadline_policy": run.deadline_policy,
        "created_by": run.created_by,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "ended_at": run.ended_at,
        "lease": None if view.lease is None else lease_members(view.lease, view.now, caller),
    }


def lease_members(lease: LeaseRow, now: datetime, caller: Caller) -> dict[str, Any]:
    """A lease as of `now`, the database's clock."""
    held = "live" if lease.live(now) else "lapsed"
    return {
        "unit": lease.unit,
        "run": run_key_of(lease.unit),
        "state": "free" if lease.token is None else held,
        "owner": lease.owner,
        "token": lease.token,
        "ttl_seconds": lease.ttl_seconds,
        "acquired_at": lease.acquired_at,
        "renewed_at": lease.renewed_at,
        "expires_at": lease.expires_at,
        "expires_in_ms": lease.expires_in_ms(now),
        "renewals": lease.renewals,
        **_payload("progress", lease.progress, caller),
    }


def action_members(caller: Caller, thing: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the caller may do to a thing (as `permits` takes it), action by action."""
    return [
        {
            "action": verdict.action,
            "allowed": verdict.allowed,
            "why": verdict.why or None,
            "needs": verdict.needs or None,
        }
        for verdict in permits.allowed_actions(caller.scopes, thing).values()
    ]


def holding(lease: LeaseRow | None, now: datetime) -> dict[str, bool]:
    """How a unit is held, as `permits` takes it."""
    held = lease is not None and lease.token is not None
    return {"held": held, "live": lease is not None and lease.live(now)}


def term_members(term: TermRow) -> dict[str, Any]:
    return {
        "token": term.token,
        "unit": term.unit,
        "owner": term.owner,
        "starts_at": term.starts_at,
        "ends_at": term.ends_at,
        "renewals": term.renewals,
        "ended": term.ended,
        "ended_by": term.ended_by,
        "reason": term.reason,
    }


def event_members(event: EventRow, size: int, caller: Caller) -> dict[str, Any]:
    """An event; size: of its payload in bytes, for those who may not see it."""
    effect = effect_of(event.event_id)
    seen = {"data": RawJSON(event.data)} if caller.may("payloads") else {"data_bytes": size}
    return {
        "seq": event.seq,
        "type": event.type,
        "origin": event.origin,
        **seen,
        "id": event.event_id if effect is None else None,
        "effect": effect and asdict(effect),
        "token": event.token,
        "add": RawJSON(event.add) if event.add else None,
        "actor": event.actor,
        "request_id": event.request_id,
        "version": event.version,
        "at": event.at,
    }


def budget_members(view: BudgetView) -> dict[str, Any]:
    return {**view.budget.facts(), "parent": view.parent}


def slot_members(view: BudgetView) -> dict[str, Any]:
    """The slots of a split budget; nothing of one that is not split."""
    slots = [{name: getattr(s, name) for name in _SLOT} for s in view.slots]
    return {"slots": slots} if slots else {}


_SLOT = ("slot", "cap", "spent", "reserved")


def _numbered(slot: int | None) -> dict[str, int]:
    return {} if slot is None else {"slot": slot}


def hold_members(view: HoldView, now: datetime) -> dict[str, Any]:
    """A reservation as of `now`, the database's clock."""
    hold = view.hold
    left_ms = max(0, (hold.expires_at - now) // timedelta(milliseconds=1))
    return {
        "n": hold.n,
        "id": hold.reservation_id,
        "run": view.run,
        "amount": hold.amount,
        "actual": hold.actual,
        "state": hold.state,
        "token": hold.token,
        "actor": hold.actor,
        "expires_at": hold.expires_at,
        "expires_in_ms": left_ms if hold.state == "held" else None,
        "created_at": hold.created_at,
        "settled_at": hold.settled_at,
        **_numbered(view.slot),
    }


def ledger_members(page: LedgerPage) -> dict[str, Any]:
    """A page of a ledger; refused charges apart, because they are no lines of it."""
    return {
        "items": [entry_members(entry) for entry in page.items],
        "refused": [{"kind": "refuse", **answers.members(one)} for one in page.refused],
    }


def entry_members(view: EntryView) -> dict[str, Any]:
    entry = view.entry
    return {
        "n": entry.n,
        "kind": entry.kind,
        "run": view.run,
        "amount": entry.amount,
        "spent": entry.spent,
        "reserved": entry.reserved,
        "cap": entry.cap,
        "id": entry.entry_id,
        "token": entry.token,
        "note": entry.note,
        "overdrawn": entry.overdrawn,
        "actor": entry.actor,
        "request_id": entry.request_id,
        "at": entry.at,
        **_numbered(view.slot),
    }


def _payload(name: str, text: str | None, caller: Caller) -> dict[str, Any]:
    """The payload as it was sent, or its size."""
    if caller.may("payloads"):
        return {name: None if text is None else RawJSON(text)}
    return {f"{name}_bytes": None if text is None else len(text.encode())}


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [_given(v) if isinstance(v, Mapping) else v for v in value]
        if isinstance(value, list)
        else value
        for name, value in members.items()
        if value is not None
    }
