"""A real agentstate for your tests: its API, its PostgreSQL, and a clock that you set.

As a pytest plugin there is nothing to import: a test that names one of these fixtures gets it.

    def test_a_worker_that_slept_is_fenced(agentstate_client, agentstate_clock):
        run = agentstate_client.create(task="audit")
        mine = run.acquire(ttl_seconds=60)
        agentstate_clock.advance(seconds=61)
        ...

agentstate_server: where it is, clients and keys for it; emptied after each test that used it.
agentstate_client: a client of it. agentstate_clock: its clock, which then stands still.

Elsewhere (unittest, a notebook): `with running_server() as server: …`.

The server is not part of this package and not on an index: it is taken from a checkout of
agentstate (ServerMissing says what is looked for, and where).
"""

from agentstate_client.testing.finding import ServerMissing
from agentstate_client.testing.server import START, Clock, Server, running_server
from agentstate_client.testing.ways import ServerFailure

__all__ = ["START", "Clock", "Server", "ServerFailure", "ServerMissing", "running_server"]
