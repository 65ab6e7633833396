# Made from _async/steps.py by make_sync.py. Change it there.

"""Steps of a run: what is finished comes back from the log, whoever goes on with the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentstate_client._sync.history import STEP_FINISHED, STEP_ID
from agentstate_client._sync.waiting import resolved
from agentstate_client.payloads import encode
from agentstate_client.records import Appended, Charge, Event

if TYPE_CHECKING:
    from agentstate_client._sync.runs import Run


class Step:
    """One step of a run, by its name, which is its own in the run for its life.

    Made by `run.step(name)`, which sends nothing. Used in one of two ways:

        text = run.step("fetch").run(fetch, url)

        with run.step("think") as step:
            if not step.done:
                out = model.call(text)
                step.finish(out.text, spend=Charge("tokens", out.tokens))
        answer = step.result

    The result is any JSON value and is an event's data; the event's id is made of the step's name
    and not of the attempt, so a step is finished once, by whichever worker. What happens between
    the beginning of a step and its finish may happen again: for what must not, use `run.effect`.
    """

    def __init__(self, *, run: Run, name: str) -> None:
        self.name = name
        self._run = run
        self._is_read = False

    def __repr__(self) -> str:
        state = ("finished" if self.done else "not finished") if self._is_read else "not read"
        return f"<{type(self).__name__} {self.name} of {self._run.key}, {state}>"

    @property
    def done(self) -> bool:
        """It has been finished, in this attempt or in one before."""
        if not self._is_read:
            raise RuntimeError("read the step first: enter its block, or use `run`")
        return self.name in self._run.history.steps

    @property
    def result(self) -> Any:
        """What it was finished with, decoded anew each time, as the store has it: tuples are lists.

        Raises RuntimeError when it is not finished.
        """
        if not self.done:
            raise RuntimeError(f"the step {self.name} is not finished")
        return json.loads(self._run.history.steps[self.name])

    def run(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """The result of `work(*arguments, **named)`, or of the attempt that finished the step."""
        with self:
            if not self.done:
                self.finish(resolved(work(*arguments, **named)))
        return self.result

    def finish(
        self,
        result: Any = None,
        *,
        add: Mapping[str, int] | None = None,
        spend: Charge | Sequence[Charge] = (),
    ) -> Appended:
        """Write its result; counters and charges of the step in the same write, once as well.

        Raises what `run.append` raises; EventIdReuse: it has been finished with another result.
        """
        appended = self._run.append(
            Event(STEP_FINISHED, result, id=STEP_ID + self.name), add=add, spend=spend
        )
        self._run.history.steps[self.name] = encode(result).decode()
        self._is_read = True
        return appended

    def __enter__(self) -> Step:
        """Reads the log once for all steps of the run. Before a step that is not finished: raises
        what `run.checkpoint` raises.
        """
        self._run.history.read()
        self._is_read = True
        if not self.done:
            self._run.checkpoint()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaving the block without `finish` leaves the step to be done again."""
