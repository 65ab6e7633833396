"""How two writers of a column meet: the conflict policy of every column, in one table.

The same table is shown in the docs and on screen; a test fails for a column without a line. Beside
each policy stands who may write the column, and where its derived copies come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Policy(StrEnum):
    FIXED = "fixed"  # written once, when the row is made
    GUARDED = "guarded"  # legal moves only, under the fence
    ALLOCATED = "allocated"  # given out by the store under the row's lock, never by a caller
    ADDED = "added"  # added to in the store; never read, changed and written back by a client
    UNION = "union"  # both writers' elements stay
    NEWEST = "newest"  # the last write stands; losing one is harmless
    COMPARED = "compared"  # compare-and-set when asked, else newest
    HOLDER = "holder"  # the lease's holder alone, or whoever takes the lease
    CAPPED = "capped"  # added under the cap, or refused
    APPENDED = "appended"  # rows are added; a trigger refuses UPDATE and DELETE
    DERIVED = "derived"  # a copy; can be made again from `source`


@dataclass(frozen=True, slots=True)
class Line:
    """writers: holder, worker, operator, admin, system. source: what a copy is made again from."""

    policy: Policy
    writers: tuple[str, ...]
    source: str = ""


_ANY_WORKER = ("holder", "worker")
_SYSTEM = ("system",)
_FIXED = Line(Policy.FIXED, ("worker",))
_APPENDED = Line(Policy.APPENDED, (*_ANY_WORKER, "operator", "system"))
_LEASE = Line(Policy.HOLDER, ("holder", "operator", "system"))

POLICY: dict[str, Line] = {
    "run.id": _FIXED,
    "run.key": _FIXED,
    "run.task": _FIXED,
    "run.parent_id": _FIXED,
    "run.max_attempts": _FIXED,
    "run.created_by": _FIXED,
    "run.created_at": _FIXED,
    "run.deadline_at": _FIXED,
    "run.deadline_policy": _FIXED,
    "run.retain_seconds": Line(Policy.NEWEST, ("worker", "operator"), "run.created, run.changed"),
    "run.status": Line(Policy.GUARDED, (*_ANY_WORKER, "operator", "system"), "events run.*"),
    "run.result": Line(Policy.GUARDED, (*_ANY_WORKER, "system"), "the terminal run.* event"),
    "run.ended_at": Line(Policy.GUARDED, (*_ANY_WORKER, "operator", "system"), "that event's at"),
    "run.ended_token": Line(Policy.GUARDED, (*_ANY_WORKER, "operator"), "that event's token"),
    "run.version": Line(Policy.ALLOCATED, _SYSTEM, "the last event's version"),
    "run.last_seq": Line(Policy.ALLOCATED, _SYSTEM, "the last event's number"),
    "run.updated_at": Line(Policy.ALLOCATED, _SYSTEM, "the last event's at"),
    "run.counters": Line(Policy.ADDED, _ANY_WORKER, "sum of event.add"),
    "run.tags": Line(Policy.UNION, (*_ANY_WORKER, "operator"), "run.created, run.changed"),
    "run.notes": Line(Policy.NEWEST, (*_ANY_WORKER, "operator"), "run.created, run.changed"),
    "run.attrs": Line(Policy.COMPARED, _ANY_WORKER, "run.created, run.changed"),
    "run.owner": Line(Policy.DERIVED, _SYSTEM, "lease.owner, written with it"),
    "run.token": Line(Policy.DERIVED, _SYSTEM, "lease.token, written with it"),
    "run.holder": Line(Policy.DERIVED, _SYSTEM, "lease.holder, written with it"),
    "run.last_token": Line(Policy.ALLOCATED, _SYSTEM, "the highest token of its terms"),
    "run.attempt": Line(Policy.ALLOCATED, _SYSTEM, "count of lease.acquired"),
    "run.hold": Line(Policy.NEWEST, ("operator",), "run.changed"),
    "run.expires_at": Line(Policy.DERIVED, _SYSTEM, "ended_at + retain_seconds"),
    "run.paced_at": Line(Policy.ALLOCATED, _SYSTEM),
    "run.brake_per_second": Line(Policy.NEWEST, ("operator",), "run.changed"),
    "run.brake_until": Line(Policy.NEWEST, ("operator",), "run.changed"),
    "telemetry.*": Line(Policy.NEWEST, ("holder",)),
    "worker.*": Line(Policy.NEWEST, ("worker", "operator")),
    "seenversion.what": _FIXED,
    "seenversion.version": _FIXED,
    "seenversion.first_seen_at": Line(Policy.FIXED, _SYSTEM),
    "seenversion.seen_at": Line(Policy.NEWEST, _SYSTEM),
    "feedconsumer.*": Line(Policy.ALLOCATED, ("worker",)),
    "heartbeat.*": Line(Policy.NEWEST, _SYSTEM),
    "minute.*": Line(Policy.ADDED, _SYSTEM, "event and refusal, but for attempts and latency"),
    "collision.*": Line(Policy.ADDED, _SYSTEM, "refusal.met and about, but for latency"),
    "alert.rule": Line(Policy.FIXED, _SYSTEM),
    "alert.state": Line(Policy.GUARDED, _SYSTEM, "the figure, and the state before"),
    "alert.version": Line(Policy.ALLOCATED, _SYSTEM),
    "alert.value": Line(Policy.DERIVED, _SYSTEM, "the rule's figure"),
    "alert.message": Line(Policy.DERIVED, _SYSTEM, "the rule's figure"),
    "alert.facts": Line(Policy.DERIVED, _SYSTEM, "the rule's figure"),
    "alert.since": Line(Policy.GUARDED, _SYSTEM),
    "alert.changed_at": Line(Policy.DERIVED, _SYSTEM, "the last alertchange.at"),
    "alert.held_at": Line(Policy.NEWEST, _SYSTEM),
    "alert.checked_at": Line(Policy.NEWEST, _SYSTEM),
    "alert.acknowledged_at": Line(Policy.COMPARED, ("operator", "system")),
    "alert.acknowledged_by": Line(Policy.COMPARED, ("operator", "system")),
    "alert.acknowledged_why": Line(Policy.COMPARED, ("operator", "system")),
    "alert.snoozed_until": Line(Policy.COMPARED, ("operator", "system")),
    "alert.snoozed_by": Line(Policy.COMPARED, ("operator", "system")),
    "alert.snoozed_why": Line(Policy.COMPARED, ("operator", "system")),
    "alert.told_state": Line(Policy.NEWEST, _SYSTEM),
    "alert.told_at": Line(Policy.NEWEST, _SYSTEM),
    "alertrule.rule": Line(Policy.FIXED, ("operator",)),
    "alertrule.warn": Line(Policy.COMPARED, ("operator",)),
    "alertrule.alert": Line(Policy.COMPARED, ("operator",)),
    "alertrule.version": Line(Policy.ALLOCATED, _SYSTEM),
    "alertrule.changed_at": Line(Policy.COMPARED, ("operator",)),
    "alertrule.changed_by": Line(Policy.COMPARED, ("operator",)),
    "alertrule.changed_why": Line(Policy.COMPARED, ("operator",)),
    "alertfigure.rule": Line(Policy.FIXED, _SYSTEM),
    "alertfigure.minute": Line(Policy.FIXED, _SYSTEM),
    "alertfigure.value": Line(Policy.DERIVED, _SYSTEM, "the worst figure of the minute"),
    "alertchange.*": Line(Policy.FIXED, _SYSTEM),
    "alerttarget.id": Line(Policy.FIXED, ("admin",)),
    "alerttarget.name": Line(Policy.FIXED, ("admin",)),
    "alerttarget.kind": Line(Policy.FIXED, ("admin",)),
    "alerttarget.address": Line(Policy.FIXED, ("admin",)),
    "alerttarget.secret": Line(Policy.COMPARED, ("admin",)),
    "alerttarget.hint": Line(Policy.FIXED, ("admin",)),
    "alerttarget.created_by": Line(Policy.FIXED, ("admin",)),
    "alerttarget.created_at": Line(Policy.FIXED, ("admin",)),
    "alerttarget.least": Line(Policy.COMPARED, ("admin",)),
    "alerttarget.rules": Line(Policy.COMPARED, ("admin",)),
    "alerttarget.enabled": Line(Policy.COMPARED, ("admin", "system")),
    "alerttarget.off_at": Line(Policy.COMPARED, ("admin", "system")),
    "alerttarget.off_why": Line(Policy.COMPARED, ("admin", "system")),
    "alerttarget.failures": Line(Policy.ADDED, _SYSTEM, "deliveries tried since the last success"),
    "alerttarget.failing_since": Line(Policy.NEWEST, _SYSTEM),
    "alerttarget.delivered_at": Line(Policy.NEWEST, _SYSTEM),
    "alerttarget.version": Line(Policy.ALLOCATED, _SYSTEM),
    "delivery.id": Line(Policy.FIXED, _SYSTEM),
    "delivery.target_id": Line(Policy.FIXED, _SYSTEM),
    "delivery.target": Line(Policy.FIXED, _SYSTEM),
    "delivery.rule": Line(Policy.FIXED, _SYSTEM),
    "delivery.what": Line(Policy.FIXED, _SYSTEM),
    "delivery.message": Line(Policy.FIXED, _SYSTEM),
    "delivery.created_at": Line(Policy.FIXED, _SYSTEM),
    "delivery.state": Line(Policy.GUARDED, ("admin", "system")),
    "delivery.settled_at": Line(Policy.GUARDED, ("admin", "system")),
    "delivery.attempts": Line(Policy.ALLOCATED, _SYSTEM),
    "delivery.attempts_max": Line(Policy.GUARDED, ("admin", "system")),
    "delivery.next_at": Line(Policy.GUARDED, ("admin", "system")),
    "delivery.claimed_until": Line(Policy.GUARDED, _SYSTEM),
    "delivery.tried_at": Line(Policy.NEWEST, _SYSTEM),
    "delivery.took_ms": Line(Policy.NEWEST, _SYSTEM),
    "delivery.status": Line(Policy.NEWEST, _SYSTEM),
    "delivery.answer": Line(Policy.NEWEST, _SYSTEM),
    **{
        f"bulkaction.{column}": Line(Policy.FIXED, ("operator",))
        for column in (
            "id",
            "kind",
            "filter",
            "seen_at",
            "shown",
            "is_all",
            "tags",
            "hold_off_seconds",
            "reason",
            "created_by",
            "scopes",
            "created_at",
        )
    },
    "bulkaction.state": Line(Policy.GUARDED, ("operator", "system")),
    "bulkaction.ended_at": Line(Policy.GUARDED, ("operator", "system")),
    "bulkaction.stopped_by": Line(Policy.GUARDED, ("operator", "system")),
    "bulkaction.stopped_why": Line(Policy.GUARDED, ("operator", "system")),
    "bulkaction.cursor_at": Line(Policy.ALLOCATED, _SYSTEM, "the last run that was found"),
    "bulkaction.cursor_id": Line(Policy.ALLOCATED, _SYSTEM, "the last run that was found"),
    "bulkaction.found": Line(Policy.DERIVED, _SYSTEM, "count of its items"),
    "bulkaction.todo": Line(Policy.DERIVED, _SYSTEM, "its items that were not skipped at once"),
    "bulkaction.cut": Line(Policy.GUARDED, _SYSTEM),
    "bulkaction.done": Line(Policy.ADDED, _SYSTEM, "its items by outcome"),
    "bulkaction.skipped": Line(Policy.ADDED, _SYSTEM, "its items by outcome"),
    "bulkaction.refused": Line(Policy.ADDED, _SYSTEM, "its items by outcome"),
    "bulkaction.claim": Line(Policy.ALLOCATED, _SYSTEM),
    "bulkaction.claimed_until": Line(Policy.GUARDED, _SYSTEM),
    "bulkaction.worked_at": Line(Policy.NEWEST, _SYSTEM),
    "bulkaction.begun_at": Line(Policy.GUARDED, _SYSTEM),
    "bulkitem.bulk_id": Line(Policy.FIXED, _SYSTEM),
    "bulkitem.n": Line(Policy.FIXED, _SYSTEM),
    "bulkitem.run_id": Line(Policy.FIXED, _SYSTEM),
    "bulkitem.run_key": Line(Policy.FIXED, _SYSTEM),
    "bulkitem.seen": Line(Policy.FIXED, ("operator", "system")),
    "bulkitem.found_at": Line(Policy.FIXED, _SYSTEM),
    "bulkitem.outcome": Line(Policy.GUARDED, _SYSTEM, "the answer to the row's command"),
    "bulkitem.why": Line(Policy.GUARDED, _SYSTEM, "the answer to the row's command"),
    "bulkitem.settled_at": Line(Policy.GUARDED, _SYSTEM),
    "bulkitem.tries": Line(Policy.ADDED, _SYSTEM),
    "event.*": _APPENDED,
    "openeffect.*": Line(Policy.DERIVED, _SYSTEM, "events that begin an effect which none ends"),
    "lease.unit": _FIXED,
    "lease.run_id": _FIXED,
    "lease.owner": _LEASE,
    "lease.holder": _LEASE,
    "lease.token": Line(Policy.ALLOCATED, _SYSTEM),
    "lease.ttl_seconds": _LEASE,
    "lease.acquired_at": _LEASE,
    "lease.renewed_at": _LEASE,
    "lease.expires_at": _LEASE,
    "lease.renewals": _LEASE,
    "lease.progress": Line(Policy.HOLDER, ("holder",)),
    "lease.noted_token": Line(Policy.NEWEST, _SYSTEM, "the last lease.lapsed"),
    "lease.term_ended_at": Line(Policy.DERIVED, _SYSTEM, "upper(leaseterm.held)"),
    "lease.hold_off_owner": Line(Policy.NEWEST, ("operator",)),
    "lease.hold_off_until": Line(Policy.NEWEST, ("operator",)),
    "lease.signals": Line(Policy.UNION, ("operator", "system"), "run.changed"),
    "lease.renewed_ms": _LEASE,
    "leaseterm.token": _FIXED,
    "leaseterm.unit": _FIXED,
    "leaseterm.run_id": _FIXED,
    "leaseterm.owner": _FIXED,
    "leaseterm.holder": _FIXED,
    "leaseterm.held": Line(Policy.GUARDED, ("holder", "operator", "system")),
    "leaseterm.renewals": Line(Policy.DERIVED, _SYSTEM, "lease.renewals when it ended"),
    "leaseterm.renewed_ms": Line(Policy.DERIVED, _SYSTEM, "lease.renewed_ms when it ended"),
    "leaseterm.ttl_seconds": Line(Policy.DERIVED, _SYSTEM, "lease.ttl_seconds when it ended"),
    "leaseterm.ended": Line(Policy.GUARDED, ("holder", "operator", "system")),
    "leaseterm.ended_by": Line(Policy.GUARDED, ("holder", "operator", "system")),
    "leaseterm.reason": Line(Policy.GUARDED, ("operator",)),
    "budget.id": _FIXED,
    "budget.run_id": _FIXED,
    "budget.name": _FIXED,
    "budget.unit": _FIXED,
    "budget.parent_id": _FIXED,
    "budget.depth": _FIXED,
    "budget.slots": Line(Policy.COMPARED, ("operator",), "count of its slots"),
    "budget.slot_of_id": _FIXED,
    "budget.slot": _FIXED,
    # Of a slot, the store itself moves it, within the budget's own.
    "budget.cap": Line(Policy.COMPARED, ("operator", "system"), "the last ledger line with a cap"),
    "budget.spent": Line(Policy.CAPPED, ("holder", "worker"), "sum of budgetentry.spent"),
    "budget.reserved": Line(Policy.CAPPED, ("holder", "worker"), "sum of budgetentry.reserved"),
    "budget.overdrawn": Line(
        Policy.DERIVED, _SYSTEM, "spent + reserved > cap; in slots, that of the whole"
    ),
    "budget.version": Line(Policy.ALLOCATED, _SYSTEM),
    "budget.entries": Line(Policy.ALLOCATED, _SYSTEM, "the last ledger line's number"),
    "budgetentry.*": _APPENDED,
    "reservation.budget_id": _FIXED,
    "reservation.n": _FIXED,
    "reservation.reservation_id": _FIXED,
    "reservation.run_id": _FIXED,
    "reservation.amount": _FIXED,
    "reservation.token": _FIXED,
    "reservation.actor": _FIXED,
    "reservation.slot_id": _FIXED,
    "reservation.expires_at": _FIXED,
    "reservation.created_at": _FIXED,
    "reservation.state": Line(Policy.GUARDED, ("holder", "worker", "system"), "the ledger"),
    "reservation.actual": Line(Policy.GUARDED, ("holder", "worker"), "the ledger"),
    "reservation.settled_at": Line(Policy.GUARDED, ("holder", "worker", "system"), "the ledger"),
    "idempotencyrecord.*": Line(Policy.FIXED, _SYSTEM),
    "refusal.*": Line(Policy.APPENDED, _SYSTEM),
    "outbox.*": Line(Policy.APPENDED, _SYSTEM, "event"),
    "feed.*": Line(Policy.DERIVED, _SYSTEM, "outbox, and before it event"),
    "feedhead.*": Line(Policy.ALLOCATED, _SYSTEM, "the last feed position"),
    "operatoraction.*": Line(Policy.APPENDED, ("operator", "admin")),
    "refusedaction.*": Line(Policy.APPENDED, _SYSTEM),
    "apikey.id": Line(Policy.FIXED, ("admin",)),
    "apikey.name": Line(Policy.FIXED, ("admin",)),
    "apikey.scopes": Line(Policy.FIXED, ("admin",)),
    "apikey.salt": Line(Policy.FIXED, ("admin",)),
    "apikey.digest": Line(Policy.FIXED, ("admin",)),
    "apikey.hint": Line(Policy.FIXED, ("admin",)),
    "apikey.created_by": Line(Policy.FIXED, ("admin",)),
    "apikey.created_at": Line(Policy.FIXED, ("admin",)),
    "apikey.expires_at": Line(Policy.FIXED, ("admin",)),
    "apikey.revoked_at": Line(Policy.GUARDED, ("admin",)),
    "apikey.last_used_at": Line(Policy.NEWEST, _SYSTEM),
}


def policy_of(table: str, column: str) -> Line | None:
    """The line of a column, by its own name or by its table's `*`."""
    return POLICY.get(f"{table}.{column}") or POLICY.get(f"{table}.*")
