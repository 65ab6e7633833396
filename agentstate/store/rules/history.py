"""A run and its budgets made again from what an export says, and checked against it.

An import is believed no further than its own events prove: status, counters and sums must be what
the log and the ledger add up to, so nothing comes in that `verify` would report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate, pairwise
from uuid import UUID

from agentstate.store.commands import ImportedBudget, ImportedEntry, ImportedEvent, ImportRun
from agentstate.store.errors import Invalid
from agentstate.store.rows import BudgetRow, EntryRow, EventRow, RunRow
from agentstate.store.rules.names import AMOUNT_MAX, COUNTERS_MAX
from agentstate.store.states import MOVES, TERMINAL


def status_after(events: Iterable[tuple[str, str, str]]) -> str | None:
    """The status that the store's own events lead to: (type, origin, data) in order, or None."""
    status = None
    for event_type, origin, data in events:
        if origin != "store":
            continue
        if event_type == "run.created":
            status = json.loads(data).get("status")
        elif event_type.startswith("run.") and event_type.removeprefix("run.") in MOVES:
            status = event_type.removeprefix("run.")
    return status


def counters_after(adds: Iterable[str | None]) -> dict[str, int]:
    """The sum of everything that was added to counters, from the JSON texts of `add`."""
    counters: dict[str, int] = {}
    for add in adds:
        for name, amount in (json.loads(add) if add else {}).items():
            counters[name] = counters.get(name, 0) + amount
    return counters


def rebuild(
    ask: ImportRun, *, run_id: UUID, actor: str, now: datetime
) -> tuple[RunRow, list[EventRow]]:
    """The head row and the event rows. Raises Invalid where the file contradicts itself."""
    status = status_after((e.type, e.origin, e.data.text) for e in ask.events)
    if status != ask.status:
        raise Invalid("status", f"the events lead to {status}, not to {ask.status}")
    versions = [e.version for e in ask.events]
    if versions[0] != 1 or any(not 0 <= b - a <= 1 for a, b in pairwise(versions)):
        raise Invalid("events[].version", "1 and then never down, by one at most")
    _check_tokens(ask.events)
    tokens = [e.token for e in ask.events if e.token is not None]
    adds = [e.add.text for e in ask.events if e.add]
    _check_counters(adds)
    run = RunRow(
        id=run_id,
        key=ask.key,
        task=ask.task,
        status=ask.status,
        version=versions[-1],
        last_seq=len(ask.events),
        counters=counters_after(adds),
        tags=ask.tags,
        notes=ask.notes,
        attrs=ask.attrs.text,
        result=ask.result.text if ask.result else None,
        # Tokens of another store mean nothing here; that it was leased does: only a claim goes on.
        last_token=0 if tokens or ask.attempt else None,
        attempt=ask.attempt,
        max_attempts=ask.max_attempts,
        deadline_at=ask.deadline_at,
        deadline_policy=ask.deadline_policy,
        retain_seconds=ask.retain_seconds,
        created_by=ask.created_by or actor,
        created_at=ask.created_at or ask.events[0].at or now,
        updated_at=ask.events[-1].at or now,
        ended_at=(ask.ended_at or ask.events[-1].at or now) if ask.status in TERMINAL else None,
    )
    return run, [_event(e, run_id=run_id, actor=actor, now=now) for e in ask.events]


def _check_counters(adds: Iterable[str]) -> None:
    """What the store would have admitted one after the other. Raises Invalid."""
    counters: dict[str, int] = {}
    for add in adds:
        for name, amount in json.loads(add).items():
            counters[name] = counters.get(name, 0) + amount
            if abs(counters[name]) > AMOUNT_MAX:
                raise Invalid(f"events[].add.{name}", f"a counter stays within ±{AMOUNT_MAX}")
    if len(counters) > COUNTERS_MAX:
        raise Invalid("events[].add", f"at most {COUNTERS_MAX} counters a run")


def _check_tokens(events: Iterable[ImportedEvent]) -> None:
    """Each event that has a token follows the acquire that gave it. Raises Invalid."""
    current = None
    for event in events:
        if event.origin == "store" and event.type == "lease.acquired":
            current = event.token
        elif event.token is not None and event.token != current:
            raise Invalid(
                f"events[{event.seq - 1}].token", "only after the lease.acquired that gave it"
            )
        if event.origin == "store" and event.type in ("lease.released", "lease.reclaimed"):
            current = None


def _event(event: ImportedEvent, *, run_id: UUID, actor: str, now: datetime) -> EventRow:
    return EventRow(
        run_id=run_id,
        seq=event.seq,
        version=event.version,
        type=event.type,
        origin=event.origin,
        data=event.data.text,
        event_id=event.stored_id,
        token=event.token,
        add=event.add.text if event.add else None,
        actor=event.actor or actor,
        request_id=event.request_id,
        at=event.at or now,
    )


def rebuild_budget(
    ask: ImportedBudget, *, run: RunRow, budget_id: UUID, actor: str, now: datetime
) -> tuple[BudgetRow, list[EntryRow]]:
    """A budget whose sums are its ledger's. Raises Invalid when it would pass its cap."""
    spent = sum(e.spent for e in ask.entries)
    reserved = sum(e.reserved for e in ask.entries)
    if spent < 0 or reserved < 0:
        raise Invalid("budgets[].entries", "sums are never negative")
    # At each line: how full it was at any moment is told, too.
    moves = [(e.spent, e.reserved, e.spent + e.reserved) for e in ask.entries]
    if any(
        abs(at) > AMOUNT_MAX for column in zip(*moves, strict=True) for at in accumulate(column)
    ):
        raise Invalid(f"budgets.{ask.name}", f"what is used stays within {AMOUNT_MAX}")
    if spent + reserved > ask.cap and not ask.overdrawn:
        raise Invalid(f"budgets.{ask.name}", "more is used than the cap allows")
    if ask.overdrawn and spent + reserved <= ask.cap:
        raise Invalid(f"budgets.{ask.name}.overdrawn", "false: no more is used than the cap allows")
    caps = [e.cap for e in ask.entries if e.cap is not None]
    if caps and caps[-1] != ask.cap:
        raise Invalid(f"budgets.{ask.name}.cap", f"{caps[-1]}, as the last line says that has one")
    budget = BudgetRow(
        id=budget_id,
        run_id=run.id,
        name=ask.name,
        unit=ask.unit,
        cap=ask.cap,
        spent=spent,
        reserved=reserved,
        overdrawn=ask.overdrawn,
        version=ask.version,
        entries=len(ask.entries),
    )
    return budget, [_entry(e, budget, run, actor=actor, now=now) for e in ask.entries]


def _entry(
    entry: ImportedEntry, budget: BudgetRow, run: RunRow, *, actor: str, now: datetime
) -> EntryRow:
    return EntryRow(
        budget_id=budget.id,
        n=entry.n,
        kind=entry.kind,
        amount=entry.amount,
        spent=entry.spent,
        reserved=entry.reserved,
        cap=entry.cap,
        entry_id=entry.id,
        run_id=run.id,
        token=entry.token,
        note=entry.note,
        overdrawn=entry.overdrawn,
        actor=entry.actor or actor,
        request_id=entry.request_id,
        at=entry.at or now,
    )
