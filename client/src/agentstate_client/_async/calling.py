"""A call that is a run: made once, taken, carried out under the run's lease, and ended.

What `@durable` and Celery's tasks have in common. Which call a task or thread is in the middle of
is a context variable: by it a step finds its run.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from agentstate_client._async.client import AsyncClient
from agentstate_client._async.runs import TERMINAL, AsyncRun
from agentstate_client._async.waiting import resolved
from agentstate_client._async.workers import (
    NOT_THE_RUNS_FAULT,
    OF_THE_RESULT,
    is_held,
    told_of,
)
from agentstate_client.endings import CallEnded
from agentstate_client.errors import (
    CancelRequested,
    Exists,
    IllegalTransition,
    LeaseHeld,
    Paused,
    Unsendable,
)
from agentstate_client.payloads import encode
from agentstate_client.records import NewBudget, RunRecord

STEP_HASH_CHARS = 16

# The run has not come to its end by this: it waits, is paused, or is somebody else's.
NOT_OVER = (*NOT_THE_RUNS_FAULT, IllegalTransition, LeaseHeld, Paused)


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


def present_run() -> AsyncRun | None:
    """The run of the call that is being carried out here."""
    calling = _calling.get()
    return None if calling is None else calling.run


def step(function: Callable[..., Any]) -> Callable[..., Any]:
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
                check_result(f"the step {function.__name__}", result)
                await step.finish(result)
        return step.result

    return done_once


async def made(
    client: AsyncClient,
    key: str,
    *,
    task: str,
    attrs: Mapping[str, Any],
    compared: str | None,
    budgets: Sequence[NewBudget],
    max_attempts: int,
) -> RunRecord | None:
    """Make the run of a call; when there is one of this key already: how it stands.

    compared: the member of attrs by which a call is known; ValueError when the run that is there
    has another.
    """
    try:
        await client.create(
            key=key, task=task, attrs=attrs, budgets=budgets, max_attempts=max_attempts
        )
    except Exists:
        record = await client.run(key).read()
        if compared is not None and record.attrs.get(compared) != attrs[compared]:
            found = record.attrs.get(compared)
            raise ValueError(f"the run {key} is another call: {found!r}") from None
        return record
    return None


async def taken(client: AsyncClient, key: str, *, ttl_seconds: int) -> AsyncRun:
    """The run under a lease, and running. Raises LeaseHeld, Paused, AlreadyTerminal,
    AttemptsExhausted.
    """
    run = await client.run(key).acquire(ttl_seconds=ttl_seconds)
    try:
        if (await run.read()).status == "pending":
            await run.start()
    except BaseException:
        await run.release()
        raise
    return run


async def carried_out(
    run: AsyncRun,
    work: Callable[[], Any],
    *,
    what: str,
    max_attempts: int,
    retry_on: tuple[type[BaseException], ...] = (),
) -> Any:
    """What `work` returns, as JSON has it, once the run is completed with it.

    Else it raises what `work` did, and the run is
    * cancelled, for CancelRequested;
    * given back, or with somebody else, for what is not its fault: overtaken, not reached;
    * given back for retry_on, unless this was the last of max_attempts;
    * failed, for any other exception.
    what: how the call is named in Unsendable.
    """
    async with run:
        try:
            result = await called(run, work, what=what)
        except CancelRequested as asked:
            await run.cancel({"reason": asked.reason})
            raise
        except NOT_THE_RUNS_FAULT:
            raise
        except retry_on as trouble:
            if is_held(run) and (run.attempt or 0) >= max_attempts:
                await run.fail(told_of(trouble))
            raise
        except Exception as failure:
            await run.fail(told_of(failure))
            raise
        if run.lease is not None and run.lease.state == "ended":  # by the function itself
            return outcome(await run.read())
        try:
            await run.complete(result)
        except OF_THE_RESULT as wrong:
            await run.fail(told_of(wrong))
            raise
        return json.loads(encode(result))


async def called(run: AsyncRun, work: Callable[[], Any], *, what: str) -> Any:
    """What `work` returns, with its steps in this run. Raises Unsendable when it is not JSON."""
    token = _calling.set(AsyncCalling(run))
    try:
        result = await resolved(work())
    finally:
        _calling.reset(token)
    check_result(what, result)
    return result


async def ended(client: AsyncClient, key: str) -> RunRecord | None:
    """The run of a call if it is over; None while it is not."""
    record = await client.run(key).read()
    return record if record.status in TERMINAL else None


def outcome(record: RunRecord) -> Any:
    """What the call returned. Raises CallEnded when it did not come to a good end."""
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


def check_result(what: str, result: Any) -> None:
    """Raises Unsendable, naming what is not JSON."""
    try:
        encode(result)
    except Unsendable as wrong:
        raise Unsendable(f"{what} returned what JSON cannot say: {wrong}") from None
