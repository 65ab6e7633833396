"""Who is here, told from process to process over the real channel."""

import asyncio
import json
import os
import subprocess
import sys

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from agentstate import postgres, presence
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

    async def close(self):
        """Leave, and let what is still being told be told."""
        self.hub.company.leave(self.looker)
        self.hub.unsubscribe(self.stream)
        await self.told()

    async def told(self):
        if (telling := self.hub.company._telling) is not None:
            await telling

    async def knows_since(self, looker):
        async with asyncio.timeout(20):
            while (since := self.board.since(looker.person, looker.instance)) is None:
                await asyncio.sleep(0.01)
        return since

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
        await one.close()
        await other.close()

    asyncio.run(play())


def test_a_process_that_comes_later_asks_who_is_there(transactional_db, monkeypatch):
    monkeypatch.setattr(company, "BEAT_SECONDS", 3_600)

    async def play():
        one = Process(ANA)
        await one.open()
        since = await one.knows_since(ANA)
        later = Process(BO)
        later.stream = await later.hub.subscribe("42", "run:42")
        await later.until_it_sees("ana")
        async with asyncio.timeout(20):
            while await later.knows_since(ANA) != since:
                await asyncio.sleep(0.01)
        await one.close()
        await later.close()

    asyncio.run(play())


PAGES_ALONE = """
import time
from wsgiref.util import setup_testing_defaults
from agentstate.wsgi import application
from agentstate.presence import board

request = {}
setup_testing_defaults(request)
for _ in range(2):
    list(application(request, lambda *answer: None))
ends = time.monotonic() + 60
while not board.others("run:42", "ana") and time.monotonic() < ends:
    time.sleep(0.02)
print([one.name for one in board.others("run:42", "ana")])
"""


def test_a_process_that_only_serves_pages_hears_it_too(transactional_db):
    dbname = connection.settings_dict["NAME"]
    environment = os.environ | {
        "DATABASE_URL": postgres.conninfo(settings.DATABASE_PARTS, dbname=dbname),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "AGENTSTATE_TEST_HOME": str(settings.AGENTSTATE_HOME),
    }
    pages = subprocess.Popen(
        [sys.executable, "-c", PAGES_ALONE],
        env=environment, cwd=settings.BASE_DIR, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    async def play():
        other = Process(BO)
        await other.open()
        said = await asyncio.to_thread(pages.communicate, timeout=120)
        await other.close()
        return said

    said, _ = asyncio.run(play())

    assert said.split("\n")[-2] == "['bo']"


def test_after_a_cut_it_hears_again_of_who_came_meanwhile(transactional_db):
    async def play():
        one, other = Process(ANA), Process(BO)
        await one.open()
        await asyncio.to_thread(cut)
        await other.open()
        await one.until_it_sees("bo")
        await other.until_it_sees("ana")
        await one.close()
        await other.close()

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
        await other.told()
        await one.told()
        assert one.seen() == ["bo"]
        await one.close()
        await other.close()

    asyncio.run(play())


def test_a_stamp_is_the_databases(clock):
    async def play():
        one = Process(ANA)
        await one.open()
        since = await one.knows_since(ANA)
        await one.close()
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
        await one.close()
        await other.close()

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


def test_nobody_is_told_to_have_come_later_than_now():
    signs = [["ana", "a" * 8, "run:42", 9, False]]
    told = parse(json.dumps({"at": 5, "ask": False, "signs": signs}))
    assert [one.since for one in told.signs.values()] == [5]
