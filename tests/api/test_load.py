"""More is asked than can be done: who is served all the same, who is told to come again, and that
nobody hangs. The product's own server, real connections, real locks that make work slow."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from django.db import connection

from agentstate import admission, asgi
from agentstate.admission import RETRY_AFTER, Kind, Room
from agentstate.store.execute import moving_the_feed
from tests.api.asking import new_key
from tests.api.serving import serving
from tests.store.asking import Asking, event, rows
from tests.store.waiting import wait_for

PLACES = 40
GATE = asgi._pages.gate


class Site:
    """The running product, and a client for each call."""

    def __init__(self, url, key):
        self.url, self.key = url, key
        self.context = httpx.create_ssl_context(verify=False)

    def call(self, method, path, json=None, **headers):
        headers = {n.replace("_", "-"): v for n, v in headers.items()}
        with httpx.Client(base_url=self.url, timeout=60, verify=self.context) as http:
            auth = {"Authorization": f"Bearer {self.key}"}
            return http.request(method, path, json=json, headers=auth | headers)

    def get(self, path, **headers):
        return self.call("GET", path, **headers)


@pytest.fixture
def site(transactional_db, monkeypatch):
    monkeypatch.setattr(GATE, "room", Room(places=PLACES, threads=asgi.WSGI_THREADS))
    GATE.refused.clear()
    key = new_key("fleet")
    with serving() as url:
        yield Site(url, key.text)
    assert not +GATE.taken
    assert not +GATE.busy
    assert asgi._pages.held_bytes == 0


@contextmanager
def locked(statement):
    """Nobody gets at it while the block lasts, as when the database is slow."""
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(statement)
        yield
    finally:
        other.rollback()
        other.close()


NO_ALERTS = "LOCK TABLE agentstate_alert IN ACCESS EXCLUSIVE MODE"
# What each try is counted in before its password is looked at, and nothing else reads.
NO_TRIES = "LOCK TABLE dashboard_try IN ACCESS EXCLUSIVE MODE"


@contextmanager
def flood(site, count, *call, **more):
    """So many at once; what they were answered, once the block is over."""
    answers = []
    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(site.call, *call, **more) for _ in range(count)]
        yield answers
        answers += [one.result() for one in asked]


def test_while_lists_flood_it_renewals_appends_and_pages_pass(site):
    store = Asking()
    store.create("42")
    token = store.acquire("u-1").token
    lists = PLACES // 2
    with ExitStack() as stack:
        slow = stack.enter_context(locked_until(NO_ALERTS))
        answers = stack.enter_context(flood(site, 60, "GET", "/api/v1/alerts"))
        wait_for(lambda: GATE.refused[Kind.LISTS, False] == 60 - lists)
        assert GATE.taken[Kind.LISTS] == lists
        assert GATE.busy[Kind.LISTS] == 4
        renew = {"token": token, "ttl_seconds": 60}
        began = time.monotonic()
        for _ in range(5):
            assert site.call("POST", "/api/v1/leases/u-1/renew", renew).status_code == 200
            assert site.call("POST", "/api/v1/runs/42/events", EVENTS).status_code == 201
            assert site.get("/api/v1/runs/42").status_code == 200
            assert site.get("/api/v1/feed").status_code == 200
            assert site.get("/health/live").status_code == 200
            assert site.get("/login").status_code == 200
        assert time.monotonic() - began < 20
        turned = 'agentstate_requests_turned_away_total{kind="lists",why="full"} 40.0'
        assert turned in site.get("/metrics").text
        refused = site.get("/api/v1/runs")
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        slow.set()
    told = Counter(a.status_code for a in answers)
    # Those in a thread at least; of the others some may have waited too long.
    assert set(told) == {200, 503}
    assert 4 <= told[200] <= lists
    for answer in answers:
        if answer.status_code == 503:
            assert answer.headers["Retry-After"] == str(RETRY_AFTER[Kind.LISTS])
            assert answer.json()["retry"] == "same-request"
            assert answer.json()["request_id"] == answer.headers["X-Request-Id"]
            assert "Server-Timing" in answer.headers


EVENTS = {"events": [{"type": "a"}]}


@contextmanager
def locked_until(statement):
    """The same, but ended by the event, in a thread whose connection it is."""
    free, ready = threading.Event(), threading.Event()

    def hold():
        try:
            with locked(statement):
                ready.set()
                free.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert ready.wait(20)
    try:
        yield free
    finally:
        free.set()
        thread.join(20)


def test_while_appends_flood_it_renewals_and_ends_of_runs_pass(site):
    store = Asking()
    for key in ("hot", "42"):
        store.create(key)
    token = store.acquire("run:42").token
    store.move("42", "running", fence=token)
    writes = int(PLACES * 0.85)
    with ExitStack() as stack:
        slow = stack.enter_context(locked_until("SELECT FROM agentstate_run WHERE key = 'hot'"
                                                " FOR UPDATE"))  # fmt: skip
        answers = stack.enter_context(
            flood(site, 60, "POST", "/api/v1/runs/hot/events", json=EVENTS)
        )
        wait_for(lambda: GATE.refused[Kind.WRITES, False] == 60 - writes)
        began = time.monotonic()
        assert site.call("POST", "/api/v1/leases/run:42/renew", {"token": token}).status_code == 200
        done = site.call(
            "POST", "/api/v1/runs/42/transitions", {"to": "completed"}, Agentstate_Fence=str(token)
        )
        assert done.status_code == 200, done.text
        assert time.monotonic() - began < 10
        assert site.get("/api/v1/leases").json()["code"] == "overloaded"
        slow.set()
    told = Counter(a.status_code for a in answers)
    assert set(told) <= {201, 503}
    assert told[201] == rows("SELECT last_seq - 1 FROM agentstate_run WHERE key = 'hot'")[0][0]


def test_nobody_waits_for_a_thread_longer_than_they_may_and_a_deadline_counts(site, monkeypatch):
    monkeypatch.setattr(admission, "WAIT_SECONDS", 1.0)
    with ExitStack() as stack:
        slow = stack.enter_context(locked_until(NO_ALERTS))
        answers = stack.enter_context(flood(site, 8, "GET", "/api/v1/alerts"))
        wait_for(lambda: GATE.busy[Kind.LISTS] == 4)
        began = time.monotonic()
        late = site.get("/api/v1/alerts", Agentstate_Deadline="200")
        assert time.monotonic() - began < 5
        assert (late.status_code, late.json()["code"]) == (503, "unavailable")
        wait_for(lambda: GATE.refused[Kind.LISTS, True] >= 5)
        slow.set()
    told = Counter((a.status_code, a.json().get("code")) for a in answers)
    assert told == {(200, None): 4, (503, "overloaded"): 4}


def test_a_deadline_begins_when_the_request_does_and_not_with_its_body(site):
    Asking().create("42")
    body = b'{"events": [{"type": "a"}]}'
    head = (
        "POST /api/v1/runs/42/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {site.key}\r\nContent-Type: application/json\r\n"
        f"Agentstate-Deadline: 300\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with connected(site) as line:
        line.sendall(head + body[:5])
        threading.Event().wait(0.5)
        line.sendall(body[5:])
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert b"503" in answer.partition(b"\r\n")[0]
    assert b"unavailable" in answer
    assert rows("SELECT last_seq FROM agentstate_run") == [(1,)]


def test_wrong_passwords_hold_one_thread_and_nobody_elses_page(site):
    with httpx.Client(base_url=site.url, timeout=60) as http:
        http.get("/login")
        token = http.cookies["agentstate_csrf"]
    form = {"csrfmiddlewaretoken": token, "username": "x", "password": "y"}

    def log_in():
        with httpx.Client(base_url=site.url, timeout=60, verify=site.context) as http:
            http.cookies["agentstate_csrf"] = token
            return http.post("/login", data=form, headers={"Accept": "text/html"})

    with ExitStack() as stack:
        slow = stack.enter_context(locked_until(NO_TRIES))
        pool = stack.enter_context(ThreadPoolExecutor(40))
        asked = [pool.submit(log_in) for _ in range(40)]
        wait_for(lambda: GATE.refused[Kind.LOGIN, False] == 40 - 16)
        assert GATE.busy[Kind.LOGIN] == 1
        assert site.get("/login").status_code == 200
        assert site.get("/api/v1/runs").status_code == 200
        slow.set()
        answers = [one.result() for one in asked]
    # Of one name no more than five in five minutes; the others of those that were let in are told.
    assert Counter(a.status_code for a in answers) == {200: 5, 429: 11, 503: 24}
    refused = next(a for a in answers if a.status_code == 503)
    assert refused.headers["Content-Type"].startswith("text/html")
    assert "Try again" in refused.text


def sessions():
    """Connections of the web process's threads to this database."""
    return rows(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND application_name = 'agentstate test'"
    )[0][0]


@contextmanager
def connected(site, *, buffer=None):
    host, port = site.url.removeprefix("http://").split(":")
    with socket.socket() as line:
        if buffer:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        line.settimeout(30)
        line.connect((host, int(port)))
        yield line


def test_clients_that_send_or_read_slowly_hold_no_connection_to_the_database(site):
    """The served test product gives a thread's connection back after each request: so whatever
    is still open is held by a client."""
    store = Asking()
    store.create("42")
    for _ in range(12):
        store.append("42", [event("big", "x" * 900_000)])
    head = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.key}\r\n"
    with ExitStack() as stack:
        for n in range(30):
            line = stack.enter_context(connected(site, buffer=4096))
            path = "export" if n % 3 == 0 else "events?limit=1"
            if n % 2:
                line.sendall(
                    f"POST /api/v1/runs/42/events {head}Content-Length: 9\r\n\r\nx".encode()
                )
            else:
                line.sendall(f"GET /api/v1/runs/42/{path} {head}\r\n".encode())
        wait_for(lambda: asgi._pages.held_bytes >= 15 and not +GATE.taken)
        wait_for(lambda: sessions() == 0)
        assert site.get("/api/v1/runs/42").status_code == 200
        wait_for(lambda: sessions() == 0)
    wait_for(lambda: asgi._pages.held_bytes == 0)


def test_an_export_to_a_slow_reader_is_whole_all_the_same(site):
    store = Asking()
    store.create("42")
    for _ in range(8):
        store.append("42", [event("big", "x" * 900_000)])
    with moving_the_feed(), httpx.Client(base_url=site.url, timeout=60) as http:
        auth = {"Authorization": f"Bearer {site.key}"}
        with http.stream("GET", "/api/v1/runs/42/export", headers=auth) as answer:
            parts = answer.iter_raw()
            first = next(parts)
            wait_for(lambda: sessions() <= 1)
            text = first + b"".join(parts)
    assert text.count(b"\n") == len(text.splitlines())
    assert b'"kind":"end"' in text.splitlines()[-1]
