"""Calls that are answered on the event loop say what the long way says, to the letter; and whatever
is out of the ordinary about them goes the long way."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from django.test import override_settings

from agentstate import asgi, logs
from agentstate.api import shortcuts
from agentstate.api.writes import Write
from agentstate.store.commands import CreateBudget, NewBudget
from agentstate.store.keys import revoke_key
from tests.api.asking import new_key
from tests.api.serving import serving
from tests.store.asking import SENIOR, Asking, event
from tests.store.waiting import wait_for

# As a program may send it; the short way wants it without the charset.
SHORT, LONG = "application/json", "application/json; charset=utf-8"
# What names the run or the lease, and the moment.
VARIES = {
    *("instance", "request_id", "at", "expires_at", "expires_in_ms", "token", "unit", "detail"),
    *("current", "run", "budget", "level"),
}
HEADERS_VARY = {"date", "x-request-id", "server-timing", "content-length"}


class Site:
    """The running product, and a connection for each call."""

    def __init__(self, url):
        self.address = url.removeprefix("http://")
        self.fleet, self.reader = new_key("fleet").text, new_key("reader", ["read"]).text

    def post(self, path, body, *, key=None, content_type=SHORT, **headers):
        """(status, members, headers); text and bytes are sent as they are."""
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        sent = {"Content-Type": content_type, "Authorization": f"Bearer {key or self.fleet}"}
        named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        wire = http.client.HTTPConnection(self.address, timeout=20)
        wire.request("POST", f"/api/v1{path}", text, sent | named)
        answer = wire.getresponse()
        told = json.loads(answer.read())
        wire.close()
        return answer.status, told, {n.lower(): v for n, v in answer.getheaders()}

    def append(self, run, **more):
        return self.post(f"/runs/{run}/events", {"events": [{"type": "a"}]}, **more)


@pytest.fixture
def site(transactional_db):
    with serving() as url:
        yield Site(url)
    assert not +asgi._pages.gate.taken
    assert asgi._pages.held_bytes == 0


@pytest.fixture
def store(transactional_db):
    return Asking()


@pytest.fixture
def no_long_way(monkeypatch):
    """Django answers nothing."""

    def refuse(_environ):
        raise AssertionError("the long way")

    monkeypatch.setattr(asgi._pages, "_answer", refuse)


EVENT = {"type": "step.done", "data": {"n": 1.0}, "id": "e-1"}
ONE = {"events": [EVENT]}
MINE = {"Agentstate_Fence": "mine"}
# Path, body, headers; `mine` is the run's token. A list: one after the other.
CALLS = {
    "append": ("/runs/{run}/events", ONE | {"add": {"steps": 1}}, MINE),
    "several": ("/runs/{run}/events", {"events": [EVENT, {"type": "b"}]}, MINE),
    "again": [("/runs/{run}/events", ONE, MINE)] * 2,
    "key": [("/runs/{run}/events", ONE, MINE | {"Idempotency_Key": "k-{run}"})] * 2,
    "end": ("/runs/{run}/events", ONE | {"to": "completed", "result": [1]}, MINE),
    "charge": ("/runs/{run}/events", ONE | {"spend": {"budget": "tokens", "amount": 1}}, MINE),
    "no fence": ("/runs/{run}/events", ONE, {}),
    "stale": ("/runs/{run}/events", ONE, {"Agentstate_Fence": 1}),
    "number": ("/runs/{run}/events", ONE | {"expected_seq": 7}, MINE),
    "version": ("/runs/{run}/events", ONE, MINE | {"If_Match": '"v9"'}),
    "no run": ("/runs/none/events", ONE, {}),
    "no such field": ("/runs/{run}/events", ONE | {"wait": 1}, MINE),
    "no name": ("/runs/-x/events", ONE, {}),
    "no JSON": ("/runs/{run}/events", '{"events": [', MINE),
    "no UTF-8": ("/runs/{run}/events", b'{"events": "\xff"}', MINE),
    "a name twice": ("/runs/{run}/events", '{"events": [], "events": []}', MINE),
    "no number": ("/runs/{run}/events", ONE, {"Agentstate_Fence": "x"}),
    "out of place": ("/leases/run:{run}/renew", {"token": "mine"}, {"If_Match": '"v9"'}),
    "renew": ("/leases/run:{run}/renew", {"token": "mine", "progress": {"n": 1}}, {}),
    "lost": ("/leases/run:{run}/renew", {"token": 1}, {}),
    "release": [("/leases/run:{run}/release", {"token": "mine"}, {})] * 2,
    "held": ("/leases/run:{run}/acquire", {"owner": "w-2"}, {}),
    "acquire": ("/leases/lock-{run}/acquire", {"owner": "w-2"}, {}),
    "claim": ("/leases/claim", {"owner": "w-2", "task": "nothing like it"}, {}),
    "spend": ("/runs/{run}/budgets/tokens/spend", {"amount": 3, "id": "c"}, MINE),
    "too much": ("/runs/{run}/budgets/tokens/spend", {"amount": 30}, MINE),
    "shared": ("/budgets/all-{run}/spend", {"amount": 3}, {}),
    "deadline": ("/runs/{run}/events", ONE, MINE | {"Agentstate_Deadline": 20_000}),
    "request": ("/runs/{run}/events", ONE, MINE | {"X_Request_Id": "req-7"}),
}


def common(told):
    if isinstance(told, dict):
        return {name: common(value) for name, value in told.items() if name not in VARIES}
    return [common(one) for one in told] if isinstance(told, list) else told


def carried_out(site, store, name, way):
    """What the last of the calls was told, in a run of its own."""
    run = f"{way}-{name.replace(' ', '-')}"
    store.create(run, budgets=(NewBudget(name="tokens", cap=10),))
    store.ask(CreateBudget(run=None, budget=NewBudget(name=f"all-{run}", cap=10)))
    token = store.hold(run).token
    for path, body, headers in CALLS[name] if isinstance(CALLS[name], list) else [CALLS[name]]:
        if isinstance(body, dict) and body.get("token") == "mine":
            body = body | {"token": token}
        named = {n: str(v).format(run=run).replace("mine", str(token)) for n, v in headers.items()}
        content_type = SHORT if way == "short" else LONG
        told = site.post(path.format(run=run), body, content_type=content_type, **named)
    status, members, headers = told
    return (
        status,
        common(members),
        {n: v for n, v in headers.items() if n not in HEADERS_VARY},
        {"x-request-id", "server-timing"} <= headers.keys(),
    )


def test_the_short_way_says_what_the_long_way_says(site, store):
    """All of them in one site: to start one for each is all that they would cost."""
    for name in CALLS:
        short, long = (carried_out(site, store, name, way) for way in ("short", "long"))
        assert short == long, name
    # A member that is told of the state is one of both.
    assert site.append("short-stale")[1]["current"].keys() == (
        site.append("long-stale", content_type=LONG)[1]["current"].keys()
    )


def test_it_is_the_short_way(site, store, no_long_way):
    store.create("42")
    token = store.hold("42").token
    assert site.append("42", Agentstate_Fence=token)[0] == 201
    assert site.append("42")[0] == 428  # what the store refuses, too
    assert site.post("/leases/run:42/renew", {"token": token})[0] == 200
    assert site.post("/leases/claim", {"owner": "w-2"})[0] == 200
    # And the rest is not: an address with something behind it, a header that nobody expects.
    assert site.append("42?x=1", Agentstate_Fence=token)[0] == 500
    assert site.append("42", Agentstate_Fence=token, content_type=LONG)[0] == 500


@pytest.mark.usefixtures("no_long_way")
def test_who_may_not_is_left_to_the_long_way(site, store, monkeypatch):
    store.create("42")
    assert site.append("42", key=site.reader)[0] == 500
    assert site.append("42", key="as_" + "0" * 32 + "_" + "x" * 43)[0] == 500
    monkeypatch.undo()
    assert site.append("42", key=site.reader)[1]["code"] == "not-allowed"


def test_a_revoked_key_is_refused_from_the_next_call_on(site, store):
    store.create("42")
    assert site.append("42")[0] == 201
    revoke_key(name="fleet", by=SENIOR.__class__(kind="system", name="x", scopes={"admin"}))
    assert site.append("42")[0] == 401
    assert store.run("42").last_seq == 2


def test_a_keys_limit_counts_and_is_told(site, store):
    store.create("42")
    with override_settings(KEY_RATES={"fleet": 1}):
        shortcuts.pacing.PACES.forget()
        told = [site.append("42") for _ in range(3)]
        shortcuts.pacing.PACES.forget()
    assert [status for status, *_ in told] == [201, 201, 429]
    assert all("ratelimit" in headers for *_, headers in told)
    assert told[2][2]["retry-after"] == "1"


def request_of(site, run, body, **headers):
    lines = [
        f"POST /api/v1/runs/{run}/events HTTP/1.1",
        f"Host: {site.address}",
        f"Authorization: Bearer {site.fleet}",
        f"Content-Type: {SHORT}",
        f"Content-Length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode(), body.encode()


def answers(wire, count):
    """So many answers of one connection, in the order in which they came."""
    found = []
    for _ in range(count):
        answer = http.client.HTTPResponse(wire, method="POST")
        answer.begin()
        found.append((answer.status, json.loads(answer.read())))
    return found


def test_several_requests_in_one_piece_are_answered_in_their_order(site, store):
    store.create("42")
    head, body = request_of(site, "42", json.dumps({"events": [{"type": "a"}]}))
    bad = request_of(site, "42", "{")
    with socket.create_connection(site.address.split(":"), timeout=20) as wire:
        wire.sendall((head + body) * 3 + b"".join(bad) + head + body)
        file = wire.makefile("rb")
        found = []
        for _ in range(5):
            answer = http.client.HTTPResponse(Readable(file), method="POST")
            answer.begin()
            found.append((answer.status, json.loads(answer.read()).get("last_seq")))
    assert found == [(201, 2), (201, 3), (201, 4), (400, None), (201, 5)]


class Readable:
    """What http.client wants of a socket: one file for all answers of a connection."""

    def __init__(self, file):
        self.file = file

    def makefile(self, _mode):
        return Kept(self.file)


class Kept:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def close(self):
        """The connection has more answers."""


def test_a_body_in_pieces_is_read_whole(site, store):
    store.create("42")
    head, body = request_of(site, "42", json.dumps({"events": [{"type": "a"}]}))
    for cut in (1, len(body) // 2, len(body)):
        with socket.create_connection(site.address.split(":"), timeout=20) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in (head[:40], head[40:] + body[:-cut], body[-cut:]):
                wire.sendall(part)
                # The server has taken it, so the next part comes by itself.
                wait_for(lambda: unread(wire) == 0)
            answer = http.client.HTTPResponse(wire, method="POST")
            answer.begin()
            assert answer.status == 201
    assert store.run("42").last_seq == 4


def unread(wire):
    """How many bytes the other end has not acknowledged (SIOCOUTQ)."""
    import fcntl
    import struct
    import termios

    return struct.unpack("i", fcntl.ioctl(wire, termios.TIOCOUTQ, b"\0" * 4))[0]


def test_who_leaves_before_the_answer_leaves_nothing_behind(site, store):
    store.create("42")
    head, body = request_of(site, "42", json.dumps({"events": [{"type": "a"}]}))
    for _ in range(5):
        with socket.create_connection(site.address.split(":"), timeout=20) as wire:
            wire.sendall(head + body)
    wait_for(lambda: not +asgi._pages.gate.taken)
    assert site.append("42")[0] == 201


def test_a_run_that_is_locked_holds_up_nobody_else(site, store):
    for run in ("slow", "42"):
        store.create(run)
    with ThreadPoolExecutor(3) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT FROM agentstate_run WHERE key = 'slow' FOR UPDATE")
            waits = pool.submit(site.append, "slow")
            wait_for(lambda: asgi._pages.gate.taken.total() == 1)
            assert [site.append("42")[0] for _ in range(3)] == [201] * 3
            assert not waits.done()
        assert waits.result()[0] == 201
    assert store.run("slow").last_seq == 2


def test_a_fault_of_ours_is_answered_and_holds_no_place(site, store, monkeypatch):
    """Also one in writing the answer: nobody else would write another."""
    store.create("42")
    monkeypatch.setattr(Write, "answer", lambda *_: 1 / 0)
    status, told, headers = site.append("42")
    assert (status, told["code"]) == (500, "internal")
    assert told["request_id"] == headers["x-request-id"]
    monkeypatch.undo()
    assert store.run("42").last_seq == 2  # it was written: nothing else is said

    def fail(_request, **_parts):
        raise ZeroDivisionError

    for call in shortcuts.calls():
        monkeypatch.setattr(call, "view", fail)
    assert site.append("42")[0] == 201  # before anything is done, it goes the long way


def test_when_there_is_no_place_it_is_told_and_nothing_is_written(site, store, monkeypatch):
    store.create("42")
    gate = asgi._pages.gate
    monkeypatch.setattr(gate, "room", no_room(gate))
    status, told, headers = site.append("42")
    assert (status, told["code"], headers["retry-after"]) == (503, "overloaded", "1")
    assert store.run("42").last_seq == 1


def no_room(gate):
    class NoRoom(type(gate.room)):
        def admits(self, kind, taken):
            return False

    return NoRoom(places=gate.room.places, threads=gate.room.threads)


@pytest.mark.django_db
def test_each_is_the_call_that_ninja_knows():
    assert [call.route for call in shortcuts.calls()] == [
        "api/v1/runs/<key>/events",
        "api/v1/leases/<unit>/renew",
        "api/v1/runs/<key>/budgets/<name>/spend",
        "api/v1/leases/claim",
        "api/v1/leases/<unit>/acquire",
        "api/v1/leases/<unit>/release",
        "api/v1/budgets/<name>/spend",
    ]
    assert {call.scopes for call in shortcuts.calls()} == {frozenset({"write"})}


def test_appends_that_come_at_once_are_all_numbered(site, store):
    store.create("42")
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda _: site.append("42")[1]["last_seq"], range(64)))
    assert sorted(told) == list(range(2, 66))
    assert [e.seq for e in store.events("42")] == list(range(1, 66))
    assert event().type == "step.done"


def test_the_log_knows_whose_call_it_was(site, store, caplog):
    store.create("42")
    with override_settings(LOG_REQUESTS=True), caplog.at_level("INFO"):
        told = []
        handler = Told(told)
        logging.getLogger("agentstate.logs").addHandler(handler)
        try:
            site.append("42", X_Request_Id="req-7", Agentstate_Worker="w-7")
        finally:
            logging.getLogger("agentstate.logs").removeHandler(handler)
    (found,) = told
    assert found["request_id"] == "req-7"
    assert (found["run"], found["worker"], found["caller"]) == ("42", "w-7", "key:fleet")
    assert found["route"] == "api/v1/runs/<key>/events"


class Told(logging.Handler):
    """The ids of each entry, as the formatter adds them."""

    def __init__(self, told):
        super().__init__()
        self.told = told

    def emit(self, record):
        self.told.append(logs.add_ids(None, "", {"status": record.status}))


def test_with_traces_all_goes_the_long_way(site, store, no_long_way):
    store.create("42")
    with override_settings(TRACES=True):
        assert site.append("42")[0] == 500
