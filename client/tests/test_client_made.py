"""The sync client is what the async one makes, and offers the same."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest

import agentstate_client
from agentstate_client import AsyncBudget, AsyncChange, AsyncClient, AsyncLease, AsyncRun

spec = importlib.util.spec_from_file_location(
    "make_sync", Path(__file__).parents[1] / "make_sync.py"
)
assert spec is not None
assert spec.loader is not None
make_sync = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_sync)

ALL_ASYNC = [
    getattr(agentstate_client, name)
    for name in agentstate_client.__all__
    if name.startswith("Async")
]


def test_every_module_is_as_it_is_made() -> None:
    for source in make_sync.SOURCE.glob("*.py"):
        if source.name not in make_sync.BY_HAND:
            assert (make_sync.MADE / source.name).read_text() == make_sync.made_from(source), (
                f"run client/make_sync.py: {source.name}"
            )
    assert {p.name for p in make_sync.MADE.glob("*.py")} == {
        p.name for p in make_sync.SOURCE.glob("*.py")
    }


@pytest.mark.parametrize("cls", ALL_ASYNC)
def test_both_have_the_same_names_and_arguments(cls: type) -> None:
    sync = getattr(agentstate_client, cls.__name__.removeprefix("Async"))
    names = {name for name in vars(cls) if not name.startswith("_")}
    assert names == {name for name in vars(sync) if not name.startswith("_")}
    for name in names:
        one, other = getattr(cls, name), getattr(sync, name)
        if inspect.isfunction(one):
            assert list(inspect.signature(one).parameters) == list(
                inspect.signature(other).parameters
            )


def test_everything_async_has_its_counterpart() -> None:
    assert {AsyncBudget, AsyncChange, AsyncClient, AsyncLease, AsyncRun} <= set(ALL_ASYNC)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("async with await client.lease() as lease:", "with client.lease() as lease:"),
        ("async for x in y: [z async for z in x]", "for x in y: [z for z in x]"),
        ("def a() -> AsyncTaking[AsyncRun]: ...", "def a() -> Run: ..."),
        ("f: Callable[[], Coroutine[Any, Any, dict[str, T]]]", "f: Callable[[], dict[str, T]]"),
        ("x: Awaitable[Awaitable[list[T]]]", "x: list[T]"),
        (
            "def __aenter__(self): await self._http.aclose()",
            "def __enter__(self): self._http.close()",
        ),
    ],
)
def test_a_line_is_translated(text: str, made: str) -> None:
    assert make_sync.translated(text) == made
