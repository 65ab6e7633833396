# Made from _async/following.py by make_sync.py. Change it there.

"""Following a run or the feed: iterators that wait for more and go on where they were.

They ask by long polls: an answer comes as soon as there is something, a proxy that cuts one does no
harm, and what was seen already is never given out again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentstate_client import clock
from agentstate_client._sync.transport import Call, Transport
from agentstate_client.calls import Answer, log, path_of
from agentstate_client.errors import (
    AgentStateError,
    ClientClosed,
    NotAllowed,
    NotFound,
    Unsendable,
)
from agentstate_client.payloads import encode
from agentstate_client.records import (
    ChangeRecord,
    RecordedEvent,
    read_changes,
    read_events,
)
from agentstate_client.retry import is_repeatable

WAIT_SECONDS = 20
PAUSE_SECONDS = 1.0
EVENTS_PER_PAGE, CHANGES_PER_PAGE = 500, 500
RUNS_REMEMBERED = 10_000
ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})


@dataclass(frozen=True)
class Change(ChangeRecord):
    """What one batch wrote for a run: its events first_seq to last_seq, of these types."""

    acknowledge: Callable[[int], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Say that this change, and every one before it, has been dealt with.

        Raises VersionConflict when another process of this consumer is further already.
        """
        if self.acknowledge is None:
            raise ValueError("there is nobody to say it for: follow the feed with a consumer")
        self.acknowledge(self.position)


@dataclass
class Patience:
    """Asks again and again while nobody answers, for so many seconds; from the first answer on."""

    transport: Transport
    seconds: float
    answered_at: float | None = None

    def ask(self, call: Call) -> Answer:
        """Raises Refused, and Unreachable when the store has been silent for too long."""
        while True:
            try:
                answer = self.transport.send(call)
            except AgentStateError as failure:
                if not is_repeatable(failure) or self._is_over():
                    raise
                log.warning("%s: nothing is lost, asking again: %s", call.path, failure)
                self.transport.sleep(PAUSE_SECONDS)
            else:
                self.answered_at = clock.now()
                return answer

    def breathe(self, asked_at: float) -> None:
        """After an answer with nothing in it: the server waits before it gives one. It did not if
        it is going down, or if something on the way answers for it; then not at once again."""
        if clock.now() - asked_at < PAUSE_SECONDS:
            self.transport.sleep(PAUSE_SECONDS)

    def _is_over(self) -> bool:
        return self.answered_at is None or clock.now() - self.answered_at >= self.seconds


def follow_run(
    transport: Transport, key: str, *, after: int, patience_seconds: float
) -> Iterator[RecordedEvent]:
    """The events of a run behind `after`, those to come included, until the run has ended."""
    patience = Patience(transport, patience_seconds)
    head = (patience.ask(Call("GET", path_of("runs", key)))).document()
    ended = head["status"] in ("completed", "failed", "cancelled")
    last_seq = head["last_seq"]
    while not (ended and after >= last_seq):
        query, asked_at = {"after": after, "limit": EVENTS_PER_PAGE}, clock.now()
        answer = patience.ask(
            Call("GET", path_of("runs", key, "events"), query=query, wait_seconds=WAIT_SECONDS)
        )
        last_seq = answer.document().get("last_seq", after)
        events = read_events(answer.text)
        if not events:
            patience.breathe(asked_at)
        for event in events:
            if event.seq > after:
                after = event.seq
                ended = ended or (event.origin == "store" and event.type in ENDS)
                yield event


class FeedReader:
    """Where one reader of the feed is, and what it has given out."""

    def __init__(
        self, transport: Transport, *, consumer: str | None, patience_seconds: float
    ) -> None:
        self._transport = transport
        self._consumer = consumer
        self._patience = Patience(transport, patience_seconds)
        self._acknowledged = self._given = -1
        # Whether what the filter passes over may be acknowledged here, for nobody else can.
        self._notes_passed = False
        self._last_seq: OrderedDict[str, int] = OrderedDict()

    def changes(self, *, after: int | None, types: Sequence[str]) -> Iterator[Change]:
        """Raises CursorExpired when what follows is no longer kept: read anew, then go on from
        its `latest`."""
        position = self._checkpoint() if after is None else after
        self._notes_passed = after is None and self._consumer is not None
        acknowledge = None if self._consumer is None else self._acknowledge
        while True:
            query: dict[str, str | int | list[str]] = {"after": position, "limit": CHANGES_PER_PAGE}
            if types:
                query["types"] = list(types)
            call = Call("GET", "/feed", query=query, wait_seconds=WAIT_SECONDS)
            asked_at = clock.now()
            answer = self._patience.ask(call)
            changes, position = read_changes(answer.document())
            if not changes:
                self._note_passed(position)
                self._patience.breathe(asked_at)
            for change in changes:
                if self._is_new(change):
                    self._given = change.position
                    yield Change(**vars(change), acknowledge=acknowledge)

    def _is_new(self, change: ChangeRecord) -> bool:
        """Each position once, and each (run, number), whatever the positions say. What begins at 1
        is another run's, whose key was free again once the one before it was gone."""
        is_next = change.last_seq > self._last_seq.get(change.run, 0)
        if change.position <= self._given or not (is_next or change.first_seq == 1):
            return False
        self._last_seq[change.run] = change.last_seq
        self._last_seq.move_to_end(change.run)
        if len(self._last_seq) > RUNS_REMEMBERED:
            self._last_seq.popitem(last=False)
        return True

    def _checkpoint(self) -> int:
        if self._consumer is None:
            return 0
        try:
            path = path_of("feed", "consumers", self._consumer)
            answer = self._patience.ask(Call("GET", path))
        except NotFound:
            return 0
        found: Any = answer.document().get("position")
        self._acknowledged = self._given = int(found)
        return self._acknowledged

    def _note_passed(self, position: int) -> None:
        """Acknowledge what the filter passed over, once all that was given out is: who waits for
        what seldom comes would seem to be far behind, and what they stand before would be gone."""
        if not self._notes_passed or self._given > self._acknowledged:
            return
        try:
            self._acknowledge(position)
        except ClientClosed:
            raise
        except AgentStateError as failure:
            # Nobody asked for it: what follows is read all the same, and it is said again.
            log.info("consumer %s: what it passed over was not noted: %s", self._consumer, failure)
            self._notes_passed = not isinstance(failure, NotAllowed)

    def _acknowledge(self, position: int) -> None:
        if self._consumer is None or position <= self._acknowledged:
            return
        path = path_of("feed", "consumers", self._consumer)
        self._transport.send(Call("PUT", path, encode({"position": position})))
        self._acknowledged = max(self._acknowledged, position)


def check_types(types: Sequence[str]) -> None:
    if isinstance(types, str):
        raise Unsendable("types: several texts, not one")
