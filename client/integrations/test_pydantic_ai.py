"""PydanticAI, with models that are made up: recorded, charged, stopped, ended."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace

import pytest
from conftest import LONG_TTL
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage
from recorded import held_run, planned, reclaim, spent, steps, total_tokens, types

from agentstate_client import BudgetExhausted, LeaseLost, StaleFence
from agentstate_client.pydantic_ai import AgentStateCapability
from agentstate_client.recording import Price, PriceUnknown

PRICES = {"made-up": Price("1", "2"), "test": Price("1", "2")}


def text(said):
    return TextPart(said)


def use(tool, id="c-1", **arguments):
    return ToolCallPart(tool, arguments, tool_call_id=id)


def clerk(*answers, name="clerk", **more):
    """Its model says these, one for each call; what can be called is called. 100 + 20 tokens."""
    left = list(answers)

    async def made_up(_messages, _info):
        agent.calls += 1
        answer = left.pop(0)
        if callable(answer):
            answer = await answer()
        usage = RequestUsage(input_tokens=100, output_tokens=20)
        return ModelResponse([answer], usage=usage)

    agent = Agent(FunctionModel(made_up, model_name="made-up"), name=name, **more)
    agent.calls = 0
    return agent


def test_steps_tokens_and_cost_are_recorded_exactly(agentstate_client):
    agent = clerk(use("add", a=2, b=3), text("five"))

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    with (
        held_run(agentstate_client) as run,
        AgentStateCapability(run, prices=PRICES) as recording,
    ):
        assert agent.run_sync("2 + 3?", capabilities=[recording]).output == "five"

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


def test_without_prices_the_cost_is_what_pydantic_ai_says_or_nothing(agentstate_client):
    class Known(FunctionModel):
        """What it answers is said to come from a provider whose prices are known."""

        async def request(self, *given):
            answered = await super().request(*given)
            return replace(answered, model_name="gpt-4o", provider_name="openai")

    def hello(_messages, _info):
        return ModelResponse([text("hi")], usage=RequestUsage(input_tokens=1_000, output_tokens=9))

    said = asyncio.run(Known(hello).request([], None, ModelRequestParameters())).cost().total_price
    planned(agentstate_client)
    with (
        agentstate_client.run("42").acquire(ttl_seconds=LONG_TTL) as run,
        AgentStateCapability(run, ends_run=False) as recording,
    ):
        Agent(Known(hello)).run_sync("?", capabilities=[recording])
    assert steps(agentstate_client, "cost_usd")[2] == ("model.responded", float(said))
    assert spent(agentstate_client)["money"][0] == int(said * 1_000_000) > 0

    with (
        pytest.raises(PriceUnknown, match="what made-up costs"),
        agentstate_client.run("42").acquire(ttl_seconds=LONG_TTL) as run,
        AgentStateCapability(run) as recording,
    ):
        clerk(text("hi")).run_sync("?", capabilities=[recording])
    assert "cost_usd" not in list(agentstate_client.run("42").events(origin="worker"))[-1].data


def test_an_agent_that_a_tool_runs_is_recorded_too(agentstate_client):
    expert = clerk(text("sunny"), name="expert")
    front = clerk(use("ask"), text("take a hat"))

    with (
        held_run(agentstate_client) as run,
        AgentStateCapability(run, prices=PRICES) as recording,
    ):

        @front.tool_plain
        async def ask() -> str:
            return (await expert.run("?", capabilities=[recording])).output

        front.run_sync("?", capabilities=[recording])

    assert steps(agentstate_client, "agent", "tool") == [
        ("agent.started", "clerk", None),
        ("model.called", "clerk", None),
        ("model.responded", "clerk", None),
        ("tool.called", "clerk", "ask"),
        ("agent.started", "expert", None),
        ("model.called", "expert", None),
        ("model.responded", "expert", None),
        ("agent.finished", "expert", None),
        ("tool.returned", "clerk", "ask"),
        ("model.called", "clerk", None),
        ("model.responded", "clerk", None),
        ("agent.finished", "clerk", None),
    ]
    assert agentstate_client.run("42").read().result == "take a hat"
    assert spent(agentstate_client)["tokens"] == (360, 0)


def test_a_stream_is_recorded_as_well(agentstate_server):
    agent = Agent(TestModel(custom_output_text="sunny and warm"), name="clerk")

    async def go():
        async with (
            agentstate_server.async_client("mine") as client,
            client.run("42").acquire(ttl_seconds=LONG_TTL) as run,
            AgentStateCapability(run, prices=PRICES) as recording,
            agent.run_stream("?", capabilities=[recording]) as streamed,
        ):
            return [piece async for piece in streamed.stream_text()]

    client = agentstate_server.client()
    planned(client)
    assert asyncio.run(go())[-1] == "sunny and warm"
    assert types(client) == ["agent.started", "model.called", "model.responded", "agent.finished"]
    record = client.run("42").read()
    assert (record.status, record.result) == ("completed", "sunny and warm")
    assert record.counters["tokens_spent"] == total_tokens(client) > 0
    assert spent(client)["tokens"] == (total_tokens(client), 0)


def test_a_tool_that_wants_another_try_and_a_model_that_fails(agentstate_client):
    async def down():
        raise ConnectionError("the model is down")

    agent = clerk(use("odd"), down)

    @agent.tool_plain
    def odd() -> str:
        raise ModelRetry("say it better")

    with (
        pytest.raises(ConnectionError),
        held_run(agentstate_client) as run,
        AgentStateCapability(run, prices=PRICES) as recording,
    ):
        agent.run_sync("?", capabilities=[recording])
    told = steps(agentstate_client, "error")
    assert [type for type, error in told if error] == ["tool.failed", "model.failed"]
    record = agentstate_client.run("42").read()
    assert (record.status, record.result["error"]) == ("failed", "ConnectionError")
    assert spent(agentstate_client)["tokens"] == (120, 0)


def test_no_model_is_called_once_a_cap_is_reached(agentstate_client):
    agent = clerk(*[use("look")] * 3)

    @agent.tool_plain
    def look() -> str:
        return "sunny"

    with (
        pytest.raises(BudgetExhausted),
        held_run(agentstate_client, cap=130) as run,
        AgentStateCapability(run, prices=PRICES) as recording,
    ):
        agent.run_sync("?", capabilities=[recording])
    assert agent.calls == 2
    assert spent(agentstate_client)["tokens"] == (240, 0)
    record = agentstate_client.run("42").read()
    assert (record.status, record.result["error"]) == ("failed", "BudgetExhausted")


def test_who_is_overtaken_in_a_tool_stops_there_and_writes_nothing_after(agentstate_server):
    mine, other = agentstate_server.client("mine"), agentstate_server.client("other")
    agent = clerk(use("overtaken"), text("never said"))

    @agent.tool_plain
    def overtaken() -> str:
        reclaim(other)
        return "done"

    with (
        pytest.raises((LeaseLost, StaleFence)),
        held_run(mine) as run,
        AgentStateCapability(run, prices=PRICES) as recording,
    ):
        agent.run_sync("?", capabilities=[recording])
    assert agent.calls == 1
    assert types(other)[-1] == "tool.called"
    assert other.run("42").read().status == "running"


def test_a_model_call_is_broken_off_when_the_lease_is_lost(agentstate_server):
    other = agentstate_server.client("other")
    planned(other)

    async def never():
        await asyncio.to_thread(reclaim, other)
        await asyncio.Event().wait()

    async def go():
        async with (
            agentstate_server.async_client("mine") as client,
            client.run("42").acquire(ttl_seconds=3) as run,
            AgentStateCapability(run, prices=PRICES) as recording,
        ):
            await clerk(never).run("?", capabilities=[recording])

    with pytest.raises((LeaseLost, StaleFence)):
        asyncio.run(go())
    assert types(other) == ["agent.started", "model.called"]
    assert other.run("42").read().status == "running"


def test_after_kill_9_another_attempt_completes_the_run(agentstate_server, starting, tmp_path):
    client = agentstate_server.client("second")
    planned(client)
    first = starting("agent_process.py", "pydantic_ai", agentstate_server.url,
                     agentstate_server.key, LONG_TTL, tmp_path)  # fmt: skip
    first.says("in the tool")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(30)
    reclaim(client)  # or its lease runs out
    killed = types(client)
    assert killed == ["agent.started", "model.called", "model.responded", "tool.called"]

    (tmp_path / "go").touch()
    second = starting("agent_process.py", "pydantic_ai", agentstate_server.url,
                      agentstate_server.key, LONG_TTL, tmp_path)  # fmt: skip
    second.says("done sunny")
    whole = ["agent.started", "model.called", "model.responded", "tool.called", "tool.returned",
             "model.called", "model.responded", "agent.finished"]  # fmt: skip
    assert types(client) == [*killed, *whole]
    record = client.run("42").read()
    assert (record.status, record.attempt) == ("completed", 2)
    assert spent(client)["tokens"] == (3 * 120, 0)
