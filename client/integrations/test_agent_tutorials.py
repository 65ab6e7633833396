"""What docs/integrations tells of agents is carried out as it stands there, with made-up models."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import claude_agent_sdk
import pytest
from agents.tracing import set_tracing_disabled
from test_openai_agents import MadeUp, text, use
from test_pydantic_ai import clerk
from test_pydantic_ai import text as pydantic_text
from test_pydantic_ai import use as pydantic_use

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from made_up.claude import MadeUpClaude

DOCS = Path(__file__).resolve().parents[2] / "docs" / "integrations"
set_tracing_disabled(True)
SUNNY = "It is sunny in Rome."


def openai_model(_monkeypatch):
    return {"model": MadeUp([use("weather", '{"place": "Rome"}')], [text(SUNNY)])}


def pydantic_model(_monkeypatch):
    agent = clerk(pydantic_use("weather", place="Rome"), pydantic_text(SUNNY))
    return {"model": agent.model}


def claude(monkeypatch):
    asked = partial(claude_agent_sdk.query, transport=MadeUpClaude())
    monkeypatch.setattr(claude_agent_sdk, "query", asked)
    return {}


def own_loop(_monkeypatch):
    answer = SimpleNamespace(input_tokens=120, output_tokens=30, text=SUNNY)
    return {"ask": lambda _prompt: answer, "weather": lambda place: f"sunny in {place}"}


@pytest.mark.parametrize(
    ("page", "given"),
    [
        ("openai-agents.md", openai_model),
        ("pydantic-ai.md", pydantic_model),
        ("claude-agent.md", claude),
        ("recording.md", own_loop),
    ],
)
def test_a_tutorial_does_what_it_says(agentstate_server, monkeypatch, page, given):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.S)
    names = {"url": agentstate_server.url, "key": agentstate_server.key, **given(monkeypatch)}
    exec(compile(code, page, "exec"), {"__name__": "tutorial", **names})

    run = agentstate_server.client().run("42")
    record = run.read()
    assert (record.status, record.result) == ("completed", SUNNY)
    assert record.counters["tokens_spent"] == record.budgets[0]["spent"] > 0
    assert "tool.returned" in [event.type for event in run.events()]
