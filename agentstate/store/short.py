"""What a short way through `execute` is: some commands that one statement carries out by itself.

A short way does what nothing stands against, or refuses what a look without a lock may refuse. What
it leaves out is decided where the rule is, so it may leave out too much but never do too much.
Why: docs/decisions/0029-hot-path.md, 0030-leases-hot-path.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from agentstate.store import flights
from agentstate.store.asks import Ask, Outcome
from agentstate.store.listeners import Written
from agentstate.store.plan import Plan


class ShortBatch(Protocol):
    """The commands of one transaction; None is the outcome of those that it leaves out.

    decided: only COMMIT is left, and it matters. written: for those who are told.
    """

    asks: Sequence[Ask]
    decided: bool
    xact_id: str
    written: Written

    def cursor(self) -> Any: ...

    def plans(self) -> list[Plan]: ...

    def run(self, cursor: flights.Cursor) -> None: ...

    def outcomes(self) -> Sequence[Outcome | None]: ...

    def is_there(self, cursor: Any) -> bool | None: ...

    def count(self, latency_ms: int) -> None: ...


class ShortWay(NamedTuple):
    """choose: the places of the commands that may try it. make: carries them out."""

    choose: Callable[[Sequence[Ask]], list[int]]
    make: Callable[[Sequence[Ask], str], ShortBatch]
