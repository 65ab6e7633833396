"""The shapes of requests and answers. Requests are checked by them; answers are only described, for
OpenAPI: a test compares each answer with its description.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic.config import JsonDict

from agentstate.api import fields
from agentstate.store.commands import (
    BUDGETS_PER_RUN,
    EVENTS_PER_APPEND,
    OPERATIONS_PER_BATCH,
)
from agentstate.store.rules import names
from agentstate.store.states import TERMINAL


class Asked(BaseModel):
    """A request's body: a field that it does not know is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Told(BaseModel):
    """An answer. A field that may be missing has a default here; one that may be null says so."""

    model_config = ConfigDict(extra="forbid")

    # Whose version the answer has as its ETag: openapi.ETAGS.
    etag: ClassVar[str] = ""


# --- runs, events --------------------------------------------------------------------------------


class EffectAsked(Asked):
    """key: of the effect, in its run for life. state: the event before it, or the one after."""

    key: fields.Id
    state: fields.EffectState


class EventAsked(Asked):
    """An event. Beside `effect` there is no `id`: the effect's key and state are the event's."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "required": ["id", "effect"],
                "properties": {"id": {"type": "string"}, "effect": {"type": "object"}},
            }
        }
    )

    type: fields.EventType
    data: fields.Payload | None = None
    id: fields.Id | None = None
    effect: EffectAsked | None = None


class BudgetAsked(Asked):
    name: fields.BudgetName
    cap: fields.Cap
    unit: fields.BudgetName = "tokens"
    parent: fields.BudgetName | None = None


class SharedBudgetAsked(BudgetAsked):
    """slots: how many rows take its charges; more than one only without a parent."""

    slots: fields.BudgetSlots = 1


class CreateAsked(Asked):
    """A run to be made, with its budgets and first events, in one transaction."""

    task: fields.Task
    key: fields.RunKey | None = Field(None, description="made by the store when it is left out")
    status: fields.FirstStatus = "pending"
    tags: fields.Tags = ()
    attrs: fields.PayloadObject = None
    parent: fields.RunKey | None = None
    deadline_at: fields.Moment | None = None
    deadline_policy: fields.DeadlinePolicy = "report"
    max_attempts: fields.MaxAttempts = 5
    budgets: list[BudgetAsked] = Field([], max_length=BUDGETS_PER_RUN)
    events: list[EventAsked] = Field([], max_length=EVENTS_PER_APPEND)
    retain_seconds: fields.RetainSeconds | None = Field(
        None, description="null: for ever; left out: as the settings say"
    )


class ChargeAsked(Asked):
    budget: fields.BudgetName
    amount: fields.Amount
    id: fields.Id | None = None
    note: fields.Note = ""


# As JSON Schema: a result stands beside the move that ends the run.
RESULT_AT_THE_END: JsonDict = {
    "dependentSchemas": {
        "result": {
            "required": ["to"],
            "properties": {"to": {"enum": [str(status) for status in sorted(TERMINAL)]}},
        }
    }
}
Charges = Annotated[list[ChargeAsked], Field(max_length=BUDGETS_PER_RUN)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class AppendAsked(Asked):
    """Events, all or none; counters, charges and a move may ride along, in the same write."""

    model_config = ConfigDict(json_schema_extra=RESULT_AT_THE_END)

    events: list[EventAsked] = Field(min_length=1, max_length=EVENTS_PER_APPEND)
    expected_seq: fields.Seq | None = None
    add: fields.Counters = {}
    spend: Annotated[
        Charges, BeforeValidator(_listed, json_schema_input_type=ChargeAsked | Charges)
    ] = Field([], description="one charge, or several")
    to: fields.StatusWord | None = None
    result: fields.Payload | None = None


class TransitionAsked(Asked):
    """A move. result: only where it ends the run."""

    model_config = ConfigDict(json_schema_extra=RESULT_AT_THE_END)

    to: fields.StatusWord
    from_status: fields.StatusWord | None = Field(None, alias="from")
    result: fields.Payload | None = None
    reason: fields.Note = ""
    expect: fields.Expect = {}


class PatchAsked(Asked):
    """A change of a run's fields. id: of the change, unique in the run for its life."""

    set: fields.Changes = {}
    replace: fields.PayloadObject = Field(None, description="all attrs at once")
    add: fields.Counters = {}
    tags_add: fields.Tags = ()
    tags_remove: fields.Tags = ()
    hold: StrictBool | None = None
    retain_seconds: fields.RetainSeconds | None = None
    expect: fields.Expect = {}
    id: fields.Id | None = None


class TelemetryAsked(Asked):
    """What a holder says of itself; what is left out stays as it was."""

    host: fields.Line | None = None
    model: fields.Line | None = None
    progress: fields.Payload | None = None
    worker_time: fields.Moment | None = None


class BrakeAsked(Asked):
    """per_second: how many writes a second the run takes. seconds: for how long."""

    per_second: fields.PerSecond
    seconds: fields.BrakeSeconds
    reason: fields.Reason
    expected_until: fields.Moment | None = Field(
        None, description="`until` of the brake that was seen; null: none was on; left out: any"
    )


class SignalAsked(Asked):
    signal: fields.Signal
    reason: fields.Reason
    expected_token: fields.Token | None = Field(
        None, description="of the holder that was seen; null: nobody; left out: whoever it is"
    )


class SlotTold(Told):
    """A slot of a split budget: what it may admit of the whole, and what it has."""

    slot: int
    cap: int
    spent: int
    reserved: int


class BudgetTold(Told):
    """A budget. Amounts are whole numbers of its unit; version is the one for If-Match.

    Of a split budget the figures are those of the whole; slots: of one that is read by itself.
    """

    etag = "budget"

    budget: str
    unit: str
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    overdrawn: bool
    parent: str | None = None
    slots: list[SlotTold] | None = None


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


class TelemetryTold(Told):
    """The newest that a holder said of itself. skew_ms: how far its clock was ahead of ours."""

    host: str | None
    model: str | None
    progress: Any = Field(None, description="as it was sent; with the scope payloads")
    progress_bytes: int | None = Field(None, description="in place of progress, without the scope")
    worker_time: fields.Moment | None
    skew_ms: int | None
    token: int | None
    at: fields.Moment


class BrakeTold(Told):
    """How many writes a second a run takes, and until when."""

    per_second: int
    until: fields.Moment


class RunTold(RunListed):
    """A run. attrs, result: as they were sent, or their sizes without the scope payloads.

    expires_at: when a run that has ended is no longer kept, unless `hold` keeps it.
    brake: the one that an operator put on its writers, while it is on.
    open_effects_count: effects that were begun and not ended; counted up to 1,000.
    """

    etag = "run"

    notes: str
    attrs: Any = None
    attrs_bytes: int = 0
    result: Any = None
    result_bytes: int | None = None
    retain_seconds: int | None
    hold: bool
    expires_at: fields.Moment | None
    brake: BrakeTold | None
    budgets: list[BudgetTold]
    telemetry: TelemetryTold | None
    open_effects_count: int


class RunsTold(Told):
    items: list[RunListed]
    next: str | None
    prev: str | None
    as_of: fields.Moment


class RunsFoundTold(Told):
    """next: where to go on; null: the search came to its end."""

    items: list[RunListed]
    next: str | None
    as_of: fields.Moment


class MovedTold(Told):
    etag = "run"

    run: str
    status: str
    version: int
    last_seq: int
    at: fields.Moment


class BrakedTold(Told):
    """per_second and until are left out when no brake is on."""

    etag = "run"

    run: str
    per_second: int | None = None
    until: fields.Moment | None = None
    version: int
    last_seq: int
    at: fields.Moment


class ChangedTold(Told):
    etag = "run"

    run: str
    version: int
    last_seq: int
    at: fields.Moment


class TelemetryKeptTold(Told):
    run: str
    at: fields.Moment


class StoryTold(Told):
    """Rows of the single table in their order: each has `pk`, `sk` and the members of its kind.

    as_of_seq: the run's last number. next_seq: go on with it as `after_seq`; null at the end.
    """

    items: list[dict[str, Any]]
    as_of_seq: int
    next_seq: int | None


class PartialSuccessTold(Told):
    """What of a batch of spans was not kept. rejectedSpans: how many, as text."""

    rejectedSpans: str = "0"  # noqa: N815  # the protocol's name
    errorMessage: str = ""  # noqa: N815


class TracesTold(Told):
    """OTLP's ExportTraceServiceResponse; empty when everything was kept."""

    partialSuccess: PartialSuccessTold | None = None  # noqa: N815


class TraceTold(Told):
    """OTLP's ExportTraceServiceRequest, with the spans of one run."""

    resourceSpans: list[dict[str, Any]]  # noqa: N815


class ItemsTold(Told):
    """Rows under one partition key. after: go on with it; null at the end."""

    items: list[dict[str, Any]]
    after: str | None


class SpentTold(BudgetTold):
    """The budget after the charge. entry: the number of its line in the ledger.

    Of a split budget the figures of other slots are as last committed; slot: in whose ledger the
    line is.
    """

    entry: int
    slot: int | None = None
    at: fields.Moment


class AppendedTold(Told):
    """first_seq to last_seq: of the caller's events. version, status: the run's, after it all."""

    etag = "run"

    first_seq: int
    last_seq: int
    version: int
    status: str
    at: fields.Moment
    spent: list[SpentTold] = []


class EffectTold(Told):
    """The effect that an event is about: it was written before it (begun), or after it (ended)."""

    key: str
    state: fields.EffectState


class EventTold(Told):
    """A line of a run's log. data: as it was sent, or its size without the scope payloads.

    effect: in place of `id`, of an event that begins or ends one.
    """

    seq: int
    type: str
    origin: fields.Origin
    data: Any = None
    data_bytes: int = 0
    id: str | None
    effect: EffectTold | None
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


class SignalTold(Told):
    """What an operator wants of the holder; told at each renewal until it is over."""

    signal: str
    reason: str
    by: str
    at: fields.Moment


class SignalledTold(Told):
    """signals: everything that the holder will be told at its next renewal."""

    etag = "run"

    run: str
    signals: list[SignalTold]
    version: int
    last_seq: int
    at: fields.Moment


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


class OpenEffectTold(Told):
    """An effect that the event at `seq` began, and that no event ends: look whether it happened.

    data: as it was sent; left out beyond 64 KiB of all together, then `data_bytes` tells of it.
    """

    key: str
    seq: int
    type: str
    data: Any = None
    data_bytes: int
    token: int | None = None
    actor: str
    at: fields.Moment


class AcquiredTold(Told):
    """A grant. taken_from: whose lease had lapsed.

    Of a run's unit: version, last_seq, and what former holders began and did not end: the first
    100 of open_effects, and how many there are, counted up to 1,000.
    """

    unit: str
    owner: str
    token: int
    expires_at: fields.Moment
    expires_in_ms: int
    at: fields.Moment
    taken_from: str | None = None
    version: int | None = None
    last_seq: int | None = None
    open_effects: list[OpenEffectTold] | None = None
    open_effects_count: int | None = None


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
    """A run that was given out. progress: of its former holder. open_effects: as in acquire."""

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
    open_effects: list[OpenEffectTold]
    open_effects_count: int


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


class ActionTold(Told):
    """What the caller may do now, or `why` not; needs: the scope that is missing, if that is it."""

    action: str
    allowed: bool
    why: str | None
    needs: str | None


class ActionsTold(Told):
    items: list[ActionTold]
    as_of: fields.Moment


# --- budgets -------------------------------------------------------------------------------------


class SpendAsked(Asked):
    amount: fields.Amount
    id: fields.Id | None = None
    note: fields.Note = ""


class CapAsked(Asked):
    cap: fields.Cap
    reason: fields.Reason


class SharedChangeAsked(Asked):
    """What changes of a shared budget: its cap, or how many slots it has, one of the two."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "integer"}}}
                for name in ("cap", "slots")
            ]
        }
    )

    cap: fields.Cap | None = None
    slots: fields.BudgetSlots | None = Field(None, description="as many as now, or more")
    reason: fields.Reason


class ReserveAsked(Asked):
    amount: fields.Amount
    id: fields.ReservationId
    ttl_seconds: fields.TtlSeconds = names.TTL_SECONDS_DEFAULT


class CommitAsked(Asked):
    """amount: what was really used; 0 if nothing was."""

    amount: fields.Used


class NothingAsked(Asked):
    """An object without members."""


class BudgetsTold(Told):
    items: list[BudgetTold]


class SharedBudgetsTold(Told):
    items: list[BudgetTold]
    next: str | None
    prev: str | None
    as_of: fields.Moment


class BudgetStateTold(BudgetTold):
    at: fields.Moment


class ReservedTold(Told):
    """A hold; the sums are the budget's after it."""

    etag = "budget"

    budget: str
    id: str
    amount: int
    expires_at: fields.Moment
    expires_in_ms: int
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    at: fields.Moment


class SettledTold(Told):
    """How a reservation ended; late: its hold was dropped before, and the money was spent.

    overdrawn: more was used than the cap allows; nothing more is admitted until it does.
    """

    etag = "budget"

    budget: str
    id: str
    state: fields.HoldState
    amount: int
    actual: int
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    overdrawn: bool
    at: fields.Moment


class ReservationTold(Told):
    """n: the line of the ledger that made it. expires_in_ms: of one that is held."""

    n: int
    id: str
    run: str | None
    amount: int
    actual: int | None
    state: fields.HoldState
    token: int | None
    actor: str
    expires_at: fields.Moment
    expires_in_ms: int | None
    created_at: fields.Moment
    settled_at: fields.Moment | None
    slot: int | None = Field(None, description="of a split budget: by whose ledger it was made")


class ReservationsTold(Told):
    items: list[ReservationTold]
    as_of: fields.Moment


class SharedReservationsTold(ReservationsTold):
    next: str | None


class EntryTold(Told):
    """A line of a ledger. spent, reserved: what it added to each; cap: the new one, if any."""

    n: int
    kind: str
    run: str | None
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
    slot: int | None = Field(None, description="of a split budget: in whose ledger it is")


class RefusedChargeTold(Told):
    """A charge that was refused; cap, spent, reserved: as they were found. It changed nothing."""

    kind: Literal["refuse"]
    at: fields.Moment
    operation: str
    run: str | None
    actor: str
    worker: str | None
    token: int | None
    request_id: str | None
    amount: int | None
    cap: int | None
    spent: int | None
    reserved: int | None


class LedgerTold(Told):
    items: list[EntryTold]
    refused: list[RefusedChargeTold]


class SharedLedgerTold(LedgerTold):
    next: str | None


# --- many at once --------------------------------------------------------------------------------


class Fenced(Asked):
    """An operation under the token of a lease."""

    fence: fields.Token | None = None


class Guarded(Fenced):
    """An operation on a run, if it still has this version."""

    run: fields.RunKey
    if_match: fields.RunVersion | None = None


class OnBudget(Fenced):
    """An operation on a budget: the run's, or without `run` a shared one."""

    run: fields.RunKey | None = None
    budget: fields.BudgetName


class CreateOperation(CreateAsked, Fenced):
    op: Literal["create"]


class AppendOperation(AppendAsked, Guarded):
    op: Literal["append"]


class TransitionOperation(TransitionAsked, Guarded):
    op: Literal["transition"]


class PatchOperation(PatchAsked, Guarded):
    op: Literal["patch"]


class SpendOperation(SpendAsked, OnBudget):
    op: Literal["spend"]


class ReserveOperation(ReserveAsked, OnBudget):
    op: Literal["reserve"]


class CommitOperation(CommitAsked, OnBudget):
    op: Literal["commit"]
    id: fields.ReservationId


class ReleaseOperation(OnBudget):
    op: Literal["release"]
    id: fields.ReservationId


class CheckOperation(Guarded):
    op: Literal["check"]
    expect: fields.Expect = {}
    expected_seq: fields.Seq | None = None


Operation = Annotated[
    CreateOperation
    | AppendOperation
    | TransitionOperation
    | PatchOperation
    | SpendOperation
    | ReserveOperation
    | CommitOperation
    | ReleaseOperation
    | CheckOperation,
    Field(discriminator="op"),
]
OPERATIONS = frozenset(
    {"create", "append", "transition", "patch", "spend", "reserve", "commit", "release", "check"}
)


class BatchAsked(Asked):
    """Operations in order: each sees what the ones before it did; all of them, or none."""

    operations: list[Operation] = Field(min_length=1, max_length=OPERATIONS_PER_BATCH)


class BatchTold(Told):
    """The operations' answers, in order, each with the members that it has by itself.

    replayed: that operation had been carried out before, and wrote nothing now.
    """

    results: list[dict[str, Any]]
    at: fields.Moment


# --- workers -------------------------------------------------------------------------------------


class WorkerAsked(Asked):
    """What a worker process says of itself. slots: how many runs it can work on at once."""

    version: fields.ShortLine | None = None
    host: fields.ShortLine | None = None
    slots: fields.Slots | None = None
    worker_time: fields.Moment | None = None


class WorkerSeenTold(Told):
    """now: the database's clock. signals: a drain, if somebody wants one."""

    worker: str
    now: fields.Moment
    signals: list[SignalTold]


class DrainAsked(Asked):
    reason: fields.Reason
    draining: StrictBool = Field(True, description="false takes the drain back")


class WorkerDrainedTold(Told):
    worker: str
    draining: bool
    at: fields.Moment


class WorkerTold(Told):
    """A worker as it announced itself. units: how many it holds now, under a live lease."""

    worker: str
    version: str | None
    host: str | None
    slots: int | None
    units: int
    worker_time: fields.Moment | None
    skew_ms: int | None
    principal: str
    first_seen_at: fields.Moment
    seen_at: fields.Moment
    drain_at: fields.Moment | None
    drain_by: str | None
    drain_reason: str | None


class WorkersTold(Told):
    items: list[WorkerTold]
    next: str | None
    prev: str | None
    as_of: fields.Moment


# --- receipts ------------------------------------------------------------------------------------


class WroteTold(Told):
    """Events that one write added to a run. version: the run's, once the last was written."""

    run: str
    first_seq: int
    last_seq: int
    version: int
    types: list[str]
    actor: str
    at: fields.Moment


class ChargedTold(Told):
    """A line of a budget's ledger. run: whose budget it is; null for a shared one."""

    budget: str
    run: str | None
    n: int
    kind: str
    amount: int
    actor: str
    at: fields.Moment


class RefusedTold(Told):
    code: str
    operation: str
    run: str | None
    unit: str | None
    budget: str | None
    actor: str
    attempt: int
    at: fields.Moment


class ActedTold(Told):
    action: str
    object: str
    actor: str
    at: fields.Moment


class KeptTold(Told):
    """The answer that is kept for an Idempotency-Key. code: of a refusal; null when it was done.

    replays: how often it was given again. After expires_at the key may be used anew.
    """

    key: str
    code: str | None
    detail: str | None
    replays: int
    request_id: str | None
    at: fields.Moment
    expires_at: fields.Moment


class ReceiptTold(Told):
    """What became of a request. state: refused only when nothing of it was applied.

    unknown: never seen, or it left nothing that is kept: a read, a renewal, telemetry.
    """

    state: Annotated[str, fields.words("applied", "refused", "unknown")]
    kept: list[KeptTold]
    writes: list[WroteTold]
    charges: list[ChargedTold]
    actions: list[ActedTold]
    refusals: list[RefusedTold]


# --- the store itself ----------------------------------------------------------------------------


class TimeTold(Told):
    """The database's clock, the only one that decides."""

    now: fields.Moment


class JobTold(Told):
    """A periodic job of our own. late_seconds: how long ago it should have been heard of again.
    behind: what it knows to be left for its next pass; null: it cannot say.
    """

    name: str
    every_seconds: int
    started_at: fields.Moment | None
    ended_at: fields.Moment | None
    late_seconds: float
    behind: int | None


class JobsTold(Told):
    status: Annotated[str, fields.words("on-time")]
    jobs: list[JobTold]


class HealthTold(Told):
    status: Annotated[str, fields.words("live", "ready")]
    checks: dict[str, str] = {}
