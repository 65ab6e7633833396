# Made from _async/runs.py by make_sync.py. Change it there.

"""A run as a worker holds it: every write goes out under the lease's fencing token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from agentstate_client._sync.following import follow_run
from agentstate_client._sync.leases import Lease
from agentstate_client._sync.swapping import at_the_next_free
from agentstate_client._sync.transport import Call, Transport
from agentstate_client._sync.waiting import Flag, taking
from agentstate_client.calls import Answer, path_of
from agentstate_client.payloads import encode
from agentstate_client.records import (
    Appended,
    Charge,
    Charged,
    Event,
    Moved,
    RecordedEvent,
    RunRecord,
    read_appended,
    read_charged,
    read_events,
    read_moved,
    read_run,
)

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
        lease: Lease | None = None,
        seen: Mapping[str, Any] | None = None,
    ) -> None:
        self.key, self.lease = key, lease
        self.task: str | None = None
        self.attempt: int | None = None
        self.status: str | None = None
        self.version: int | None = None
        self.last_seq: int | None = None
        self._transport = transport
        self._acquire = acquire
        self._lock = threading.Lock()
        self._note(seen or {})

    def __repr__(self) -> str:
        lease = self.lease or "without a lease"
        return f"<{type(self).__name__} {self.key} {self.status or ''} {lease}>"

    @property
    def lost(self) -> Flag:
        """Set when nothing may be written any more; never for a handle without a lease."""
        return self.lease.lost if self.lease is not None else Flag()

    def acquire(self, *, ttl_seconds: int = 60) -> Run:
        """Take this very run: a new handle with a lease. Raises LeaseHeld, NotFound,
        AlreadyTerminal, Paused. A pending run stays pending until `start`.
        """
        return taking(self._acquired(ttl_seconds))

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
    ) -> Appended:
        """Append 1 to 500 events, all or none, numbered without a hole.

        expected_seq: the last number that the caller has seen; None: after whatever is there.
        retry="next-free": who lost the race for a number takes the next one, behind what is there
        by then, up to `attempts` times in all (GaveUp); the events stay as they are.
        add, spend, to (with result): counters, charges and a move in the same write, so that a
        finished step is there as a whole or not at all.
        Raises SeqConflict, BudgetExhausted, StaleFence, LeaseLost, IllegalTransition, and so on.
        """
        if retry is not None and (retry != "next-free" or expected_seq is None):
            raise ValueError('retry: "next-free", and only with expected_seq')
        charges = (spend,) if isinstance(spend, Charge) else tuple(spend)
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
        appended = read_appended(self._noted(answer, moved_to=to), replayed=answer.replayed)
        if to is not None:
            # The move is an event of its own, after those that the answer tells of.
            self._note({"version": appended.version, "last_seq": appended.last_seq + 1})
        return appended

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
        return read_moved(self._noted(answer, moved_to=to), replayed=answer.replayed)

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
        """Between two steps: raises LeaseLost or CancelRequested when this worker has to stop.

        progress: any JSON value, for the operators and the next holder; goes with a renewal.
        """
        if self.lease is not None:
            self.lease.checkpoint(progress)

    def release(self) -> None:
        """Give the run back unfinished: whoever claims next goes on with it."""
        if self.lease is not None:
            self.lease.release()

    def read(self) -> RunRecord:
        """The run as it is now. Needs the scope read."""
        answer = self._transport.send(Call("GET", path_of("runs", self.key)))
        record = read_run(answer.text, answer.document())
        self._note(record.document())
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
        if self.lease is not None:
            self.lease.__exit__(kind, raised, trace)

    def _acquired(self, ttl_seconds: int) -> Run:
        lease, seen = self._acquire(f"run:{self.key}", ttl_seconds)
        return Run(
            transport=self._transport,
            key=self.key,
            acquire=self._acquire,
            lease=lease,
            seen={"task": self.task, **seen},
        )

    def _write(
        self,
        path: Sequence[str],
        document: Mapping[str, Any],
        *,
        if_version: int | None = None,
        attempts_before: int = 0,
        is_last: bool = False,
    ) -> Answer:
        call = Call(
            "POST",
            path_of("runs", self.key, *path),
            encode(document),
            fence=self.lease,
            if_match=None if if_version is None else f'"v{if_version}"',
            keyed=True,
            attempts_before=attempts_before,
            is_last=is_last,
        )
        return self._transport.send(call)

    def _noted(self, answer: Answer, *, moved_to: str | None = None) -> dict[str, Any]:
        if moved_to in TERMINAL and self.lease is not None:
            self.lease.note_end()
        document = answer.document()
        self._note(document)
        return document

    def _note(self, seen: Mapping[str, Any]) -> None:
        """Two threads may be answered in another order than the store decided: newest wins."""
        version = seen.get("version")
        with self._lock:
            self.task = seen.get("task") or self.task
            self.attempt = seen.get("attempt") or self.attempt
            if isinstance(version, int) and version >= (self.version or 0):
                self.version = version
                self.status = seen.get("status") or self.status
                self.last_seq = seen.get("last_seq", self.last_seq)


class Budget:
    """One budget of a run, charged under the run's lease."""

    def __init__(self, *, run: Run, name: str) -> None:
        self.run, self.name = run, name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.run.key}>"

    def spend(self, amount: int, *, id: str | None = None, note: str | None = None) -> Charged:
        """Charge `amount` (at least 1, in the budget's unit), at every level or at none.

        id: makes charging it again harmless, for the run's life. Raises BudgetExhausted with
        what is left; then nothing was charged.
        """
        document: dict[str, Any] = {"amount": amount}
        if id is not None:
            document["id"] = id
        if note is not None:
            document["note"] = note
        answer = self.run._write(("budgets", self.name, "spend"), document)
        return read_charged(answer.document(), replayed=answer.replayed)


def _move(to: str | None, result: Any) -> dict[str, Any]:
    members = {"to": to, "result": result}
    return {name: value for name, value in members.items() if value is not None}
