"""Proposals: a program asks a person to reclaim a unit, and which of them are open."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from django.http import HttpResponse
from ninja import Router
from pydantic import StrictBool

from agentstate import store
from agentstate.api import fields
from agentstate.api.access import PROPOSE, READ, WorkerRequest
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.leases import UNUSED
from agentstate.api.replies import reply, told
from agentstate.api.schemas import Asked, Told
from agentstate.store import proposed, reads
from agentstate.store.errors import HolderChanged, RateLimited
from agentstate.store.proposals import ProposeReclaim

router = Router(tags=["leases"])
of_unit = Router(tags=["leases"])


class ProposeAsked(Asked):
    expected_token: fields.Token
    expected_owner: fields.Worker
    reason: fields.Reason


class ProposedTold(Told):
    """A person confirms or declines it at `page`, an address of the console, before `until`.

    already: somebody has proposed the same before, and this is theirs.
    """

    proposal: str
    unit: str
    owner: str
    token: int
    by: str
    at: fields.Moment
    until: fields.Moment
    already: StrictBool
    page: str


class ProposalTold(Told):
    """by: the key that proposed. owner, token: the holder that it saw, who has the unit still.
    live: their lease goes on, so that only a senior can confirm it."""

    proposal: str
    unit: str
    owner: str
    token: int
    by: str
    reason: str
    at: fields.Moment
    until: fields.Moment
    live: StrictBool
    page: str


class ProposalsTold(Told):
    items: list[ProposalTold]
    as_of: fields.Moment


@of_unit.post(
    "/{unit}/proposals",
    **contract(
        "propose_reclaim",
        answers=ProposedTold,
        access=PROPOSE,
        status=HTTPStatus.CREATED,
        refuses=(HolderChanged, RateLimited),
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT),
    ),
)
def propose_reclaim(
    request: WorkerRequest, unit: fields.Unit, ask: Sent[ProposeAsked]
) -> HttpResponse:
    """Ask a person to reclaim a unit from the holder that was seen. Nothing happens to it by that.

    The console shows it on Now and on Leases; it is open for an hour, as long as that holder has
    the unit. 412 holder-changed when somebody else has it.
    """
    check_unused(request, *UNUSED)
    command = ProposeReclaim(
        unit=unit,
        expected_token=ask.expected_token,
        expected_owner=ask.expected_owner,
        reason=ask.reason,
    )
    done = store.execute(command, by=request.caller, under=circumstances(request))
    members = {**told(done), "page": page_of(unit, str(done.proposal))}
    return reply(members, status=HTTPStatus.CREATED, replayed=done.replayed)


@router.get("", **contract("list_proposals", answers=ProposalsTold, access=READ))
def list_proposals(request: WorkerRequest) -> HttpResponse:
    """Those that a person can still confirm or decline, the newest first."""
    found = proposed.read_open()
    return reply({"items": [open_members(one) for one in found], "as_of": reads.now()})


def open_members(one: proposed.OpenProposal) -> dict[str, Any]:
    row = one.row
    return {
        "proposal": str(row.id),
        "unit": row.unit,
        "owner": row.owner,
        "token": row.token,
        "by": row.by,
        "reason": row.reason,
        "at": row.at,
        "until": row.until,
        "live": one.live,
        "page": page_of(row.unit, str(row.id)),
    }


def page_of(unit: str, proposal: str) -> str:
    """Where a person decides on it: a page of the console, from this site's root."""
    return f"/leases/{quote(unit, safe=':')}/reclaim?proposal={proposal}"
