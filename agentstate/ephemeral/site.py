"""The site itself: PostgreSQL, the API on a port of its own, and what a test may do to both.

All that a test asks for happens in one thread, which has its own connection to the database: the
test may be a coroutine, in which Django refuses to work, or run in many threads.
"""

from __future__ import annotations

import asyncio
import http.client
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agentstate.embedded import FORGETFUL, EmbeddedPostgres
from agentstate.ephemeral import configuration

START_SECONDS = 60.0
STOP_SECONDS = 5.0
BACKLOG = 256
# A request of the test before may still hold its rows; it is waited for, and then asked again.
EMPTY_LOCK_SECONDS, EMPTY_TRIES = 3, 10
ROWS = 500  # of a sweep
KEY_NAME = "tests"
DATABASE = f"test_{secrets.token_hex(6)}"  # this process's own


@dataclass(frozen=True)
class Address:
    """Where the site is, and a key with every scope."""

    url: str
    key: str


class Site:
    """One a process: Django is configured for it, and stays so until the process ends."""

    def __init__(self) -> None:
        self._work = ThreadPoolExecutor(1, thread_name_prefix="agentstate-site")
        self._held = ExitStack()
        self._web: Web | None = None
        self._kept: set[str] = set()
        self._clock: Any = None

    def start(self) -> Address:
        """Start everything. Raises Unfit, EmbeddedFailure, OSError; then nothing is left."""
        try:
            return self._do(self._start)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything that `start` began; the database goes. Nothing can be asked after it."""
        try:
            self._do(self._held.close)
        finally:
            self._work.shutdown(wait=False)

    def make_key(self, scopes: Sequence[str]) -> str:
        """A new API key, which lasts as long as the site. Raises Invalid."""
        return self._do(lambda: self._make_key(f"{KEY_NAME}-{secrets.token_hex(4)}", scopes))

    def empty(self) -> None:
        """Forget every run, lease, budget and event; the clock is the real one again."""
        self._do(self._empty)

    def sweep(self) -> None:
        """Do once what background work does every few seconds, by the clock as it is set."""
        self._do(self._sweep)

    def now(self) -> datetime:
        """The database's clock."""
        return self._do(self._now)

    def set_clock(self, at: datetime) -> None:
        """Let the clock stand at `at`."""
        self._do(lambda: self._set_clock(at))

    def advance_clock(self, seconds: float) -> None:
        """Move it on from where it is; it stands there."""
        self._do(lambda: self._set_clock(self._now() + timedelta(seconds=seconds)))

    def release_clock(self) -> None:
        """Back to the real time."""
        self._do(self._release_clock)

    def _do[T](self, work: Callable[[], T]) -> T:
        return self._work.submit(work).result()

    # --- in the thread ----------------------------------------------------------------------

    def _start(self) -> Address:
        folder = configuration.home()
        configuration.configure(folder, database=DATABASE)
        from agentstate.ephemeral import database
        from agentstate.store.callers import SCOPES
        from agentstate.store.feed import MOVER

        server = EmbeddedPostgres(folder / "postgres", settings=FORGETFUL)
        self._held.enter_context(server.held())
        self._held.callback(database.end)
        database.make()
        key = self._make_key(KEY_NAME, SCOPES)
        self._kept = set(database.used_tables())
        self._held.callback(MOVER.stop)
        MOVER.start()
        self._web = Web()
        self._held.callback(self._web.stop)
        return Address(self._web.start(), key)

    def _make_key(self, name: str, scopes: Sequence[str]) -> str:
        from agentstate.store.callers import SYSTEM
        from agentstate.store.keys import create_key

        return create_key(name=name, scopes=scopes, by=SYSTEM).text

    def _empty(self) -> None:
        from django.db import OperationalError

        from agentstate.store.minutes import TALLY

        for left in reversed(range(EMPTY_TRIES)):
            try:
                self._truncate()
            except OperationalError:  # a lock that did not come, or a ring of them
                if not left:
                    raise
            else:
                break
        TALLY.forget()

    def _truncate(self) -> None:
        from django.db import connection, transaction

        from agentstate.ephemeral import database
        from agentstate.store.feed import ADVISORY_LOCK

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{EMPTY_LOCK_SECONDS}s'")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])  # the feed stands
            if used := [name for name in database.used_tables() if name not in self._kept]:
                names = ", ".join(f'"{name}"' for name in used)
                cursor.execute(f"TRUNCATE {names} CASCADE")
            cursor.execute("DELETE FROM test_clock")

    def _sweep(self) -> None:
        from agentstate.store import feed
        from agentstate.store.callers import SWEEP
        from agentstate.store.commands import CarryOutDeadlines, DropDeadHolds, NoteLapsed
        from agentstate.store.execute import execute

        execute(NoteLapsed(limit=ROWS), by=SWEEP)
        execute(CarryOutDeadlines(limit=ROWS), by=SWEEP)
        execute(DropDeadHolds(limit=ROWS), by=SWEEP)
        feed.move()

    def _now(self) -> datetime:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT agentstate_now()")
            found: datetime = cursor.fetchone()[0]
        return found

    def _set_clock(self, at: datetime) -> None:
        from django.db import connection, transaction

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM test_clock")
            cursor.execute("INSERT INTO test_clock VALUES (%s)", [at])

    def _release_clock(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM test_clock")


class Web:
    """The API on a free port of the loopback, served by a thread with a loop of its own."""

    def __init__(self) -> None:
        import uvicorn

        from agentstate.asgi import application
        from agentstate.wire import Wire

        config = uvicorn.Config(
            application,
            http=Wire,
            lifespan="off",
            access_log=False,
            log_config=None,  # whose process it is decides
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="agentstate-web", daemon=True)

    def start(self) -> str:
        """Serve, and wait for a first answer: loading all addresses is nobody's lease time."""
        self._thread.start()
        port = self._listener.getsockname()[1]
        first = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        first.request("GET", "/api/v1/time")
        first.getresponse().read()
        first.close()
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """Open streams are told goodbye; what else is open is cut after a second."""
        if self._loop is not None:
            with suppress(RuntimeError):  # closed just now
                asyncio.run_coroutine_threadsafe(_say_bye(), self._loop)
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._listener.close()

    def _serve(self) -> None:
        asyncio.run(self._serve_in_loop())

    async def _serve_in_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        from agentstate.api import shortcuts

        await self._server.serve(sockets=[self._listener])
        await shortcuts.end()


async def _say_bye() -> None:
    from agentstate.live.hub import Notice, hub

    hub().publish(Notice.BYE)
