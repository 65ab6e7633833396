"""The stream of hints, over the product's own server."""

import http.client
import json
import time
from urllib.parse import urlsplit

import httpx
import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from agentstate.live import hub, sessions, v1, views
from agentstate.store.execute import moving_the_feed
from dashboard.models import Session
from tests.api.asking import new_key
from tests.api.serving import serving
from tests.dashboard.conftest import person
from tests.store.asking import Asking, event
from tests.store.waiting import wait_for


@pytest.fixture
def site(transactional_db):
    with moving_the_feed(), serving() as address:
        yield address


def cookie(name="ana", role="operator"):
    client = Client()
    client.force_login(person(name, role))
    return f"agentstate_session={client.cookies['agentstate_session'].value}"


class Stream:
    """A stream as a browser opens it."""

    def __init__(self, site, path, cookie=""):
        self.connection = http.client.HTTPConnection(urlsplit(site).netloc, timeout=20)
        self.connection.request("GET", path, headers={"Cookie": cookie})
        self.answer = self.connection.getresponse()

    def block(self):
        """The lines up to the next empty one."""
        lines = []
        while line := self.answer.readline().decode().rstrip("\n"):
            lines.append(line)
        return lines

    def until_end(self):
        while self.answer.readline():
            pass
        self.close()

    def close(self):
        self.answer.close()
        self.connection.close()


def test_hints_come_as_they_happen(site):
    store = Asking()
    store.create("42")
    stream = Stream(site, "/live/console?run=42", cookie())
    assert stream.answer.status == 200
    assert stream.answer.getheader("Content-Type") == "text/event-stream"
    assert stream.answer.getheader("Cache-Control") == "no-cache"
    assert stream.block() == ["retry: 2000"]

    store.create("other")
    store.append("42", [event()])

    said = stream.block()
    while said[0] != "event: hint" or '"42": 2' not in said[1]:
        said = stream.block()
    assert set(json.loads(said[1].removeprefix("data: "))["runs"]) == {"42"}
    stream.close()


def test_only_people_with_a_role_may_listen(site):
    assert Stream(site, "/live/console").answer.status == 401
    assert Stream(site, "/live/console", "agentstate_session=made-up").answer.status == 401
    assert Stream(site, "/live/console", cookie("new", None)).answer.status == 403
    assert Stream(site, "/live/console?run=" + "x" * 300, cookie("ana")).answer.status == 400


def test_a_stream_ends_with_its_session_and_holds_no_connection(site, monkeypatch):
    before = sessions_of_pages()
    streams = [Stream(site, "/live/console", cookie(f"p-{n}")) for n in range(3)]
    for stream in streams:
        assert stream.block() == ["retry: 2000"]
    wait_for(lambda: sessions_of_pages() <= before)
    began = time.monotonic()

    Session.objects.all().delete()

    for stream in streams:
        stream.until_end()
    assert time.monotonic() - began < 3


def test_a_stream_ends_when_its_person_may_something_else(site):
    streams = {name: Stream(site, "/live/console", cookie(name)) for name in ("ana", "bo", "cy")}
    for stream in streams.values():
        assert stream.block() == ["retry: 2000"]
    wait_for(lambda: all(one.rights for one in sessions.open_of(sessions.People)))

    ana, bo = (User.objects.get(username=name) for name in ("ana", "bo"))
    ana.groups.clear()
    bo.groups.set([Group.objects.get(name="admin")])

    streams["ana"].until_end()
    streams["bo"].until_end()
    assert [one.over for one in sessions.open_of(sessions.People)] == [False]
    streams["cy"].close()


def test_a_stream_ends_when_its_session_has_been_long_enough(site, clock, settings):
    settings.SESSION_IDLE_SECONDS = 7_200
    stream = Stream(site, "/live/console", cookie())
    assert stream.block() == ["retry: 2000"]
    clock.advance(seconds=settings.SESSION_IDLE_SECONDS + 1)
    stream.until_end()


def test_one_person_has_so_many_streams_and_takes_nobody_elses(site, monkeypatch):
    monkeypatch.setattr(views, "STREAMS_PER_PERSON_MAX", 2)
    monkeypatch.setattr(v1, "STREAMS_MAX", 1)
    mine, address = cookie(), "/live/console"
    streams = [Stream(site, address, mine) for _ in range(2)]
    assert [stream.block() for stream in streams] == [["retry: 2000"]] * 2

    third = Stream(site, address, mine)
    assert (third.answer.status, third.answer.getheader("Retry-After")) == (429, "10")
    other = Stream(site, address, cookie("bo"))
    assert other.block() == ["retry: 2000"]
    worker = {"Authorization": f"Bearer {new_key('w').text}"}
    assert httpx.get(f"{site}/live/v1/feed", headers=worker, verify=False).status_code == 200

    streams.pop().close()
    wait_for(lambda: streams_open() == 2)
    streams.append(Stream(site, address, mine))
    assert streams[-1].block() == ["retry: 2000"]
    for stream in (*streams, other, third):
        stream.close()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("OPTIONS", 405), ("TRACE", 405)])
def test_only_get_opens_a_stream(site, method, status):
    """S-307 (docs/sweeps.md): each of these held a place for ten minutes, and its connection."""
    connection = http.client.HTTPConnection(urlsplit(site).netloc, timeout=20)
    connection.request(method, "/live/console", headers={"Cookie": cookie()})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (status, b"")
    # The next request on the connection is answered.
    connection.request("GET", "/health/live")
    assert connection.getresponse().status == 200
    assert streams_open() == 0
    connection.close()


def test_streams_leave_files_for_all_else(site, monkeypatch):
    """S-306 (docs/sweeps.md)."""
    for those in (views, v1):
        monkeypatch.setattr(those, "FILES_PART", 0)

    refused = Stream(site, "/live/console", cookie())
    assert (refused.answer.status, refused.answer.getheader("Retry-After")) == (429, "10")
    worker = {"Authorization": f"Bearer {new_key('w').text}"}
    answer = httpx.get(f"{site}/live/v1/feed", headers=worker, verify=False)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    refused.close()


def streams_open() -> int:
    return sum(one.streams for one in list(hub._hubs.values()))


def sessions_of_pages() -> int:
    """Connections of this process beside this test's own and those that listen or check.

    Threads of tests before it may keep one for a minute.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND application_name = %s",
            [connection.settings_dict["OPTIONS"]["application_name"]],
        )
        return max(1, cursor.fetchone()[0])  # the mover's
