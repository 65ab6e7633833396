"""OpenAI Agents SDK, with a model that is made up: recorded, charged, stopped, ended."""

from __future__ import annotations

import asyncio
import signal

import pytest
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from agents.tracing import set_tracing_disabled
from conftest import LONG_TTL
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)
from recorded import held_run, planned, reclaim, spent, steps, total_tokens, types

from agentstate_client import BudgetExhausted, LeaseLost, StaleFence
from agentstate_client.openai_agents import AgentStateHooks
from agentstate_client.recording import Price

PRICES = {"made-up": Price("1", "2")}
set_tracing_disabled(True)


def text(said):
    content = [ResponseOutputText(text=said, type="output_text", annotations=[])]
    return ResponseOutputMessage(
        id="m", role="assistant", status="completed", type="message", content=content
    )


def use(tool, arguments="{}", id="c-1"):
    return ResponseFunctionToolCall(
        name=tool, arguments=arguments, call_id=id, type="function_call"
    )


class MadeUp(Model):
    """Says these, one list for each call; of what can be called, it is called. 100 + 20 tokens."""

    model = "made-up"

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), 0

    async def get_response(self, *_given, **_more):
        self.calls += 1
        answer = self.answers.pop(0)
        if callable(answer):
            answer = await answer()
        usage = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
        return ModelResponse(output=answer, usage=usage, response_id=f"r-{self.calls}")

    async def stream_response(self, *given, **more):
        answered = await self.get_response(*given, **more)
        usage = ResponseUsage(
            input_tokens=100, output_tokens=20, total_tokens=120,
            input_tokens_details={"cached_tokens": 0, "cache_write_tokens": 0},
            output_tokens_details={"reasoning_tokens": 5},
        )  # fmt: skip
        response = Response(
            id=answered.response_id, created_at=0, model="made-up", object="response",
            output=answered.output, tool_choice="auto", tools=[], parallel_tool_calls=True,
            usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(
            response=response, sequence_number=1, type="response.completed"
        )


def clerk(*answers, tools=(), **more):
    return Agent(name="clerk", instructions="Be brief.", model=MadeUp(*answers),
                 tools=list(tools), **more)  # fmt: skip


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def test_steps_tokens_and_cost_are_recorded_exactly(agentstate_client):
    agent = clerk([use("add", '{"a": 2, "b": 3}')], [text("five")], tools=[add])
    with (
        held_run(agentstate_client) as run,
        AgentStateHooks(run, prices=PRICES) as hooks,
    ):
        assert Runner.run_sync(agent, "2 + 3?", hooks=hooks).final_output == "five"

    assert steps(agentstate_client, "step", "tool", "text", "arguments", "output") == [
        ("agent.started", None, None, None, None, None),
        ("model.called", 1, None, None, None, None),
        ("model.responded", 1, None, None, None, None),
        ("tool.called", 1, "add", None, {"a": 2, "b": 3}, None),
        ("tool.returned", 1, "add", None, None, 5),
        ("model.called", 2, None, None, None, None),
        ("model.responded", 2, None, "five", None, None),
        ("agent.finished", None, None, None, None, "five"),
    ]
    record = agentstate_client.run("42").read()
    assert (record.status, record.result) == ("completed", "five")
    assert record.counters == {"steps_done": 2, "tokens_spent": 240, "cost_usd_micros": 280}
    assert spent(agentstate_client) == {"tokens": (240, 0), "money": (280, 0)}
    assert total_tokens(agentstate_client) == 240


def test_handoffs_and_agents_that_are_tools_are_told(agentstate_client):
    expert = Agent(name="expert", model=MadeUp([text("sunny")]))
    billing = Agent(
        name="billing", model=MadeUp([use("ask", '{"input": "?"}', id="c-2")], [text("paid")])
    )
    front = clerk([use("transfer_to_billing")], handoffs=[billing])
    with (
        held_run(agentstate_client) as run,
        AgentStateHooks(run, prices=PRICES) as hooks,
    ):
        ask = expert.as_tool(tool_name="ask", tool_description="Asks.", hooks=hooks)
        billing.tools = [ask]
        Runner.run_sync(front, "pay", hooks=hooks)

    assert steps(agentstate_client, "agent", "to", "tool") == [
        ("agent.started", "clerk", None, None),
        ("model.called", "clerk", None, None),
        ("model.responded", "clerk", None, None),
        ("agent.handed_off", "clerk", "billing", None),
        ("agent.started", "billing", None, None),
        ("model.called", "billing", None, None),
        ("model.responded", "billing", None, None),
        ("tool.called", "billing", None, "ask"),
        ("agent.started", "expert", None, None),
        ("model.called", "expert", None, None),
        ("model.responded", "expert", None, None),
        ("agent.finished", "expert", None, None),
        ("tool.returned", "billing", None, "ask"),
        ("model.called", "billing", None, None),
        ("model.responded", "billing", None, None),
        ("agent.finished", "billing", None, None),
    ]
    assert agentstate_client.run("42").read().result == "paid"
    assert spent(agentstate_client)["tokens"] == (480, 0)


def test_a_stream_is_recorded_as_well(agentstate_server):
    async def go():
        async with (
            agentstate_server.async_client("mine") as client,
            client.run("42").acquire(ttl_seconds=LONG_TTL) as run,
            AgentStateHooks(run, prices=PRICES) as hooks,
        ):
            agent = clerk([use("add", '{"a": 1, "b": 1}')], [text("two")], tools=[add])
            streamed = Runner.run_streamed(agent, "1 + 1?", hooks=hooks)
            async for _event in streamed.stream_events():
                pass

    client = agentstate_server.client()
    planned(client)
    asyncio.run(go())
    assert steps(client, "text")[-2:] == [("model.responded", "two"), ("agent.finished", None)]
    usage = steps(client, "usage")[2][1]
    assert usage == {"input_tokens": 100, "output_tokens": 20, "reasoning.output_tokens": 5}
    assert client.run("42").read().result == "two"
    assert spent(client) == {"tokens": (240, 0), "money": (280, 0)}


def test_a_model_that_fails_fails_the_run_and_costs_nothing(agentstate_client):
    async def down():
        raise ConnectionError("the model is down")

    with (
        pytest.raises(ConnectionError),
        held_run(agentstate_client) as run,
        AgentStateHooks(run, prices=PRICES) as hooks,
    ):
        Runner.run_sync(clerk(down), "?", hooks=hooks)
    assert steps(agentstate_client, "error")[-1] == ("model.failed", "ConnectionError")
    record = agentstate_client.run("42").read()
    assert (record.status, record.result["error"]) == ("failed", "ConnectionError")
    assert spent(agentstate_client)["tokens"] == (0, 0)


def test_no_model_is_called_once_a_cap_is_reached(agentstate_client):
    again = [use("add", '{"a": 1, "b": 1}')]
    agent = clerk(again, again, again, tools=[add])
    with (
        pytest.raises(BudgetExhausted),
        held_run(agentstate_client, cap=130) as run,
        AgentStateHooks(run, prices=PRICES) as hooks,
    ):
        Runner.run_sync(agent, "?", hooks=hooks)
    assert agent.model.calls == 2
    assert spent(agentstate_client)["tokens"] == (240, 0)
    record = agentstate_client.run("42").read()
    assert (record.status, record.result["error"]) == ("failed", "BudgetExhausted")


def test_who_is_overtaken_in_a_tool_stops_there_and_writes_nothing_after(agentstate_server):
    mine, other = agentstate_server.client("mine"), agentstate_server.client("other")

    @function_tool
    def overtaken() -> str:
        """Somebody else takes the run meanwhile."""
        reclaim(other)
        return "done"

    agent = clerk([use("overtaken")], [text("never said")], tools=[overtaken])
    with (
        pytest.raises((LeaseLost, StaleFence)),
        held_run(mine) as run,
        AgentStateHooks(run, prices=PRICES) as hooks,
    ):
        Runner.run_sync(agent, "?", hooks=hooks)
    assert agent.model.calls == 1
    assert types(other)[-1] == "tool.called"
    assert other.run("42").read().status == "running"
    assert other.run("42").acquire(ttl_seconds=LONG_TTL).lease.token is not None


def test_a_model_call_is_broken_off_when_the_lease_is_lost(agentstate_server):
    other = agentstate_server.client("other")

    async def go():
        async with agentstate_server.async_client("mine") as client:
            planned(other)

            async def never():
                await asyncio.to_thread(reclaim, other)
                await asyncio.Event().wait()

            async with (
                client.run("42").acquire(ttl_seconds=3) as run,
                AgentStateHooks(run, prices=PRICES) as hooks,
            ):
                await Runner.run(clerk(never), "?", hooks=hooks)

    with pytest.raises((LeaseLost, StaleFence)):
        asyncio.run(go())
    assert types(other) == ["agent.started", "model.called"]
    assert other.run("42").read().status == "running"


def test_after_kill_9_another_attempt_completes_the_run(agentstate_server, starting, tmp_path):
    client = agentstate_server.client("second")
    planned(client)
    first = starting("agent_process.py", "openai_agents", agentstate_server.url,
                     agentstate_server.key, LONG_TTL, tmp_path)  # fmt: skip
    first.says("in the tool")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(30)
    reclaim(client)  # or its lease runs out
    killed = types(client)
    assert killed == ["agent.started", "model.called", "model.responded", "tool.called"]

    (tmp_path / "go").touch()
    second = starting("agent_process.py", "openai_agents", agentstate_server.url,
                      agentstate_server.key, LONG_TTL, tmp_path)  # fmt: skip
    second.says("done sunny")
    whole = ["agent.started", "model.called", "model.responded", "tool.called", "tool.returned",
             "model.called", "model.responded", "agent.finished"]  # fmt: skip
    assert types(client) == [*killed, *whole]
    record = client.run("42").read()
    assert (record.status, record.attempt) == ("completed", 2)
    assert record.counters["steps_done"] == 3
    assert spent(client)["tokens"] == (3 * 120, 0)
