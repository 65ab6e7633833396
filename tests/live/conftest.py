"""The product's own server with streams, on the test database, and a client that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from agentstate.store import feed
from agentstate.store.execute import moving_the_feed
from tests.api.asking import new_key
from tests.api.serving import serving
from tests.live.streaming import Site, Stream
from tests.store.asking import Asking


@pytest.fixture
def store(transactional_db: None) -> Asking:
    """The store as one caller with every scope sees it."""
    return Asking()


@pytest.fixture
def still_site(transactional_db: None) -> Iterator[Site]:
    """The running product whose feed moves only when the test moves it."""
    key = new_key("fleet").text
    with serving() as url, httpx.Client(base_url=url, timeout=30, verify=False) as http:
        yield Site(url, key, http)


@pytest.fixture
def site(still_site: Site) -> Iterator[Site]:
    """The running product; its feed moves."""
    with moving_the_feed():
        yield still_site


@pytest.fixture
def follow(site: Site) -> Iterator[Callable[..., Stream]]:
    """follow("/runs/42/events", after=3): an open stream."""
    opened: list[Stream] = []

    def make(path: str, **more: object) -> Stream:
        stream = Stream(site, path, **more)
        opened.append(stream)
        return stream

    yield make
    for stream in opened:
        stream.close()


@pytest.fixture
def move_all() -> Callable[[], None]:
    def move() -> None:
        while feed.move():
            pass

    return move
