"""The shapes of requests and answers. Requests are checked by them; answers are only described, for
OpenAPI: a test compares each answer with its description.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from agentstate.api import fields
from agentstate.store.commands import BUDGETS_PER_RUN, EVENTS_PER_APPEND, RETAIN_SECONDS_MAX
from agentstate.store.rules import names


class Asked(BaseModel):
    """A request's body: a field that it does not know is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Told(BaseModel):
    """An answer. A field that may be missing has a default here; one that may be null says so."""

    model_config = ConfigDict(extra="forbid")


# --- runs, events --------------------------------------------------------------------------------


class EventAsked(Asked):
    type: fields.EventType
    data: fields.Payload | None = None
    id: fields.Id | None = None


class BudgetAsked(Asked):
    name: fields.BudgetName
    cap: fields.Cap
    unit: fields.BudgetName = "tokens"
    parent: fields.BudgetName | None = None


class CreateAsked(Asked):
    """A run to be made, with its budgets and first events, in one transaction."""

    task: fields.Task
    key: fields.RunKey | None = Field(None, description="made by the store when it is left out")
    status: fields.FirstStatus = "pending"
    tags: fields.Tags = ()
    attrs: fields.PayloadObject | None = None
    parent: fields.RunKey | None = None
    deadline_at: fields.Moment | None = None
    deadline_policy: fields.DeadlinePolicy = "report"
    max_attempts: fields.MaxAttempts = 5
    budgets: list[BudgetAsked] = Field([], max_length=BUDGETS_PER_RUN)
    events: list[EventAsked] = Field([], max_length=EVENTS_PER_APPEND)
    retain_seconds: (
        Annotated[
            int,
            fields.rule(
                lambda f, v: names.check_whole(f, v, at_least=0, at_most=RETAIN_SECONDS_MAX)
            ),
            fields.whole(0, RETAIN_SECONDS_MAX),
        ]
        | None
    ) = None


class ChargeAsked(Asked):
    budget: fields.BudgetName
    amount: fields.Amount
    id: fields.Id | None = None
    note: fields.Note = ""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class AppendAsked(Asked):
    """Events, all or none; counters, charges and a move may ride along, in the same write."""

    events: list[EventAsked] = Field(min_length=1, max_length=EVENTS_PER_APPEND)
    expected_seq: fields.Seq | None = None
    add: fields.Counters = {}
    spend: Annotated[list[ChargeAsked], BeforeValidator(_listed)] = Field(
        [], max_length=BUDGETS_PER_RUN, description="one charge, or several"
    )
    to: fields.StatusWord | None = None
    result: fields.Payload | None = None


class TransitionAsked(Asked):
    to: fields.StatusWord
    from_status: fields.StatusWord | None = Field(None, alias="from")
    result: fields.Payload | None = None
    reason: fields.Note = ""


class BudgetTold(Told):
    """A budget. Amounts are whole numbers of its unit; version is the one for If-Match."""

    budget: str
    unit: str
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    overdrawn: bool
    parent: str | None = None


class LeaseTold(Told):
    """A unit's lease, by the database's clock. lapsed: run out, and nobody has taken it since."""

    unit: str
    run: str | None
    state: fields.LeaseState
    owner: str | None
    token: int | None
    ttl_seconds: int
    acquired_at: fields.Moment | None
    renewed_at: fields.Moment | None
    expires_at: fields.Moment | None
    expires_in_ms: int | None
    renewals: int
    progress: Any = Field(None, description="as the holder sent it; with the scope payloads")
    progress_bytes: int | None = Field(None, description="in place of progress, without the scope")


class RunListed(Told):
    """A run as it stands in a list."""

    key: str
    task: str
    status: str
    version: int
    last_seq: int
    counters: dict[str, int]
    tags: list[str]
    owner: str | None
    token: int | None
    attempt: int
    max_attempts: int
    parent: str | None
    deadline_at: fields.Moment | None
    deadline_policy: str
    created_by: str
    created_at: fields.Moment
    updated_at: fields.Moment
    ended_at: fields.Moment | None
    lease: LeaseTold | None


class RunTold(RunListed):
    """A run. attrs, result: as they were sent, or their sizes without the scope payloads.

    expires_at: when a run that has ended is no longer kept, unless `hold` keeps it.
    """

    notes: str
    attrs: Any = None
    attrs_bytes: int = 0
    result: Any = None
    result_bytes: int | None = None
    retain_seconds: int | None
    hold: bool
    expires_at: fields.Moment | None
    budgets: list[BudgetTold]


class RunsTold(Told):
    items: list[RunListed]
    next: str | None
    prev: str | None
    as_of: fields.Moment


class MovedTold(Told):
    run: str
    status: str
    version: int
    last_seq: int
    at: fields.Moment


class SpentTold(BudgetTold):
    """The run's budget after the charge. entry: the number of its line in the ledger."""

    entry: int
    at: fields.Moment


class AppendedTold(Told):
    """first_seq to last_seq: of the caller's events. version, status: the run's, after it all."""

    first_seq: int
    last_seq: int
    version: int
    status: str
    at: fields.Moment
    spent: list[SpentTold] = []


class EventTold(Told):
    """A line of a run's log. data: as it was sent, or its size without the scope payloads."""

    seq: int
    type: str
    origin: fields.Origin
    data: Any = None
    data_bytes: int = 0
    id: str | None
    token: int | None
    add: dict[str, int] | None
    actor: str
    request_id: str | None
    version: int
    at: fields.Moment


class EventsTold(Told):
    """A page, bounded by count and by 1 MiB. last_seq: the run's, as of the page."""

    items: list[EventTold]
    last_seq: int


class DifferenceTold(Told):
    """Something that does not follow from the run's events and ledgers."""

    check: str
    what: str
    expected: Any
    found: Any


class VerifiedTold(Told):
    """sound: everything follows from the events, and no difference was found."""

    run: str
    sound: bool
    differences: list[DifferenceTold]


# --- leases --------------------------------------------------------------------------------------


class AcquireAsked(Asked):
    owner: fields.Worker
    ttl_seconds: fields.TtlSeconds = names.TTL_SECONDS_DEFAULT


class RenewAsked(Asked):
    token: fields.Token
    ttl_seconds: fields.TtlSeconds = names.TTL_SECONDS_DEFAULT
    progress: fields.Payload | None = None


class HeldUnit(Asked):
    unit: fields.Unit
    token: fields.Token


class RenewManyAsked(Asked):
    items: list[HeldUnit] = Field(min_length=1, max_length=100)
    ttl_seconds: fields.TtlSeconds = names.TTL_SECONDS_DEFAULT


class ReleaseAsked(Asked):
    token: fields.Token


class ReclaimAsked(Asked):
    expected_token: fields.Token
    expected_owner: fields.Worker
    reason: fields.Reason
    force: StrictBool = False
    hold_off_seconds: fields.HoldOffSeconds = 0


class ClaimAsked(Asked):
    owner: fields.Worker
    ttl_seconds: fields.TtlSeconds = names.TTL_SECONDS_DEFAULT
    task: fields.Task | None = None
    tag: fields.Tag | None = None
    limit: fields.ClaimLimit = 1


class AcquiredTold(Told):
    """A grant. taken_from: whose lease had lapsed. version, last_seq: of a run's unit."""

    unit: str
    owner: str
    token: int
    expires_at: fields.Moment
    expires_in_ms: int
    at: fields.Moment
    taken_from: str | None = None
    version: int | None = None
    last_seq: int | None = None


class SignalTold(Told):
    """What an operator wants of the holder; told at each renewal until it is over."""

    signal: str
    reason: str
    by: str
    at: fields.Moment


class RenewedTold(Told):
    unit: str
    owner: str
    token: int
    expires_at: fields.Moment
    expires_in_ms: int
    at: fields.Moment
    signals: list[SignalTold]


class ProblemTold(Told):
    """Why a request was refused (RFC 9457). code and retry decide, never the text.

    current: what the store saw under the lock that refused. Further members belong to the code.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    code: str
    title: str
    status: int
    retry: Annotated[str, fields.words("never", "reread", "same-request", "later")]
    detail: str
    instance: str
    current: dict[str, Any] | None = None
    request_id: str


class RenewedManyTold(Told):
    """For each unit that was asked, in that order, a renewal or the problem with it."""

    items: list[RenewedTold | ProblemTold]


class ReleasedTold(Told):
    unit: str
    token: int
    at: fields.Moment
    version: int | None = None
    last_seq: int | None = None


class ReclaimedTold(Told):
    """The unit is free. token: the one that was spent, so that everything older is fenced."""

    unit: str
    former_owner: str | None
    former_token: int | None
    token: int
    at: fields.Moment
    version: int | None = None
    last_seq: int | None = None


class ClaimTold(Told):
    unit: str
    run: str
    task: str
    status: str
    version: int
    last_seq: int
    attempt: int
    owner: str
    token: int
    expires_at: fields.Moment
    expires_in_ms: int
    taken_from: str | None = None
    progress: Any = None


class ClaimedTold(Told):
    items: list[ClaimTold]
    at: fields.Moment


class LeasesTold(Told):
    items: list[LeaseTold]
    next: str | None
    prev: str | None
    as_of: fields.Moment


class TermTold(Told):
    """One term of ownership, from `starts_at` up to, and without, `ends_at`."""

    token: int
    unit: str
    owner: str
    starts_at: fields.Moment
    ends_at: fields.Moment | None
    renewals: int
    ended: str | None
    ended_by: str | None
    reason: str | None


class TermsTold(Told):
    items: list[TermTold]


# --- budgets -------------------------------------------------------------------------------------


class SpendAsked(Asked):
    amount: fields.Amount
    id: fields.Id | None = None
    note: fields.Note = ""


class BudgetsTold(Told):
    items: list[BudgetTold]


class EntryTold(Told):
    """A line of a ledger. spent, reserved: what it added to each; cap: the new one, if any."""

    n: int
    kind: str
    amount: int
    spent: int
    reserved: int
    cap: int | None
    id: str | None
    token: int | None
    note: str
    overdrawn: bool
    actor: str
    request_id: str | None
    at: fields.Moment


class LedgerTold(Told):
    items: list[EntryTold]


# --- the store itself ----------------------------------------------------------------------------


class TimeTold(Told):
    """The database's clock, the only one that decides."""

    now: fields.Moment


class HealthTold(Told):
    status: Annotated[str, fields.words("live", "ready")]
    checks: dict[str, str] = {}
