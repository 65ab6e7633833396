"""LangGraph's own suite for checkpointers, on a real server, on both savers."""

from __future__ import annotations

import asyncio

import pytest
from conftest import LONG_TTL
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from agentstate_client.langgraph import AgentStateSaver, AsyncAgentStateSaver


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_the_conformance_suite_reports_full_with_everything_extended(agentstate_server, flavour):
    @checkpointer_test(name=f"agentstate, {flavour}")
    async def saver():
        if flavour == "sync":
            with AgentStateSaver(agentstate_server.client(), ttl_seconds=LONG_TTL) as made:
                yield made
        else:
            async with (
                agentstate_server.async_client() as client,
                AsyncAgentStateSaver(client, ttl_seconds=LONG_TTL) as made,
            ):
                yield made

    report = asyncio.run(validate(saver))

    assert {name: r.failures for name, r in report.results.items() if r.failures} == {}
    assert report.conformance_level() == "FULL"
    # FULL alone may also mean that some were not detected.
    passed = {name for name, result in report.results.items() if result.passed}
    assert passed == {capability.value for capability in ALL_CAPABILITIES}
