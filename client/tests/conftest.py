from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentstate_client import Client

# The tests are collected from the project's root too, where this folder is on no path.
sys.path.insert(0, str(Path(__file__).parent))

from scripted_peer import KEY, QUICK, Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    playing = Peer()
    yield playing
    playing.close()


@pytest.fixture
def client(peer: Peer) -> Iterator[Client]:
    with Client(peer.url, KEY, worker="w-1", retry=QUICK, timeout_seconds=2) as made:
        yield made
        peer.over.set()
