"""Every example runs as it is told to, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each prints at the end, and what becomes of its run 42.
SAYS = {
    "durable_report.py": ("report: what follows from", "completed"),
    "langgraph_agent.py": ("answer: what follows from", "running"),
    "openai_agents_agent.py": ("It is sunny in Rome.", "completed"),
    "claude_sdk_agent.py": ("It is sunny in Rome.", "completed"),
    "pydantic_ai_agent.py": ("It is sunny in Rome.", "completed"),
}


def test_no_example_is_left_out():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(agentstate_server, name):
    environment = os.environ | {
        "AGENTSTATE_URL": agentstate_server.url,
        "AGENTSTATE_KEY": agentstate_server.key,
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "42"],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    says, status = SAYS[name]
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout
    run = agentstate_server.client().run("42").read()
    assert run.status == status
    assert run.budgets[0]["spent"] > 0
