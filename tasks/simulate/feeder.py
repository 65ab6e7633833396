"""Makes the runs that the fleet works on: each plays one draft back, under a key of its own.

Every few runs one has a budget that is too small, one kills every worker that takes it, and one has
sub-agents: child runs that are charged to the same shared budgets as their parent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from agentstate_client import AgentStateError, Client, Event, Exists, NewBudget, RawJSON
from agentstate_client.payloads import encode

from tasks.drafts import RunDraft
from tasks.simulate import plain
from tasks.simulate.processes import Stop
from tasks.simulate.scenario import Scenario
from tasks.simulate.shift import Shift
from tasks.simulate.worker import TROUBLE_SECONDS

TIGHT_PART = 0.6
# A family's shared budget, against what its runs spend when all goes well; and their own caps, so
# much above it that it is the shared one that a spree meets.
FAMILY_PART, MEMBER_PART = 1.2, 10
POISON_ATTEMPTS = 3


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


def order(*, number: int, drafts: Mapping[str, RunDraft], scenario: Scenario) -> Order:
    """Run `number` (1, 2, 3 …) of a fleet: all drafts in turn, shuffled anew in each round."""
    around, at = divmod(number - 1, len(drafts))
    names = sorted(drafts)
    random = Random(f"{scenario.seed} {around}")  # noqa: S311  a simulation
    random.shuffle(names)
    poison = _each(scenario.poison_every, number)
    family = _each(scenario.family_every, number) and not poison
    return Order(
        number=number,
        draft=drafts[names[at]],
        tight=_each(scenario.tight_every, number) and not (poison or family),
        poison=poison,
        children=tuple(
            drafts[names[(at + 1 + n) % len(names)]] for n in range(scenario.children * family)
        ),
    )


def _each(every: int, number: int) -> bool:
    return every > 0 and number % every == 0


class Feeder:
    """Creates a run for each byte that comes out of `wishes`, until `stop` is set."""

    def __init__(
        self,
        *,
        shift: Shift,
        drafts: Mapping[str, RunDraft],
        scenario: Scenario,
        wishes: int,
        tell: Callable[..., None],
        stop: Stop,
    ) -> None:
        self.shift, self.drafts, self.scenario = shift, drafts, scenario
        self.wishes, self.tell, self.stop = wishes, tell, stop
        # Several fleets, and one that is started again, must not meet in a key.
        self.session = secrets.token_hex(2)
        self.made = 0

    def feed(self) -> None:
        with Client(self.shift.url, self.shift.key, worker="feeder") as client:
            while not self.stop.is_set:
                for _ in self._wishes():
                    self._make(client)

    def _wishes(self) -> bytes:
        try:
            return os.read(self.wishes, 64)
        except BlockingIOError:
            self.stop.wait(0.1)
            return b""

    def _make(self, client: Client) -> None:
        """One run; tried again until it is there, and never twice."""
        self.made += 1
        wanted = order(number=self.made, drafts=self.drafts, scenario=self.scenario)
        key = f"{wanted.draft.key[:170]}-{self.session}-{self.made}"
        if wanted.children:
            family = (wanted.draft, *wanted.children)
            self._try(lambda: open_shared_budgets(self.shift, family, key=key))
        if self._try(lambda: create(client, wanted, key=key, tag=self.shift.tag)):
            self.tell("created", run=key)
        for number, draft in enumerate(wanted.children, start=1):
            child = f"{key}.{number}"
            made = partial(create_child, client, draft, key=child, parent=key, tag=self.shift.tag)
            if self._try(made):
                self.tell("created", run=child, parent=key)

    def _try(self, make: Callable[[], None]) -> bool:
        """Make it, again and again until it is there; whether it is."""
        while not self.stop.is_set:
            try:
                make()
            except Exists:
                pass  # an earlier try was taken and its answer was lost
            except (AgentStateError, NotOpened) as failure:
                self.tell("trouble", detail=str(failure)[:300])
                self.stop.wait(TROUBLE_SECONDS)
                continue
            return True
        return False


def create(client: Client, wanted: Order, *, key: str, tag: str) -> None:
    """The run of an order. The shared budgets of its family are open already."""
    draft = wanted.draft
    client.create(
        key=key,
        task=draft.task,
        tags=sorted({*draft.tags, tag})[:50],
        attrs=_attrs(draft, **({"poison": True} if wanted.poison else {})),
        max_attempts=POISON_ATTEMPTS if wanted.poison else None,
        budgets=_budgets(draft, family=key if wanted.children else None, tight=wanted.tight),
        events=[Event(event.type, RawJSON(event.data.text), event.id) for event in draft.opening],
    )


def create_child(client: Client, draft: RunDraft, *, key: str, parent: str, tag: str) -> None:
    """A sub-agent's run: under its parent, and charged to the parent's shared budgets."""
    client.create(
        key=key,
        task=f"Sub-agent: {draft.task}"[:500],
        parent=parent,
        tags=sorted({*draft.tags, tag, "sub-agent"})[:50],
        attrs=_attrs(draft),
        budgets=_budgets(draft, family=parent),
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
        if code not in (plain.ACCEPTED, Exists.code):
            raise NotOpened(f"budget {document['name']}: {code} {why}")


def _shared(key: str, name: str) -> str:
    """Of a family, within the 64 characters of a budget's name."""
    return f"{key[-40:].lstrip('-._:@~')}.{name}"[:64]


def _attrs(draft: RunDraft, **more: bool) -> RawJSON:
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
