"""Whole histories of runs, ready to be imported: from drafts, and from the store's own rows.

A draft is rehearsed: the store's rules decide its commands in memory, and what they would have
written is the history. So an imported draft is just what a worker would have left behind. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

from agentstate.store.callers import SYSTEM
from agentstate.store.commands import (
    Append,
    Command,
    CreateRun,
    ImportRun,
    Transition,
)
from agentstate.store.errors import Refusal
from agentstate.store.export import history
from agentstate.store.rules.decide import decide
from agentstate.store.rules.draft import Draft, Facts
from agentstate.store.states import Status
from tasks.drafts import RunDraft, UnreadableFile

# A rehearsal has no clock: its events get the time of their import.
_NO_TIME = datetime.fromtimestamp(0, UTC)


def rehearsed(draft: RunDraft, *, name: str) -> ImportRun:
    """The history that a draft leads to, without actors and times: they are the importer's.

    name: the file that it is from. Raises UnreadableFile when the rules refuse a part of it: a
    charge beyond the cap, a budget that is not there, an event id that is used twice.
    """
    stage = Draft(Facts(now=_NO_TIME, new_id=_ids()))
    for place, ask in _asks(draft):
        act = stage.fork()
        try:
            decide(ask(), act, by=SYSTEM, request_id=None)
        except Refusal as refused:
            reason = f"{place}: {refused.detail}"
            raise UnreadableFile(name=name, place=f"run {draft.key}", reason=reason) from None
        stage.adopt(act)
    written = stage.writes
    return history(
        stage.run(draft.key),
        events=written.events,
        budgets=written.budgets.values(),
        entries=written.entries,
        told=False,
    )


def check_history(run: ImportRun, *, name: str) -> None:
    """Raises UnreadableFile where a history contradicts itself; the store would refuse it."""
    try:
        decide(run, Draft(Facts(now=_NO_TIME, new_id=_ids())), by=SYSTEM, request_id=None)
    except Refusal as refused:
        place = f"run {run.key}"
        raise UnreadableFile(name=name, place=place, reason=refused.detail) from None


def _ids() -> Callable[[datetime], UUID]:
    numbers = count(1)
    return lambda _at: UUID(int=next(numbers))


def _asks(draft: RunDraft) -> Iterator[tuple[str, Callable[[], Command[Any]]]]:
    """What a worker would ask for, one after the other, each with its place in the draft.

    The commands check themselves when they are made, so that is left to the one who knows the file.
    """
    yield (
        "header",
        partial(
            CreateRun,
            key=draft.key,
            task=draft.task,
            status=Status.RUNNING if draft.ended else Status.PENDING,
            tags=draft.tags,
            attrs=draft.attrs,
            budgets=draft.budgets,
            events=draft.opening,
        ),
    )
    for at, step in enumerate(draft.steps, 1):
        spend = (step.spend,) if step.spend else ()
        yield (
            f"step {at}",
            partial(Append, run=draft.key, events=step.events, add=step.add, spend=spend),
        )
    if draft.ended:
        yield "end", partial(Transition, run=draft.key, to=draft.status, result=draft.result)
