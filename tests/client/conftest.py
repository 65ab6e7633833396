from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from agentstate_client import Client, RetryPolicy

from agentstate.store.callers import SCOPES, SYSTEM
from agentstate.store.keys import create_key
from tests.client.proxy import Proxy

# The client's own tests have the async client as a sync one.
sys.path.insert(0, str(Path(__file__).parents[2] / "client" / "tests"))

from blocking import FLAVOURS, Loop, clients

QUICK = RetryPolicy(attempts=6, total_seconds=20, first_delay_seconds=0.05)


@pytest.fixture
def api_key(transactional_db: None) -> str:
    return create_key(name="fleet", scopes=SCOPES, by=SYSTEM).text


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


@pytest.fixture(params=FLAVOURS)
def make_client(request: pytest.FixtureRequest, loop: Loop) -> Callable[..., Client]:
    """Makes a sync client, or an async one that is used like one."""
    return clients(request.param, loop)


@cache
def warm_up(url: str) -> None:
    """The very first request makes the server load its addresses: that is nobody's lease time."""
    httpx.get(f"{url}/api/v1/time", timeout=60, verify=False)


@pytest.fixture
def worker(live_server, api_key: str, make_client) -> Iterator[Callable[..., Client]]:
    """worker("w-1"): a client of the real server. url: another way to it."""
    warm_up(live_server.url)
    made: list[Client] = []

    def make(name: str = "w", *, url: str = "", key: str = "", seconds: float = 15) -> Client:
        client = make_client(
            url or live_server.url,
            key or api_key,
            worker=name,
            retry=QUICK,
            timeout_seconds=seconds,
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def proxy(live_server) -> Iterator[Proxy]:
    """A way to the real server on which answers can be lost and requests held up."""
    between = Proxy(port=live_server.thread.port)
    yield between
    between.close()
