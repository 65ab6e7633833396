# Made from _async/leases.py by make_sync.py. Change it there.

"""A lease that this client holds: kept in the background, given back at the end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from agentstate_client._sync.waiting import Flag, carried_through
from agentstate_client.errors import AgentStateError, LeaseLost
from agentstate_client.holding import Holding, log
from agentstate_client.records import Grant


class Lease(Holding[Flag]):
    """One unit, held by this client. Made by `client.lease(…)`, or under a run that was claimed.

    A context manager: leaving the block gives the unit back, and raises LeaseLost if the unit was
    lost meanwhile and the block did not raise by itself. Renewals go on in the background, in a
    thread of their own. Its members can be used from any thread, but for `release`, which is for
    wherever the client is used.

    lost: set at the moment from which nothing may be written; wait on it to abort long work:
    `lease.lost.wait()`. taken_from: the owner who had the unit before and did not give it
    back. found_progress: what the holder before had reported last.
    """

    def __init__(
        self,
        grant: Grant,
        *,
        ttl_seconds: int,
        sent_at: float,
        give_back: Callable[[Lease, float], None],
    ) -> None:
        super().__init__(grant, ttl_seconds=ttl_seconds, sent_at=sent_at, make_flag=Flag)
        self._give_back = give_back

    def release(self) -> None:
        """Give the unit back. Repeating it, or releasing what is lost, does nothing.

        Raises Unreachable when the store cannot be told in the time that is left; then the lease
        runs out by itself.
        """
        seconds = self.remaining_seconds
        if not self.note_release():
            return
        try:
            carried_through(self._give_back(self, seconds))
        except LeaseLost as lost:
            self.note_loss(lost)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except AgentStateError as failure:
            log.warning("%s was not given back and will run out: %s", self.unit, failure)
        if raised is None:
            self.raise_loss()

    def wait_over(self, seconds: float) -> None:
        """Wait so long, or until the lease is over for whatever reason."""
        self._over.wait(seconds)
