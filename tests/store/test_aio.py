"""The lane of an event loop: one thread, whatever comes meanwhile as the next batch, no item twice
and none forgotten."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstate import store as the_store
from agentstate.store import aio
from agentstate.store.callers import Circumstances
from agentstate.store.commands import Append, CreateRun, RenewLease
from agentstate.store.errors import LeaseLost, StaleFence, Unavailable
from agentstate.store.execute import AIO_LEASES, AIO_WRITES
from agentstate.store.sizes import Sizes
from tests.store.asking import FLEET, Asking, event


@pytest.fixture
def store(transactional_db):
    return Asking()


class Slow:
    """What a lane does: nothing goes on until it is let."""

    def __init__(self):
        self.batches, self.begun, self.may_go_on = [], threading.Event(), threading.Event()

    def __call__(self, items):
        self.batches.append(list(items))
        self.begun.set()
        assert self.may_go_on.wait(20)
        return [item * 10 for item in items]

    async def wait_until_begun(self):
        assert await asyncio.to_thread(self.begun.wait, 20)


def lane_of(do, sizes=None):
    return aio.LoopLane(do, name="tested", sizes=sizes)


def put(lane, item, *, seconds=20.0, weight=1):
    return asyncio.ensure_future(lane.submit(item, weight=weight, wait_seconds=seconds))


def test_what_comes_together_goes_together_and_what_comes_meanwhile_is_next(db):
    slow, sizes = Slow(), Sizes()

    async def main():
        lane = lane_of(slow, sizes)
        first = [put(lane, n) for n in range(3)]
        await slow.wait_until_begun()
        then = [put(lane, n) for n in range(3, 6)]
        await asyncio.sleep(0)
        assert lane.waiting == 3
        slow.may_go_on.set()
        assert await asyncio.gather(*first, *then) == [0, 10, 20, 30, 40, 50]
        await lane.end()

    asyncio.run(main())
    assert slow.batches == [[0, 1, 2], [3, 4, 5]]
    assert sizes.read() == ([0, 0, 2, 0, 0, 0, 0, 0, 0], 6)


def test_a_task_that_is_cancelled_takes_its_item_back_unless_it_has_begun(db):
    slow = Slow()

    async def main():
        lane = lane_of(slow)
        begun = put(lane, 0)
        await slow.wait_until_begun()
        waits, other = put(lane, 1), put(lane, 2)
        await asyncio.sleep(0)
        begun.cancel()
        waits.cancel()
        slow.may_go_on.set()
        assert await other == 20
        assert begun.cancelled()
        assert waits.cancelled()
        await lane.end()

    asyncio.run(main())
    assert slow.batches == [[0], [2]]


def test_who_waits_too_long_is_told_so_while_the_batch_before_is_at_work(db, monkeypatch):
    monkeypatch.setattr(aio, "LOOK_SECONDS", 0.01)
    slow = Slow()

    async def main():
        lane = lane_of(slow)
        at_work = put(lane, 0)
        await slow.wait_until_begun()
        with pytest.raises(aio.Late):
            await put(lane, 1, seconds=0.02)
        with pytest.raises(aio.Late):
            await put(lane, 2, seconds=0)
        slow.may_go_on.set()
        assert await at_work == 0
        await lane.end()

    asyncio.run(main())
    assert slow.batches == [[0]]


def test_a_batch_that_does_not_end_is_told_as_unknown_and_the_next_one_waits(db, monkeypatch):
    monkeypatch.setattr(aio, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(aio, "LONGEST_WAIT_SECONDS", 0.02)
    slow = Slow()

    async def main():
        lane = lane_of(slow)
        with pytest.raises(aio.Unknown):
            await put(lane, 0)
        later = put(lane, 1)
        await asyncio.sleep(0)
        slow.may_go_on.set()
        assert await later == 10
        await lane.end()

    asyncio.run(main())


def test_what_a_batch_raises_each_of_it_is_told_and_the_lane_goes_on(db):
    def fail_once(items):
        if items == [0, 1]:
            raise ValueError("broken")
        return items

    async def main():
        lane = lane_of(fail_once)
        found = await asyncio.gather(put(lane, 0), put(lane, 1), return_exceptions=True)
        assert [str(one) for one in found] == ["broken"] * 2
        assert await put(lane, 2) == 2
        await lane.end()

    asyncio.run(main())


def test_a_thread_that_had_nothing_to_do_ends_and_another_begins(db, monkeypatch):
    monkeypatch.setattr(aio, "IDLE_SECONDS", 0.01)

    def who(items):
        return [threading.current_thread()] * len(items)

    async def main():
        lane = lane_of(who)
        first = await put(lane, 0)
        await asyncio.to_thread(first.join, 20)
        assert await put(lane, 1) is not first
        await lane.end()

    asyncio.run(main())


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.integers(1, aio.BATCH_BYTES + 1), min_size=1, max_size=300))
def test_no_batch_is_larger_than_it_may_be_and_the_order_stays(weights):
    batches = []

    def note(items):
        batches.append(list(items))
        return list(items)

    async def main():
        lane = lane_of(note)
        items = list(enumerate(weights))
        put_in = [put(lane, item, weight=item[1]) for item in items]
        assert await asyncio.gather(*put_in) == items
        await lane.end()

    asyncio.run(main())
    assert [item for batch in batches for item in batch] == list(enumerate(weights))
    for batch in batches:
        assert len(batch) <= aio.BATCH_COMMANDS
        assert len(batch) == 1 or sum(weight for _, weight in batch) <= aio.BATCH_BYTES


# --- aexecute -------------------------------------------------------------------------------------


async def ended(work):
    try:
        return await work
    finally:
        await AIO_WRITES.end()
        await AIO_LEASES.end()


def test_many_tasks_write_to_one_run_and_are_refused_each_by_itself(store):
    store.create("42")
    token = store.hold("42").token

    async def main():
        def append(fence):
            return the_store.aexecute(Append(run="42", events=(event(),), fence=fence), by=FLEET)

        return await asyncio.gather(
            *(append(token if n % 5 else token + 9) for n in range(50)), return_exceptions=True
        )

    found = asyncio.run(ended(main()))
    refused = [one for one in found if isinstance(one, StaleFence)]
    numbers = sorted(one.first_seq for one in found if not isinstance(one, Exception))
    assert len(refused) == 10
    assert numbers == list(range(4, 44))
    assert store.run("42").last_seq == 43


def test_leases_and_commands_that_go_alone_are_executed_too(store):
    from agentstate.store.callers import SWEEP
    from agentstate.store.commands import NoteLapsed

    store.create("42")
    token = store.hold("42").token

    async def main():
        renewed = await the_store.aexecute(RenewLease(unit="run:42", token=token), by=FLEET)
        with pytest.raises(LeaseLost):
            await the_store.aexecute(RenewLease(unit="run:42", token=token - 1), by=FLEET)
        await the_store.aexecute(NoteLapsed(limit=10), by=SWEEP)
        late = Circumstances(begin_by=0.0)
        with pytest.raises(Unavailable):
            await the_store.aexecute(CreateRun(key="7", task="x"), by=FLEET, under=late)
        return renewed

    assert asyncio.run(ended(main())).token == token
