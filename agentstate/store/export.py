"""A run as JSON lines (docs/formats.md), with every payload as the text that the store holds.

Everything but the head is append-only. So a run is exported as of one moment without holding a
transaction open: its head and budgets are read at once, and of events and ledgers just the lines
up to the numbers that stand there, page by page, however slowly they are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any
from uuid import UUID

from agentstate.store import reads
from agentstate.store.commands import (
    ImportedBudget,
    ImportedEntry,
    ImportedEvent,
    ImportRun,
)
from agentstate.store.effects import Effect, effect_of
from agentstate.store.payloads import RawJSON, line_of
from agentstate.store.rows import BudgetRow, EntryRow, EventRow, RunRow

FORMAT = 1
PAGE = 500


def export(run_key: str) -> Iterator[str]:
    """A run's whole history as lines, each with its line end. Raises NotFound before the first."""
    return _lines_of(reads.run(run_key))


def _lines_of(view: reads.RunView) -> Iterator[str]:
    pages = _pages_of_events(view.run)
    page = next(pages)
    yield _header(history(view.run, events=page[:1], budgets=(), entries=()))
    entries = 0
    for budget in (found.budget for found in view.budgets):
        yield _budget_line(_budget(budget, ()))
        for entry in _entries_of(view.run, budget):
            entries += 1
            yield _entry_line(budget.name, _entry(entry, told=True))
    while page:
        yield from (_event_line(_event(event, told=True)) for event in page)
        page = next(pages, ())
    yield _end(events=view.run.last_seq, entries=entries)


def whole(view: reads.RunView) -> ImportRun:
    """A run that was read, with everything of it, in memory."""
    budgets = [found.budget for found in view.budgets]
    return history(
        view.run,
        events=[event for page in _pages_of_events(view.run) for event in page],
        budgets=budgets,
        entries=[entry for budget in budgets for entry in _entries_of(view.run, budget)],
    )


def _pages_of_events(run: RunRow) -> Iterator[tuple[EventRow, ...]]:
    after = 0
    while after < run.last_seq:
        wanted = reads.EventFilter(after=after, before=run.last_seq + 1)
        page = reads.events(run_key=run.key, wanted=wanted, limit=PAGE)
        yield page.items
        after = page.items[-1].seq


def _entries_of(run: RunRow, budget: BudgetRow) -> Iterator[EntryRow]:
    after = 0
    while after < budget.entries:
        page = reads.ledger(run_key=run.key, name=budget.name, after=after, limit=PAGE).items
        yield from (view.entry for view in page if view.entry.n <= budget.entries)
        after = page[-1].entry.n


# --- lines ---------------------------------------------------------------------------------------


def run_lines(run: ImportRun) -> Iterator[str]:
    """A history that is in memory as the same lines."""
    yield _header(run)
    for budget in run.budgets:
        yield _budget_line(budget)
        yield from (_entry_line(budget.name, entry) for entry in budget.entries)
    yield from (_event_line(event) for event in run.events)
    yield _end(events=len(run.events), entries=sum(len(b.entries) for b in run.budgets))


def _header(run: ImportRun) -> str:
    told = _members(run, without=("budgets", "events"))
    return line_of({"agentstate": FORMAT, "kind": "run", **told})


def _budget_line(budget: ImportedBudget) -> str:
    return line_of({"kind": "budget", **_members(budget, without=("entries",))})


def _entry_line(budget: str, entry: ImportedEntry) -> str:
    told = _members(entry, without=("kind",))
    return line_of({"kind": "entry", "budget": budget, "entry": entry.kind, **told})


def _event_line(event: ImportedEvent) -> str:
    return line_of({"kind": "event", **_members(event)})


def _end(*, events: int, entries: int) -> str:
    """Counts, so that a file that was cut off is noticed."""
    return line_of({"kind": "end", "events": events, "entries": entries})


def _members(item: Any, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields that differ from their defaults, as the members of a line."""
    values = {f.name: (getattr(item, f.name), f.default) for f in fields(item)}
    return {
        name: asdict(value) if isinstance(value, Effect) else value
        for name, (value, default) in values.items()
        if name not in without and (value != default or name == "data")
    }


# --- from rows -----------------------------------------------------------------------------------


def history(
    run: RunRow,
    *,
    events: Iterable[EventRow],
    budgets: Iterable[BudgetRow],
    entries: Iterable[EntryRow],
    told: bool = True,
) -> ImportRun:
    """A run's rows as the command that brings them back.

    told: who wrote what and when is known, and is kept.
    """
    ledgers: dict[UUID, list[ImportedEntry]] = {}
    for entry in entries:
        ledgers.setdefault(entry.budget_id, []).append(_entry(entry, told))
    return ImportRun(
        key=run.key,
        task=run.task,
        status=run.status,
        tags=run.tags,
        notes=run.notes,
        attrs=RawJSON(run.attrs),
        result=_raw(run.result),
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        deadline_at=run.deadline_at,
        deadline_policy=run.deadline_policy,
        retain_seconds=run.retain_seconds,
        created_by=run.created_by if told else "",
        created_at=run.created_at if told else None,
        ended_at=run.ended_at if told else None,
        budgets=tuple(_budget(b, ledgers.get(b.id, ())) for b in budgets),
        events=tuple(_event(event, told) for event in events),
    )


def _event(event: EventRow, told: bool) -> ImportedEvent:
    effect = effect_of(event.event_id)
    return ImportedEvent(
        seq=event.seq,
        version=event.version,
        type=event.type,
        origin=event.origin,
        data=RawJSON(event.data),
        id=None if effect else event.event_id,
        effect=effect,
        token=event.token,
        add=_raw(event.add),
        actor=event.actor if told else "",
        request_id=event.request_id,
        at=event.at if told else None,
    )


def _budget(budget: BudgetRow, entries: Sequence[ImportedEntry]) -> ImportedBudget:
    return ImportedBudget(
        name=budget.name,
        unit=budget.unit,
        cap=budget.cap,
        version=budget.version,
        overdrawn=budget.overdrawn,
        entries=tuple(entries),
    )


def _entry(entry: EntryRow, told: bool) -> ImportedEntry:
    return ImportedEntry(
        n=entry.n,
        kind=entry.kind,
        amount=entry.amount,
        spent=entry.spent,
        reserved=entry.reserved,
        cap=entry.cap,
        id=entry.entry_id,
        token=entry.token,
        note=entry.note,
        overdrawn=entry.overdrawn,
        actor=entry.actor if told else "",
        request_id=entry.request_id,
        at=entry.at if told else None,
    )


def _raw(text: str | None) -> RawJSON | None:
    return None if text is None else RawJSON(text)
