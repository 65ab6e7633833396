"""Keeps the leases of one client alive, whatever the work does meanwhile.

Two daemon threads, alive only while there is a lease. One sends the renewals, each at a third of
its ttl, over connections of its own. The other sends nothing, so that nothing can hold it up: it
declares a lease lost when its deadline passes, also while a renewal hangs.

A renewal that fails is tried again inside the time that is left. What the store says of a lease
that this client has ended by itself is expected and changes nothing.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from agentstate_client import clock
from agentstate_client._sync.transport import Call, Transport
from agentstate_client.calls import Answer, Departure, path_of
from agentstate_client.errors import AgentStateError, LeaseLost, NotFound, Refused
from agentstate_client.holding import Holding
from agentstate_client.payloads import encode
from agentstate_client.records import read_renewal, read_renewals
from agentstate_client.retry import RetryPolicy, retry_after_seconds

AnyLease = Holding[Any]

log = logging.getLogger("agentstate_client")

ATTEMPT_SECONDS_MIN, ATTEMPT_SECONDS_MAX = 0.25, 10.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0
GROUP_LEASES_MAX = 100  # the contract's limit for one request
NEARLY_DUE_PART = 0.1
# A thread's sleep does not count the time that the machine sleeps: look again at least so often.
NAP_SECONDS_MAX = 1.0


class Renewals:
    """The leases of one client, sync or async: to a thread it is all the same."""

    def __init__(self, *, url: str, key: str, worker: str) -> None:
        # Connections of its own, so that a renewal never waits for one behind the work.
        self._transport = Transport(
            url=url,
            key=key,
            worker=worker,
            retry=RetryPolicy(),
            timeout_seconds=ATTEMPT_SECONDS_MAX,
        )
        self._changed = threading.Condition()
        # A lease whose handle nobody has any more is not kept: it runs out, and others go on.
        self._leases: WeakSet[AnyLease] = WeakSet()
        self._threads: tuple[threading.Thread, ...] = ()

    def add(self, lease: AnyLease) -> None:
        """Keep a lease alive from now on, until it is over. Raises RuntimeError when the system
        has no thread left for that; the lease then runs out.
        """
        with self._changed:
            self._leases.add(lease)
            self._changed.notify_all()
            if not self._threads:
                self._start()

    def _start(self) -> None:
        self._threads = (
            threading.Thread(target=self._renew, name="agentstate-renewals", daemon=True),
            threading.Thread(target=self._watch, name="agentstate-deadlines", daemon=True),
        )
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self._threads = ()
            raise

    def wake(self) -> None:
        """A lease is over: the threads look again, and end when it was the last one."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> tuple[AnyLease, ...]:
        """Renew nothing more. Returns the leases that have still to be given back."""
        with self._changed:
            held = tuple(lease for lease in self._leases if lease.note_release())
            self._changed.notify_all()
        self._transport.close()
        return held

    def _renew(self) -> None:
        while self._until_due(lambda lease: lease.renew_at):
            self._renew_due()

    def _watch(self) -> None:
        while self._until_due(lambda lease: lease.deadline):
            pass  # to ask a lease for its state is what makes it see that its deadline has passed

    def _until_due(self, due_at: Callable[[AnyLease], float]) -> bool:
        """Wait until a lease is due; False, and both threads end, when there is none left."""
        with self._changed:
            while threading.current_thread() in self._threads:
                times = [due_at(lease) for lease in self._leases if lease.state == "held"]
                if not times:
                    self._threads = ()
                    self._changed.notify_all()
                    break
                seconds = min(times) - clock.now()
                if seconds <= 0:
                    return True
                self._changed.wait(min(seconds, NAP_SECONDS_MAX))
        return False

    def _renew_due(self) -> None:
        for leases in self._due_groups():
            try:
                if len(leases) == 1:
                    self._renew_one(leases[0])
                else:
                    self._renew_many(leases)
            except Exception as bug:  # whatever it is, the other leases are still to be kept
                log.exception("renewing %s failed", ", ".join(lease.unit for lease in leases))
                self._try_again(leases, AgentStateError(repr(bug)))

    def _due_groups(self) -> list[list[AnyLease]]:
        """What goes in one request each, the most urgent first: leases of one ttl go together, and
        those that are nearly due with them. One that has progress to report goes by itself.
        """
        with self._changed:
            held = [lease for lease in self._leases if lease.state == "held"]
        now = clock.now()
        groups: dict[tuple[int, int], list[AnyLease]] = {}
        for lease in sorted(held, key=lambda lease: lease.deadline):
            if lease.renew_at <= now + lease.ttl_seconds * NEARLY_DUE_PART:
                alone = lease.token if lease.has_progress else 0
                groups.setdefault((lease.ttl_seconds, alone), []).append(lease)
        return [
            group[start : start + GROUP_LEASES_MAX]
            for group in groups.values()
            if any(lease.renew_at <= now for lease in group)
            for start in range(0, len(group), GROUP_LEASES_MAX)
        ]

    def _renew_one(self, lease: AnyLease) -> None:
        progress = lease.take_progress()
        document = {"token": lease.token, "ttl_seconds": lease.ttl_seconds}
        carried = {} if progress is None else {"progress": progress}
        call = Call("POST", path_of("leases", lease.unit, "renew"), encode(document | carried))
        try:
            answer = self._send(call, [lease], Departure(lease))
            expires_at, signals = read_renewal(answer.document())
        except (LeaseLost, NotFound) as refused:
            lease.note_refusal(refused)
        except AgentStateError as trouble:
            if progress is not None and _is_about_progress(trouble):
                log.warning("progress of %s is dropped: %s", lease.unit, trouble)
            else:
                lease.put_progress_back(progress)
            self._try_again([lease], trouble)
        else:
            lease.note_renewal(sent_at=answer.sent_at, expires_at=expires_at, signals=signals)

    def _renew_many(self, leases: list[AnyLease]) -> None:
        """One request for leases of one ttl; each has an answer of its own."""
        document = {
            "items": [{"unit": lease.unit, "token": lease.token} for lease in leases],
            "ttl_seconds": leases[0].ttl_seconds,
        }
        try:
            answer = self._send(
                Call("POST", "/leases/renew", encode(document)), leases, Departure()
            )
            outcomes = read_renewals(answer.document(), count=len(leases))
        except AgentStateError as trouble:
            self._try_again(leases, trouble)
            return
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, (LeaseLost, NotFound)):
                lease.note_refusal(outcome)
            elif isinstance(outcome, Refused):
                self._try_again([lease], outcome)
            else:
                expires_at, signals = outcome
                lease.note_renewal(sent_at=answer.sent_at, expires_at=expires_at, signals=signals)

    def _send(self, call: Call, leases: list[AnyLease], departure: Departure) -> Answer:
        """One attempt, short enough to leave time for another before any lease at all is lost."""
        with self._changed:
            remaining = [lease.remaining_seconds for lease in (*self._leases, *leases)]
        most_seconds = min((seconds for seconds in remaining if seconds), default=0.0) / 2
        return self._transport.send_once(
            call,
            departure,
            attempt=max(lease.failed_renewals for lease in leases) + 1,
            timeout_seconds=max(ATTEMPT_SECONDS_MIN, min(ATTEMPT_SECONDS_MAX, most_seconds)),
        )

    def _try_again(self, leases: list[AnyLease], trouble: AgentStateError) -> None:
        asked = retry_after_seconds(trouble) + random.uniform(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        held = [lease for lease in leases if lease.state == "held"]
        for lease in held:
            delay = max(RETRY_SECONDS_MIN, min(asked, lease.remaining_seconds / 3))
            lease.note_trouble(trouble, renew_at=clock.now() + delay)
        if held:
            units = ", ".join(lease.unit for lease in held)
            log.warning("not renewed, will be tried again: %s: %s", units, trouble)


def _is_about_progress(trouble: AgentStateError) -> bool:
    """The store does not take what the renewal carried; the renewal itself was not at fault."""
    return isinstance(trouble, Refused) and trouble.status in (400, 413, 422)
