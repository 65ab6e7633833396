"""An agent of one of the frameworks as a process: for the tests that harm it.

    python agent_process.py FRAMEWORK URL KEY TTL_SECONDS FOLDER

It holds the run 42, says what it does line by line, and waits in its tool until FOLDER/go is there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from agentstate_client import Client, LeaseHeld
from agentstate_client.recording import Price

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
PRICES = {"made-up": Price("1", "2")}


def openai_agents(run, look):
    from agents import Runner, function_tool
    from test_openai_agents import clerk, text, use

    from agentstate_client.openai_agents import AgentStateHooks

    @function_tool
    def sky() -> str:
        """Looks."""
        return look()

    agent = clerk([use("sky")], [text("sunny")], tools=[sky])
    with AgentStateHooks(run, prices=PRICES) as hooks:
        return Runner.run_sync(agent, "How is the sky?", hooks=hooks).final_output


def pydantic_ai(run, look):
    from test_pydantic_ai import clerk, text, use

    from agentstate_client.pydantic_ai import AgentStateCapability

    agent = clerk(use("sky"), text("sunny"))
    agent.tool_plain(look, name="sky")
    with AgentStateCapability(run, prices=PRICES) as recording:
        return agent.run_sync("How is the sky?", capabilities=[recording]).output


def claude_agent(run, look):
    from claude_agent_sdk import query
    from made_up.claude import MadeUpClaude

    from agentstate_client.claude_agent import AgentStateSession

    class Looking(MadeUpClaude):
        async def think(self):
            await super().think()
            if self.calls == 2:
                await asyncio.to_thread(look)

    async def go():
        async with AgentStateSession(run) as session:
            asked = query(prompt="?", options=session.options(), transport=Looking())
            async for _message in session.watch(asked):
                pass
            return session.result

    return asyncio.run(go())


def main(framework, url, key, ttl_seconds, folder):
    def look():
        print("in the tool")
        while not (Path(folder) / "go").exists():
            time.sleep(0.02)
        return "sunny"

    with Client(url, key, worker="agent") as client, taken(client, int(ttl_seconds)) as run:
        print(f"done {globals()[framework](run, look)}")


def taken(client, ttl_seconds):
    """The run 42, once the lease of whoever was killed has run out."""
    while True:
        try:
            return client.run("42").acquire(ttl_seconds=ttl_seconds)
        except LeaseHeld as held:
            time.sleep(held.expires_in_ms / 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
