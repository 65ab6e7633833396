"""OpenAI Agents SDK: run hooks that record on a run.

>>> from agentstate_client.openai_agents import AgentStateHooks
>>> with client.run("42").acquire() as run, AgentStateHooks(run) as hooks:
...     Runner.run_sync(agent, "how many?", hooks=hooks)

`pip install agentstate-client[openai-agents]`. How: docs/integrations/openai-agents.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import ItemHelpers, RunHooks
from agents.items import ModelResponse

from agentstate_client._async.runs import AsyncRun
from agentstate_client._sync.runs import Run
from agentstate_client.recording import Price, Recording, Usage

__all__ = ["AgentStateHooks"]


class AgentStateHooks(Recording, RunHooks[Any]):
    """A block, and the hooks for `Runner.run(…, hooks=hooks)` in it; also for `run_streamed`.

    run: held, of a Client or an AsyncClient. model: what a model is called when neither agent nor
    answer says so, as with `RunConfig(model=…)`. prices, content, ends_run: as Recorder has them.

    Model calls, tools, handoffs and agents become events. The run is completed with the output of
    the last agent that ended, unless `hooks.result` is set in the block. A hook that is refused
    (LeaseLost, StaleFence, BudgetExhausted, CancelRequested) stops the agent there, and the block
    raises it, whatever the SDK made of it.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        *,
        model: str | None = None,
        prices: Mapping[str, Price] | None = None,
        content: bool = True,
        ends_run: bool = True,
    ) -> None:
        super().__init__(run, prices=prices, content=content, ends_run=ends_run)
        self._model = model
        # By the SDK's own objects: those of an agent, or of a tool, that is under way.
        self._calls: dict[tuple[int, str], Any] = {}

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        instructions = agent.instructions if isinstance(agent.instructions, str) else None
        await self.do(
            self.recorder.note,
            "agent.started",
            agent=agent.name,
            instructions=instructions,
            input=getattr(context, "turn_input", None) or None,
        )

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await self.do(self.recorder.note, "agent.finished", agent=agent.name, output=output)
        self.result = output

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        to = {"to": to_agent.name}
        await self.do(self.recorder.note, "agent.handed_off", agent=from_agent.name, known=to)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        self._calls[id(context), agent.name] = await self.do(
            self.recorder.model_called,
            agent=agent.name,
            model=_model_of(agent) or self._model,
            messages=len(input_items),
        )

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        call = self._calls.pop((id(context), agent.name))
        text, tools = _said(response)
        await self.do(
            call.responded,
            usage=_usage_of(response),
            response_id=response.response_id,
            text=text,
            tool_calls=tools,
        )

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self._calls[id(context), tool.name] = await self.do(
            self.recorder.tool_called,
            tool.name,
            agent=agent.name,
            arguments=getattr(context, "tool_arguments", None),
            call_id=getattr(context, "tool_call_id", None),
        )

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        call = self._calls.pop((id(context), tool.name), None)
        if call is not None:
            await self.do(call.returned, result)


def _model_of(agent: Any) -> str | None:
    name = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
    return name if isinstance(name, str) else None


def _said(response: ModelResponse) -> tuple[str | None, list[dict[str, Any]] | None]:
    """The text of an answer, and what it wants to be called."""
    texts, tools = [], []
    for item in response.output:
        if item.type == "message":
            texts.append(ItemHelpers.extract_text(item))
        elif item.type != "reasoning":
            said = {name: getattr(item, name, None) for name in ("type", "name", "arguments")}
            said["tool_call_id"] = getattr(item, "call_id", None)
            tools.append({name: value for name, value in said.items() if value is not None})
    return "".join(text or "" for text in texts) or None, tools or None


def _usage_of(response: ModelResponse) -> Usage:
    told = response.usage
    return Usage(
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        cache_read_input_tokens=getattr(told.input_tokens_details, "cached_tokens", 0) or 0,
        reasoning_output_tokens=getattr(told.output_tokens_details, "reasoning_tokens", 0) or 0,
    )
