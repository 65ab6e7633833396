"""HTTP as it is read from the socket: a head has an end, in bytes, in fields and in time."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest

from agentstate import bridge, wire
from tests.bootstrap.bridged import asked, echo, serving

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def port():
    with serving(echo) as port:
        yield port


def said(port, *pieces, seconds=20.0):
    """What the server says to these bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                line.sendall(piece)
        return b"".join(iter(lambda: _received(line), b""))


def _received(line):
    try:
        return line.recv(65536)
    except ConnectionResetError:
        return b""


def problem_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    problem = json.loads(body)
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    assert f"x-request-id: {problem['request_id']}".encode() in head
    assert (problem["retry"], problem["code"]) == ("never", "malformed")
    assert int(head.split(b" ")[1]) == problem["status"]
    return problem["status"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"X: " + b"x" * wire.HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(wire.FIELDS_MAX)) + b"\r\n", 431),
        (b"GET /" + b"x" * wire.LINE_BYTES_MAX + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA B: 1\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_or_too_long_a_one_is_refused_as_a_problem(port, sent, status):
    assert problem_of(said(port, sent)) == status
    assert asked(port)[0].status == 200


def test_a_head_just_within_the_bounds_is_answered(port):
    fields = {f"X-{n}": "x" * 300 for n in range(80)}
    assert asked(port, path="/" + "x" * (wire.LINE_BYTES_MAX - 2000), **fields)[0].status == 200


def test_a_field_or_a_head_that_never_ends_is_not_kept(port):
    piece = b"x" * 16_384
    endless = said(port, HEAD + b"X: ", *[piece] * 2_000)
    assert endless == b"" or problem_of(endless) == 431
    fields = [b"".join(b"X-%d-%d: 1\r\n" % (n, m) for m in range(1_000)) for n in range(1_000)]
    endless = said(port, HEAD, *fields)
    assert endless == b"" or problem_of(endless) == 431
    assert asked(port)[0].status == 200


def test_a_head_that_does_not_come_is_waited_for_only_so_long(port, monkeypatch):
    monkeypatch.setattr(wire, "HEAD_SECONDS", 0.3)
    assert said(port) == b""
    assert problem_of(said(port, HEAD)) == 408
    assert b"HTTP/1.1 200" in said(port, HEAD + b"Connection: close\r\n\r\n")


def test_a_second_head_on_one_connection_has_an_end_as_well(port, monkeypatch):
    monkeypatch.setattr(wire, "HEAD_SECONDS", 0.3)
    both = said(port, HEAD + b"\r\n", HEAD)
    assert both.count(b"HTTP/1.1 200") == 1
    huge = said(port, HEAD + b"\r\n", HEAD + b"X: " + b"x" * wire.HEAD_BYTES_MAX + b"\r\n\r\n")
    assert huge.count(b"HTTP/1.1 200") <= 1
    assert asked(port)[0].status == 200


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_trailer_is_no_header(port):
    answer = said(port, CHUNKED, b"2\r\nhi\r\n0\r\nX-Twice: 1\r\n\r\n")
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (told["body"], told["twice"]) == ("hi", None)


def test_trailers_and_chunks_are_bounded_too(port):
    trailer = b"X: " + b"x" * 16_384 + b"\r\n"
    endless = said(port, CHUNKED, b"2\r\nhi\r\n0\r\n", *[trailer] * 200)
    assert endless == b"" or problem_of(endless) == 431
    endless = said(port, CHUNKED, b"2;", *[b"x" * 16_384] * 200)
    assert endless == b"" or problem_of(endless) == 431
    assert asked(port)[0].status == 200


def test_a_body_in_chunks_of_one_byte_is_a_body(port):
    answer = said(port, CHUNKED, b"1\r\nx\r\n" * 30_000, b"0\r\n\r\n")
    assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["body"]) == 30_000


def test_many_requests_at_once_on_one_connection_are_all_answered(port):
    last = HEAD + b"Connection: close\r\n\r\n"
    assert said(port, (HEAD + b"\r\n") * 2_000 + last).count(b"HTTP/1.1 200") == 2_001


WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
JUNK = b":1}]}\r\n\r\n"


@pytest.mark.parametrize("junk", [JUNK, HEAD + b"A B: 1\r\n\r\n", b"\0"])
@pytest.mark.parametrize("many", [1, 5])
def test_what_came_whole_is_answered_whatever_comes_behind_it(port, many, junk):
    """S-108 (docs/sweeps.md): the answer was lost, and with it whether the write was done."""
    answers = said(port, WHOLE * many + junk)
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200") == many
    assert answers.count(b'"body": "hi"') == many
    assert asked(port)[0].status == 200


def test_of_several_the_one_that_breaks_off_takes_no_answer_of_the_others(port):
    """S-108."""
    answers = said(port, WHOLE * 2 + CHUNKED + b"zz\r\n")
    assert answers.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nhi-\r\n0\r\n\r\n",
        CHUNKED.replace(b"chunked", b"xchunked") + b"hi",
    ],
)
def test_a_body_that_cannot_be_read_is_told_and_not_cut(port, sent):
    """S-108: the connection was closed without a word."""
    assert problem_of(said(port, sent)) == 400
    assert asked(port)[0].status == 200


def test_an_upgrade_is_not_offered_and_the_request_is_answered(port):
    upgrade = HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(upgrade)
        assert line.recv(12) == b"HTTP/1.1 200"


def test_an_application_that_fails_is_a_problem_with_an_id():
    def broken(environ, start_response):
        raise RuntimeError("x")

    with serving(broken) as port:
        answer, text = asked(port, X_Request_Id="job-7")
    problem = json.loads(text)
    assert (answer.status, problem["code"], problem["request_id"]) == (500, "internal", "job-7")
    assert answer.headers["X-Request-Id"] == "job-7"
    assert "dur=" in answer.headers["Server-Timing"]


def test_bodies_that_are_too_many_to_be_held_are_sent_away(monkeypatch):
    monkeypatch.setattr(bridge, "BODIES_BYTES_MAX", 100_000)
    with serving(echo) as port:
        answer, text = asked(port, "POST", "/", b"x" * 200_000)
        assert (answer.status, json.loads(text)["code"]) == (503, "overloaded")
        assert asked(port, "POST", "/", b"x" * 90_000)[0].status == 200
        assert asked(port, "POST", "/", b"x" * 90_000)[0].status == 200
