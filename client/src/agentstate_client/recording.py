"""What an agent does, written on a run: for a loop of one's own, and what the hooks share.

>>> from agentstate_client.recording import Price, Recorder, Usage
>>> with client.run("42").acquire() as run, Recorder(run) as recorder:
...     call = recorder.model_called(model="small")
...     answer = ask("how many?")
...     call.responded(usage=Usage(answer.input_tokens, answer.output_tokens), text=answer.text)
...     recorder.result = answer.text

`AsyncRecorder` is the same on an AsyncRun, awaited. Hooks for frameworks are on top of it:
agentstate_client.openai_agents, .claude_agent, .pydantic_ai.

Why and how: docs/integrations/recording.md, docs/decisions/0053-recording.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from agentstate_client._async.recording import AsyncModelCall, AsyncRecorder, AsyncToolCall
from agentstate_client._async.runs import AsyncRun
from agentstate_client._sync.recording import ModelCall, Recorder, ToolCall
from agentstate_client._sync.runs import Run
from agentstate_client.errors import LeaseLost
from agentstate_client.usage import Price, PriceUnknown, Usage

__all__ = [
    "AsyncModelCall",
    "AsyncRecorder",
    "AsyncToolCall",
    "ModelCall",
    "Price",
    "PriceUnknown",
    "Recorder",
    "Recording",
    "ToolCall",
    "Usage",
]

R = TypeVar("R", bound="Recording")
# How soon a loss is seen where the lease can only be asked.
ASK_EVERY_SECONDS = 0.1


class Recording:
    """A block in which an agent of an async framework is recorded: what the hooks share.

    run: of a Client or of an AsyncClient, held. With a Client's, `with` and `async with`, and what
    the hooks write is sent in threads; with an AsyncClient's, `async with`.

    In an `async with` block the loss of the lease cancels what the block is waiting for, and the
    block raises LeaseLost; in a `with` block the agent stops at its next step. The arguments are
    those of Recorder.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        *,
        prices: Mapping[str, Price] | None = None,
        content: bool = True,
        ends_run: bool = True,
        costs_told: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            "prices": prices,
            "content": content,
            "ends_run": ends_run,
            "costs_told": costs_told,
        }
        self.recorder: AsyncRecorder | Recorder = (
            AsyncRecorder(run, **options) if isinstance(run, AsyncRun) else Recorder(run, **options)
        )
        self._watching: asyncio.Task[None] | None = None
        self._is_interrupted = False

    @property
    def run(self) -> Run | AsyncRun:
        return self.recorder.run

    @property
    def result(self) -> Any:
        """What the run is completed with; the agent's output unless it is set."""
        return self.recorder.result

    @result.setter
    def result(self, result: Any) -> None:
        self.recorder.result = result

    async def do(self, what: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """A method of the recorder or of one of its calls: awaited, or in a thread."""
        if isinstance(self.recorder, AsyncRecorder):
            return await what(*arguments, **named)
        return await asyncio.to_thread(what, *arguments, **named)

    def __enter__(self: R) -> R:
        if not isinstance(self.recorder, Recorder):
            raise TypeError("the run of an AsyncClient is recorded in an `async with` block")
        self.recorder.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(self.recorder, Recorder):
            self.recorder.end(raised)
            self.recorder.raise_stop(raised)

    async def __aenter__(self: R) -> R:
        await self.do(self.recorder.begin)
        task = asyncio.current_task()
        if task is not None:
            self._watching = asyncio.create_task(self._watch(task))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._is_interrupted:
            await self._take_interruption(raised)
        await self.do(self.recorder.end, raised)
        self.recorder.raise_stop(raised)

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        """Cancel what the block waits for once nothing may be written any more."""
        lost = self.run.lost
        if isinstance(self.recorder, AsyncRecorder):
            await lost.wait()  # type: ignore[misc]
        else:
            while not lost.is_set():
                await asyncio.sleep(ASK_EVERY_SECONDS)
        self._is_interrupted = True
        task.cancel()

    async def _take_interruption(self, raised: BaseException | None) -> None:
        """The cancellation was ours: in its place the loss is raised."""
        if isinstance(raised, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and hasattr(task, "uncancel"):  # Python 3.11
                task.uncancel()
        else:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        try:
            self.run.checkpoint()
        except LeaseLost as lost:
            if self.recorder.stopped is None:
                self.recorder.stopped = lost
