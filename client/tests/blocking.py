"""The async client as the sync one is used, so that one test says the same of both.

Everything that it does is done in an event loop in a thread of its own; what it hands out is
wrapped in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import agentstate_client
from agentstate_client import AsyncClient, Client

T = TypeVar("T")

FLAVOURS = ("sync", "async")
PATIENCE_SECONDS = 90


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self.loop.close()


class Blocking:
    """Something async as its sync counterpart; it passes for one (isinstance) as well."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self.__dict__.update(_loop=loop, _inner=inner)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        name = type(self._inner).__name__.removeprefix("Async")
        found: type = getattr(agentstate_client, name, type(self._inner))
        return found

    def __getattr__(self, name: str) -> Any:
        return self._outward(getattr(self._inner, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, self._inward(value))

    def __repr__(self) -> str:
        return repr(self._inner)

    def __eq__(self, other: object) -> bool:
        return bool(self._inner == self._inward(other))

    def __hash__(self) -> int:
        return hash(self._inner)

    def __enter__(self) -> Any:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._loop.run(self._inner.__aexit__(*raised))

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return self._outward(self._loop.run(self._inner.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None

    def _outward(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._outward(self._loop.run(_awaited(value)))
        if isinstance(value, list):
            return [self._outward(one) for one in value]
        if inspect.ismethod(value) and not isinstance(value.__self__, type):
            return self._calling(value)
        if inspect.isasyncgen(value) or type(value).__module__.startswith(
            "agentstate_client._async"
        ):
            return Blocking(self._loop, value)
        return value

    def _calling(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            inward = [self._inward(one) for one in arguments]
            given = {name: self._inward(one) for name, one in named.items()}
            return self._outward(method(*inward, **given))

        return call

    def _inward(self, value: Any) -> Any:
        if type(value) is Blocking:
            return value._inner
        return self._in_a_thread(value) if inspect.isfunction(value) else value

    def _in_a_thread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A test's own function may use the client, which must not be waited for in its loop."""

        async def called(*arguments: Any) -> Any:
            return await self._loop.loop.run_in_executor(None, function, *arguments)

        return called


async def _awaited(value: Any) -> Any:
    return await value


def clients(flavour: str, loop: Loop) -> Callable[..., Client]:
    """What makes clients of a flavour, to be used as sync ones."""
    if flavour == "sync":
        return Client

    def make(*arguments: Any, **named: Any) -> Any:
        return Blocking(loop, AsyncClient(*arguments, **named))

    return make
