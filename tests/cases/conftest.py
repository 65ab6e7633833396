"""What the cases use: the API, the console, streams and the client, all on the real store."""

import pytest
from agentstate_client import Client

from tests.api.conftest import api
from tests.client.conftest import api_key, proxy, worker
from tests.dashboard.conftest import log_in, viewer
from tests.live.conftest import follow, site, still_site, store

__all__ = [
    "api",
    "api_key",
    "follow",
    "log_in",
    "make_client",
    "proxy",
    "site",
    "still_site",
    "store",
    "viewer",
    "worker",
]


@pytest.fixture
def make_client() -> type[Client]:
    """Both clients are made from one source: here the one that needs no loop."""
    return Client
