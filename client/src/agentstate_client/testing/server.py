"""The server of a test run, and its clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from agentstate_client import AsyncClient, Client
from agentstate_client.testing.finding import find_checkout
from agentstate_client.testing.ways import Way, run_server

START = datetime(2026, 3, 2, 12, 0, tzinfo=timezone.utc)
SCOPES = ("read", "payloads", "write", "propose", "operate", "override", "admin")


class Clock:
    """The clock of the store, the one that decides. It is the real time until it is set; then it
    stands still, and moves only as it is told.

    A client goes by its own clock as to how long it may write under a lease: moving this one is
    for the worker what a long sleep of its machine is, and it learns from the store what it lost.
    """

    def __init__(self, way: Way) -> None:
        self._way = way

    def __repr__(self) -> str:
        return f"<Clock at {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """What the store takes for the time: UTC."""
        return self._way.now()

    def set(self, at: datetime) -> None:
        """Let it stand at `at`, which has a time zone; also back."""
        if at.utcoffset() is None:
            raise ValueError("at: a datetime with a time zone, such as datetime.now(timezone.utc)")
        self._way.set_clock(at)

    def advance(self, **by: float) -> None:
        """Move it on, as timedelta takes it: `clock.advance(seconds=61)`. It stands there."""
        self._way.advance_clock(timedelta(**by).total_seconds())

    def release(self) -> None:
        """Back to the real time."""
        self._way.release_clock()


class Server:
    """A real agentstate for tests: the API on a port of this machine, and a database of its own.

    url: where it is. key: an API key with every scope.
    """

    def __init__(self, way: Way) -> None:
        self._way = way
        self._clients = ExitStack()
        self.url, self.key = way.url, way.key
        self.clock = Clock(way)

    def __repr__(self) -> str:
        return f"<Server at {self.url}>"

    def client(self, worker: str = "test", **options: Any) -> Client:
        """A client of it. It is closed at the end of the test, before the store is emptied.

        options: as Client takes them.
        """
        return self._clients.enter_context(
            Client(self.url, options.pop("key", self.key), worker=worker, **options)
        )

    def async_client(self, worker: str = "test", **options: Any) -> AsyncClient:
        """An async client of it, which the test closes: `async with server.async_client() as …`."""
        return AsyncClient(self.url, options.pop("key", self.key), worker=worker, **options)

    def make_key(self, scopes: Sequence[str] = SCOPES) -> str:
        """Another API key, with just these scopes."""
        return self._way.make_key(scopes)

    def sweep(self) -> None:
        """Let the store do now what it does every few seconds: note leases that have lapsed, carry
        out deadlines, drop holds of the dead. By its clock: `clock.advance(…)`, then this.
        """
        self._way.sweep()

    def empty(self) -> None:
        """Close the clients that `client` made, and forget everything; the clock is the real time.

        Keys stay. The plugin does it after each test.
        """
        try:
            self._clients.close()
        finally:
            self._way.empty()


@contextmanager
def running_server(*, checkout: str | None = None, where: str = "auto") -> Iterator[Server]:
    """A server for the time of the block: seconds to start, so take one for many tests, and
    `empty` it between them.

    checkout: the folder of agentstate; None: looked for (ServerMissing says where). where: `here`,
    in this process, which has to have the server's dependencies and no Django of its own; `apart`,
    in another one; `auto`: here if that can be. Raises ServerMissing, ServerFailure.
    """
    way = run_server(find_checkout(checkout), where=where)
    server = Server(way)
    try:
        yield server
    finally:
        try:
            server._clients.close()
        finally:
            way.stop()
