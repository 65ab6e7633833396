"""What a run's log says of its steps and effects: read once, when it is first asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentstate_client._async.transport import AsyncCall, AsyncTransport
from agentstate_client._async.waiting import AsyncLock
from agentstate_client.calls import path_of
from agentstate_client.errors import Problem, refusal
from agentstate_client.records import Begun, RecordedEvent, read_events

STEP_FINISHED = "step.finished"
EFFECT_BEGUN, EFFECT_ENDED = "effect.begun", "effect.ended"
STEP_ID = "step:"
PAGE = 500


class AsyncHistory:
    """Finished steps, and begun and ended effects, of one run, as its holder knows them.

    Whoever holds the run is the only one to write them, so they are read once and kept. steps,
    ended: JSON texts by name. begun: effects by name. read_up_to: the run's last number then.
    """

    def __init__(self, *, transport: AsyncTransport, key: str) -> None:
        self._transport, self._key = transport, key
        self._lock, self._is_read = AsyncLock(), False
        self.steps: dict[str, str] = {}
        self.begun: dict[str, Begun] = {}
        self.ended: dict[str, str] = {}
        self.read_up_to = self._last_seq = 0

    async def read(self) -> None:
        """Read the log, unless that was done. Needs the scopes read and payloads (NotAllowed)."""
        async with self._lock:
            if self._is_read:
                return
            async for event in self._events({"type": [STEP_FINISHED, EFFECT_BEGUN, EFFECT_ENDED]}):
                self._note(event)
            self._is_read, self.read_up_to = True, self._last_seq

    async def open_effects(self) -> list[Begun]:
        """What is begun and not ended now, with all its data."""
        events = self._events({"open_effects": "true"})
        return [begun_by(event, event.effect) async for event in events if event.effect]

    async def _events(
        self, wanted: dict[str, str | int | list[str]]
    ) -> AsyncIterator[RecordedEvent]:
        after = 0
        while True:
            query = {**wanted, "after": after, "limit": PAGE}
            call = AsyncCall("GET", path_of("runs", self._key, "events"), query=query)
            answer = await self._transport.send(call)
            page = read_events(answer.text)
            for event in page:
                if event.raw is None:
                    raise refusal(Problem("not-allowed", "steps need the scope payloads as well"))
                yield event
            self._last_seq = answer.document().get("last_seq", 0)
            if not page or page[-1].seq >= self._last_seq:
                return
            after = page[-1].seq

    def _note(self, event: RecordedEvent) -> None:
        if event.origin != "worker":
            return
        if event.type == STEP_FINISHED and event.id and event.id.startswith(STEP_ID):
            self.steps[event.id[len(STEP_ID) :]] = event.raw or "null"
        elif event.effect is not None and event.effect_state == "begun":
            self.begun[event.effect] = begun_by(event, event.effect)
        elif event.effect is not None:
            self.ended[event.effect] = event.raw or "null"


def begun_by(event: RecordedEvent, name: str) -> Begun:
    return Begun(name=name, seq=event.seq, at=event.at, token=event.token, raw=event.raw)
