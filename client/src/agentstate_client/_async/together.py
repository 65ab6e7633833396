"""Several writes on one run that stand or fall together: `POST /batch` under its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentstate_client._async.runs import AsyncRun
from agentstate_client._async.transport import AsyncCall
from agentstate_client.errors import BatchRefused, LeaseLost, Problem, StaleFence, refusal
from agentstate_client.payloads import encode
from agentstate_client.records import Event


async def together(
    run: AsyncRun,
    event: Event | None,
    add: Mapping[str, int],
    also: Sequence[Mapping[str, Any]],
) -> None:
    """An event with counters, and operations on budgets of one run: all of them or none.

    Raises what the first of them is refused for.
    """
    await run.flush()
    on_run = {"run": run.key, "fence": run.lease.token if run.lease is not None else None}
    operations = list(also)
    if event is not None:
        counted = {"add": dict(add)} if add else {}
        operations.insert(0, {"op": "append", "events": [event.document()], **counted})
    document = {"operations": [{**one, **on_run} for one in operations]}
    call = AsyncCall(
        "POST", "/batch", encode(document), fence=run.lease, is_fence_inside=True, keyed=True
    )
    try:
        answer = await run._transport.send(call)
    except BatchRefused as refused:
        first = refusal(_first_of(refused))
        if run.lease is not None and isinstance(first, (StaleFence, LeaseLost)):
            run.lease.note_refusal(first)
        raise first from refused
    if event is not None:
        run._standing.note_write(answer.document()["results"][0])


def _first_of(refused: BatchRefused) -> Problem:
    told = (refused.operations or [{}])[0]
    found = Problem.read(told, status=refused.status, request_id=refused.request_id)
    return found if found is not None else refused.problem
