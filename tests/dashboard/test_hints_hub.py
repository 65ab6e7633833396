import asyncio
import json

import psycopg
import pytest
from django.db import connection

from agentstate.caching import answers, copies, note_hint
from agentstate.live import hub as hubs
from agentstate.live.hub import Hint, Hub, Notice, Subscription, parse
from agentstate.live.views import write
from agentstate.store import feed
from tests.store.waiting import wait_for


def drain(subscription):
    found = []
    while not subscription.queue.empty():
        found.append(subscription.queue.get_nowait())
    return found


def test_a_hint_names_the_runs_that_moved():
    assert parse('{"position": 7, "runs": {"42": 118}}') == Hint(7, {"42": 118})
    assert parse('{"position": 7}') == Hint(7, None)


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "x",
        "[]",
        "7",
        "null",
        '{"runs": {}}',
        '{"position": "x"}',
        '{"position": 1, "runs": 3}',
        '{"position": 1, "runs": {"42": "1"}}',
    ],
)
def test_what_is_no_hint_makes_pages_look_again(payload):
    assert parse(payload) is Notice.RESYNC


def test_a_stream_gets_only_what_concerns_its_run():
    async def play():
        one, every = Subscription("42"), Subscription(None)
        for hint in (Hint(1, {"41": 5}), Hint(2, {"42": 6}), Hint(3, None)):
            one.put(hint)
            every.put(hint)
        return drain(one), drain(every)

    one, every = asyncio.run(play())
    assert [hint.position for hint in one] == [2, 3]
    assert [hint.position for hint in every] == [1, 2, 3]


def test_a_stream_that_cannot_keep_up_looks_again_instead_of_growing():
    async def play():
        slow = Subscription(None)
        for position in range(hubs.QUEUE_SIZE + 3):
            slow.put(Hint(position, {"42": position}))
        return drain(slow)

    # What was dropped is told by RESYNC, and what came after that is still there.
    told = [Hint(n, {"42": n}) for n in (hubs.QUEUE_SIZE + 1, hubs.QUEUE_SIZE + 2)]
    assert asyncio.run(play()) == [Notice.RESYNC, *told]


def test_goodbye_comes_before_whatever_waits():
    async def play():
        stream = Subscription(None)
        stream.put(Hint(1, None))
        stream.put(Notice.BYE)
        return drain(stream)

    assert asyncio.run(play()) == [Notice.BYE]


def test_no_text_can_add_a_line_of_its_own():
    """Case O-24 (docs/cases.md)."""
    key = "x\n\nevent: spoof\ndata: 1\rid: 9\u2028"

    said = write(Hint(1, {key: 1}), None)

    assert said.count("\n") == 3
    assert said.count("\r") == 0
    assert json.loads(said.splitlines()[1].removeprefix("data: "))["runs"] == {key: 1}


def test_one_connection_listens_for_all_and_goes_with_the_last(transactional_db):
    async def play():
        hub = Hub()
        streams = [await hub.subscribe() for _ in range(5)]
        listening = await asyncio.to_thread(listeners)
        await asyncio.to_thread(tell, {"position": 1, "runs": {"42": 3}})
        got = [await asyncio.wait_for(stream.queue.get(), 10) for stream in streams]
        for stream in streams:
            hub.unsubscribe(stream)
        return listening, got

    listening, got = asyncio.run(play())
    assert listening == 1
    assert got == [Hint(1, {"42": 3})] * 5
    wait_for(lambda: listeners() == 0)


def test_after_a_cut_streams_look_again_and_hear_what_comes_next(transactional_db):
    async def play():
        hub = Hub()
        stream = await hub.subscribe()
        await asyncio.to_thread(cut)
        first = await asyncio.wait_for(stream.queue.get(), 10)
        await asyncio.wait_for(hub._ready.wait(), 10)
        await asyncio.to_thread(tell, {"position": 2})
        second = await asyncio.wait_for(stream.queue.get(), 10)
        hub.unsubscribe(stream)
        return first, second

    assert asyncio.run(play()) == (Notice.RESYNC, Hint(2, None))


def test_what_other_processes_wrote_ends_copies_before_pages_hear_of_it(transactional_db):
    counted = iter(range(100))

    def count(name):
        return copies.count(name, fill=lambda: next(counted), read=int)

    async def play():
        hub = Hub()
        stream = await hub.subscribe()
        before = count("statuses"), count("lapsed")
        seen = []
        for kinds in (["run"], ["lease"], []):
            await asyncio.to_thread(tell, {"position": 1, "kinds": kinds})
            assert await asyncio.wait_for(stream.queue.get(), 10) == Hint(1, None, tuple(kinds))
            seen.append((count("statuses"), count("lapsed")))
        hub.unsubscribe(stream)
        return before, seen

    before, seen = asyncio.run(play())

    assert before == (0, 1)
    assert seen == [(2, 1), (2, 3), (2, 3)]


def other() -> psycopg.Connection:
    return psycopg.connect(hubs.conninfo(), application_name="other", autocommit=True)


OURS = "application_name = 'agentstate live' AND datname = current_database()"


def listeners() -> int:
    with other() as session:
        found = session.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {OURS}").fetchone()
        return found[0] if found else 0


def cut() -> None:
    with other() as session:
        session.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")


def tell(hint) -> None:
    with other() as session:
        session.execute("SELECT pg_notify(%s, %s)", [feed.CHANNEL, json.dumps(hint)])


def test_the_connection_is_to_the_database_of_this_process(transactional_db):
    assert connection.settings_dict["NAME"] in hubs.conninfo()


def test_a_client_that_goes_before_its_stream_has_begun_keeps_no_place():
    async def play():
        hub = Hub(conninfo=lambda: "host=127.0.0.1 port=1 connect_timeout=1")
        coming = asyncio.create_task(hub.subscribe(person=7))
        await asyncio.sleep(0)
        assert (hub.streams, hub.streams_of(7), hub.streams_of(None)) == (1, 1, 0)
        coming.cancel()
        await asyncio.wait([coming])
        return hub.streams, hub.streams_of(7)

    assert asyncio.run(play()) == (0, 0)


def test_pages_of_one_run_are_told_first_and_those_of_many_one_after_the_other():
    async def play():
        hub = Hub()
        one, worker = Subscription("42", person=1), Subscription(None)
        many = [Subscription(None, person=1) for _ in range(3)]
        hub._subscriptions.update([one, worker, *many])
        hub.publish(Hint(1, {"42": 5}, ("run",)))
        at_once = [drain(one), drain(worker), [heard for page in many for heard in drain(page)]]
        # Whoever waits for its turn is told of both in one.
        hub.publish(Hint(2, {"43": 1}, ("lease",)))
        later = [await asyncio.wait_for(page.queue.get(), 10) for page in many]
        return at_once, later

    at_once, later = asyncio.run(play())
    first = Hint(1, {"42": 5}, ("run",))
    assert at_once == [[first], [first], [first]]
    both, second = Hint(2, {"42": 5, "43": 1}, ("lease", "run")), Hint(2, {"43": 1}, ("lease",))
    assert sorted(map(repr, later)) == sorted(map(repr, [both, both, second]))


def test_a_page_is_told_whether_holders_may_have_changed():
    assert json.loads(write(Hint(7, {"42": 3}, ("lease",)), None).split("data: ")[1]) == {
        "position": 7,
        "runs": {"42": 3},
        "kinds": ["lease"],
    }


@pytest.mark.parametrize(
    ("kinds", "ends"), [(("run",), False), ((), False), (("lease",), True), (None, True)]
)
def test_a_page_about_holders_is_made_anew_for_what_changes_one(kinds, ends):
    made = iter(range(9))

    def ask():
        return answers.count("holders", fill=lambda: next(made), read=int)

    answers.empty()
    assert [ask(), ask()] == [0, 0]
    note_hint(kinds)
    assert ask() == int(ends)
    answers.empty()
