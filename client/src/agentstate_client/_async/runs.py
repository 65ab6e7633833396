"""A run as a worker holds it: every write goes out under the lease's fencing token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from agentstate_client._async.budgets import AsyncBudget
from agentstate_client._async.buffering import AsyncBuffer
from agentstate_client._async.effects import AsyncEffect
from agentstate_client._async.following import follow_run
from agentstate_client._async.history import AsyncHistory
from agentstate_client._async.leases import AsyncLease
from agentstate_client._async.steps import AsyncStep
from agentstate_client._async.swapping import at_the_next_free
from agentstate_client._async.transport import AsyncCall, AsyncTransport
from agentstate_client._async.waiting import AsyncFlag, AsyncTaking, taking
from agentstate_client.calls import Answer, log, path_of
from agentstate_client.errors import AgentStateError, StopRequested
from agentstate_client.holding import Settable
from agentstate_client.payloads import RawJSON, encode
from agentstate_client.records import (
    Appended,
    Changed,
    Charge,
    Event,
    Moved,
    RecordedEvent,
    RunRecord,
    read_appended,
    read_changed,
    read_events,
    read_moved,
    read_run,
)
from agentstate_client.standing import Standing

TERMINAL = frozenset({"completed", "failed", "cancelled"})


class AsyncRun:
    """A handle on one run; making one sends nothing. All members can be used from any thread.

    lease: the one that it writes under. None: no token is sent, which the store takes only for a
    run that was never leased; `acquire` gives a handle with a lease, `client.claim` gives some.

    status, version, last_seq: as of the latest answer that this handle has seen; None before.
    task, attempt: known of claimed runs. A context manager: leaving the block gives the run back
    unless it has come to an end, and raises LeaseLost if it was lost and the block said nothing.
    """

    def __init__(
        self,
        *,
        transport: AsyncTransport,
        key: str,
        acquire: Callable[[str, int], Awaitable[tuple[AsyncLease, Mapping[str, Any]]]],
        unsent: set[AsyncBuffer],
        lease: AsyncLease | None = None,
        seen: Mapping[str, Any] | None = None,
    ) -> None:
        self.key, self.lease = key, lease
        self._transport, self._acquire, self._unsent = transport, acquire, unsent
        self._standing = Standing()
        self._standing.note_read(seen or {})
        self._buffer: AsyncBuffer | None = None
        self.history = AsyncHistory(transport=transport, key=key)
        self._stopping: Settable | None = None

    def __repr__(self) -> str:
        lease = self.lease or "without a lease"
        return f"<{type(self).__name__} {self.key} {self.status or ''} {lease}>"

    @property
    def task(self) -> str | None:
        return self._standing.task

    @property
    def attempt(self) -> int | None:
        return self._standing.attempt

    @property
    def status(self) -> str | None:
        return self._standing.status

    @property
    def version(self) -> int | None:
        return self._standing.version

    @property
    def last_seq(self) -> int | None:
        return self._standing.last_seq

    @property
    def lost(self) -> AsyncFlag:
        """Set when nothing may be written any more; never for a handle without a lease."""
        return self.lease.lost if self.lease is not None else AsyncFlag()

    def acquire(self, *, ttl_seconds: int = 60) -> AsyncTaking[AsyncRun]:
        """Take this very run: a new handle with a lease. Raises LeaseHeld, NotFound,
        AlreadyTerminal, Paused. A pending run stays pending until `start`.
        """
        return taking(self._acquired(ttl_seconds))

    @overload
    async def append(self, *events: Event, within_ms: int) -> None: ...

    @overload
    async def append(
        self,
        *events: Event,
        expected_seq: int | None = None,
        add: Mapping[str, int] | None = None,
        spend: Charge | Sequence[Charge] = (),
        to: str | None = None,
        result: Any = None,
        if_version: int | None = None,
        retry: Literal["next-free"] | None = None,
        attempts: int = 5,
    ) -> Appended: ...

    async def append(
        self,
        *events: Event,
        expected_seq: int | None = None,
        add: Mapping[str, int] | None = None,
        spend: Charge | Sequence[Charge] = (),
        to: str | None = None,
        result: Any = None,
        if_version: int | None = None,
        retry: Literal["next-free"] | None = None,
        attempts: int = 5,
        within_ms: int | None = None,
    ) -> Appended | None:
        """Append 1 to 500 events, all or none, numbered without a hole.

        expected_seq: the last number that the caller has seen; None: after whatever is there.
        retry="next-free": who lost the race for a number takes the next one, behind what is there
        by then, up to `attempts` times in all (GaveUp); the events stay as they are.
        add, spend, to (with result): counters, charges and a move in the same write, so that a
        finished step is there as a whole or not at all.
        Raises SeqConflict, BudgetExhausted, StaleFence, LeaseLost, IllegalTransition, and so on.

        within_ms: for small events, many of which then go in one call: they are taken now (None is
        returned) and written in order, so much later at most, and before anything else that this
        handle writes, its `release` and the client's `close` included. What keeps them from being
        written is raised by the next call, which takes nothing then; `unacknowledged` tells what
        is not known to be written. Reads do not wait for them: `flush` first.
        """
        if retry is not None and (retry != "next-free" or expected_seq is None):
            raise ValueError('retry: "next-free", and only with expected_seq')
        charges = (spend,) if isinstance(spend, Charge) else tuple(spend)
        if within_ms is not None:
            more = (expected_seq, add, spend, to, result, if_version)
            if any(one not in (None, ()) for one in more):
                raise ValueError("within_ms: for events alone")
            await self._append_soon(events, within_ms)
            return None
        document: dict[str, Any] = {"events": [event.document() for event in events]}
        if add:
            document["add"] = dict(add)
        if charges:
            document["spend"] = [charge.document() for charge in charges]
        document |= _move(to, result)

        async def write(seen_seq: int | None, attempt: int = 1) -> Answer:
            guard = {} if seen_seq is None else {"expected_seq": seen_seq}
            return await self._write(
                ("events",),
                document | guard,
                if_version=if_version,
                attempts_before=attempt - 1,
                is_last=retry is not None and attempt == attempts,
            )

        if retry is None or expected_seq is None:
            answer = await write(expected_seq)
        else:
            answer = await at_the_next_free(
                self._transport, write, expected_seq=expected_seq, attempts=attempts
            )
        self._note_end(to)
        appended = read_appended(answer.document(), replayed=answer.replayed)
        # A move is an event of its own, after those that the answer tells of.
        moves = 0 if to is None else 1
        seen = {
            "status": appended.status,
            "version": appended.version,
            "last_seq": appended.last_seq + moves,
        }
        self._standing.note_write(seen, versions=1 + moves)
        return appended

    async def flush(self) -> None:
        """Write now what `append(…, within_ms=…)` has taken. Raises what keeps it from that."""
        if self._buffer is not None:
            await self._buffer.flush()

    def unacknowledged(self) -> tuple[Event, ...]:
        """The events of `append(…, within_ms=…)` that are not known to be written, in order.

        The first of them may be: their answer may have been lost. Sent again by this handle they
        are not written twice.
        """
        return () if self._buffer is None else self._buffer.events()

    async def drop_unacknowledged(self) -> tuple[Event, ...]:
        """Give up those events, so that others can be written; returns what was given up."""
        return () if self._buffer is None else await self._buffer.drop()

    async def add(self, counters: Mapping[str, int] | None = None, /, **more: int) -> Changed:
        """Add to counters, in the store: `run.add(steps_done=1)`. Needs no comparison, ever.

        counters: for names that are no Python names. An amount may be below 0.
        """
        return await self._patch({"add": {**(counters or {}), **more}})

    async def tag(self, *tags: str) -> Changed:
        """Add tags; those that are there stay."""
        return await self._patch({"tags_add": list(tags)})

    async def untag(self, *tags: str) -> Changed:
        """Take tags away; those that are not there are not missed."""
        return await self._patch({"tags_remove": list(tags)})

    async def set(
        self,
        changes: Mapping[str, Any] | None = None,
        /,
        *,
        attrs: Mapping[str, Any] | RawJSON | None = None,
        notes: str | None = None,
        force: bool = False,
    ) -> Changed:
        """Set members of the attrs by their paths: `run.set({"step.n": 3}, notes="half way")`.

        attrs: all of them at once instead. The write is guarded with the version that this handle
        has read (by `read`, or when it was made, claimed or acquired) and gone on from by its own
        writes; a handle that has read nothing reads first. If anybody else has written since:
        VersionConflict, with `current`; read, decide, set again, or let `client.cas` do that.
        force=True: whatever is there.
        """
        paths = {f"attrs.{path}": value for path, value in (changes or {}).items()}
        if notes is not None:
            paths["notes"] = notes
        document: dict[str, Any] = {"set": paths}
        if attrs is not None:
            document["replace"] = attrs
        if not force and self._standing.version_read is None:
            await self.read()
        return await self._patch(
            document, if_version=None if force else self._standing.version_read
        )

    def step(self, name: str) -> AsyncStep:
        """A step of the run, which is finished once, in whichever attempt; sends nothing by itself.

        `await run.step("fetch").run(fetch, url)`, or a block: see AsyncStep.
        """
        return AsyncStep(run=self, name=name)

    def effect(self, name: str, data: Any = None) -> AsyncEffect:
        """Something outside that is to be done once: `async with run.effect("invoice") as effect:`.

        data: what is written with the intent. Sends nothing before the block: see AsyncEffect.
        """
        return AsyncEffect(run=self, name=name, data=data)

    @property
    def open_effects(self) -> list[AsyncEffect]:
        """What former holders began and did not end, as of when this handle got its lease: look
        whether it happened, and write its `outcome`. The first 100: `read_open_effects` reads all.
        """
        found = self.lease.found_effects if self.lease is not None else ()
        ended = self.history.ended
        return [AsyncEffect(run=self, name=b.name, begun=b) for b in found if b.name not in ended]

    async def read_open_effects(self) -> list[AsyncEffect]:
        """All that is begun and not ended now, read from the store. Needs read and payloads."""
        begun = await self.history.open_effects()
        return [AsyncEffect(run=self, name=b.name, begun=b) for b in begun]

    def budget(self, name: str) -> AsyncBudget:
        """A handle on one of the run's budgets; sends nothing."""
        return AsyncBudget(run=self, name=name)

    async def transition(
        self,
        to: str,
        *,
        from_status: str | None = None,
        result: Any = None,
        if_version: int | None = None,
    ) -> Moved:
        """Move the run; a terminal move ends its lease. Raises IllegalTransition (`allowed`),
        AlreadyTerminal, StaleFence, LeaseLost, VersionConflict.
        """
        document = _move(to, result)
        if from_status is not None:
            document["from"] = from_status
        answer = await self._write(("transitions",), document, if_version=if_version)
        self._note_end(to)
        moved = read_moved(answer.document(), replayed=answer.replayed)
        self._standing.note_write(answer.document())
        return moved

    async def start(self) -> Moved:
        """pending → running."""
        return await self.transition("running", from_status="pending")

    async def complete(self, result: Any = None) -> Moved:
        """running → completed; result: any JSON value. Ends the lease."""
        return await self.transition("completed", result=result)

    async def fail(self, result: Any = None) -> Moved:
        """→ failed; result: what went wrong, any JSON value. Ends the lease."""
        return await self.transition("failed", result=result)

    async def cancel(self, result: Any = None) -> Moved:
        """→ cancelled. Ends the lease."""
        return await self.transition("cancelled", result=result)

    def checkpoint(self, progress: Any = None) -> None:
        """Between two steps: raises LeaseLost or CancelRequested when this worker has to stop,
        and StopRequested when its process has been told to end.

        progress: any JSON value, for the operators and the next holder; goes with a renewal.
        """
        if self.lease is not None:
            self.lease.checkpoint(progress)
        if self._stopping is not None and self._stopping.is_set():
            raise StopRequested

    def stop_with(self, stopping: Settable) -> None:
        """From when this is set, `checkpoint` raises StopRequested."""
        self._stopping = stopping

    async def release(self) -> None:
        """Give the run back unfinished: whoever claims next goes on with it."""
        await self.flush()
        if self.lease is not None:
            await self.lease.release()

    async def read(self) -> RunRecord:
        """The run as it is now. Needs the scope read."""
        answer = await self._transport.send(AsyncCall("GET", path_of("runs", self.key)))
        record = read_run(answer.text, answer.document())
        self._standing.note_read(record.document())
        return record

    async def events(
        self, *, after: int = 0, type: str | None = None, origin: str | None = None
    ) -> AsyncIterator[RecordedEvent]:
        """The run's events in order, read page by page as they are asked for.

        Ends at what was the last event when its page was read.
        """
        filters = {name: v for name, v in (("type", type), ("origin", origin)) if v is not None}
        while True:
            query: dict[str, str | int] = {"after": after, "limit": 500, **filters}
            call = AsyncCall("GET", path_of("runs", self.key, "events"), query=query)
            answer = await self._transport.send(call)
            page = read_events(answer.text)
            for event in page:
                yield event
            if not page or page[-1].seq >= answer.document().get("last_seq", 0):
                return
            after = page[-1].seq

    def follow(
        self, *, after: int = 0, patience_seconds: float = 300
    ) -> AsyncIterator[RecordedEvent]:
        """The run's events behind `after`, each once and in order, those to come included.

        It waits for more until the run has ended. While the store does not answer it asks again
        for patience_seconds, then raises Unreachable; go on with the number of the last event.
        Raises NotFound, RunExpired, Invalid (the run has not come as far as `after`).
        """
        return follow_run(self._transport, self.key, after=after, patience_seconds=patience_seconds)

    async def __aenter__(self) -> AsyncRun:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unwritten: AgentStateError | None = None
        try:
            await self.flush()
        except AgentStateError as failure:
            unwritten = failure
            log.warning("events of %s are not acknowledged: %s", self.key, failure)
        if self.lease is not None:
            await self.lease.__aexit__(kind, raised, trace)
        if unwritten is not None and raised is None:
            raise unwritten

    def note_swap(self, answer: Answer) -> None:
        """The client has swapped the attrs for this handle."""
        if not answer.duplicate:
            self._standing.note_write(answer.document())

    async def _acquired(self, ttl_seconds: int) -> AsyncRun:
        lease, seen = await self._acquire(f"run:{self.key}", ttl_seconds)
        return AsyncRun(
            transport=self._transport,
            key=self.key,
            acquire=self._acquire,
            unsent=self._unsent,
            lease=lease,
            seen={"task": self.task, **seen},
        )

    async def _append_soon(self, events: Sequence[Event], within_ms: int) -> None:
        if self.lease is not None:
            self.lease.guard()
        if self._buffer is None:
            self._buffer = AsyncBuffer(
                key=self.key,
                transport=self._transport,
                standing=self._standing,
                address=path_of("runs", self.key, "events"),
                fence=self.lease,
                unsent=self._unsent,
            )
        await self._buffer.add(events, within_ms=within_ms)

    async def _patch(
        self, document: Mapping[str, Any], *, if_version: int | None = None
    ) -> Changed:
        answer = await self._write((), document, method="PATCH", if_version=if_version)
        changed = read_changed(answer.document(), replayed=answer.replayed)
        self._standing.note_write(answer.document())
        return changed

    async def _write(
        self,
        path: Sequence[str],
        document: Mapping[str, Any],
        *,
        method: str = "POST",
        if_version: int | None = None,
        attempts_before: int = 0,
        is_last: bool = False,
    ) -> Answer:
        """One write under the lease, after every event that is still to be written."""
        call = AsyncCall(
            method,
            path_of("runs", self.key, *path),
            encode(document),
            fence=self.lease,
            if_match=None if if_version is None else f'"v{if_version}"',
            keyed=True,
            attempts_before=attempts_before,
            is_last=is_last,
        )
        await self.flush()
        return await self._transport.send(call)

    def _note_end(self, moved_to: str | None) -> None:
        if moved_to in TERMINAL and self.lease is not None:
            self.lease.note_end()


def _move(to: str | None, result: Any) -> dict[str, Any]:
    members = {"to": to, "result": result}
    return {name: value for name, value in members.items() if value is not None}
