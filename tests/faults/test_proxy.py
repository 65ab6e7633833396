"""The proxy does to bytes what its mood says, and nothing otherwise."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from bench.torture.proxy import CUT, DELAY, HALVE, RESET, Mood, Proxy

ASKED, ANSWER = b"question", b"0123456789"


@pytest.fixture
def heard() -> list[bytes]:
    """What the server was asked."""
    return []


@pytest.fixture
def proxy(heard) -> Iterator[Proxy]:
    """In front of a server that answers each question."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxy(to_port=server.getsockname()[1], seed="7") as proxy,
    ):
        threading.Thread(target=serve, args=(server, heard), daemon=True).start()
        yield proxy


def serve(server: socket.socket, heard: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            caller, _ = server.accept()
            with caller:
                heard.append(caller.recv(100))
                caller.sendall(ANSWER)


def ask(proxy: Proxy) -> bytes:
    """Everything that comes back until the end, or within two seconds."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=2) as caller:
        caller.sendall(ASKED)
        got = b""
        with contextlib.suppress(TimeoutError):
            while data := caller.recv(100):
                got += data
        return got


def test_without_a_mood_it_passes_everything_on(proxy):
    assert ask(proxy) == ANSWER
    assert proxy.harmed == 0


def test_a_delay_loses_nothing(proxy):
    proxy.mood = Mood(DELAY, 1.0, 0.05)
    assert ask(proxy) == ANSWER
    assert proxy.harmed == 2


def test_a_cut_loses_the_answer_and_not_the_request(proxy, heard):
    proxy.mood = Mood(CUT, 1.0)
    assert ask(proxy) == b""
    assert heard == [ASKED]


def test_a_reset_is_one(proxy):
    proxy.mood = Mood(RESET, 1.0)
    with pytest.raises(ConnectionResetError):
        ask(proxy)


def test_halving_lets_half_through_and_leaves_the_caller_waiting(proxy, heard):
    proxy.mood = Mood(HALVE, 1.0)
    assert ask(proxy) == ANSWER[: len(ANSWER) // 2]
    assert heard == [ASKED[: len(ASKED) // 2]]
