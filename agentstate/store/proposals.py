"""Proposals: somebody who may not reclaim, an assistant say, asks a person to.

A proposal is a row of the audit, as what became of it is: there is nothing to keep in step. It is
open while the unit is still with the holder that was seen, for PROPOSAL_SECONDS, until a person
declines it. Confirming it is the reclaim itself, which names it (`ReclaimLease.proposal`).
Why: docs/decisions/0057-mcp.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agentstate.store.commands import Command, Result
from agentstate.store.errors import Invalid
from agentstate.store.rules import names

# Longer than a page to a person and their way to a console; an incident looks different afterwards.
PROPOSAL_SECONDS = 3_600
# By one key in that time: a program that asks for everything shall not fill the audit.
PROPOSALS_MAX = 30
PROPOSED, DECLINED = "lease.reclaim-proposed", "lease.proposal-declined"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRow:
    """by: the principal that proposed. owner, token: the holder that it saw. declined_by: who said
    no, with `declined_reason`."""

    id: UUID
    unit: str
    by: str
    at: datetime
    owner: str
    token: int
    reason: str
    declined_by: str | None = None
    declined_reason: str = ""

    @property
    def until(self) -> datetime:
        """From then on it is too old to be confirmed."""
        return self.at + timedelta(seconds=PROPOSAL_SECONDS)

    def facts(self) -> dict[str, Any]:
        return {"proposal": str(self.id), "by": self.by, "owner": self.owner, "token": self.token}


@dataclass(frozen=True, slots=True)
class Proposed:
    """What the decisions need: of each unit that is named, the proposals that are not too old; how
    many each principal that proposes has made in that time."""

    by_unit: Mapping[str, Sequence[ProposalRow]] = field(default_factory=dict)
    made: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimProposed(Result):
    """until: too old from then on. already: somebody had proposed the same, and this is theirs."""

    proposal: UUID
    unit: str
    owner: str
    token: int
    by: str
    at: datetime
    until: datetime
    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeReclaim(Command[ReclaimProposed]):
    """Ask a person to reclaim a unit from this holder. Needs `propose`; changes nothing of it.

    Refuses HolderChanged when somebody else has it, RateLimited after PROPOSALS_MAX in an hour.
    """

    unit: str
    expected_token: int
    expected_owner: str
    reason: str

    def __post_init__(self) -> None:
        names.check_unit("unit", self.unit)
        names.check_whole("expected_token", self.expected_token, at_least=1, at_most=2**63 - 1)
        names.check_worker("expected_owner", self.expected_owner)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalDeclined(Result):
    """already: it was declined before, by `by`."""

    proposal: UUID
    unit: str
    by: str
    at: datetime
    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineProposal(Command[ProposalDeclined]):
    """A person says no to a proposal. Needs `operate`. Refuses NotFound when it is too old."""

    unit: str
    proposal: UUID
    reason: str = ""

    def __post_init__(self) -> None:
        names.check_unit("unit", self.unit)
        if not isinstance(self.proposal, UUID):
            raise Invalid("proposal", "the id of a proposal")
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)
