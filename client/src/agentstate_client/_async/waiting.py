"""Waiting, for the async client: with asyncio. Written by hand, like its counterpart in _sync.

What threads of the client tell (a lease is lost) arrives here in whatever loop waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, Union, cast

from agentstate_client.errors import ClientClosed

log = logging.getLogger("agentstate_client")

T = TypeVar("T")

# What a caller's function may be: async or not.
AsyncMade = Union[T, Awaitable[T]]  # noqa: UP007

AsyncLock = asyncio.Lock
Timer = asyncio.TimerHandle
Spawned = asyncio.Future[Any]

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class AsyncFlag:
    """threading.Event with a `wait` that is awaited; all of it from any thread and any loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._waiters: set[Waiter] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            waiters, self._waiters = self._waiters, set()
        for loop, waiting in waiters:
            try:
                loop.call_soon_threadsafe(_end_wait, waiting)
            except RuntimeError:  # that loop is closed, and nobody waits in it any more
                continue

    def clear(self) -> None:
        with self._lock:
            self._is_set = False

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or `timeout` seconds; whether it is set."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = (loop, loop.create_future())
        with self._lock:
            if self._is_set:
                return True
            self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter[1]], timeout=timeout)
        finally:
            with self._lock:
                self._waiters.discard(waiter)
        return waiter[1].done() or self._is_set


def _end_wait(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class AsyncHome:
    """Where a client may be used: in the process that made it, and in one event loop."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises ClientClosed after a fork, and in another loop: its connections live in one."""
        if not self.is_here:
            raise ClientClosed("the client was made before a fork: make another one here")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise ClientClosed("the client belongs to another event loop: make one in each")


def later(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> Timer:
    """Do something in a while, in this loop."""

    def begin() -> None:
        _keep(asyncio.ensure_future(work()))

    return asyncio.get_running_loop().call_later(seconds, begin)


def spawn(work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> Spawned:
    """Begin something beside; what it raises it has to tell by itself."""
    task = asyncio.get_running_loop().create_task(work(), name=name)
    _keep(task)
    return task


def abandon(spawned: Spawned | None) -> None:
    """Nobody waits for it any more: it is cancelled."""
    if spawned is not None:
        spawned.cancel()


async def acquired(lock: AsyncLock, seconds: float | None) -> bool:
    """Take a lock, waiting for it so long; False when that was not long enough."""
    try:
        return await asyncio.wait_for(lock.acquire(), seconds)
    except asyncio.TimeoutError:
        return False


async def carried_through(
    granting: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, object]] | None = None
) -> T:
    """Wait for what the store grants; who is cancelled meanwhile leaves nothing behind.

    The request goes on then, and what it brings is given to `undo`.
    """
    task = asyncio.ensure_future(granting)
    _keep(task)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: _take_back(done, undo))
        raise


def _take_back(
    done: asyncio.Future[T], undo: Callable[[T], Coroutine[Any, Any, object]] | None
) -> None:
    failure = None if done.cancelled() else done.exception()
    if failure is not None:
        log.info("nobody waited for it any more, and it failed: %s", failure)
    elif undo is not None and not done.cancelled():
        undoing = asyncio.ensure_future(undo(done.result()))
        _keep(undoing)
        undoing.add_done_callback(lambda done: _take_back(done, None))


# A loop keeps only weak references to its tasks.
_kept: set[asyncio.Future[Any]] = set()


def _keep(task: asyncio.Future[Any]) -> None:
    _kept.add(task)
    task.add_done_callback(_kept.discard)


class Enterable(Protocol):
    async def __aenter__(self: E) -> E: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


E = TypeVar("E", bound=Enterable)


class AsyncTaking(Generic[E]):
    """What is awaited to have it, or entered to have it for a block: `async with …acquire():`."""

    def __init__(self, coming: Coroutine[Any, Any, E]) -> None:
        self._coming = coming
        self._taken: E | None = None

    def __await__(self) -> Generator[Any, None, E]:
        return self._coming.__await__()

    async def __aenter__(self) -> E:
        self._taken = await self._coming
        return await self._taken.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._taken is not None:
            await self._taken.__aexit__(kind, raised, trace)


def taking(coming: Coroutine[Any, Any, E]) -> AsyncTaking[E]:
    return AsyncTaking(coming)


async def resolved(made: AsyncMade[T]) -> T:
    """What a caller's function made, whether it is async or not."""
    if inspect.isawaitable(made):
        return cast(T, await made)
    return made


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)
