"""Claude Agent SDK: what Claude Code does, with tokens and cost, on a run of agentstate.

    AGENTSTATE_URL=http://127.0.0.1:8000 AGENTSTATE_KEY=… python claude_sdk_agent.py 42

Claude Code is made up (made_up/claude.py), so it runs offline. Leave `transport` out for the real
one.
"""

from __future__ import annotations

import asyncio
import os
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from made_up.claude import MadeUpClaude

from agentstate_client import AsyncClient, Exists, NewBudget
from agentstate_client.claude_agent import AgentStateSession


async def main(key: str) -> None:
    async with AsyncClient(os.environ["AGENTSTATE_URL"], os.environ["AGENTSTATE_KEY"]) as client:
        try:
            await client.create(
                key=key,
                task="weather",
                budgets=[
                    NewBudget("tokens", cap=10_000),
                    NewBudget("money", cap=50, unit="usd_cents"),
                ],
            )
        except Exists:
            print("the run is there already")
        async with (
            client.run(key).acquire(ttl_seconds=60) as run,
            AgentStateSession(run) as session,
        ):
            options = session.options(ClaudeAgentOptions(allowed_tools=["Read"]))
            asked = query(
                prompt="How is the weather in Rome?", options=options, transport=MadeUpClaude()
            )
            async for message in session.watch(asked):
                if isinstance(message, ResultMessage):
                    print(message.result)
        async for event in client.run(key).events(origin="worker"):
            print(event.seq, event.type, (event.data or {}).get("usage", ""))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "42"))
