"""Effects on the outside world: the intent is written before, the outcome after."""

from __future__ import annotations

import json
import uuid
from datetime import timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentstate_client._async.history import EFFECT_BEGUN, EFFECT_ENDED
from agentstate_client.payloads import encode
from agentstate_client.records import Begun, Event

if TYPE_CHECKING:
    from agentstate_client._async.runs import AsyncRun

NAMESPACE = uuid.UUID("4e2ad3f6-6e0c-5f37-9a83-3c1d52a1b7c8")


class AsyncEffect:
    """Something that a run does outside, once, by its name in the run.

        async with run.effect("invoice", {"to": "ana"}) as effect:
            if effect.in_doubt:  # an earlier holder began it, and nobody knows how it ended
                found = await bank.find(effect.key)
                if found is not None:
                    await effect.outcome(found.id)
            if not effect.done:
                await effect.outcome((await bank.pay(100, idempotency_key=effect.key)).id)

    Entering the block writes the intent, unless it is written. Leaving it without an error writes
    the outcome (None unless `outcome` said one). **An error leaves the effect open**: it does not
    tell whether it happened. The next holder finds it in `run.open_effects`, and `in_doubt`.

    key: for the outside API's own idempotency key: the same in every attempt and for every holder,
    and no other effect's. A UUID made of run, name and the moment when it was begun.
    """

    def __init__(
        self, *, run: AsyncRun, name: str, data: Any = None, begun: Begun | None = None
    ) -> None:
        self.name = name
        self._run, self._intent = run, data
        self._begun = begun
        self.in_doubt = begun is not None

    def __repr__(self) -> str:
        state = "done" if self.done else "in doubt" if self.in_doubt else "open"
        return f"<{type(self).__name__} {self.name} of {self._run.key}, {state}>"

    @property
    def key(self) -> str:
        """Raises RuntimeError before it is begun."""
        if self._begun is None:
            raise RuntimeError("begin the effect first: enter its block")
        begun_at = self._begun.at.astimezone(timezone.utc).isoformat(timespec="microseconds")
        return str(uuid.uuid5(NAMESPACE, f"{self._run.key}\n{self.name}\n{begun_at}"))

    @property
    def done(self) -> bool:
        """Its outcome is written, in this attempt or in one before."""
        return self.name in self._run.history.ended

    @property
    def result(self) -> Any:
        """What the outcome said, decoded anew each time. Raises RuntimeError before it is done."""
        if not self.done:
            raise RuntimeError(f"the effect {self.name} has no outcome yet")
        return json.loads(self._run.history.ended[self.name])

    @property
    def data(self) -> Any:
        """What was written with the intent, by whoever began it; None for large data of an effect
        of `run.open_effects` (`run.read_open_effects` has all of it).
        """
        raw = self._begun.raw if self._begun is not None else None
        return self._intent if raw is None else json.loads(raw)

    async def outcome(self, result: Any = None) -> None:
        """Write how it ended, any JSON value. Once: again with the same is harmless.

        Raises EventIdReuse when another outcome is written already, and what `run.append` raises.
        """
        await self._run.append(Event(EFFECT_ENDED, result, effect=self.name, effect_state="ended"))
        self._run.history.ended[self.name] = encode(result).decode()
        self.in_doubt = False

    async def __aenter__(self) -> AsyncEffect:
        history = self._run.history
        await history.read()
        self._begun = history.begun.get(self.name)
        self.in_doubt = self._begun is not None and not self.done
        if self._begun is None:
            self._run.checkpoint()
            await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if raised is None and not self.done:
            await self.outcome(None)

    async def _begin(self) -> None:
        history, lease = self._run.history, self._run.lease
        text = encode(self._intent).decode()
        appended = await self._run.append(
            Event(EFFECT_BEGUN, self._intent, effect=self.name, effect_state="begun")
        )
        # Written before we looked, by somebody else; since then, our own that was sent twice.
        is_ours = lease is not None and appended.first_seq > history.read_up_to
        self.in_doubt = appended.replayed and not is_ours
        token = lease.token if lease is not None else None
        self._begun = history.begun[self.name] = Begun(
            name=self.name, seq=appended.first_seq, at=appended.at, token=token, raw=text
        )
