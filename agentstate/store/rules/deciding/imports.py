"""Runs that come in with their whole history."""

from uuid import UUID

from agentstate.store.commands import (
    ImportRun,
    RunCreated,
)
from agentstate.store.errors import (
    Exists,
)
from agentstate.store.rows import (
    LeaseRow,
    unit_of,
)
from agentstate.store.rules import history
from agentstate.store.rules.deciding.desk import Deciding


def import_run(ask: ImportRun, on: Deciding) -> RunCreated:
    draft = on.draft
    existing = draft.find_run(ask.key)
    if existing:
        raise Exists(f"a run {ask.key} exists", current=existing.facts(), run=ask.key)
    run, events = history.rebuild(
        ask, run_id=draft.facts.new_id(draft.now), actor=on.by.principal, now=draft.now
    )
    draft.put_run(run, new=True)
    for event in events:
        draft.put_event(event)
    for asked in ask.budgets:
        budget_id: UUID = draft.facts.new_id(draft.now)
        budget, entries = history.rebuild_budget(
            asked, run=run, budget_id=budget_id, actor=on.by.principal, now=draft.now
        )
        draft.put_budget(budget, new=True)
        draft.writes.entries.extend(entries)
    if not run.terminal:
        draft.put_lease(LeaseRow(unit=unit_of(run.key), run_id=run.id))
    on.act("run.imported", run.key, run, after={"last_seq": run.last_seq, "status": run.status})
    return RunCreated(
        run=run.key,
        status=run.status,
        version=run.version,
        last_seq=run.last_seq,
        at=draft.now,
    )
