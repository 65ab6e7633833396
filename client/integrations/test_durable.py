"""Durable functions, on a real server: cut off, gone on with, overtaken, refused."""

from __future__ import annotations

import asyncio

import pytest
from conftest import LONG_TTL

from agentstate_client import LeaseHeld, LeaseLost, StaleFence, Unsendable
from agentstate_client.durable import AsyncDurable, CallEnded, Durable


class Killed(BaseException):
    """What ends an attempt as a kill does: nothing of ours takes it for a failure."""


def made(client, did, *, die_at=None, between=lambda: None):
    durable = Durable(client, ttl_seconds=LONG_TTL)

    @durable.step
    def fetch(page):
        if die_at == page:
            raise Killed
        did.append(page)
        return {"page": page}

    @durable
    def report(pages):
        found = [fetch(page)["page"] for page in pages]
        between()
        return found

    return report


def test_a_call_that_was_cut_off_goes_on_and_does_no_step_again(agentstate_client):
    did = []
    with pytest.raises(Killed):
        made(agentstate_client, did, die_at="b")(["a", "a", "b"])
    again = made(agentstate_client, did)
    assert again(["a", "a", "b"]) == ["a", "a", "b"]
    assert again(["a", "a", "b"]) == ["a", "a", "b"]  # and from its result, when it is done
    assert did == ["a", "a", "b"]
    assert agentstate_client.run(again.key(["a", "a", "b"])).read().status == "completed"


def test_who_was_overtaken_in_the_middle_completes_nothing(agentstate_server):
    mine, other = agentstate_server.client("mine"), agentstate_server.client("other")

    def overtaken():
        lease = report.client.run(key)
        other._transport.send(_reclaim(lease.read()))
        other.run(key).acquire(ttl_seconds=LONG_TTL)

    report = made(mine, [], between=overtaken)
    key = report.key(["a"])
    with pytest.raises((StaleFence, LeaseLost)):
        report(["a"])
    assert other.run(key).read().status == "running"
    with pytest.raises(LeaseHeld):
        report(["a"])


def _reclaim(record):
    from agentstate_client._sync.transport import Call
    from agentstate_client.payloads import encode

    asked = {"expected_token": record.token, "expected_owner": record.owner, "reason": "stuck",
             "force": True}  # fmt: skip
    return Call("POST", f"/leases/run:{record.key}/reclaim", encode(asked))


def test_what_is_not_json_is_named_and_what_failed_has_failed(agentstate_client):
    durable = Durable(agentstate_client, ttl_seconds=LONG_TTL)

    @durable.step
    def odd():
        return {1, 2}

    @durable
    def report(_n):
        return odd()

    with pytest.raises(Unsendable, match="report was given what JSON cannot say"):
        report({3})
    with pytest.raises(Unsendable, match="the step odd returned what JSON cannot say: set"):
        report(1)
    with pytest.raises(CallEnded, match="failed"):
        report(1)


def test_calls_that_wait_are_carried_out_by_a_worker(agentstate_client):
    did = []
    report = made(agentstate_client, did)
    report.later("r-1", (["a"],))
    report.later("r-1", (["a"],))
    with pytest.raises(ValueError, match="another call"):
        report.later("r-1", (["b"],))
    report.serve()
    agentstate_client.work(until_idle=True)
    assert (agentstate_client.run("r-1").read().result, did) == (["a"], ["a"])


def test_async_functions_are_durable_as_well(agentstate_server):
    async def go():
        async with agentstate_server.async_client("a") as client:
            durable, did = AsyncDurable(client, ttl_seconds=LONG_TTL), []

            @durable.step
            async def fetch(page):
                did.append(page)
                return page

            @durable
            async def report(page):
                return [await fetch(page), await fetch(page)]

            return await report("a"), await report("a"), did

    assert asyncio.run(go()) == (["a", "a"], ["a", "a"], ["a", "a"])
