from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from agentstate_client import Client, RetryPolicy

from agentstate.store.callers import SCOPES, SYSTEM
from agentstate.store.keys import create_key
from tests.client.proxy import Proxy

QUICK = RetryPolicy(attempts=6, total_seconds=20, first_delay_seconds=0.05)


@pytest.fixture
def api_key(transactional_db: None) -> str:
    return create_key(name="fleet", scopes=SCOPES, by=SYSTEM).text


@pytest.fixture
def worker(live_server, api_key: str) -> Iterator[Callable[..., Client]]:
    """worker("w-1"): a client of the real server. url: another way to it."""
    # The very first request makes the server load its addresses: that is nobody's lease time.
    httpx.get(f"{live_server.url}/api/v1/time", timeout=60)
    made: list[Client] = []

    def make(name: str = "w", *, url: str = "", key: str = "", seconds: float = 15) -> Client:
        client = Client(
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
