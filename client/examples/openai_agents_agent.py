"""An agent of the OpenAI Agents SDK, whose steps, tokens and cost are on a run of agentstate.

    AGENTSTATE_URL=http://127.0.0.1:8000 AGENTSTATE_KEY=… python openai_agents_agent.py 42

The model is made up, so it runs offline. Without it the agent's own model is asked.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from agents.tracing import set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agentstate_client import Client, Exists, NewBudget
from agentstate_client.openai_agents import AgentStateHooks
from agentstate_client.recording import Price

PRICES = {"made-up": Price("0.15", "0.60")}  # US dollars for a million tokens


class MadeUp(Model):
    """Calls the tool, then says what it returned."""

    model = "made-up"

    async def get_response(self, *, input: Any, **_more: Any) -> Any:
        results = [item for item in input if item.get("type") == "function_call_output"]
        if results:
            text = ResponseOutputText(
                text=f"It is {results[-1]['output']}.", type="output_text", annotations=[]
            )
            said: Any = ResponseOutputMessage(
                id="m", role="assistant", status="completed", type="message", content=[text]
            )
        else:
            said = ResponseFunctionToolCall(
                name="weather", arguments='{"place": "Rome"}', call_id="c-1", type="function_call"
            )
        usage = Usage(requests=1, input_tokens=120, output_tokens=30, total_tokens=150)
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *_given: Any, **_more: Any) -> Any:
        raise NotImplementedError("nothing is streamed here")


@function_tool
def weather(place: str) -> str:
    """The weather at a place."""
    return f"sunny in {place}"


def main(key: str) -> None:
    set_tracing_disabled(True)  # the SDK would send its traces to OpenAI
    agent = Agent(name="clerk", instructions="Be brief.", model=MadeUp(), tools=[weather])
    with Client(os.environ["AGENTSTATE_URL"], os.environ["AGENTSTATE_KEY"]) as client:
        try:
            client.create(
                key=key,
                task="weather",
                budgets=[
                    NewBudget("tokens", cap=10_000),
                    NewBudget("money", cap=5_000, unit="usd_micros"),
                ],
            )
        except Exists:
            print("the run is there already")
        with (
            client.run(key).acquire(ttl_seconds=60) as run,
            AgentStateHooks(run, prices=PRICES) as hooks,
        ):
            done = Runner.run_sync(agent, "How is the weather in Rome?", hooks=hooks)
        print(done.final_output)
        for event in client.run(key).events(origin="worker"):
            print(event.seq, event.type, (event.data or {}).get("usage", ""))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "42")
