# Made from _async/runs.py by make_sync.py. Change it there.

"""A run as a worker holds it: every write goes out under the lease's fencing token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from agentstate_client._sync.budgets import Budget
from agentstate_client._sync.buffering import Buffer
from agentstate_client._sync.effects import Effect
from agentstate_client._sync.following import follow_run
from agentstate_client._sync.history import History
from agentstate_client._sync.leases import Lease
from agentstate_client._sync.steps import Step
from agentstate_client._sync.swapping import at_the_next_free
from agentstate_client._sync.transport import Call, Transport
from agentstate_client._sync.waiting import Flag, taking
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


class Run:
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
        transport: Transport,
        key: str,
        acquire: Callable[[str, int], tuple[Lease, Mapping[str, Any]]],
        unsent: set[Buffer],
        lease: Lease | None = None,
        seen: Mapping[str, Any] | None = None,
    ) -> None:
        self.key, self.lease = key, lease
        self._transport, self._acquire, self._unsent = transport, acquire, unsent
        self._standing = Standing()
        self._standing.note_read(seen or {})
        self._buffer: Buffer | None = None
        self.history = History(transport=transport, key=key)
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
    def lost(self) -> Flag:
        """Set when nothing may be written any more; never for a handle without a lease."""
        return self.lease.lost if self.lease is not None else Flag()

    def acquire(self, *, ttl_seconds: int = 60) -> Run:
        """Take this very run: a new handle with a lease. Raises LeaseHeld, NotFound,
        AlreadyTerminal, Paused. A pending run stays pending until `start`.
        """
        return taking(self._acquired(ttl_seconds))

    @overload
    def append(self, *events: Event, within_ms: int) -> None: ...

    @overload
    def append(
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

    def append(
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
            self._append_soon(events, within_ms)
            return None
        document: dict[str, Any] = {"events": [event.document() for event in events]}
        if add:
            document["add"] = dict(add)
        if charges:
            document["spend"] = [charge.document() for charge in charges]
        document |= _move(to, result)

        def write(seen_seq: int | None, attempt: int = 1) -> Answer:
            guard = {} if seen_seq is None else {"expected_seq": seen_seq}
            return self._write(
                ("events",),
                document | guard,
                if_version=if_version,
                attempts_before=attempt - 1,
                is_last=retry is not None and attempt == attempts,
            )

        if retry is None or expected_seq is None:
            answer = write(expected_seq)
        else:
            answer = at_the_next_free(
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

    def flush(self) -> None:
        """Write now what `append(…, within_ms=…)` has taken. Raises what keeps it from that."""
        if self._buffer is not None:
            self._buffer.flush()

    def unacknowledged(self) -> tuple[Event, ...]:
        """The events of `append(…, within_ms=…)` that are not known to be written, in order.

        The first of them may be: their answer may have been lost. Sent again by this handle they
        are not written twice.
        """
        return () if self._buffer is None else self._buffer.events()

    def drop_unacknowledged(self) -> tuple[Event, ...]:
        """Give up those events, so that others can be written; returns what was given up."""
        return () if self._buffer is None else self._buffer.drop()

    def add(self, counters: Mapping[str, int] | None = None, /, **more: int) -> Changed:
        """Add to counters, in the store: `run.add(steps_done=1)`. Needs no comparison, ever.

        counters: for names that are no Python names. An amount may be below 0.
        """
        return self._patch({"add": {**(counters or {}), **more}})

    def tag(self, *tags: str) -> Changed:
        """Add tags; those that are there stay."""
        return self._patch({"tags_add": list(tags)})

    def untag(self, *tags: str) -> Changed:
        """Take tags away; those that are not there are not missed."""
        return self._patch({"tags_remove": list(tags)})

    def set(
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
            self.read()
        return self._patch(document, if_version=None if force else self._standing.version_read)

    def step(self, name: str) -> Step:
        """A step of the run, which is finished once, in whichever attempt; sends nothing by itself.

        `run.step("fetch").run(fetch, url)`, or a block: see Step.
        """
        return Step(run=self, name=name)

    def effect(self, name: str, data: Any = None) -> Effect:
        """Something outside that is to be done once: `with run.effect("invoice") as effect:`.

        data: what is written with the intent. Sends nothing before the block: see Effect.
        """
        return Effect(run=self, name=name, data=data)

    @property
    def open_effects(self) -> list[Effect]:
        """What former holders began and did not end, as of when this handle got its lease: look
        whether it happened, and write its `outcome`. The first 100: `read_open_effects` reads all.
        """
        found = self.lease.found_effects if self.lease is not None else ()
        ended = self.history.ended
        return [Effect(run=self, name=b.name, begun=b) for b in found if b.name not in ended]

    def read_open_effects(self) -> list[Effect]:
        """All that is begun and not ended now, read from the store. Needs read and payloads."""
        begun = self.history.open_effects()
        return [Effect(run=self, name=b.name, begun=b) for b in begun]

    def budget(self, name: str) -> Budget:
        """A handle on one of the run's budgets; sends nothing."""
        return Budget(run=self, name=name)

    def transition(
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
        answer = self._write(("transitions",), document, if_version=if_version)
        self._note_end(to)
        moved = read_moved(answer.document(), replayed=answer.replayed)
        self._standing.note_write(answer.document())
        return moved

    def start(self) -> Moved:
        """pending → running."""
        return self.transition("running", from_status="pending")

    def complete(self, result: Any = None) -> Moved:
        """running → completed; result: any JSON value. Ends the lease."""
        return self.transition("completed", result=result)

    def fail(self, result: Any = None) -> Moved:
        """→ failed; result: what went wrong, any JSON value. Ends the lease."""
        return self.transition("failed", result=result)

    def cancel(self, result: Any = None) -> Moved:
        """→ cancelled. Ends the lease."""
        return self.transition("cancelled", result=result)

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

    def release(self) -> None:
        """Give the run back unfinished: whoever claims next goes on with it."""
        self.flush()
        if self.lease is not None:
            self.lease.release()

    def read(self) -> RunRecord:
        """The run as it is now. Needs the scope read."""
        answer = self._transport.send(Call("GET", path_of("runs", self.key)))
        record = read_run(answer.text, answer.document())
        self._standing.note_read(record.document())
        return record

    def events(
        self, *, after: int = 0, type: str | None = None, origin: str | None = None
    ) -> Iterator[RecordedEvent]:
        """The run's events in order, read page by page as they are asked for.

        Ends at what was the last event when its page was read.
        """
        filters = {name: v for name, v in (("type", type), ("origin", origin)) if v is not None}
        while True:
            query: dict[str, str | int] = {"after": after, "limit": 500, **filters}
            call = Call("GET", path_of("runs", self.key, "events"), query=query)
            answer = self._transport.send(call)
            page = read_events(answer.text)
            yield from page
            if not page or page[-1].seq >= answer.document().get("last_seq", 0):
                return
            after = page[-1].seq

    def follow(self, *, after: int = 0, patience_seconds: float = 300) -> Iterator[RecordedEvent]:
        """The run's events behind `after`, each once and in order, those to come included.

        It waits for more until the run has ended. While the store does not answer it asks again
        for patience_seconds, then raises Unreachable; go on with the number of the last event.
        Raises NotFound, RunExpired, Invalid (the run has not come as far as `after`).
        """
        return follow_run(self._transport, self.key, after=after, patience_seconds=patience_seconds)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unwritten: AgentStateError | None = None
        try:
            self.flush()
        except AgentStateError as failure:
            unwritten = failure
            log.warning("events of %s are not acknowledged: %s", self.key, failure)
        if self.lease is not None:
            self.lease.__exit__(kind, raised, trace)
        if unwritten is not None and raised is None:
            raise unwritten

    def note_swap(self, answer: Answer) -> None:
        """The client has swapped the attrs for this handle."""
        if not answer.duplicate:
            self._standing.note_write(answer.document())

    def _acquired(self, ttl_seconds: int) -> Run:
        lease, seen = self._acquire(f"run:{self.key}", ttl_seconds)
        return Run(
            transport=self._transport,
            key=self.key,
            acquire=self._acquire,
            unsent=self._unsent,
            lease=lease,
            seen={"task": self.task, **seen},
        )

    def _append_soon(self, events: Sequence[Event], within_ms: int) -> None:
        if self.lease is not None:
            self.lease.guard()
        if self._buffer is None:
            self._buffer = Buffer(
                key=self.key,
                transport=self._transport,
                standing=self._standing,
                address=path_of("runs", self.key, "events"),
                fence=self.lease,
                unsent=self._unsent,
            )
        self._buffer.add(events, within_ms=within_ms)

    def _patch(self, document: Mapping[str, Any], *, if_version: int | None = None) -> Changed:
        answer = self._write((), document, method="PATCH", if_version=if_version)
        changed = read_changed(answer.document(), replayed=answer.replayed)
        self._standing.note_write(answer.document())
        return changed

    def _write(
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
        call = Call(
            method,
            path_of("runs", self.key, *path),
            encode(document),
            fence=self.lease,
            if_match=None if if_version is None else f'"v{if_version}"',
            keyed=True,
            attempts_before=attempts_before,
            is_last=is_last,
        )
        self.flush()
        return self._transport.send(call)

    def _note_end(self, moved_to: str | None) -> None:
        if moved_to in TERMINAL and self.lease is not None:
            self.lease.note_end()


def _move(to: str | None, result: Any) -> dict[str, Any]:
    members = {"to": to, "result": result}
    return {name: value for name, value in members.items() if value is not None}
