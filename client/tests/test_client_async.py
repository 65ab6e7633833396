"""What is the async client's alone: awaits that are cancelled, a loop that is blocked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from scripted_peer import (
    KEY,
    QUICK,
    Peer,
    Reply,
    appended,
    claimed,
    granted,
    moved,
    problem,
    renewed,
)

from agentstate_client import AsyncClient, ClientClosed, Event, LeaseLost, RunRecord
from agentstate_client._async.waiting import AsyncFlag

EVENTS, RELEASE = "/runs/a/events", "/leases/run%3Aa/release"
RESERVE = "/runs/a/budgets/tokens/reserve"


@pytest.fixture
def playing(peer: Peer) -> Peer:
    """A peer with a run and a unit to hold."""
    peer.says("/leases/claim", claimed("a"))
    peer.says("/leases/run%3Aa/renew", renewed())
    peer.says(RELEASE, Reply(200, {}))
    peer.says("/leases/u/acquire", granted())
    peer.says("/leases/u/renew", renewed())
    peer.says("/leases/u/release", Reply(200, {}))
    peer.says(EVENTS, appended())
    peer.says("/runs/a/transitions", moved("completed"))
    return peer


def within(peer: Peer, work: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with AsyncClient(peer.url, KEY, retry=QUICK, timeout_seconds=5) as client:
            await work(client)

    asyncio.run(run())


async def seen(peer: Peer, path: str, count: int) -> None:
    """Wait until so many requests for a path have come, without blocking the loop."""
    await asyncio.get_running_loop().run_in_executor(None, peer.wait_for, path, count)


async def cancelled(work: Awaitable[object], peer: Peer, path: str) -> None:
    """Begin something, and cancel it once its request has come."""
    before = len(peer.to(path))
    task = asyncio.ensure_future(work)
    await seen(peer, path, before + 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def reserved(amount: int) -> dict[str, Any]:
    budget = {"budget": "tokens", "cap": 9, "spent": 0, "reserved": amount, "left": 1, "version": 2}
    return {**budget, "id": "h", "amount": amount, "expires_at": "2026-01-02T03:04:05Z"}


def settled(state: str) -> dict[str, Any]:
    return {**reserved(5), "state": state, "actual": 0, "overdrawn": False}


def test_cancelled_writes_leave_connections_and_the_lease_as_they_were(playing: Peer) -> None:
    hold_up = threading.Event()

    async def work(client: AsyncClient) -> None:
        (run,) = await client.claim(ttl_seconds=2)
        playing.says(EVENTS, Reply(until=hold_up, body=appended().body, status=201))
        writes = [asyncio.ensure_future(run.append(Event("x"))) for _ in range(30)]
        await seen(playing, EVENTS, 30)
        for write in writes:
            write.cancel()
        assert {type(e) for e in await asyncio.gather(*writes, return_exceptions=True)} == {
            asyncio.CancelledError
        }
        hold_up.set()
        assert not run.lost.is_set()
        assert (await run.append(Event("y"))).first_seq == 3
        await seen(playing, "/leases/run%3Aa/renew", 2)
        await run.complete()
        assert run.lease is not None
        assert run.lease.state == "ended"

    within(playing, work)


@pytest.mark.parametrize(
    ("begin", "path", "release"),
    [
        (lambda client: client.claim(), "/leases/claim", RELEASE),
        (lambda client: client.lease("u"), "/leases/u/acquire", "/leases/u/release"),
    ],
    ids=["claim", "lease"],
)
def test_what_is_granted_to_who_has_left_is_given_back(
    playing: Peer, begin: Callable[[AsyncClient], Awaitable[object]], path: str, release: str
) -> None:
    hold_up = threading.Event()
    answer = playing.replies[path][0]
    playing.says(path, Reply(until=hold_up, body=answer.body))

    async def work(client: AsyncClient) -> None:
        await cancelled(begin(client), playing, path)
        hold_up.set()
        await seen(playing, release, 1)

    within(playing, work)


def test_a_release_goes_out_though_nobody_waits_for_it(playing: Peer) -> None:
    playing.says("/leases/u/release", Reply(cut=True), Reply(200, {}))

    async def work(client: AsyncClient) -> None:
        lease = await client.lease("u")
        await cancelled(lease.release(), playing, "/leases/u/release")
        await seen(playing, "/leases/u/release", 2)
        assert lease.state == "released"

    within(playing, work)


def test_a_block_that_is_cancelled_gives_back_what_it_held(playing: Peer) -> None:
    playing.says(RESERVE, Reply(200, reserved(5)))
    for how in ("release", "commit"):
        playing.says(f"/runs/a/budgets/tokens/reservations/h/{how}", Reply(200, settled(how)))

    async def work(client: AsyncClient) -> None:
        entered = asyncio.Event()

        async def block() -> None:
            async with client.run("a").acquire() as run, run.budget("tokens").reserve(5):
                entered.set()
                await asyncio.sleep(60)

        playing.says("/leases/run%3Aa/acquire", granted("run:a"))
        task = asyncio.ensure_future(block())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    within(playing, work)
    paths = [s.path.rpartition("/")[2] for s in playing.seen if "renew" not in s.path]
    assert paths == ["acquire", "reserve", "release", "release"]


def test_what_was_spent_is_told_though_nobody_waits_for_it(playing: Peer) -> None:
    commit = "/runs/a/budgets/tokens/reservations/h/commit"
    playing.says(RESERVE, Reply(200, reserved(5)))
    playing.says(commit, Reply(cut=True), Reply(200, settled("committed")))

    async def work(client: AsyncClient) -> None:
        async with client.run("a").budget("tokens").reserve(5) as hold:
            await cancelled(hold.commit(3), playing, commit)
        await seen(playing, commit, 2)

    within(playing, work)
    assert "release" not in playing.seen[-1].path


def test_a_flush_that_is_cancelled_goes_again_as_it_was(playing: Peer) -> None:
    hold_up = threading.Event()

    async def work(client: AsyncClient) -> None:
        run = client.run("a")
        playing.says(EVENTS, Reply(until=hold_up, body=appended().body, status=201))
        await run.append(Event("x", 1), within_ms=60_000)
        await cancelled(run.flush(), playing, EVENTS)
        hold_up.set()
        assert len(run.unacknowledged()) == 1
        await run.append(Event("x", 2), within_ms=60_000)
        await run.flush()

    within(playing, work)
    first, again, *_ = playing.to(EVENTS)
    assert (first.text, first.headers["Idempotency-Key"]) == (
        again.text,
        again.headers["Idempotency-Key"],
    )
    assert [len(s.body["events"]) for s in playing.to(EVENTS)] == [1, 1, 1]


def test_a_blocked_loop_loses_no_lease(playing: Peer) -> None:
    """Case O-05 (docs/cases.md)."""

    async def work(client: AsyncClient) -> None:
        async with client.lease("u", ttl_seconds=2) as lease:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                pass
            assert not lease.lost.is_set()

    within(playing, work)
    assert len(playing.to("/leases/u/renew")) >= 4


def test_a_lost_lease_wakes_who_awaits_it_and_a_task_in_another_loop(playing: Peer) -> None:
    playing.says("/leases/u/renew", problem(409, "lease-lost", reason="taken"))

    async def work(client: AsyncClient) -> None:
        lease = await client.lease("u", ttl_seconds=1)
        elsewhere: list[bool] = []
        other = threading.Thread(target=lambda: elsewhere.append(asyncio.run(lease.lost.wait(10))))
        other.start()
        waits = [asyncio.ensure_future(lease.lost.wait(10)) for _ in range(5)]
        assert await asyncio.gather(*waits) == [True] * 5
        with pytest.raises(LeaseLost):
            lease.guard()
        other.join(10)
        assert elsewhere == [True]

    within(playing, work)


def test_a_flag_is_waited_for_no_longer_than_was_said_and_by_nobody_who_left() -> None:
    async def wait() -> None:
        flag = AsyncFlag()
        assert await flag.wait(0.01) is False
        leaving = asyncio.ensure_future(flag.wait())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert flag._waiters == set()
        flag.set()
        assert await flag.wait(0) is True
        flag.clear()
        assert not flag.is_set()

    asyncio.run(wait())


def test_a_flag_whose_waiters_loop_has_ended_is_set_all_the_same() -> None:
    flag = AsyncFlag()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(flag.wait())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    flag.set()
    assert flag.is_set()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_client_belongs_to_one_loop_and_says_so(playing: Peer) -> None:
    client = AsyncClient(playing.url, KEY, retry=QUICK)
    asyncio.run(client.run("a").append(Event("x")))
    with pytest.raises(ClientClosed, match="another event loop"):
        asyncio.run(client.run("a").append(Event("x")))
    assert len(playing.to(EVENTS)) == 1


def test_a_change_may_be_async(playing: Peer) -> None:
    run = {"key": "a", "task": "t", "status": "running", "version": 4, "last_seq": 4}
    playing.says("/runs/a", Reply(200, {**run, "attrs": {"n": 1}}))

    async def counted(record: RunRecord) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": record.attrs["n"] + 1}

    async def work(client: AsyncClient) -> None:
        swapped = await client.cas("a", counted)
        assert (swapped.record, swapped.version) == ({"n": 2}, 4)

    within(playing, work)
    assert playing.to("/runs/a")[-1].body == {"replace": {"n": 2}}


def test_closing_ends_what_waits_for_its_next_attempt(playing: Peer) -> None:
    playing.says(EVENTS, problem(503, "unavailable", "same-request", headers={"Retry-After": "5"}))

    async def run() -> None:
        client = AsyncClient(playing.url, KEY)
        write = asyncio.ensure_future(client.run("a").append(Event("x")))
        await seen(playing, EVENTS, 1)
        started = time.monotonic()
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(ClientClosed):
            await write
        assert time.monotonic() - started < 4

    asyncio.run(run())
