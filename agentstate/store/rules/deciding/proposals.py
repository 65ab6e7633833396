"""Proposals to reclaim a unit: made by who may not, declined or confirmed by a person."""

from __future__ import annotations

from uuid import UUID

from agentstate.store.commands import ReclaimLease
from agentstate.store.errors import ExpectationFailed, NotFound, RateLimited
from agentstate.store.proposals import (
    DECLINED,
    PROPOSAL_SECONDS,
    PROPOSALS_MAX,
    PROPOSED,
    DeclineProposal,
    ProposalDeclined,
    ProposalRow,
    Proposed,
    ProposeReclaim,
    ReclaimProposed,
)
from agentstate.store.rows import run_key_of
from agentstate.store.rules import leases
from agentstate.store.rules.deciding.desk import Deciding


def propose_reclaim(ask: ProposeReclaim, on: Deciding) -> ReclaimProposed:
    on.by.need("propose")
    lease = on.draft.lease(ask.unit)
    leases.check_seen(lease, unit=ask.unit, owner=ask.expected_owner, token=ask.expected_token,
                      now=on.draft.now)  # fmt: skip
    for known in _of_unit(ask.unit, on):
        if known.token == ask.expected_token and known.declined_by is None:
            return _told(known, already=True)
    _count(on)
    made = ProposalRow(
        id=on.draft.facts.new_id(on.draft.now),
        unit=ask.unit,
        by=on.by.principal,
        at=on.draft.now,
        owner=ask.expected_owner,
        token=ask.expected_token,
        reason=ask.reason,
    )
    key = run_key_of(ask.unit)
    on.act(
        PROPOSED,
        ask.unit,
        on.draft.find_run(key) if key is not None else None,
        reason=ask.reason,
        after={"proposal": str(made.id)},
        expected={"owner": made.owner, "token": made.token},
    )
    _keep(made, on)
    return _told(made)


def decline_proposal(ask: DeclineProposal, on: Deciding) -> ProposalDeclined:
    on.by.need("operate")
    known = _find(ask.unit, ask.proposal, on)
    if known is None:
        raise NotFound("there is no such proposal, or it is too old", unit=ask.unit)
    if known.declined_by is not None:
        return ProposalDeclined(
            proposal=known.id, unit=ask.unit, by=known.declined_by, at=on.draft.now, already=True
        )
    key = run_key_of(ask.unit)
    on.act(
        DECLINED,
        ask.unit,
        on.draft.find_run(key) if key is not None else None,
        reason=ask.reason,
        after={"proposal": str(known.id), "proposed_by": known.by},
    )
    return ProposalDeclined(proposal=known.id, unit=ask.unit, by=on.by.principal, at=on.draft.now)


def confirmed(ask: ReclaimLease, on: Deciding) -> ProposalRow | None:
    """The proposal that a reclaim carries out, if it names one. Raises ExpectationFailed unless it
    is open, and about the holder that the person saw."""
    if ask.proposal is None:
        return None
    known = _find(ask.unit, ask.proposal, on)
    if known is None:
        raise _not_open("there is no such proposal, or it is too old")
    if known.declined_by is not None:
        raise _not_open(f"{known.declined_by} has declined the proposal", known)
    if (known.token, known.owner) != (ask.expected_token, ask.expected_owner):
        raise _not_open("the proposal is about another holder", known)
    return known


def _not_open(why: str, known: ProposalRow | None = None) -> ExpectationFailed:
    failed = {"field": "proposal", "wanted": "open", "found": why}
    return ExpectationFailed(why, current=known.facts() if known else None, failed=[failed])


def _of_unit(unit: str, on: Deciding) -> tuple[ProposalRow, ...]:
    return tuple(on.draft.facts.proposed.by_unit.get(unit, ()))


def _find(unit: str, proposal: UUID, on: Deciding) -> ProposalRow | None:
    return next((known for known in _of_unit(unit, on) if known.id == proposal), None)


def _count(on: Deciding) -> None:
    made = on.draft.facts.proposed.made.get(on.by.principal, 0)
    if made >= PROPOSALS_MAX:
        raise RateLimited(
            f"{made} proposals in an hour: people have to look at each of them",
            retry_after_ms=PROPOSAL_SECONDS * 1_000 // PROPOSALS_MAX,
        )


def _keep(made: ProposalRow, on: Deciding) -> None:
    """For whatever else is decided in the same batch."""
    known = on.draft.facts.proposed
    of_unit = {**known.by_unit, made.unit: (made, *_of_unit(made.unit, on))}
    count = {**known.made, made.by: known.made.get(made.by, 0) + 1}
    on.draft.facts.proposed = Proposed(by_unit=of_unit, made=count)


def _told(known: ProposalRow, *, already: bool = False) -> ReclaimProposed:
    return ReclaimProposed(
        proposal=known.id,
        unit=known.unit,
        owner=known.owner,
        token=known.token,
        by=known.by,
        at=known.at,
        until=known.until,
        already=already,
    )
