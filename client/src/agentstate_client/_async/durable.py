"""Plain functions whose calls are runs: what is finished is remembered, whoever goes on."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from agentstate_client import clock
from agentstate_client._async.client import AsyncClient
from agentstate_client._async.runs import AsyncRun
from agentstate_client._async.waiting import AsyncMade, pause, resolved
from agentstate_client._async.workers import told_of
from agentstate_client.endings import CallEnded
from agentstate_client.errors import (
    AgentStateError,
    CancelRequested,
    Exists,
    LeaseHeld,
    Unsendable,
)
from agentstate_client.payloads import encode
from agentstate_client.records import NewBudget, RunRecord

KEY_HASH_CHARS, STEP_HASH_CHARS = 24, 16


class AsyncCalling:
    """The call that a task or thread is in the middle of. run: its fenced handle."""

    def __init__(self, run: AsyncRun) -> None:
        self.run = run
        self._counted: Counter[str] = Counter()

    def step_name(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> str:
        """The same for the same step of the same call, whoever carries it out: what it is called,
        its arguments, and how many of those two alike came before. Raises Unsendable.
        """
        text = arguments_text(f"the step {name}", arguments, named)
        hashed = hashlib.sha256(text.encode()).hexdigest()[:STEP_HASH_CHARS]
        alike = f"{name}:{hashed}"
        self._counted[alike] += 1
        return f"{alike}:{self._counted[alike]}"


_calling: ContextVar[AsyncCalling | None] = ContextVar("agentstate_calling", default=None)


class AsyncDurable:
    """Makes functions durable, on a client: see agentstate_client.durable."""

    def __init__(self, client: AsyncClient, *, ttl_seconds: int = 60) -> None:
        self.client, self._ttl_seconds = client, ttl_seconds

    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        budgets: Sequence[NewBudget] = (),
        retry_on: tuple[type[BaseException], ...] = (),
        max_attempts: int = 5,
    ) -> Any:
        """A decorator: `@durable` or `@durable(budgets=[NewBudget("tokens", cap=10_000)])`.

        name: of the function in keys and as the run's task (default: its own). retry_on: what an
        attempt may raise without the run having failed; the run is given back then, and the next
        call with the same arguments goes on with it, max_attempts times in all.
        """
        if function is None:
            return functools.partial(
                self, name=name, budgets=budgets, retry_on=retry_on, max_attempts=max_attempts
            )
        return AsyncDurableFunction(
            self, function, name=name or function.__name__, budgets=budgets, retry_on=retry_on,
            max_attempts=max_attempts, ttl_seconds=self._ttl_seconds,
        )  # fmt: skip

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator: in a durable call the function is done once for each place, and its result
        comes from the log afterwards. Elsewhere it is the plain function.

        Arguments and result are JSON values; Unsendable says which is not, and then nothing is
        written. What a step did before it was finished may happen again.
        """

        @functools.wraps(function)
        async def done_once(*arguments: Any, **named: Any) -> Any:
            calling = _calling.get()
            if calling is None:
                return await resolved(function(*arguments, **named))
            name = calling.step_name(function.__name__, arguments, named)
            async with calling.run.step(name) as step:
                if not step.done:
                    result = await resolved(function(*arguments, **named))
                    _check_result(f"the step {function.__name__}", result)
                    await step.finish(result)
            return step.result

        return done_once

    @property
    def run(self) -> AsyncRun:
        """The run of the call that is being carried out here: its budgets, effects and counters.

        Raises RuntimeError outside of a durable call.
        """
        calling = _calling.get()
        if calling is None:
            raise RuntimeError("no durable call is being carried out here")
        return calling.run


class AsyncDurableFunction:
    """A function whose calls are runs. Calling it carries it out, or goes on with it, or returns
    what it returned before.
    """

    def __init__(
        self,
        durable: AsyncDurable,
        function: Callable[..., AsyncMade[Any]],
        *,
        name: str,
        budgets: Sequence[NewBudget],
        retry_on: tuple[type[BaseException], ...],
        max_attempts: int,
        ttl_seconds: int,
    ) -> None:
        functools.update_wrapper(self, function)
        self.client, self.function, self.name = durable.client, function, name
        self._budgets, self._retry_on = tuple(budgets), retry_on
        self._max_attempts, self._ttl_seconds = max_attempts, ttl_seconds

    def key(self, *arguments: Any, **named: Any) -> str:
        """The key of the run of a call: of the name and the arguments, so the same for the same.

        Raises Unsendable when an argument is not a JSON value.
        """
        text = arguments_text(self.name, arguments, named)
        hashed = hashlib.sha256(text.encode()).hexdigest()[:KEY_HASH_CHARS]
        return f"{self.name}-{hashed}"

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Raises what the function raises, CallEnded, and LeaseHeld when it is being carried out
        by somebody else."""
        return await self.call(self.key(*arguments, **named), arguments, named)

    async def call(
        self,
        key: str,
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
        *,
        wait_seconds: float = 0,
    ) -> Any:
        """The same under a key of your own. wait_seconds: for somebody else to finish it."""
        await self.later(key, arguments, named)
        until = clock.now() + wait_seconds
        while True:
            record = await self.client.run(key).read()
            if record.status in ("completed", "failed", "cancelled"):
                return _outcome(record)
            try:
                run = await self.client.run(key).acquire(ttl_seconds=self._ttl_seconds)
                break
            except LeaseHeld:
                if clock.now() >= until:
                    raise
                await pause(min(0.5, max(0.0, until - clock.now())))
        async with run:
            if (await run.read()).status == "pending":
                await run.start()
            return await self._carry_out(run, arguments, named or {})

    async def later(
        self, key: str, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> None:
        """Have it wait for a worker (`serve`), or for a call; again with the same key is harmless.

        Raises ValueError when the key is that of a call with other arguments.
        """
        text = arguments_text(self.name, arguments, named or {})
        attrs = {"durable": json.loads(text)}
        try:
            await self.client.create(
                key=key, task=self.name, attrs=attrs, budgets=self._budgets,
                max_attempts=self._max_attempts,
            )  # fmt: skip
        except Exists:
            found = (await self.client.run(key).read()).attrs.get("durable")
            if found != json.loads(text):
                raise ValueError(f"the run {key} is another call: {found!r}") from None

    def serve(self, *, concurrency: int = 1) -> None:
        """Have `client.work()` carry out calls that wait, and go on with what was cut off."""

        async def carry_out(run: AsyncRun) -> Any:
            given = (await run.read()).attrs["durable"]
            return await self._called(run, given["arguments"], given["named"])

        self.client.worker(
            task=self.name, concurrency=concurrency, ttl_seconds=self._ttl_seconds,
            retry_on=self._retry_on,
        )(carry_out)  # fmt: skip

    async def _carry_out(
        self, run: AsyncRun, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        try:
            result = await self._called(run, arguments, named)
        except CancelRequested as asked:
            await run.cancel({"reason": asked.reason})
            raise
        except AgentStateError as failure:
            # Overtaken, asked to stop, not reached: no failure of the function's. The value that
            # cannot be sent is one.
            if isinstance(failure, Unsendable):
                await run.fail(told_of(failure))
            raise
        except self._retry_on:
            raise
        except Exception as failure:
            await run.fail(told_of(failure))
            raise
        await run.complete(result)
        return json.loads(encode(result))

    async def _called(
        self, run: AsyncRun, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        token = _calling.set(AsyncCalling(run))
        try:
            result = await resolved(self.function(*arguments, **named))
        finally:
            _calling.reset(token)
        _check_result(self.name, result)
        return result


def _outcome(record: RunRecord) -> Any:
    if record.status != "completed":
        raise CallEnded(record.key, record.status, record.result)
    return record.result


def arguments_text(what: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Arguments as JSON, the same for the same. Raises Unsendable, naming what is not JSON."""
    document = {"arguments": list(arguments), "named": dict(named)}
    try:
        encode(document)
    except Unsendable as wrong:
        raise Unsendable(f"{what} was given what JSON cannot say: {wrong}") from None
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _check_result(what: str, result: Any) -> None:
    try:
        encode(result)
    except Unsendable as wrong:
        raise Unsendable(f"{what} returned what JSON cannot say: {wrong}") from None
