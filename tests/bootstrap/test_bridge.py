"""The way of a request through the web process: no client holds a thread, whatever it does."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
import uvicorn

from agentstate import bridge, sending
from agentstate.web import make_config
from tests.bootstrap.bridged import Stream, asked, echo, serving


def test_a_request_arrives_as_it_was_sent():
    with serving(echo) as port:
        answer, text = asked(
            port, "POST", "/a%20b/%C3%A9?x=%FF&y=1", "hello", X_Twice="1", Content_Type="text/x"
        )
    assert (answer.status, answer.headers["X-Made-By"]) == (200, "echo")
    assert json.loads(text) == {
        "body": "hello",
        "query": "x=%FF&y=1",
        "path": "/a b/\xc3\xa9",
        "twice": "1",
        "type": "text/x",
    }


def test_who_asks_is_whose_connection_it_is(monkeypatch):
    """What a proxy says of it is for the settings to believe (AGENTSTATE_PROXIES)."""

    def tell(environ, start_response):
        start_response("200 OK", [])
        return [f"{environ['REMOTE_ADDR']} {environ['wsgi.url_scheme']}".encode()]

    monkeypatch.setattr("agentstate.asgi.application", bridge.Bridge(tell, threads=1, places=9))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(make_config())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    said = {"X_Forwarded_For": "203.0.113.9", "X_Forwarded_Proto": "https"}
    _, text = asked(listener.getsockname()[1], **said)
    server.should_exit = True
    thread.join(20)
    assert text == b"127.0.0.1 http"


def test_bodies_that_come_byte_by_byte_hold_up_nobody():
    with serving(echo, threads=2) as port, ExitStack() as stack:
        slow = []
        for _ in range(10):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            wire.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n1")
            slow.append(wire)
        assert asked(port)[0].status == 200
        for wire in slow:
            wire.sendall(b"2" * 99)
            assert wire.recv(12) == b"HTTP/1.1 200"


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(bridge, "PIECE_SECONDS", 0.2)
    with serving(echo) as port, socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n1")
        answer = http.client.HTTPResponse(wire)
        answer.begin()
        problem = json.loads(answer.read())
        assert (answer.status, problem["code"]) == (408, "malformed")
        assert (problem["instance"], problem["retry"]) == ("/", "never")
        assert problem["request_id"] == answer.headers["X-Request-Id"]


def test_of_a_body_that_is_too_large_only_the_beginning_is_read():
    seen = []

    def application(environ, start_response):
        seen.append(len(environ["wsgi.input"].read()))
        return echo(environ, start_response)

    with serving(application) as port:
        asked(port, "POST", "/", b"x" * (bridge.BODY_BYTES_MAX + 5))
        with suppress(BrokenPipeError, ConnectionResetError):  # it stops reading while we send
            asked(port, "POST", "/", iter([b"x" * 1_000_000] * 6))
    assert seen == [0, bridge.BODY_BYTES_MAX + 1]


def test_a_client_that_goes_away_before_its_body_is_there_asks_nothing():
    seen = []

    def application(environ, start_response):
        seen.append(environ["PATH_INFO"])
        return echo(environ, start_response)

    with serving(application) as port:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(b"POST /half HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n1")
        assert asked(port, path="/whole")[0].status == 200
    assert seen == ["/whole"]


def test_a_reader_that_stalls_holds_no_thread_of_others_and_is_cut_off(monkeypatch):
    monkeypatch.setattr(sending, "SEND_SECONDS", 0.5)
    streams = []

    def application(environ, start_response):
        if environ["PATH_INFO"] != "/export":
            return echo(environ, start_response)
        start_response("200 OK", [("Content-Type", "text/plain")])
        streams.append(Stream(b"x" * 1_000_000 for _ in range(1_000)))
        return streams[-1]

    with serving(application, threads=1) as port, ExitStack() as stack:
        for _ in range(6):  # more than there are threads for streams
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            wire.sendall(b"GET /export HTTP/1.1\r\nHost: x\r\n\r\n")
        assert asked(port)[0].status == 200
        deadline = time.monotonic() + 20
        while len(streams) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        for stream in streams:
            assert stream.closed.wait(20)
        assert len(streams) == 6


def test_a_short_file_does_not_wait_behind_exports():
    go = threading.Event()

    def endless():
        yield b"x"
        assert go.wait(20)

    def application(environ, start_response):
        if environ["PATH_INFO"] == "/file":
            start_response("200 OK", [("Content-Length", "6")])
            return Stream([b"abc", b"def"])
        start_response("200 OK", [])
        return Stream(endless())

    with serving(application, threads=1) as port, ExitStack() as stack:
        for _ in range(bridge.STREAM_THREADS + 2):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            wire.sendall(b"GET /export HTTP/1.1\r\nHost: x\r\n\r\n")
        assert asked(port, path="/file")[1] == b"abcdef"
        go.set()


def test_a_reader_that_goes_away_ends_what_is_made_for_it():
    made = []

    def parts():
        for number in range(100_000):
            made.append(number)
            yield b"x" * 100_000

    stream = Stream(parts())

    def application(environ, start_response):
        start_response("200 OK", [])
        return stream

    with serving(application) as port:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert wire.recv(100)
        assert stream.closed.wait(20)
    assert len(made) < 100_000


@pytest.mark.parametrize("returned", [[b"two"], Stream([b"two"])])
def test_what_is_written_the_older_way_comes_first(returned):
    def application(environ, start_response):
        start_response("200 OK", [])(b"one")
        return returned

    with serving(application) as port:
        assert asked(port)[1] == b"onetwo"


def test_a_stream_that_fails_in_the_middle_does_not_look_whole():
    def parts():
        yield b"one"
        raise RuntimeError("the database went away")

    def application(environ, start_response):
        start_response("200 OK", [])
        return Stream(parts())

    with serving(application) as port, pytest.raises(http.client.IncompleteRead):
        asked(port)


def test_whoever_pipelines_and_leaves_holds_nothing():
    def application(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"x" * 3_000_000]

    with serving(application, threads=2) as port:
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", port)) as wire:
                wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        for _ in range(5):
            answer, body = asked(port)
            assert (answer.status, len(body)) == (200, 3_000_000)
