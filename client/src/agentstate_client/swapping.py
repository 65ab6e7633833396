"""Compare and set: read, compute, write if nobody else has written; else all of it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentstate_client.errors import GaveUp, VersionConflict
from agentstate_client.payloads import encode
from agentstate_client.records import RunRecord, Swapped
from agentstate_client.retry import RetryPolicy
from agentstate_client.runs import Run
from agentstate_client.transport import Call, Transport, path_of


def swap(
    transport: Transport,
    run: Run,
    change: Callable[[RunRecord], Mapping[str, Any] | None],
    *,
    attempts: int,
    retry: RetryPolicy,
) -> Swapped:
    """What `Client.cas` says."""
    if attempts < 1:
        raise ValueError("attempts: at least 1")
    attempt = 1
    while True:
        record = run.read()
        new = change(record)
        if new is None:
            raise ValueError("the change returned None; it returns the new attrs, all of them")
        call = Call(
            "PATCH",
            path_of("runs", run.key),
            encode({"replace": new}),
            fence=run.lease,
            if_match=f'"v{record.version}"',
            keyed=True,
            attempts_before=attempt - 1,
        )
        try:
            written = transport.send(call).document()
        except VersionConflict as conflict:
            if attempt >= attempts:
                raise GaveUp(attempt, conflict) from conflict
            # Full jitter: two that met once should not meet again.
            transport.sleep(retry.delay_seconds(attempt, conflict))
            attempt += 1
        else:
            return Swapped(new, int(written["version"]), attempt)
