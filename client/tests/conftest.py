from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentstate_client import Client

# The tests are collected from the project's root too, where this folder is on no path.
sys.path.insert(0, str(Path(__file__).parent))

from blocking import FLAVOURS, Loop, clients
from scripted_peer import KEY, QUICK, Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    playing = Peer()
    yield playing
    playing.close()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


@pytest.fixture(params=FLAVOURS)
def make_client(request: pytest.FixtureRequest, loop: Loop) -> Callable[..., Client]:
    """Makes a sync client, or an async one that is used like one."""
    return clients(request.param, loop)


@pytest.fixture
def client(peer: Peer, make_client: Callable[..., Client]) -> Iterator[Client]:
    with make_client(peer.url, KEY, worker="w-1", retry=QUICK, timeout_seconds=2) as made:
        yield made
        peer.over.set()
