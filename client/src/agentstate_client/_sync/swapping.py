# Made from _async/swapping.py by make_sync.py. Change it there.

"""Compare and set: read, compute, write if nobody else has written; else all of it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agentstate_client._sync.transport import Call, Fence, Transport
from agentstate_client._sync.waiting import resolved
from agentstate_client.calls import Answer, path_of
from agentstate_client.errors import GaveUp, Refused, SeqConflict, VersionConflict
from agentstate_client.payloads import encode
from agentstate_client.records import Applied, Duplicate, RunRecord, Swapped

New = Mapping[str, Any] | None
AttrsChange = Callable[[RunRecord], New]
T = TypeVar("T")


def until_it_holds(
    transport: Transport,
    conflict: type[Refused],
    once: Callable[[int, Refused | None], T],
    *,
    attempts: int,
) -> T:
    """What `once(attempt, the conflict before it)` returns at the first try without a conflict.

    Raises GaveUp after so many attempts, and whatever else `once` raises.
    """
    if attempts < 1:
        raise ValueError("attempts: at least 1")
    attempt, met = 1, None
    while True:
        try:
            return once(attempt, met)
        except conflict as another:
            if attempt >= attempts:
                raise GaveUp(attempt, another) from another
            met = another
            # Full jitter: two that met once should not meet again.
            transport.sleep(transport.retry.delay_seconds(attempt, another))
            attempt += 1


def swap(
    transport: Transport,
    key: str,
    change: AttrsChange,
    *,
    read: Callable[[], RunRecord],
    lease: Fence | None,
    attempts: int,
    change_id: str | None = None,
) -> tuple[Mapping[str, Any], Answer, int]:
    """(the attrs that were sent, the answer, the attempts) of the try that held.

    change_id: makes the whole of it harmless to repeat, for the run's life.
    """

    def once(attempt: int, _met: Refused | None) -> tuple[Mapping[str, Any], Answer, int]:
        record = read()
        new = resolved(change(record))
        if new is None:
            raise ValueError("the change returned None; it returns the new attrs, all of them")
        document = {"replace": new} if change_id is None else {"replace": new, "id": change_id}
        call = Call(
            "PATCH",
            path_of("runs", key),
            encode(document),
            fence=lease,
            if_match=f'"v{record.version}"',
            keyed=True,
            attempts_before=attempt - 1,
            is_last=attempt == attempts,
        )
        return new, transport.send(call), attempt

    return until_it_holds(transport, VersionConflict, once, attempts=attempts)


def swapped(result: tuple[Mapping[str, Any], Answer, int]) -> Swapped:
    """With a copy of what was written, which is the caller's alone."""
    new, answer, attempts = result
    return Swapped(json.loads(encode(new)), int(answer.document()["version"]), attempts)


def applied(result: tuple[Mapping[str, Any], Answer, int]) -> Applied | Duplicate:
    _, answer, attempts = result
    version = int(answer.document()["version"])
    return Duplicate(version) if answer.duplicate else Applied(version, attempts)


def at_the_next_free(
    transport: Transport,
    write: Callable[[int, int], T],
    *,
    expected_seq: int,
    attempts: int,
) -> T:
    """`write(expected_seq, attempt)`, and at each conflict again behind what is there by then."""

    def once(attempt: int, met: Refused | None) -> T:
        seen = met.last_seq if isinstance(met, SeqConflict) else None
        return write(expected_seq if seen is None else seen, attempt)

    return until_it_holds(transport, SeqConflict, once, attempts=attempts)
