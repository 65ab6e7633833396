"""PydanticAI: a capability that records on a run.

>>> from agentstate_client.pydantic_ai import AgentStateCapability
>>> with client.run("42").acquire() as run, AgentStateCapability(run) as recording:
...     agent.run_sync("how many?", capabilities=[recording])

`pip install agentstate-client[pydantic-ai]`. How: docs/integrations/pydantic-ai.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from agentstate_client._async.runs import AsyncRun
from agentstate_client._sync.runs import Run
from agentstate_client.recording import Price, Recording, Usage
from agentstate_client.usage import dollars_of

__all__ = ["AgentStateCapability"]


class AgentStateCapability(Recording, AbstractCapability[Any]):
    """A block, and the capability for `agent.run(…, capabilities=[recording])` in it; also for
    `run_sync`, `run_stream` and `iter`. Given to the agents that tools run, too, it records them.

    run: held, of a Client or an AsyncClient. prices: by model; for a model without one the cost
    is what PydanticAI computes (genai-prices), when it knows the model. content, ends_run: as
    Recorder has them.

    Agents, model requests and tools become events. The run is completed with the output of the
    last agent that ended, unless `recording.result` is set in the block. What is refused
    (LeaseLost, StaleFence, BudgetExhausted, CancelRequested) stops the agent there, and the block
    raises it, whatever was made of it on the way.
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
        # By the agent's run: each has one model call under way at most.
        self._calls: dict[str, Any] = {}

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        agent = _agent_of(ctx)
        await self.do(self.recorder.note, "agent.started", agent=agent, input=ctx.prompt)
        result = await handler()
        await self.do(self.recorder.note, "agent.finished", agent=agent, output=result.output)
        self.result = result.output
        return result

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
        self._calls[ctx.run_id] = await self.do(
            self.recorder.model_called,
            agent=_agent_of(ctx),
            model=request_context.model.model_name,
            messages=len(request_context.messages),
        )
        return request_context

    async def after_model_request(
        self, ctx: Any, *, request_context: Any, response: ModelResponse
    ) -> ModelResponse:
        call = self._calls.pop(ctx.run_id, None)
        if call is not None:
            await self.do(
                call.responded,
                usage=_usage_of(response),
                model=response.model_name,
                cost_usd=self._cost_of(response, request_context.model.model_name),
                response_id=response.provider_response_id,
                text="".join(p.content for p in response.parts if isinstance(p, TextPart)) or None,
                tool_calls=_tools_of(response) or None,
            )
        return response

    async def on_model_request_error(
        self, ctx: Any, *, request_context: Any, error: Exception
    ) -> ModelResponse:
        call = self._calls.pop(ctx.run_id, None)
        if call is not None:
            await self.do(call.failed, error)
        raise error

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        used = await self.do(
            self.recorder.tool_called,
            call.tool_name,
            agent=_agent_of(ctx),
            arguments=args,
            call_id=call.tool_call_id,
        )
        try:
            result = await handler(args)
        except (ApprovalRequired, CallDeferred) as later:
            await self.do(used.returned, deferred=type(later).__name__)
            raise
        except Exception as error:
            await self.do(used.failed, error)
            raise
        await self.do(used.returned, result)
        return result

    def _cost_of(self, response: ModelResponse, asked: str) -> Decimal | None:
        """What PydanticAI says, for a model that the caller's table lacks."""
        if self.recorder.has_price(response.model_name, asked):
            return None
        try:
            return dollars_of(response.cost().total_price)
        except (LookupError, ValueError, AssertionError):
            return None


def _agent_of(ctx: Any) -> str | None:
    name = getattr(ctx.agent, "name", None)
    return name if isinstance(name, str) else None


def _tools_of(response: ModelResponse) -> list[dict[str, Any]]:
    return [
        {"name": part.tool_name, "arguments": part.args, "tool_call_id": part.tool_call_id}
        for part in response.parts
        if isinstance(part, ToolCallPart)
    ]


def _usage_of(response: ModelResponse) -> Usage:
    told = response.usage
    return Usage(
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        cache_read_input_tokens=told.cache_read_tokens,
        cache_creation_input_tokens=told.cache_write_tokens,
        reasoning_output_tokens=told.details.get("reasoning_tokens", 0),
    )
