"""Leases: acquire, renew, release, claim, reclaim, and who holds what."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel

from agentstate import store
from agentstate.api import fields, schemas
from agentstate.api.access import OPERATE, READ, WRITE, WorkerRequest
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.cursors import read_cursor, write_cursor
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.problems import fault_members, problem_members, request_id
from agentstate.api.replies import (
    action_members,
    holding,
    lease_members,
    reply,
    reply_result,
    term_members,
    told,
)
from agentstate.api.writes import Write, carried_out
from agentstate.store import Ask, reads
from agentstate.store.commands import (
    AcquireLease,
    ClaimRuns,
    ReclaimLease,
    ReleaseLease,
    RenewLease,
    Result,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    AttemptsExhausted,
    HolderChanged,
    LeaseHeld,
    LeaseLost,
    NotFound,
    Paused,
    Refusal,
    RunExpired,
)

log = logging.getLogger(__name__)

KEYED = (IDEMPOTENCY_KEY, ATTEMPT)
# A lease's token goes in the body; a header that says another one would be a contradiction.
UNUSED = ("If-Match", "Agentstate-Fence")

router = Router(tags=["leases"])


class LeasesWanted(BaseModel):
    """Which leases, and which page of them."""

    state: fields.LeaseState | None = None
    owner: fields.Worker | None = None
    cursor: fields.CursorText | None = None
    limit: fields.RowsLimit = 100


class TermsWanted(BaseModel):
    """Which terms: those with tokens below `before`."""

    before: fields.TokenInQuery | None = None
    limit: fields.RowsLimit = 100


@router.post(
    "/claim",
    **contract(
        "claim_runs",
        answers=schemas.ClaimedTold,
        access=WRITE,
        refuses=(LeaseLost,),
        takes_body=True,
        headers=KEYED,
    ),
)
@carried_out
def claim_runs(request: WorkerRequest, ask: Sent[schemas.ClaimAsked]) -> Write:
    """Lease up to `limit` runs that wait for a worker, oldest first; never one to two workers.

    Pending runs become running. A run that was started `max_attempts` times is failed instead.
    Nothing to do: an empty list.
    """
    check_unused(request, *UNUSED)
    command = ClaimRuns(
        owner=ask.owner, ttl_seconds=ask.ttl_seconds, task=ask.task, tag=ask.tag, limit=ask.limit
    )
    return Write(command, circumstances(request))


@router.post(
    "/renew",
    **contract(
        "renew_leases",
        answers=schemas.RenewedManyTold,
        access=WRITE,
        refuses=(LeaseLost,),
        takes_body=True,
        headers=(ATTEMPT,),
    ),
)
def renew_leases(request: WorkerRequest, ask: Sent[schemas.RenewManyAsked]) -> HttpResponse:
    """Keep many units at once: for each, in the order asked, a renewal or a problem."""
    check_unused(request, *UNUSED)
    under = circumstances(request, repeatable=True)
    asks = [
        Ask(
            command=RenewLease(unit=held.unit, token=held.token, ttl_seconds=ask.ttl_seconds),
            by=request.caller,
            under=under,
        )
        for held in ask.items
    ]
    outcomes = store.execute_all(asks)
    return reply({"items": [_renewed(request, outcome) for outcome in outcomes]})


def _renewed(request: WorkerRequest, outcome: Result | Exception) -> dict[str, Any]:
    """A renewal, or the problem with it: a fault of ours with one unit leaves the others alone."""
    if isinstance(outcome, Refusal):
        return problem_members(request, outcome)
    if isinstance(outcome, Exception):
        log.error("request %s failed for one of its units", request_id(request))
        return fault_members(request)
    return told(outcome)


@router.post(
    "/{unit}/acquire",
    **contract(
        "acquire_lease",
        answers=schemas.AcquiredTold,
        access=WRITE,
        refuses=(
            NotFound,
            RunExpired,
            LeaseHeld,
            AlreadyTerminal,
            Paused,
            AttemptsExhausted,
            LeaseLost,
        ),
        takes_body=True,
        headers=KEYED,
    ),
)
@carried_out
def acquire_lease(
    request: WorkerRequest, unit: fields.Unit, ask: Sent[schemas.AcquireAsked]
) -> Write:
    """Take a unit that is free, or whose lease is over; a run's unit is `run:<key>`.

    423 while another lease is live, also for the same owner: that is what renew is for.
    """
    check_unused(request, *UNUSED)
    command = AcquireLease(unit=unit, owner=ask.owner, ttl_seconds=ask.ttl_seconds)
    return Write(command, circumstances(request))


@router.post(
    "/{unit}/renew",
    **contract(
        "renew_lease",
        answers=schemas.RenewedTold,
        access=WRITE,
        refuses=(LeaseLost,),
        takes_body=True,
        headers=(ATTEMPT,),
    ),
)
@carried_out
def renew_lease(request: WorkerRequest, unit: fields.Unit, ask: Sent[schemas.RenewAsked]) -> Write:
    """Keep a unit: it expires `ttl_seconds` from now, also when that is sooner than before.

    409 lease-lost once it has expired or been taken; the reason says which.
    """
    check_unused(request, *UNUSED)
    command = RenewLease(
        unit=unit, token=ask.token, ttl_seconds=ask.ttl_seconds, progress=ask.progress
    )
    return Write(command, circumstances(request, repeatable=True))


@router.post(
    "/{unit}/release",
    **contract(
        "release_lease",
        answers=schemas.ReleasedTold,
        access=WRITE,
        refuses=(LeaseLost,),
        takes_body=True,
        headers=(ATTEMPT,),
    ),
)
@carried_out
def release_lease(
    request: WorkerRequest, unit: fields.Unit, ask: Sent[schemas.ReleaseAsked]
) -> Write:
    """Give a unit back, so that somebody else may have it. Repeating it is harmless."""
    check_unused(request, *UNUSED)
    command = ReleaseLease(unit=unit, token=ask.token)
    return Write(command, circumstances(request, repeatable=True))


@router.post(
    "/{unit}/reclaim",
    **contract(
        "reclaim_lease",
        answers=schemas.ReclaimedTold,
        access=OPERATE,
        refuses=(NotFound, HolderChanged, LeaseHeld),
        takes_body=True,
        headers=KEYED,
    ),
)
def reclaim_lease(
    request: WorkerRequest, unit: fields.Unit, ask: Sent[schemas.ReclaimAsked]
) -> HttpResponse:
    """Free a unit and fence its holder at once; the token and owner are those that were seen.

    412 holder-changed when somebody else holds it now. A live lease needs `force`, and that the
    scope `override`.
    """
    check_unused(request, *UNUSED)
    command = ReclaimLease(
        unit=unit,
        expected_token=ask.expected_token,
        expected_owner=ask.expected_owner,
        reason=ask.reason,
        force=ask.force,
        hold_off_seconds=ask.hold_off_seconds,
    )
    return reply_result(store.execute(command, by=request.caller, under=circumstances(request)))


@router.get("", **contract("list_leases", answers=schemas.LeasesTold, access=READ))
def list_leases(request: WorkerRequest, wanted: Query[LeasesWanted]) -> HttpResponse:
    """Units and who holds them, in the order of their names, in pages."""
    of = wanted.model_dump(exclude={"cursor", "limit"})
    page = reads.leases(
        state=wanted.state,
        owner=wanted.owner,
        limit=wanted.limit,
        place=read_cursor(wanted.cursor, of=of),
    )
    return reply(
        {
            "items": [lease_members(view.lease, view.now, request.caller) for view in page.items],
            "next": write_cursor(page.next, of=of),
            "prev": write_cursor(page.prev, of=of),
            "as_of": page.now,
        }
    )


@router.get(
    "/{unit}",
    **contract(
        "read_lease",
        answers=schemas.LeaseTold,
        access=READ,
        refuses=(NotFound, RunExpired),
        also=(HTTPStatus.METHOD_NOT_ALLOWED,),  # claim and renew are no units
    ),
)
def read_lease(request: WorkerRequest, unit: fields.Unit) -> HttpResponse:
    """One unit and who holds it, by the database's clock."""
    view = reads.lease(unit)
    return reply(lease_members(view.lease, view.now, request.caller))


@router.get(
    "/{unit}/actions",
    **contract(
        "list_lease_actions",
        answers=schemas.ActionsTold,
        access=READ,
        refuses=(NotFound, RunExpired),
    ),
)
def list_lease_actions(request: WorkerRequest, unit: fields.Unit) -> HttpResponse:
    """What the caller may do to a unit now, or why not: what the console offers goes by the same.

    It is no promise: the action itself looks again.
    """
    view = reads.lease(unit)
    thing = {"kind": "unit", **holding(view.lease, view.now)}
    return reply({"items": action_members(request.caller, thing), "as_of": view.now})


@router.get(
    "/{unit}/terms",
    **contract("list_terms", answers=schemas.TermsTold, access=READ, refuses=(NotFound,)),
)
def list_terms(
    request: WorkerRequest, unit: fields.Unit, wanted: Query[TermsWanted]
) -> HttpResponse:
    """Every term of ownership of a unit, newest first; go on with `before` = the last token."""
    found = reads.terms(unit=unit, before=wanted.before, limit=wanted.limit)
    return reply({"items": [term_members(term) for term in found]})
