"""From what was sent to what the store is asked, for calls and operations that take the same."""

from __future__ import annotations

from django.conf import settings

from agentstate.api import schemas
from agentstate.store.commands import (
    EMPTY_OBJECT,
    Append,
    Charge,
    CreateRun,
    NewBudget,
    NewEvent,
    Patch,
    Transition,
)
from agentstate.store.effects import Effect
from agentstate.store.payloads import NULL


def new_run(ask: schemas.CreateAsked, *, fence: int | None) -> CreateRun:
    """A run with what the settings add to it: budgets that it does not bring, and its retention."""
    retention_said = "retain_seconds" in ask.model_fields_set
    return CreateRun(
        task=ask.task,
        key=ask.key,
        status=ask.status,
        tags=ask.tags,
        attrs=ask.attrs or EMPTY_OBJECT,
        parent=ask.parent,
        deadline_at=ask.deadline_at,
        deadline_policy=ask.deadline_policy,
        max_attempts=ask.max_attempts,
        budgets=_budgets(ask),
        events=_events(ask.events),
        retain_seconds=ask.retain_seconds if retention_said else settings.DEFAULT_RETAIN_SECONDS,
        fence=fence,
    )


def _budgets(ask: schemas.CreateAsked) -> tuple[NewBudget, ...]:
    own = tuple(map(new_budget, ask.budgets))
    named = {budget.name for budget in own}
    default = (NewBudget(**members) for members in settings.DEFAULT_BUDGETS)
    return own + tuple(budget for budget in default if budget.name not in named)


def new_budget(ask: schemas.BudgetAsked) -> NewBudget:
    return NewBudget(name=ask.name, cap=ask.cap, unit=ask.unit, parent=ask.parent)


def new_append(
    run: str, ask: schemas.AppendAsked, *, if_match: int | None, fence: int | None
) -> Append:
    return Append(
        run=run,
        events=_events(ask.events),
        expected_seq=ask.expected_seq,
        add=ask.add,
        spend=tuple(
            Charge(budget=c.budget, amount=c.amount, id=c.id, note=c.note) for c in ask.spend
        ),
        to=ask.to,
        result=ask.result,
        if_match=if_match,
        fence=fence,
    )


def new_move(
    run: str, ask: schemas.TransitionAsked, *, if_match: int | None, fence: int | None
) -> Transition:
    return Transition(
        run=run,
        to=ask.to,
        from_status=ask.from_status,
        result=ask.result,
        reason=ask.reason,
        expect=ask.expect,
        if_match=if_match,
        fence=fence,
    )


def new_patch(
    run: str, ask: schemas.PatchAsked, *, if_match: int | None, fence: int | None
) -> Patch:
    notes = ask.set.get("notes")
    return Patch(
        run=run,
        notes=None if notes is None else notes.value(),
        attrs={n.removeprefix("attrs."): v for n, v in ask.set.items() if n != "notes"},
        replace=ask.replace,
        add=ask.add,
        tags_add=ask.tags_add,
        tags_remove=ask.tags_remove,
        hold=ask.hold,
        retain_seconds=ask.retain_seconds,
        expect=ask.expect,
        id=ask.id,
        if_match=if_match,
        fence=fence,
    )


def _events(asked: list[schemas.EventAsked]) -> tuple[NewEvent, ...]:
    return tuple(
        NewEvent(type=e.type, data=e.data or NULL, id=e.id, effect=_effect(e.effect)) for e in asked
    )


def _effect(asked: schemas.EffectAsked | None) -> Effect | None:
    return None if asked is None else Effect(key=asked.key, state=asked.state)
