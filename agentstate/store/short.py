"""What a short way through `execute` is: some commands that one statement carries out by itself.

A short way does what nothing stands against, or refuses what a look without a lock may refuse. What
it leaves out is decided where the rule is, so it may leave out too much but never do too much.
Why: docs/decisions/0029-hot-path.md, 0030-leases-hot-path.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from agentstate.store import flights
from agentstate.store.asks import Ask, Outcome
from agentstate.store.listeners import Written
from agentstate.store.plan import Plan, plan


class ShortBatch(ABC):
    """The commands of one transaction; None is the outcome of those that it leaves out.

    PREPARED: its statements that may wait for others (flights.py). decided: only COMMIT is left,
    and it matters. written: for those who are told.
    """

    PREPARED: ClassVar[frozenset[str]]

    def __init__(self, asks: Sequence[Ask], lock_timeout: str) -> None:
        self.asks, self.lock_timeout = asks, lock_timeout
        self.decided = False
        self.xact_id = ""
        self.written = Written()

    def cursor(self) -> Any:
        return flights.cursor(self.PREPARED)

    def plans(self) -> list[Plan]:
        return [plan(ask.command) for ask in self.asks]

    @abstractmethod
    def run(self, cursor: flights.Cursor) -> None:
        """Do it, up to COMMIT."""

    @abstractmethod
    def outcomes(self) -> list[Outcome | None]:
        """In the order of the asks."""

    @abstractmethod
    def is_there(self, cursor: Any) -> bool | None:
        """Whether something of this very batch is stored; None when it wrote none to know by."""

    @abstractmethod
    def count(self, latency_ms: int) -> None:
        """Add what was committed to this process's minutes, as `_Batch.count` does."""


class ShortWay(NamedTuple):
    """choose: the places of the commands that may try it. make: carries them out."""

    choose: Callable[[Sequence[Ask]], list[int]]
    make: Callable[[Sequence[Ask], str], ShortBatch]
