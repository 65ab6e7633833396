"""Who is here, told from process to process over the real channel."""

import asyncio
import json

import psycopg
import pytest

from agentstate import presence
from agentstate.live import company
from agentstate.live.company import Looker, parse
from agentstate.live.hub import Hub, Notice, Seen, conninfo
from agentstate.presence import Board
from tests.live.streaming import Site

ANA = Looker(person="ana", instance="a" * 32, page="run:42")
BO = Looker(person="bo", instance="b" * 32, page="run:42")


class Process:
    """A process with a stream on the run's page; `seen` is what its pages would show."""

    def __init__(self, looker):
        self.board, self.looker = Board(), looker
        self.hub = Hub(board=self.board)

    async def open(self):
        self.stream = await self.hub.subscribe("42", self.looker.page)
        self.hub.company.enter(self.looker)

    def close(self):
        self.hub.company.leave(self.looker)
        self.hub.unsubscribe(self.stream)

    async def until_it_sees(self, *names):
        async with asyncio.timeout(20):
            while (seen := self.seen()) != list(names):
                message = await self.stream.queue.get()
                assert isinstance(message, (Seen, Notice)), message
        return seen

    def seen(self):
        return [one.name for one in self.board.others(self.looker.page, self.looker.person)]


def test_two_processes_see_each_other_come_and_go(transactional_db):
    async def play():
        one, other = Process(ANA), Process(BO)
        await one.open()
        await other.open()
        await one.until_it_sees("bo")
        await other.until_it_sees("ana")
        # It stays subscribed, as another page of the same process would.
        other.hub.company.leave(BO)
        await one.until_it_sees()
        one.close()

    asyncio.run(play())


def test_a_process_that_comes_later_asks_who_is_there(transactional_db, monkeypatch):
    monkeypatch.setattr(company, "BEAT_SECONDS", 3_600)

    async def play():
        one = Process(ANA)
        await one.open()
        async with asyncio.timeout(20):
            while one.board.since("ana", ANA.instance) is None:
                await asyncio.sleep(0.01)
        later = Process(BO)
        later.stream = await later.hub.subscribe("42", "run:42")
        await later.until_it_sees("ana")
        assert later.board.since("ana", ANA.instance) == one.board.since("ana", ANA.instance)

    asyncio.run(play())


def test_after_a_cut_it_hears_again_of_who_came_meanwhile(transactional_db):
    async def play():
        one, other = Process(ANA), Process(BO)
        await one.open()
        await asyncio.to_thread(cut)
        await other.open()
        await one.until_it_sees("bo")
        await other.until_it_sees("ana")

    asyncio.run(play())


def cut():
    with psycopg.connect(conninfo(), application_name="other", autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'agentstate live' AND datname = current_database()"
        )


def test_a_page_that_came_back_before_its_end_was_seen_is_still_here(transactional_db):
    async def play():
        one, other = Process(ANA), Process(BO)
        await one.open()
        await other.open()
        await one.until_it_sees("bo")
        other.hub.company.enter(BO)  # the browser's new stream, then the end of the old one
        other.hub.company.leave(BO)
        await one.hub.company._tell_all()
        await other.hub.company._tell_all()
        assert one.seen() == ["bo"]

    asyncio.run(play())


def test_a_stamp_is_the_databases(clock):
    async def play():
        one = Process(ANA)
        await one.open()
        async with asyncio.timeout(20):
            while (since := one.board.since("ana", ANA.instance)) is None:
                await asyncio.sleep(0.01)
        return since

    assert asyncio.run(play()) == int(clock.now.timestamp() * 1_000_000)


def test_very_many_pages_are_told_in_several_parts(transactional_db):
    lookers = [Looker(person=f"p-{n}", instance="c" * 32, page="run:42") for n in range(300)]

    async def play():
        one, other = Process(ANA), Process(BO)
        await one.open()
        await other.open()
        for looker in lookers:
            other.hub.company.enter(looker)
        async with asyncio.timeout(20):
            while len(one.seen()) < 301:
                await one.stream.queue.get()

    asyncio.run(play())


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "x",
        "[]",
        "7",
        '{"at": 1}',
        '{"at": "x", "ask": false, "signs": []}',
        '{"at": 1, "ask": false, "signs": [7]}',
        '{"at": 1, "ask": false, "signs": [["ana", "a1", 7, null, false]]}',
        '{"at": 1, "ask": false, "signs": [["ana", "a1"]]}',
        '{"at": 1, "ask": false, "signs": [["ana", "a1", "run:42", "x", false]]}',
    ],
)
def test_what_is_not_understood_is_passed_over(payload):
    assert parse(payload) is None


def test_a_release_that_tells_more_is_understood_in_what_it_tells():
    signs = [["ana", "a1", "run:42", None, False]]

    told = parse(json.dumps({"at": 5, "ask": True, "signs": signs, "mood": "calm"}))

    assert told is not None
    assert told.asks
    assert told.signs["ana", "a1"] == presence.Sign(at=5, gone=False, page="run:42", since=5)


@pytest.mark.parametrize(
    "query",
    [
        "page=run:42",
        "page=run:42&seen=",
        "page=run:42&seen=XYZ",
        "page=run:42&seen=" + "a" * 33,
        "seen=" + "a" * 32,
        "page=elsewhere&seen=" + "a" * 32,
        "page=run:&seen=" + "a" * 32,
        "page=run:%00&seen=" + "a" * 32,
        "page=run:" + "x" * 300 + "&seen=" + "a" * 32,
    ],
)
def test_a_stream_says_plainly_which_page_it_is(site: Site, query):
    from tests.dashboard.test_hints_stream import Stream, cookie

    assert Stream(site.url, f"/live/console?{query}", cookie()).answer.status == 400
