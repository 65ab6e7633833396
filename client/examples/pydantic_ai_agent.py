"""An agent of PydanticAI, whose steps, tokens and cost are on a run of agentstate.

    AGENTSTATE_URL=http://127.0.0.1:8000 AGENTSTATE_KEY=… python pydantic_ai_agent.py 42

The model is PydanticAI's own FunctionModel, so it runs offline.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from agentstate_client import AsyncClient, Exists, NewBudget
from agentstate_client.pydantic_ai import AgentStateCapability
from agentstate_client.recording import Price

PRICES = {"made-up": Price("0.15", "0.60")}  # US dollars for a million tokens


def made_up(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Calls the tool, then says what it returned."""
    last = messages[-1].parts[-1]
    usage = RequestUsage(input_tokens=120, output_tokens=30)
    if last.part_kind == "tool-return":
        return ModelResponse([TextPart(f"It is {last.content}.")], usage=usage)
    return ModelResponse([ToolCallPart("weather", {"place": "Rome"})], usage=usage)


agent = Agent(FunctionModel(made_up, model_name="made-up"), name="clerk", instructions="Be brief.")


@agent.tool_plain
def weather(place: str) -> str:
    """The weather at a place."""
    return f"sunny in {place}"


async def main(key: str) -> None:
    async with AsyncClient(os.environ["AGENTSTATE_URL"], os.environ["AGENTSTATE_KEY"]) as client:
        try:
            await client.create(
                key=key,
                task="weather",
                budgets=[
                    NewBudget("tokens", cap=10_000),
                    NewBudget("money", cap=5_000, unit="usd_micros"),
                ],
            )
        except Exists:
            print("the run is there already")
        async with (
            client.run(key).acquire(ttl_seconds=60) as run,
            AgentStateCapability(run, prices=PRICES) as recording,
        ):
            done = await agent.run("How is the weather in Rome?", capabilities=[recording])
        print(done.output)
        async for event in client.run(key).events(origin="worker"):
            print(event.seq, event.type, (event.data or {}).get("usage", ""))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "42"))
