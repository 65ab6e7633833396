"""Makes the runs that the fleet works on: each plays one draft back, under a key of its own.

Every few runs one has a budget that is too small, one kills every worker that takes it, and one has
sub-agents, whose shared budgets are opened here; the worker that plays it starts them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from random import Random

from agentstate_client import AgentStateError, Client, Exists, Refused

from tasks.drafts import RunDraft
from tasks.simulate.processes import Stop
from tasks.simulate.runs import NotOpened, Order, create, open_shared_budgets
from tasks.simulate.scenario import Scenario
from tasks.simulate.shift import Shift

TROUBLE_SECONDS = 1.0


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
        """One run; tried again until it is there or refused for good, and never twice."""
        self.made += 1
        wanted = order(number=self.made, drafts=self.drafts, scenario=self.scenario)
        key = f"{wanted.draft.key[:170]}-{self.session}-{self.made}"
        if wanted.children:
            family = (wanted.draft, *wanted.children)
            self._try(lambda: open_shared_budgets(self.shift, family, key=key))
        if self._try(lambda: create(client, wanted, key=key, tag=self.shift.tag)):
            self.tell("created", run=key)

    def _try(self, make: Callable[[], None]) -> bool:
        """Make it, again and again until it is there or never will be; whether it is."""
        while not self.stop.is_set:
            try:
                make()
            except Exists:
                pass  # an earlier try was taken and its answer was lost
            except (AgentStateError, NotOpened) as failure:
                self.tell("trouble", detail=str(failure)[:300])
                self.stop.wait(TROUBLE_SECONDS)
                if isinstance(failure, Refused) and failure.retry == "never":
                    return False
                continue
            return True
        return False
