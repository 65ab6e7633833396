"""Proposals to reclaim a unit: what the page that asks says of one, and a person's no to it.

A yes is the reclaim itself (views/leases.py), which names the proposal.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from agentstate import store
from agentstate.store import proposed
from agentstate.store.errors import Invalid, NotAllowed, NotFound, Refusal
from agentstate.store.proposals import DeclineProposal, ProposalRow
from dashboard.forms import form_circumstances, one_line
from dashboard.pages import ConsoleRequest, denied, page
from dashboard.queries.leases import UnitStory
from dashboard.refused import told


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A proposal beside the facts as they are now. row: None for one that is not there, or that is
    too old. stands: it can be confirmed, as far as it is about who has the unit. may_decline: also
    by who may not take a live lease."""

    row: ProposalRow | None
    stands: bool = False
    may_decline: bool = False


def number_of(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def asked(request: ConsoleRequest) -> str:
    """What the address or the form names; "" for a reclaim that nobody proposed."""
    return (request.POST if request.method == "POST" else request.GET).get("proposal", "")


def shown(request: ConsoleRequest, story: UnitStory) -> Shown | None:
    """None: nobody proposed it."""
    named = asked(request)
    if not named:
        return None
    number = number_of(named)
    row = proposed.find(story.unit, number) if number else None
    if row is None:
        return Shown(row=None)
    lease = story.lease
    is_same = lease is not None and (lease.owner, lease.token) == (row.owner, row.token)
    return Shown(
        row=row,
        stands=is_same and row.declined_by is None,
        may_decline=request.access.may("operate"),
    )


@require_POST
@page
def decline(request: ConsoleRequest, unit: str, proposal: str) -> HttpResponseBase:
    """Say no, with `why` or without: it is gone from Now and Leases, and the audit says by whom.
    Twice is once."""
    number = number_of(proposal)
    if number is None or "\0" in unit:
        raise Http404
    try:
        reason = one_line(request.POST.get("why", ""))
        command = DeclineProposal(unit=unit, proposal=number, reason=reason)
        done = store.execute(command, by=request.access.caller, under=form_circumstances(request))
    except NotAllowed as refused:
        raise denied(refused) from None
    except Invalid as refused:
        messages.warning(request, f"Nothing was done: {refused.detail}.")
    except NotFound:
        messages.warning(request, "There is no such proposal any more: it is too old.")
    except Refusal as refused:
        said = told(refused)
        messages.warning(request, f"{said.title} {said.text}")
    else:
        was = "was declined before" if done.already else "is declined"
        messages.success(request, f"The proposal {was}. {unit} stays as it is.",
                         extra_tags="check-circle")  # fmt: skip
    return redirect(reverse("lease", args=[unit]))
