"""Makes the runs that the fleet works on: each plays one draft back, under a key of its own.

Every few runs one has a budget that is too small on purpose, so that charges are refused.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from agentstate_client import AgentStateError, Client, Event, Exists, NewBudget, RawJSON
from agentstate_client.payloads import encode

from tasks.drafts import RunDraft
from tasks.simulate.processes import Stop
from tasks.simulate.worker import TROUBLE_SECONDS, Shift

TIGHT_PART = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which draft run number `number` plays back, and whether its budgets are too small."""

    number: int
    draft: RunDraft
    tight: bool


def order(*, number: int, drafts: Mapping[str, RunDraft], seed: int, tight_every: int) -> Order:
    """Run `number` (1, 2, 3 …) of a fleet: all drafts in turn, shuffled anew in each round."""
    around, at = divmod(number - 1, len(drafts))
    names = sorted(drafts)
    Random(f"{seed} {around}").shuffle(names)  # noqa: S311  a simulation
    tight = tight_every > 0 and number % tight_every == 0
    return Order(number=number, draft=drafts[names[at]], tight=tight)


class Feeder:
    """Creates a run for each byte that comes out of `wishes`, until `stop` is set."""

    def __init__(
        self,
        *,
        shift: Shift,
        drafts: Mapping[str, RunDraft],
        seed: int,
        tight_every: int,
        wishes: int,
        tell: Callable[..., None],
        stop: Stop,
    ) -> None:
        self.shift, self.drafts, self.seed, self.tight_every = shift, drafts, seed, tight_every
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
        wanted = order(
            number=self.made, drafts=self.drafts, seed=self.seed, tight_every=self.tight_every
        )
        key = f"{wanted.draft.key[:180]}-{self.session}-{self.made}"
        while not self.stop.is_set:
            try:
                create(client, wanted, key=key, tag=self.shift.tag)
            except Exists:
                pass  # an earlier try was taken and its answer was lost
            except AgentStateError as failure:
                self.tell("trouble", detail=str(failure)[:300])
                self.stop.wait(TROUBLE_SECONDS)
                continue
            self.tell("created", run=key)
            return


def create(client: Client, wanted: Order, *, key: str, tag: str) -> None:
    draft = wanted.draft
    client.create(
        key=key,
        task=draft.task,
        tags=sorted({*draft.tags, tag})[:50],
        attrs=RawJSON(encode({"draft": draft.key, **draft.attrs.value()}).decode()),
        budgets=[
            NewBudget(
                name=budget.name,
                unit=budget.unit,
                cap=int(draft.spent(budget.name) * TIGHT_PART) if wanted.tight else budget.cap,
            )
            for budget in draft.budgets
        ],
        events=[Event(event.type, RawJSON(event.data.text), event.id) for event in draft.opening],
    )
