"""Budgets of a run, charged under its lease: spent at once, or reserved and then accounted for."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentstate_client._async.waiting import AsyncTaking, carried_through, taking
from agentstate_client.calls import log
from agentstate_client.errors import AgentStateError, LeaseLost
from agentstate_client.records import (
    Charged,
    Reserved,
    Settled,
    read_charged,
    read_reserved,
    read_settled,
)

if TYPE_CHECKING:
    from agentstate_client._async.runs import AsyncRun

# Longer than a call of a model takes. A hold that has run out is dropped only when it is in the way
# or by a sweep, and what was spent under it can still be committed, late.
HOLD_SECONDS = 300


class AsyncBudget:
    """One budget of a run, charged under the run's lease."""

    def __init__(self, *, run: AsyncRun, name: str) -> None:
        self.run, self.name = run, name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.run.key}>"

    async def spend(
        self, amount: int, *, id: str | None = None, note: str | None = None
    ) -> Charged:
        """Charge `amount` (at least 1, in the budget's unit), at every level or at none.

        id: makes charging it again harmless, for the run's life. Raises BudgetExhausted with
        what is left; then nothing was charged.
        """
        document: dict[str, Any] = {"amount": amount}
        if id is not None:
            document["id"] = id
        if note is not None:
            document["note"] = note
        answer = await self.run._write(("budgets", self.name, "spend"), document)
        return read_charged(answer.document(), replayed=answer.replayed)

    def reserve(
        self, amount: int, *, id: str | None = None, ttl_seconds: int = HOLD_SECONDS
    ) -> AsyncTaking[AsyncHold]:
        """Set `amount` aside before it is spent: `async with budget.reserve(8_000) as hold: …`.

        In the block, `await hold.commit(used)` records what was really used and gives the rest
        back. Leaving the block without it, by an error or not, gives everything back. id: makes
        reserving it again harmless. Raises BudgetExhausted; then nothing is set aside.
        """
        reservation = id if id is not None else str(uuid.uuid4())
        return taking(carried_through(self._reserve(amount, reservation, ttl_seconds), _undo))

    async def _reserve(self, amount: int, id: str, ttl_seconds: int) -> AsyncHold:
        document = {"amount": amount, "id": id, "ttl_seconds": ttl_seconds}
        answer = await self.run._write(("budgets", self.name, "reserve"), document)
        return AsyncHold(budget=self, granted=read_reserved(answer.document()))


class AsyncHold:
    """An amount that is set aside. Made by `budget.reserve(…)`; a context manager.

    granted: the budget as of then. settled: how it ended; None before.
    """

    def __init__(self, *, budget: AsyncBudget, granted: Reserved) -> None:
        self.budget, self.granted = budget, granted
        self.id, self.amount = granted.id, granted.amount
        self.settled: Settled | None = None
        self._used: int | None = None

    def __repr__(self) -> str:
        state = self.settled.state if self.settled else "held"
        return f"<{type(self).__name__} {self.amount} of {self.budget.name}, {state}>"

    async def commit(self, used: int) -> Settled:
        """Record what was really used (0 or more), once; the rest is given back.

        More than was set aside is money already spent: recorded in full as long as what the budget
        has used stays within 2^53 - 1 (Invalid), and `overdrawn` says that it is beyond its cap.
        `late`: the hold was dropped before; recorded all the same. Repeating it with the same
        amount is harmless. Raises ReservationSettled when it had ended otherwise.
        """
        self._used = used
        return await carried_through(self._settle("commit", {"amount": used}))

    async def release(self) -> Settled:
        """Give everything back: nothing was used."""
        return await carried_through(self._settle("release", {}))

    async def __aenter__(self) -> AsyncHold:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.settled is not None:
            return
        if self._used is not None:
            # Used it was, whether the store has heard of it or not: never given back.
            log.warning("%r: commit(%d) was not confirmed", self, self._used)
            return
        try:
            await self.release()
        except LeaseLost as lost:
            log.debug("%r ends with its lease: %s", self, lost)
        except AgentStateError as failure:
            log.warning("%r was not given back and will run out: %s", self, failure)

    async def _settle(self, how: str, document: Mapping[str, Any]) -> Settled:
        path = ("budgets", self.budget.name, "reservations", self.id, how)
        answer = await self.budget.run._write(path, document)
        self.settled = read_settled(answer.document(), replayed=answer.replayed)
        return self.settled


async def _undo(hold: AsyncHold) -> None:
    await hold.release()
