"""What each database session of this process carries now, by its PostgreSQL process id.

PostgreSQL knows which session waits for which, and nothing of workers. The process that opened a
session knows whose commands it carries: only it can tell, and only of its own. Kept in memory, one
entry per transaction, so that it costs a writer nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from agentstate.store.plan import Plan

_AT_WORK: dict[int, Callable[[], Sequence[Plan]]] = {}


@contextmanager
def carrying(pid: int, plans: Callable[[], Sequence[Plan]]) -> Iterator[None]:
    """Note whose commands the session has while the block runs; plans: made if anybody asks."""
    _AT_WORK[pid] = plans
    try:
        yield
    finally:
        _AT_WORK.pop(pid, None)


def carried_by(pid: int) -> tuple[Plan, ...]:
    """The commands of one session; none for a session of another process, or one that rests."""
    plans = _AT_WORK.get(pid)
    return tuple(plans()) if plans is not None else ()
