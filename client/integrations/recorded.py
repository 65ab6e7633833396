"""What the tests of recorded agents share: runs with budgets, what was written, who reclaims."""

from __future__ import annotations

from typing import Any

from conftest import LONG_TTL

from agentstate_client import Client, NewBudget, Run
from agentstate_client._sync.transport import Call
from agentstate_client.payloads import encode

CAP = 10_000


def held_run(client: Client, *, cap: int = CAP, ttl_seconds: int = LONG_TTL) -> Run:
    """The run 42, pending, with budgets in tokens and money, held by this client."""
    planned(client, cap=cap)
    return client.run("42").acquire(ttl_seconds=ttl_seconds)


def planned(client: Client, *, cap: int = CAP) -> None:
    client.create(
        key="42",
        task="agent",
        budgets=[
            NewBudget("tokens", cap=cap),
            NewBudget("money", cap=1_000_000, unit="usd_micros"),
        ],
    )


def steps(client: Client, *members: str) -> list[tuple[Any, ...]]:
    """What a worker wrote on the run 42: type, and these members of the data, None without."""
    found = client.run("42").events(origin="worker")
    return [(event.type, *(event.data.get(name) for name in members)) for event in found]


def types(client: Client) -> list[str]:
    return [type for (type,) in steps(client)]


def spent(client: Client) -> dict[str, tuple[int, int]]:
    """Of each budget what is spent and what is set aside."""
    budgets = client.run("42").read().budgets
    return {budget["budget"]: (budget["spent"], budget["reserved"]) for budget in budgets}


def total_tokens(client: Client) -> int:
    """By the events' own words."""
    told = [usage for _, usage in steps(client, "usage") if usage]
    return sum(usage["input_tokens"] + usage["output_tokens"] for usage in told)


def reclaim(client: Client) -> None:
    """As an operator: whoever holds the run 42 loses it now."""
    record = client.run("42").read()
    asked = {
        "expected_token": record.token,
        "expected_owner": record.owner,
        "reason": "stuck",
        "force": True,
    }
    client._transport.send(Call("POST", "/leases/run:42/reclaim", encode(asked)))
