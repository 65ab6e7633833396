# Made from _async/recording.py by make_sync.py. Change it there.

"""What an agent does, written on its run: model calls, tool calls, tokens, cost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Any

from agentstate_client import clock
from agentstate_client._sync.runs import Run
from agentstate_client._sync.together import together
from agentstate_client._sync.workers import NOT_THE_RUNS_FAULT, OF_THE_RESULT, told_of
from agentstate_client.contents import read_json, storable, told_contents
from agentstate_client.errors import AgentStateError, CancelRequested
from agentstate_client.records import Event
from agentstate_client.usage import (
    Meter,
    Price,
    PriceUnknown,
    Usage,
    cost_of,
    dollars_left,
    dollars_of,
    meters_of,
    written_cost,
)

# Longer than a call of a model takes. What is accounted for later is recorded all the same.
HOLD_SECONDS = 3_600
MICROS = 1_000_000


class Recorder:
    """Writes the steps of an agent on a run that is held: for a loop of one's own, and under the
    hooks for frameworks.

        with Recorder(run, prices={"small": Price("0.15", "0.60")}) as recorder:
            call = recorder.model_called(model="small")
            answer = ask(...)
            call.responded(usage=Usage(1_320, 96), text=answer.text)
            tool = recorder.tool_called("search", arguments={"q": "tea"})
            tool.returned(search("tea"))
            recorder.result = answer.text

    run: a handle with a lease; its key needs the scopes read and write. prices: by the model's
    name; without one no cost is written. content: texts, arguments and results are written as
    well; without it only how many bytes they have. ends_run: leaving the block completes the run
    with `result`, or has it failed or cancelled; else that stays the caller's. costs_told: the
    framework says what a call costs, so no prices are needed.

    Before a model call 1 token (1 unit of money) of each budget is set aside, so none begins once
    a cap is reached: BudgetExhausted. What a call took is accounted for in full, also past the
    cap. Charged are budgets in `tokens`, `usd`, `usd_cents` and `usd_micros`. Each step and what it
    adds is one write under the fence of the run's lease: after its loss nothing is written, and
    LeaseLost or StaleFence is raised by every call from then on.
    """

    def __init__(
        self,
        run: Run,
        *,
        prices: Mapping[str, Price] | None = None,
        content: bool = True,
        ends_run: bool = True,
        costs_told: bool = False,
    ) -> None:
        if run.lease is None:
            raise ValueError("run: one that is held: `client.claim()`, or `run.acquire()`")
        self.run, self.result = run, None
        self.stopped: AgentStateError | None = None
        self._prices, self._content = dict(prices or {}), content
        self._ends_run, self._costs_told = ends_run, costs_told
        # Of this recorder alone, so that a second one under the same lease writes other events.
        self._id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._counted: dict[str, int] = {}
        self._steps: dict[str | None, int] = {}
        self._open: dict[str, ModelCall | ToolCall] = {}
        self._meters: list[Meter] = []
        self._is_ending = self._was_ended = False
        self.failure: Mapping[str, Any] | None = None
        self.dollars_left: Decimal | None = None
        self._cost_counter = Meter("", MICROS)

    result: Any
    """What the run is completed with: any JSON value."""
    failure: Mapping[str, Any] | None
    """What the run fails with in place of being completed; None: it did not fail."""
    stopped: AgentStateError | None
    """Why the agent may do nothing more; None while it may."""
    dollars_left: Decimal | None
    """Of the run's budgets in money the least that was left at the beginning; None without one."""

    def begin(self) -> None:
        """Look at the run's budgets; a pending run is running from now on.

        Raises ValueError when a budget is in money and nobody says what models cost.
        """
        record = self.run.read()
        self._meters = meters_of(record.budgets)
        self.dollars_left = dollars_left(record.budgets)
        money = [meter.budget for meter in self._meters if meter.is_money]
        if money and not self._prices and not self._costs_told:
            raise ValueError(f"the budget {money[0]} is in money: give `prices` of the models")
        if record.status == "pending":
            self.run.start()

    def check(self) -> None:
        """Between two steps: raises what stopped the agent, and what `run.checkpoint` raises."""
        if self.stopped is not None:
            raise self.stopped
        try:
            self.run.checkpoint()
        except AgentStateError as stop:
            self.stopped = stop
            raise

    def noted(self, type: str, **members: Any) -> dict[str, Any] | None:
        """The data of the newest event of this type with these members, by whoever wrote it; None
        when there is none, or when the key lacks the scope payloads.
        """
        found = None
        for event in self.run.events(type=type, origin="worker"):
            data = event.data if event.raw is not None else None
            if isinstance(data, dict) and members.items() <= data.items():
                found = data
        return found

    def note(
        self,
        type: str,
        /,
        *,
        agent: str | None = None,
        known: Mapping[str, Any] | None = None,
        **contents: Any,
    ) -> None:
        """Something else that happened: `recorder.note("plan.made", agent="clerk", plan=…)`.

        known: what is written whether contents are or not.
        """
        told = {"agent": agent, **(known or {})}
        data = {name: value for name, value in told.items() if value is not None}
        self.write(Event(type, data | self.told(contents), id=self.next_id("note")))

    def model_called(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        messages: int | None = None,
        **contents: Any,
    ) -> ModelCall:
        """A model is about to be called, with so many messages; raises BudgetExhausted, LeaseLost,
        StaleFence, CancelRequested when it must not be.
        """
        self.check()
        id = self.next_id("model")
        self._steps[agent] = step = int(id.rpartition("-")[2])
        call = ModelCall(self, id, {"step": step, "agent": agent, "model": model})
        event = call.event("model.called", contents, messages=messages)
        self.write(event, also=self.holds(id))
        self._open[id] = call
        return call

    def tool_called(
        self,
        tool: str,
        *,
        agent: str | None = None,
        arguments: Any = None,
        call_id: str | None = None,
        step: int | None = None,
        **contents: Any,
    ) -> ToolCall:
        """A tool is about to be used. arguments: of the call; a JSON text is read as JSON.
        call_id: the model's. step: of the model call that asked for it; None: this agent's last.
        Raises LeaseLost, StaleFence, CancelRequested when it must not be.
        """
        self.check()
        asked_in = step if step is not None else self._steps.get(agent)
        known = {"step": asked_in, "agent": agent, "tool": tool}
        call = ToolCall(self, self.next_id("tool"), known | {"tool_call_id": call_id})
        told = {"arguments": read_json(arguments), **contents}
        self.write(call.event("tool.called", told))
        self._open[call.id] = call
        return call

    def end(self, raised: BaseException | None = None) -> None:
        """The agent has come to its end, by `raised` or well: end the run as a worker would.

        Completed with `result`; cancelled when an operator asked for it; failed. Nothing is
        written when the lease is lost, the store cannot be reached, or the process is to end: then
        whoever holds the run next goes on with it.
        """
        stop = self.stopped if self.stopped is not None else raised
        self._was_ended = self.run.lease is not None and self.run.lease.state == "ended"
        if self.run.lease is None or self.run.lease.state != "held":
            return
        if isinstance(stop, NOT_THE_RUNS_FAULT):
            return
        if stop is not None and not isinstance(stop, Exception):  # as if it had been killed
            return
        self._is_ending = True
        if stop is not None:
            for call in list(self._open.values()):
                call.failed(stop)
        if not self._ends_run:
            return
        if stop is None and self.failure is not None:
            self.run.fail(storable(self.failure))
        elif stop is None:
            self._complete()
        elif isinstance(stop, CancelRequested):
            self.run.cancel({"reason": stop.reason})
        else:
            self.run.fail(told_of(stop))

    def _complete(self) -> None:
        """What cannot be kept, as more than 1 MiB, fails the run, and is raised."""
        try:
            self.run.complete(storable(self.result))
        except OF_THE_RESULT as wrong:
            self.run.fail(told_of(wrong))
            raise

    def __enter__(self) -> Recorder:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(raised)
        self.raise_stop(raised)

    def raise_stop(self, raised: BaseException | None) -> None:
        """Raises what stopped the agent, unless that is on its way, or the block has ended the run
        by itself.
        """
        if self.stopped is None or raised is self.stopped or (raised is None and self._was_ended):
            return
        raise self.stopped from raised

    # What follows is for the calls that it hands out, and for the hooks.

    def next_id(self, kind: str) -> str:
        """An id that no other event of the run has, the same each time that it is sent."""
        with self._lock:
            self._counted[kind] = self._counted.get(kind, 0) + 1
            return f"{self._id}.{kind}-{self._counted[kind]}"

    def told(self, contents: Mapping[str, Any]) -> dict[str, Any]:
        return told_contents(contents, with_content=self._content)

    def write(
        self,
        event: Event | None,
        *,
        add: Mapping[str, int] | None = None,
        also: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """One write: an event, counters, and operations on budgets; nothing when there is none of
        them. What refuses it stops the agent: it is raised by every call from then on.
        """
        if self.stopped is not None and not self._is_ending:
            raise self.stopped
        try:
            if also:
                together(self.run, event, add or {}, also)
            elif event is not None:
                self.run.append(event, add=add)
        except AgentStateError as stop:
            self.stopped = stop
            raise

    def counted(self, usage: Usage, cost: Decimal | None) -> dict[str, int]:
        """What it adds to the run's counters."""
        with self._lock:
            micros = self._cost_counter.take(usage, cost)
        counted = {"tokens_spent": usage.total_tokens, "cost_usd_micros": micros}
        return {name: count for name, count in counted.items() if count}

    def commits(self, usage: Usage, cost: Decimal | None, hold: str) -> list[dict[str, Any]]:
        """What was really used of what was set aside under this name."""
        with self._lock:
            used = [(meter.budget, meter.take(usage, cost)) for meter in self._meters]
        return [
            {"op": "commit", "budget": budget, "amount": amount, "id": hold}
            for budget, amount in used
        ]

    def holds(self, hold: str) -> list[dict[str, Any]]:
        """The least of each budget, set aside: refused when nothing is left."""
        return [
            {"op": "reserve", "budget": meter.budget, "amount": 1, "id": hold,
             "ttl_seconds": HOLD_SECONDS}
            for meter in self._meters
        ]  # fmt: skip

    def releases(self, hold: str) -> list[dict[str, Any]]:
        return [{"op": "release", "budget": meter.budget, "id": hold} for meter in self._meters]

    def cost(
        self, usage: Usage, told: Decimal | float | None, *models: str | None
    ) -> Decimal | None:
        return cost_of(usage, self._prices, models) if told is None else dollars_of(told)

    def close_call(self, id: str) -> bool:
        """True once for each call."""
        return self._open.pop(id, None) is not None

    def has_price(self, *models: str | None) -> bool:
        return any(model in self._prices for model in models)

    def check_priced(self, cost: Decimal | None, model: str | None) -> None:
        """A cap in money that cannot be charged is none: the agent does not go on."""
        if cost is None and any(meter.is_money for meter in self._meters):
            self.stopped = PriceUnknown(model)
            raise self.stopped


class _AsyncCalled:
    """A call that is under way. known: what each of its events says."""

    def __init__(self, recorder: Recorder, id: str, known: Mapping[str, Any]) -> None:
        self.id = id
        self._recorder = recorder
        self._known = {name: value for name, value in known.items() if value is not None}
        self._began_at = clock.now()

    def event(self, type: str, contents: Mapping[str, Any], **known: Any) -> Event:
        """known: what is written whether contents are or not."""
        data = self._known | {name: value for name, value in known.items() if value is not None}
        data |= self._recorder.told(contents)
        return Event(type, data, id=f"{self.id}.{type}")

    @property
    def seconds(self) -> float:
        return round(clock.now() - self._began_at, 3)


class ModelCall(_AsyncCalled):
    """A model that was called. Made by `recorder.model_called`."""

    def responded(
        self,
        *,
        usage: Usage,
        model: str | None = None,
        cost_usd: Decimal | float | None = None,
        response_id: str | None = None,
        **contents: Any,
    ) -> None:
        """It answered. model: which one it was, when it says so. cost_usd: when somebody says so;
        else by the recorder's prices. contents: what it said: text, tool_calls. Once; again
        changes nothing. Raises PriceUnknown, once it is written, when a budget is in money.
        """
        if not self._recorder.close_call(self.id):
            return
        asked = self._known.get("model")
        cost = self._recorder.cost(usage, cost_usd, model, asked)
        event = self.event(
            "model.responded",
            contents,
            model=model,
            response_id=response_id,
            usage=usage.document(),
            cost_usd=None if cost is None else written_cost(cost),
            seconds=self.seconds,
        )
        self._recorder.write(
            event,
            add={"steps_done": 1} | self._recorder.counted(usage, cost),
            also=self._recorder.commits(usage, cost, self.id),
        )
        self._recorder.check_priced(cost, model or asked)

    def failed(self, error: Exception) -> None:
        """It gave no answer; what is set aside for it is given back."""
        if self._recorder.close_call(self.id):
            event = self.event("model.failed", {}, seconds=self.seconds, **told_of(error))
            self._recorder.write(event, also=self._recorder.releases(self.id))


class ToolCall(_AsyncCalled):
    """A tool that is being used. Made by `recorder.tool_called`."""

    def returned(self, output: Any = None, *, deferred: str | None = None) -> None:
        """It returned. Once; again changes nothing. deferred: it will be done elsewhere, or when
        somebody has approved it, and why.
        """
        if self._recorder.close_call(self.id):
            told, seconds = {"output": output}, self.seconds
            event = self.event("tool.returned", told, deferred=deferred, seconds=seconds)
            self._recorder.write(event)

    def failed(self, error: Any) -> None:
        """It raised this exception, or told this in place of a result."""
        if self._recorder.close_call(self.id):
            known = told_of(error) if isinstance(error, Exception) else {}
            told = {} if known else {"output": error}
            event = self.event("tool.failed", told, seconds=self.seconds, **known)
            self._recorder.write(event)
