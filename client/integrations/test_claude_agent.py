"""Claude Agent SDK, with a Claude Code that is made up: recorded, charged, stopped, ended."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, query
from conftest import LONG_TTL
from recorded import planned, reclaim, spent, steps, total_tokens, types

from agentstate_client import BudgetExhausted, LeaseLost, StaleFence
from agentstate_client.claude_agent import AgentStateSession
from agentstate_client.recording import Price

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from made_up.claude import MadeUpClaude

CALL = 120 + 30  # tokens, as its results have it; its answers tell 120 + 1


async def recorded(server, claude, *, ttl_seconds=LONG_TTL, options=None, prices=None):
    """Ask once, in a block of its own; the messages."""
    async with (
        server.async_client("mine") as client,
        client.run("42").acquire(ttl_seconds=ttl_seconds) as run,
        AgentStateSession(run, prices=prices) as session,
    ):
        asked = query(prompt="How?", options=session.options(options), transport=claude)
        return [message async for message in session.watch(asked)]


@pytest.fixture
def client(agentstate_server):
    client = agentstate_server.client("other")
    planned(client)
    return client


def test_steps_tokens_and_cost_are_recorded_exactly(agentstate_server, client):
    messages = asyncio.run(recorded(agentstate_server, MadeUpClaude()))
    assert isinstance(messages[-1], ResultMessage)

    assert steps(client, "step", "tool", "text", "arguments", "output") == [
        ("agent.started", None, None, None, None, None),
        ("model.responded", 1, None, "I look.", None, None),
        ("model.responded", 1, None, None, None, None),
        ("tool.called", 1, "Read", None, {"file_path": "page-1"}, None),
        ("tool.returned", 1, "Read", None, None, "sunny in Rome"),
        ("model.responded", 2, None, "It is sunny in Rome.", None, None),
        ("agent.finished", None, None, None, None, "It is sunny in Rome."),
    ]
    record = client.run("42").read()
    assert (record.status, record.result) == ("completed", "It is sunny in Rome.")
    # One answer in two parts is one; what the answers did not tell yet comes with the result.
    assert record.counters == {"steps_done": 2, "tokens_spent": 300, "cost_usd_micros": 5_000}
    assert spent(client) == {"tokens": (2 * CALL, 0), "money": (5_000, 0)}
    assert total_tokens(client) == 2 * CALL


def test_running_totals_of_a_client_are_counted_once(agentstate_server, client):
    async def go():
        claude = MadeUpClaude()
        async with (
            agentstate_server.async_client("mine") as mine,
            mine.run("42").acquire(ttl_seconds=LONG_TTL) as run,
            AgentStateSession(run) as session,
            ClaudeSDKClient(session.options(), transport=claude) as asking,
        ):
            for _ in range(2):
                await asking.query("How?")
                async for _message in session.watch(asking.receive_response()):
                    pass

    asyncio.run(go())
    assert spent(client) == {"tokens": (4 * CALL, 0), "money": (10_000, 0)}
    assert client.run("42").read().counters["cost_usd_micros"] == 10_000


def test_prices_of_the_caller_go_before_what_claude_code_says(agentstate_server, client):
    asyncio.run(recorded(agentstate_server, MadeUpClaude(), prices={"made-up": Price("1", "2")}))
    assert spent(client)["money"] == (2 * (120 + 2 * 30), 0)


def test_a_session_that_goes_on_in_another_attempt_is_not_charged_twice(agentstate_server, client):
    class Resumed(MadeUpClaude):
        """Its totals are those of the whole session, as with the newer ones."""

        def __init__(self):
            super().__init__(reads=0)
            self.calls = 2

    async def go():
        async with agentstate_server.async_client("mine") as mine:
            for claude, resume in ((MadeUpClaude(), None), (Resumed(), "5f0f2a3e")):
                async with (
                    mine.run("42").acquire(ttl_seconds=LONG_TTL) as run,
                    AgentStateSession(run, ends_run=False) as session,
                ):
                    options = session.options(ClaudeAgentOptions(resume=resume))
                    asked = query(prompt="?", options=options, transport=claude)
                    async for _message in session.watch(asked):
                        pass

    asyncio.run(go())
    assert spent(client) == {"tokens": (3 * CALL, 0), "money": (7_500, 0)}


def test_no_model_is_called_once_a_cap_is_reached(agentstate_server):
    client = agentstate_server.client("other")
    planned(client, cap=130)
    claude = MadeUpClaude(reads=5)
    with pytest.raises(BudgetExhausted):
        asyncio.run(recorded(agentstate_server, claude))
    assert (claude.calls, claude.tools) == (2, 1)
    assert spent(client)["tokens"] == (242, 0)
    record = client.run("42").read()
    assert (record.status, record.result["error"]) == ("failed", "BudgetExhausted")


def test_what_is_left_of_a_budget_in_money_is_told_to_claude_code(agentstate_server, client):
    async def go():
        async with (
            agentstate_server.async_client("mine") as mine,
            mine.run("42").acquire(ttl_seconds=LONG_TTL) as run,
            AgentStateSession(run, ends_run=False) as session,
        ):
            given = ClaudeAgentOptions(max_budget_usd=5.0)
            return session.options().max_budget_usd, session.options(given).max_budget_usd

    assert asyncio.run(go()) == (1.0, 1.0)


def test_who_is_overtaken_stops_before_its_tool_and_writes_nothing_after(agentstate_server, client):
    taken_at = []

    def take():
        reclaim(client)
        taken_at.append(client.run("42").read().last_seq)

    class Overtaken(MadeUpClaude):
        async def think(self):
            await super().think()
            if self.calls == 2:
                await asyncio.to_thread(take)

    claude = Overtaken(reads=3)
    with pytest.raises((LeaseLost, StaleFence)):
        asyncio.run(recorded(agentstate_server, claude))
    assert claude.tools == 1
    record = client.run("42").read()
    assert (record.status, record.last_seq) == ("running", *taken_at)


def test_a_model_call_is_broken_off_when_the_lease_is_lost(agentstate_server, client):
    class Silent(MadeUpClaude):
        closed = False

        async def think(self):
            await asyncio.to_thread(reclaim, client)
            await asyncio.Event().wait()

        async def close(self):
            self.closed = True
            await super().close()

    claude = Silent()
    with pytest.raises((LeaseLost, StaleFence)):
        asyncio.run(recorded(agentstate_server, claude, ttl_seconds=3))
    assert claude.closed
    assert types(client) == ["agent.started"]
    assert client.run("42").read().status == "running"


def test_a_result_that_is_an_error_fails_the_run(agentstate_server, client):
    class Failing(MadeUpClaude):
        async def think(self):
            await super().think()
            self._end("no more", is_error=True)
            await asyncio.Event().wait()

    asyncio.run(recorded(agentstate_server, Failing()))
    record = client.run("42").read()
    assert (record.status, record.result) == (
        "failed", {"error": "error_during_execution", "detail": "no more"})  # fmt: skip
    assert spent(client)["tokens"] == (CALL, 0)


def test_after_kill_9_another_attempt_completes_the_run(agentstate_server, starting, tmp_path):
    client = agentstate_server.client("second")
    planned(client)
    first = starting("agent_process.py", "claude_agent", agentstate_server.url,
                     agentstate_server.key, LONG_TTL, tmp_path)  # fmt: skip
    first.says("in the tool")
    first.until(lambda: types(client)[-1] == "tool.returned")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(30)
    reclaim(client)  # or its lease runs out
    killed = types(client)

    (tmp_path / "go").touch()
    second = starting("agent_process.py", "claude_agent", agentstate_server.url,
                      agentstate_server.key, LONG_TTL, tmp_path)  # fmt: skip
    second.says("done It is sunny in Rome.")
    whole = ["agent.started", "model.responded", "model.responded", "tool.called",
             "tool.returned", "model.responded", "agent.finished"]  # fmt: skip
    assert types(client) == [*killed, *whole]
    record = client.run("42").read()
    assert (record.status, record.attempt) == ("completed", 2)
    assert spent(client)["tokens"] == (121 + 2 * CALL, 0)


class Delegating(MadeUpClaude):
    """Has a sub-agent read the page. shown: whether the sub-agent's messages come as well."""

    def __init__(self, *, shown: bool) -> None:
        super().__init__()
        self.shown = shown

    def _tell(self, kind, block, *, id="", parent=None):
        message = {"role": kind, "content": [block]}
        if kind == "assistant":
            message |= {"id": id, "type": "message", "model": "made-up",
                        "usage": {"input_tokens": 120, "output_tokens": 1}}  # fmt: skip
        self._out.put_nowait({"type": kind, "message": message, "session_id": "s",
                              "parent_tool_use_id": parent})  # fmt: skip

    async def _use(self, name, id, asked, *, parent=None, agent=None):
        use = {"type": "tool_use", "id": id, "name": name, "input": asked}
        if parent is None or self.shown:
            self._tell("assistant", use, id=f"msg-{id}", parent=parent)
        hook = {"tool_name": name, "tool_input": asked, "tool_use_id": id}
        hook |= {"agent_type": agent, "agent_id": "a-1"} if agent else {}
        assert not await self._is_stopped("PreToolUse", hook)

    def _return(self, id, text, *, parent=None):
        if parent is None or self.shown:
            block = {"type": "tool_result", "tool_use_id": id, "content": text}
            self._tell("user", block, parent=parent)

    async def _work(self, prompt):
        await self._is_stopped("UserPromptSubmit", {"prompt": prompt})
        await self.think()
        await self._use("Task", "task-1", {"subagent_type": "clerk", "prompt": "read it"})
        await self.think()
        await self._use("Read", "read-1", {"file_path": "page-1"}, parent="task-1", agent="clerk")
        self._return("read-1", "sunny in Rome", parent="task-1")
        self._return("task-1", "It is sunny.")
        await self.think()
        self._say("msg-last", {"type": "text", "text": "Sunny."})
        self._end("Sunny.")


@pytest.mark.parametrize("shown", [True, False])
def test_a_sub_agents_steps_say_whose_they_are_also_when_its_messages_do_not_come(
    agentstate_server, client, shown, monkeypatch
):
    monkeypatch.setattr("agentstate_client.claude_agent.MESSAGE_SECONDS", 0.2)
    asyncio.run(recorded(agentstate_server, Delegating(shown=shown)))
    told = steps(client, "agent", "tool", "output")
    assert ("agent.started", "clerk", None, None) in told
    assert ("tool.called", "clerk", "Read", None) in told
    assert told.index(("tool.called", None, "Task", None)) < told.index(
        ("tool.called", "clerk", "Read", None)
    )
    assert (("tool.returned", "clerk", "Read", "sunny in Rome") in told) is shown
    assert ("agent.finished", "clerk", None, None) in told
    assert client.run("42").read().result == "Sunny."
    # What all three calls took is known with the result, whoever made them.
    assert spent(client)["tokens"] == (3 * CALL, 0)
