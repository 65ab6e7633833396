"""Claude Agent SDK: its message stream and hooks, recorded on a run.

>>> from agentstate_client.claude_agent import AgentStateSession
>>> async with await client.run("42").acquire() as run, AgentStateSession(run) as session:
...     options = session.options(ClaudeAgentOptions(allowed_tools=["Read"]))
...     async for message in session.watch(query(prompt="how many?", options=options)):
...         print(message)

`pip install agentstate-client[claude-agent]`. How: docs/integrations/claude-agent.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from decimal import Decimal
from types import TracebackType
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    HookMatcher,
    ResultMessage,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

from agentstate_client._async.runs import AsyncRun
from agentstate_client._sync.runs import Run
from agentstate_client.claude_usage import Reported, Totals, reported_of
from agentstate_client.errors import AgentStateError
from agentstate_client.recording import Price, Recording, Usage
from agentstate_client.records import Event
from agentstate_client.usage import written_cost

__all__ = ["AgentStateSession"]

# The message that calls for a tool is on its way when the hook for the tool comes.
MESSAGE_SECONDS = 10.0
SUBAGENT_TOOLS = frozenset({"Agent", "Task"})
END = object()
NOTHING = (Usage(), Decimal())


class AgentStateSession(Recording):
    """A block in which what Claude Code does is recorded: `options` and `watch` are for in it.

    run: held, of a Client or an AsyncClient. prices: by model; without them the cost is what
    Claude Code says itself, an estimate of its own. content, ends_run: as Recorder has them.

    Answers, tools and sub-agents become events as they arrive. A tool begins when its call is in
    the log; before it and before each prompt it is asked whether the run may go on. When it may
    not (LeaseLost, StaleFence, BudgetExhausted, CancelRequested) Claude Code is told to stop, it
    is ended, and `watch` and the block raise it. The run is completed with the last result, unless
    `session.result` is set in the block; a result that is an error fails it.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        *,
        prices: Mapping[str, Price] | None = None,
        content: bool = True,
        ends_run: bool = True,
    ) -> None:
        super().__init__(run, prices=prices, content=content, ends_run=ends_run, costs_told=True)
        self._totals = Totals(prices or {})
        self._unsettled = NOTHING  # counted, and not charged to budgets yet
        self._hold: str | None = None
        self._is_prompted, self._is_resumed = False, False
        self._steps: dict[str, int] = {}
        self._tools: dict[str, Any] = {}
        self._agents: dict[str, str] = {}
        self._arrived: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._reading: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    def options(self, options: ClaudeAgentOptions | None = None) -> ClaudeAgentOptions:
        """The same options with this session's hooks before yours.

        When the run has a budget in money, `max_budget_usd` is at most what was left of it when
        the block began.
        """
        options = options if options is not None else ClaudeAgentOptions()
        self._is_resumed = bool(options.resume or options.continue_conversation)
        hooks: dict[Any, list[HookMatcher]] = dict(options.hooks or {})
        for name, hook in (("UserPromptSubmit", self._on_prompt), ("PreToolUse", self._on_tool)):
            hooks[name] = [HookMatcher(hooks=[hook]), *hooks.get(name, [])]
        limits = [options.max_budget_usd, self.recorder.dollars_left]
        told = [float(limit) for limit in limits if limit is not None]
        return replace(options, hooks=hooks, max_budget_usd=min(told, default=None))

    async def watch(self, messages: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """The messages of `query(…)`, `client.receive_response()` or `client.receive_messages()`,
        each recorded as soon as it comes, then handed on.
        """
        queue: asyncio.Queue[Any] = asyncio.Queue()
        reading = asyncio.create_task(self._read(messages, queue))
        self._reading.add(reading)
        try:
            while (message := await queue.get()) is not END:
                yield message
        finally:
            self._reading.discard(reading)
            reading.cancel()
            await asyncio.wait([reading])
        if self.recorder.stopped is not None:
            raise self.recorder.stopped
        if not reading.cancelled():
            reading.result()

    async def _read(self, messages: AsyncIterable[Any], queue: asyncio.Queue[Any]) -> None:
        """In a task of its own: who is slow to take messages does not hold back the hooks."""
        try:
            async for message in messages:
                await self._note(message)
                queue.put_nowait(message)
        finally:
            queue.put_nowait(END)
            if callable(close := getattr(messages, "aclose", None)):
                await close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._unsettled != NOTHING and self.recorder.stopped is None:
            with contextlib.suppress(AgentStateError):  # told by what follows
                await self._settle_rest()
        await super().__aexit__(kind, raised, trace)

    async def _settle_rest(self) -> None:
        """No result came: what the answers took is charged all the same."""
        if self._hold is None:
            await self._set_aside()
        await self.do(self.recorder.write, None, also=self._settle(Usage(), None))

    # Hooks: Claude Code waits for their answers.

    async def _on_prompt(self, asked: Any, _id: str | None, _context: Any) -> Any:
        return await self._answer(self._begin(asked.get("prompt")), "UserPromptSubmit")

    async def _on_tool(self, asked: Any, id: str | None, _context: Any) -> Any:
        id = asked.get("tool_use_id") or id or self.recorder.next_id("use")
        return await self._answer(self._may_use(id, asked), "PreToolUse")

    async def _may_use(self, id: str, asked: Mapping[str, Any]) -> None:
        """Wait until the call is in the log: what was answered before is counted by then. When
        the message does not come, as of a sub-agent that is not shown, it is written here.
        """
        try:
            await asyncio.wait_for(self._arrived[id].wait(), MESSAGE_SECONDS)
        except asyncio.TimeoutError:
            use = ToolUseBlock(id, str(asked.get("tool_name")), asked.get("tool_input") or {})
            await self._note_called(use, asked.get("agent_type"), None)
        self.recorder.check()

    async def _answer(self, asking: Awaitable[None], event: str) -> dict[str, Any]:
        try:
            await asking
        except AgentStateError as stop:
            # Whoever reads is told as well, once Claude Code has its answer.
            asyncio.get_running_loop().call_soon(self._stop_reading)
            denied = {"permissionDecision": "deny", "permissionDecisionReason": str(stop)}
            specific = {"hookEventName": event} | (denied if event == "PreToolUse" else {})
            return {"continue_": False, "stopReason": str(stop), "hookSpecificOutput": specific}
        return {}

    def _stop_reading(self) -> None:
        for reading in self._reading:
            reading.cancel()

    # Messages, in the order in which they come.

    async def _note(self, message: Any) -> None:
        if isinstance(message, AssistantMessage):
            await self._note_answer(message)
        elif isinstance(message, UserMessage) and isinstance(message.content, list):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    await self._note_returned(block)
        elif isinstance(message, ResultMessage):
            await self._note_result(message)

    async def _begin(self, prompt: str | None) -> None:
        """A prompt is given: the first model call follows."""
        self._is_prompted = True
        await self.do(self.recorder.note, "agent.started", input=prompt)
        await self._set_aside()

    async def _set_aside(self) -> None:
        """A model call follows: may it?"""
        self.recorder.check()
        if self._hold is None:
            hold = self.recorder.next_id("model")
            await self.do(self.recorder.write, None, also=self.recorder.holds(hold))
            self._hold = hold

    def _settle(self, usage: Usage, cost: Decimal | None) -> list[dict[str, Any]]:
        """What this and everything before it that was not charged yet takes from budgets."""
        owed = (self._unsettled[0] + usage, self._unsettled[1] + (cost or 0))
        if self._hold is None or owed == NOTHING:  # of answers side by side another had it
            self._unsettled = owed
            return []
        hold, self._hold, self._unsettled = self._hold, None, NOTHING
        return self.recorder.commits(*owed, hold)

    async def _note_answer(self, message: AssistantMessage) -> None:
        """An answer may come in parts; what it took is written with the first of them."""
        if not self._is_prompted:
            await self._begin(None)
        agent = self._agents.get(message.parent_tool_use_id or "")
        id = message.message_id or message.uuid or self.recorder.next_id("message")
        is_first, usage, cost = self._totals.take_answer(id, message.model, message.usage)
        uses = [block for block in message.content if isinstance(block, ToolUseBlock)]
        step = self._steps.setdefault(id, len(self._steps) + 1)
        told = {"step": step, "agent": agent, "model": message.model, "response_id": id}
        add: dict[str, int] = {}
        if is_first:
            add = {"steps_done": 1} | self.recorder.counted(usage, cost)
            told |= {"usage": usage.document(), "cost_usd": cost and written_cost(cost)}
        data = {name: value for name, value in told.items() if value is not None}
        data |= self.recorder.told(_said(message))
        event = Event("model.responded", data, id=self.recorder.next_id("answer"))
        if uses:  # its last part may have none: that is settled with the result
            await self.do(self.recorder.write, event, add=add, also=self._settle(usage, cost))
            await self._set_aside()
        else:
            self._unsettled = (self._unsettled[0] + usage, self._unsettled[1] + (cost or 0))
            await self.do(self.recorder.write, event, add=add)
        for block in uses:
            await self._note_called(block, agent, step)

    async def _note_called(self, block: ToolUseBlock, agent: str | None, step: int | None) -> None:
        """Once for each, whether the message or the hook is first."""
        async with self._one_at_a_time:
            if block.id in self._tools:
                return
            self._tools[block.id] = await self.do(
                self.recorder.tool_called,
                block.name,
                agent=agent,
                arguments=block.input,
                call_id=block.id,
                step=step,
            )
            if block.name in SUBAGENT_TOOLS:
                name = str(block.input.get("subagent_type") or block.name)
                self._agents[block.id] = name
                known = {"parent": agent}
                await self.do(self.recorder.note, "agent.started", agent=name, known=known)
            self._arrived[block.id].set()

    async def _note_returned(self, block: ToolResultBlock) -> None:
        tool = self._tools.get(block.tool_use_id)
        if tool is None:
            return
        if block.tool_use_id in self._agents:
            name = self._agents[block.tool_use_id]
            await self.do(self.recorder.note, "agent.finished", agent=name)
        await self.do(tool.failed if block.is_error else tool.returned, block.content)

    async def _note_result(self, message: ResultMessage) -> None:
        """The prompt is done: what it took in all is known now."""
        now = reported_of(message.model_usage, message.total_cost_usd)
        is_whole = await self._know_before(message.session_id)
        usage, cost = self._totals.take_result(message.session_id, now, is_whole=is_whole)
        told = {
            "session_id": message.session_id,
            "subtype": message.subtype,
            "turns": message.num_turns,
            "usage": usage.document(),
            "cost_usd": None if cost is None else written_cost(cost),
            "reported": now.document(),
        }
        data = {name: value for name, value in told.items() if value is not None}
        data |= self.recorder.told({"output": message.result})
        event = Event("agent.finished", data, id=self.recorder.next_id("result"))
        add, also = self.recorder.counted(usage, cost), self._settle(usage, cost)
        await self.do(self.recorder.write, event, add=add, also=also)
        self._is_prompted = False
        self.result = message.result if message.structured_output is None else (
            message.structured_output)  # fmt: skip
        failure = {"error": message.subtype, "detail": message.result or ""}
        self.recorder.failure = failure if message.is_error else None

    async def _know_before(self, session_id: str) -> bool:
        """Whether it is known what the session had reported before this process took it up."""
        if self._totals.knows(session_id) or not self._is_resumed:
            return True
        found = await self.do(self.recorder.noted, "agent.finished", session_id=session_id)
        if found is None:
            return False
        self._totals.learn(session_id, Reported.read(found.get("reported") or {}))
        return True


def _said(message: AssistantMessage) -> dict[str, Any]:
    """What there is of texts, thoughts and calls in this part of an answer."""
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    tools = [
        {"name": block.name, "arguments": block.input, "tool_call_id": block.id}
        for block in message.content
        if isinstance(block, (ToolUseBlock, ServerToolUseBlock))
    ]
    return {
        "text": "".join(texts) or None,
        "thought": "".join(thoughts) or None,
        "tool_calls": tools or None,
        "error": message.error,
    }
