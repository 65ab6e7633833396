"""How a draft becomes a run that the fleet works on, with its budgets and sub-agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentstate_client import Client, Event, Exists, NewBudget, RawJSON, Run
from agentstate_client.payloads import encode

from tasks.drafts import RunDraft
from tasks.simulate import plain
from tasks.simulate.shift import Shift

TIGHT_PART = 0.6
# A family's shared budget, against what its runs spend when all goes well; and their own caps, so
# much above it that it is the shared one that a spree meets.
FAMILY_PART, MEMBER_PART = 1.2, 10
POISON_ATTEMPTS = 3
SUB_AGENTS = "sub_agents"  # in a run's attrs: what its sub-agents play


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which draft run number `number` plays back, whether its budgets are too small or it kills
    who takes it, and what its sub-agents play.
    """

    number: int
    draft: RunDraft
    tight: bool = False
    poison: bool = False
    children: tuple[RunDraft, ...] = ()


def create(client: Client, wanted: Order, *, key: str, tag: str) -> None:
    """The run of an order. The shared budgets of its family are open already."""
    draft = wanted.draft
    client.create(
        key=key,
        task=draft.task,
        tags=sorted({*draft.tags, tag, *(["poison"] if wanted.poison else [])})[:50],
        attrs=_attrs(
            draft,
            **({"poison": True} if wanted.poison else {}),
            **({SUB_AGENTS: [child.key for child in wanted.children]} if wanted.children else {}),
        ),
        max_attempts=POISON_ATTEMPTS if wanted.poison else None,
        budgets=_budgets(draft, family=key if wanted.children else None, tight=wanted.tight),
        events=[Event(event.type, RawJSON(event.data.text), event.id) for event in draft.opening],
    )


def create_child(client: Client, draft: RunDraft, *, number: int, parent: Run, tag: str) -> bool:
    """A sub-agent's run, started by whoever holds its parent's lease: under the parent, and charged
    to the parent's shared budgets. Whether it is new: the next holder meets what there is.
    """
    try:
        _create_child(client, draft, number=number, parent=parent, tag=tag)
    except Exists:
        return False
    return True


def _create_child(client: Client, draft: RunDraft, *, number: int, parent: Run, tag: str) -> None:
    client.create(
        key=f"{parent.key}.{number}",
        task=f"Sub-agent: {draft.task}"[:500],
        parent=parent,
        tags=sorted({*draft.tags, tag, "sub-agent"})[:50],
        attrs=_attrs(draft),
        budgets=_budgets(draft, family=parent.key),
        events=[Event(event.type, RawJSON(event.data.text), event.id) for event in draft.opening],
    )


class NotOpened(Exception):
    """A shared budget could not be opened just now."""


def open_shared_budgets(shift: Shift, drafts: Sequence[RunDraft], *, key: str) -> None:
    """One for each name that any of the drafts spends from. Raises NotOpened; again is harmless."""
    units = {budget.name: budget.unit for draft in drafts for budget in draft.budgets}
    for name, unit in units.items():
        cap = int(sum(draft.spent(name) for draft in drafts) * FAMILY_PART)
        document = {"name": _shared(key, name), "cap": cap, "unit": unit}
        code, why = plain.send(shift, "POST", "budgets", document)
        if code not in (plain.ACCEPTED, "exists"):
            raise NotOpened(f"budget {document['name']}: {code} {why}")


def _shared(key: str, name: str) -> str:
    """Of a family, within the 64 characters of a budget's name."""
    return f"{key[-40:].lstrip('-._:@~')}.{name}"[:64]


def _attrs(draft: RunDraft, **more: Any) -> RawJSON:
    return RawJSON(encode({"draft": draft.key, **draft.attrs.value(), **more}).decode())


def _budgets(draft: RunDraft, *, family: str | None, tight: bool = False) -> list[NewBudget]:
    return [
        NewBudget(
            name=budget.name,
            unit=budget.unit,
            cap=int(draft.spent(budget.name) * TIGHT_PART)
            if tight
            else budget.cap * (MEMBER_PART if family else 1),
            parent=_shared(family, budget.name) if family else None,
        )
        for budget in draft.budgets
    ]
