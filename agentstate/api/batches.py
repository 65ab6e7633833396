"""Many operations in one transaction: all of them, or none and every reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from ninja import Router

from agentstate import store
from agentstate.api import schemas
from agentstate.api.access import WRITE, WorkerRequest
from agentstate.api.asks import new_append, new_move, new_patch, new_run
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply, told
from agentstate.store.commands import (
    Batch,
    Charge,
    Check,
    CommitReservation,
    Operation,
    ReleaseReservation,
    Reserve,
    Result,
    Spend,
)
from agentstate.store.errors import BatchRefused, Invalid

router = Router(tags=["batch"])


@router.post(
    "",
    **contract(
        "batch",
        answers=schemas.BatchTold,
        access=WRITE,
        refuses=(BatchRefused,),
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT),
    ),
)
def batch(request: WorkerRequest, ask: Sent[schemas.BatchAsked]) -> HttpResponse:
    """Carry out up to 100 operations in order, in one transaction.

    Each sees what the ones before it did. If any is refused nothing is written, and 409
    `batch-refused` lists every one that fails. `check` writes nothing: the batch stands or falls
    with what it expects. Tokens and versions go in the operations, not in headers.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    command = Batch(operations=tuple(map(_operation, range(len(ask.operations)), ask.operations)))
    done = store.execute(command, by=request.caller, under=circumstances(request))
    members = {"results": [_told(result) for result in done.results], "at": done.at}
    return reply(members, replayed=done.replayed)


def _told(result: Result) -> dict[str, Any]:
    return told(result) | ({"replayed": True} if result.replayed else {})


def _operation(index: int, ask: Any) -> Operation:
    """The command of an operation. A rule that it breaks as a whole is told with its number."""
    try:
        return _COMMANDS[ask.op](ask)
    except Invalid as broken:
        raise Invalid(f"operations[{index}].{broken.field}", broken.rule) from None


def _spend(ask: schemas.SpendOperation) -> Spend:
    charge = Charge(budget=ask.budget, amount=ask.amount, id=ask.id, note=ask.note)
    return Spend(run=ask.run, charge=charge, fence=ask.fence)


def _reserve(ask: schemas.ReserveOperation) -> Reserve:
    return Reserve(
        run=ask.run,
        budget=ask.budget,
        amount=ask.amount,
        id=ask.id,
        ttl_seconds=ask.ttl_seconds,
        fence=ask.fence,
    )


def _commit(ask: schemas.CommitOperation) -> CommitReservation:
    return CommitReservation(
        run=ask.run, budget=ask.budget, id=ask.id, amount=ask.amount, fence=ask.fence
    )


def _release(ask: schemas.ReleaseOperation) -> ReleaseReservation:
    return ReleaseReservation(run=ask.run, budget=ask.budget, id=ask.id, fence=ask.fence)


def _check(ask: schemas.CheckOperation) -> Check:
    return Check(
        run=ask.run,
        expect=ask.expect,
        expected_seq=ask.expected_seq,
        if_match=ask.if_match,
        fence=ask.fence,
    )


_COMMANDS: dict[str, Callable[[Any], Operation]] = {
    "create": lambda ask: new_run(ask, fence=ask.fence),
    "append": lambda ask: new_append(ask.run, ask, if_match=ask.if_match, fence=ask.fence),
    "transition": lambda ask: new_move(ask.run, ask, if_match=ask.if_match, fence=ask.fence),
    "patch": lambda ask: new_patch(ask.run, ask, if_match=ask.if_match, fence=ask.fence),
    "spend": _spend,
    "reserve": _reserve,
    "commit": _commit,
    "release": _release,
    "check": _check,
}
