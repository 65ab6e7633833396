"""What each command names: which rows have to be locked, and what to remember if it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

from agentstate.store.commands import (
    UNSEEN,
    AcknowledgeAlert,
    AcquireLease,
    AnnounceWorker,
    Append,
    Batch,
    BrakeRun,
    CarryOutDeadlines,
    ChangeAge,
    ChangeCap,
    ChangeRule,
    ChangeTarget,
    Check,
    ClaimRuns,
    Command,
    CommitReservation,
    CreateBudget,
    CreateBulk,
    CreateKey,
    CreateRun,
    CreateTarget,
    DeleteRule,
    DeleteTarget,
    DrainWorker,
    DropDeadHolds,
    ImportRun,
    NewEvent,
    NoteLapsed,
    NoteRefused,
    Patch,
    PutRule,
    PutTelemetry,
    ReclaimLease,
    ReleaseLease,
    ReleaseReservation,
    RenewLease,
    ResendDelivery,
    Reserve,
    RevokeKey,
    RotateSecret,
    SetCheckpoint,
    SetQuiet,
    SignalRun,
    SnoozeAlert,
    Spend,
    SplitBudget,
    StopBulk,
    Transition,
    TryTarget,
)
from agentstate.store.lean import lean
from agentstate.store.people import EndSessions, MakeFirstAdmin, SetRole
from agentstate.store.proposals import DeclineProposal, ProposeReclaim
from agentstate.store.rows import run_key_of, unit_of
from agentstate.store.rules.names import SIGN_CHANGE
from agentstate.store.states import TERMINAL

NOTHING: Mapping[str, Any] = MappingProxyType({})
# What a command names that only needs runs, and events of theirs by their ids.
_OF_RUNS = frozenset({"operation", "run", "runs", "event_ids", "token_sent", "worker", "wanted"})


@lean
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rows that a command names, before any is read.

    units, runs: to lock. new_unit: made if it is not there. budgets: (run key or None, name), a
    name None standing for all that have holds. charging: how much it wants to add to them.
    whole: a split one among them is locked with all of its slots.
    holds: reservation ids; all_holds: every hold of the run, which its end gives back.
    tokens: how many fresh ones it may need. seen_tokens: those whose terms it asks about.
    wanted: what the caller expected; kept with a refusal. parts: a composite's operations.
    workers: whose drain it asks about; drains_of_holders: that of whoever holds its units.
    tells_effects: it gives out runs, whose open effects their new holder is told.
    consumer: of the feed, whose checkpoint it sets. alert: the rule that it acknowledges;
    alert_rule: the one whose bounds it changes. quiet: whose quiet hours.
    person: whose rights it is about; is_setup: it needs to know whether there is an admin.
    api_keys: names that may be taken. target: of alerts; delivery: to be sent again, with its
    target. bulk: that is stopped. is_of_ages: it changes how long something is kept.
    proposals: the unit whose proposals it has to know; proposes: it makes one.
    """

    operation: str
    run: str | None = None
    unit: str | None = None
    units: tuple[str, ...] = ()
    new_unit: str | None = None
    runs: tuple[str, ...] = ()
    budgets: tuple[tuple[str | None, str | None], ...] = ()
    charging: int = 0
    whole: bool = False
    holds: tuple[str, ...] = ()
    all_holds: bool = False
    tokens: int = 0
    seen_tokens: tuple[int, ...] = ()
    event_ids: tuple[str, ...] = ()
    charge_ids: tuple[str, ...] = ()
    token_sent: int | None = None
    worker: str | None = None
    wanted: Mapping[str, Any] = NOTHING
    parts: tuple[Plan, ...] = ()
    workers: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    person: str | None = None
    is_setup: bool = False
    drains_of_holders: bool = False
    tells_effects: bool = False
    consumer: str | None = None
    alert: str | None = None
    alert_rule: str | None = None
    quiet: str | None = None
    target: str | None = None
    delivery: UUID | None = None
    bulk: UUID | None = None
    is_of_ages: bool = False
    proposals: str | None = None
    proposes: bool = False

    @property
    def is_of_runs_alone(self) -> bool:
        """Whether it names runs and, but for events of theirs, nothing else."""
        return bool(self.runs) and self.__dict__.keys() <= _OF_RUNS


def plan(command: Command[Any]) -> Plan:
    return _PLANS[type(command)](command)


def _wanted(**clauses: Any) -> dict[str, Any]:
    return {name: value for name, value in clauses.items() if value not in (None, (), {})}


def _seen(**clauses: Any) -> dict[str, Any]:
    """What a caller saw, as clauses; none of what it did not look at."""
    return {name: value for name, value in clauses.items() if value is not UNSEEN}


def _create(ask: CreateRun) -> Plan:
    return Plan(
        operation="create",
        run=ask.key,
        runs=tuple(key for key in (ask.key, ask.parent) if key),
        budgets=tuple((None, b.parent) for b in ask.budgets if b.parent),
        token_sent=ask.fence,
    )


def _append(ask: Append) -> Plan:
    more: dict[str, Any] = {}
    if ask.to in TERMINAL:
        # A terminal move ends the lease: its unit is locked before the run.
        more = {"units": (unit_of(ask.run),), "all_holds": True}
    if ask.spend or ask.to in TERMINAL:
        more["budgets"] = (
            *((ask.run, c.budget) for c in ask.spend),
            *(((ask.run, None),) if ask.to in TERMINAL else ()),
        )
        more["charging"] = sum(c.amount for c in ask.spend)
        more["charge_ids"] = tuple(c.id for c in ask.spend if c.id is not None)
    return Plan(
        operation="append",
        run=ask.run,
        runs=(ask.run,),
        event_ids=_event_ids(ask.events),
        token_sent=ask.fence,
        **more,
        wanted=_wanted(
            expected_seq=ask.expected_seq,
            if_match=ask.if_match,
            to=ask.to,
            events=[e.type for e in ask.events[:20]],
            amount={c.budget: c.amount for c in ask.spend},
            ids={c.budget: c.id for c in ask.spend if c.id is not None},
        ),
    )


def _event_ids(events: tuple[NewEvent, ...]) -> tuple[str, ...]:
    """Under which ids the events are stored, and those that began what they end."""
    own = tuple(e.stored_id for e in events if e.stored_id is not None)
    return own + tuple(e.effect.begin_id for e in events if e.effect is not None)


def _patch(ask: Patch) -> Plan:
    return Plan(
        operation="patch",
        run=ask.run,
        runs=(ask.run,),
        event_ids=(SIGN_CHANGE + ask.id,) if ask.id is not None else (),
        token_sent=ask.fence,
        wanted=_wanted(if_match=ask.if_match, expect=ask.expect, columns=_columns(ask)),
    )


def _columns(ask: Patch) -> list[str]:
    """Which columns the caller wanted to change: what the contention pages group by."""
    found = [f"counters.{name}" for name in ask.add] + [f"attrs.{path}" for path in ask.attrs]
    found += ["attrs"] if ask.replace is not None else []
    found += ["notes"] if ask.notes is not None else []
    return found + (["tags"] if ask.tags_add or ask.tags_remove else [])


def _transition(ask: Transition) -> Plan:
    return Plan(
        operation="transition",
        run=ask.run,
        runs=(ask.run,),
        units=(unit_of(ask.run),) if ask.to in TERMINAL else (),
        budgets=((ask.run, None),) if ask.to in TERMINAL else (),
        all_holds=ask.to in TERMINAL,
        token_sent=ask.fence,
        seen_tokens=_given(ask.fence) if ask.to in TERMINAL else (),
        wanted=_wanted(
            **{"to": ask.to, "from": ask.from_status},
            if_match=ask.if_match,
            expect=ask.expect,
        ),
    )


def _of_unit(unit: str, operation: str, **more: Any) -> Plan:
    key = run_key_of(unit)
    return Plan(
        operation=operation,
        run=key,
        unit=unit,
        units=(unit,),
        runs=(key,) if key is not None else (),
        **more,
    )


def _acquire(ask: AcquireLease) -> Plan:
    return _of_unit(
        ask.unit,
        "acquire",
        # A run's lease row is made with the run; any other unit begins with its first acquire.
        new_unit=ask.unit if run_key_of(ask.unit) is None else None,
        tokens=1,
        worker=ask.owner,
        wanted=_wanted(owner=ask.owner, ttl_seconds=ask.ttl_seconds),
        tells_effects=True,
    )


def _renew(ask: RenewLease) -> Plan:
    # Only the unit is locked: renewals never wait behind appends.
    return Plan(
        operation="renew",
        run=run_key_of(ask.unit),
        unit=ask.unit,
        units=(ask.unit,),
        seen_tokens=(ask.token,),
        token_sent=ask.token,
        wanted=_wanted(ttl_seconds=ask.ttl_seconds),
        drains_of_holders=True,
    )


def _release(ask: ReleaseLease) -> Plan:
    return _of_unit(ask.unit, "release", seen_tokens=(ask.token,), token_sent=ask.token)


def _reclaim(ask: ReclaimLease) -> Plan:
    return _of_unit(
        ask.unit,
        "reclaim",
        tokens=1,
        proposals=ask.unit if ask.proposal is not None else None,
        wanted=_wanted(
            expected_token=ask.expected_token,
            expected_owner=ask.expected_owner,
            force=ask.force or None,
            reason=ask.reason,
        ),
    )


def _propose(ask: ProposeReclaim) -> Plan:
    return _of_unit(
        ask.unit,
        "propose-reclaim",
        proposals=ask.unit,
        proposes=True,
        wanted=_wanted(
            expected_token=ask.expected_token,
            expected_owner=ask.expected_owner,
            reason=ask.reason,
        ),
    )


def _decline(ask: DeclineProposal) -> Plan:
    return _of_unit(ask.unit, "decline-proposal", proposals=ask.unit)


def _claim(ask: ClaimRuns) -> Plan:
    return Plan(operation="claim", tokens=ask.limit, worker=ask.owner, tells_effects=True)


def _of_budget(run: str | None, budget: str, operation: str, **more: Any) -> Plan:
    return Plan(
        operation=operation,
        run=run,
        runs=(run,) if run is not None else (),
        budgets=((run, budget),),
        **more,
    )


def _spend(ask: Spend) -> Plan:
    return _of_budget(
        ask.run,
        ask.charge.budget,
        "spend",
        charging=ask.charge.amount,
        charge_ids=(ask.charge.id,) if ask.charge.id else (),
        token_sent=ask.fence,
        wanted=_wanted(amount={ask.charge.budget: ask.charge.amount}, id=ask.charge.id),
    )


def _reserve(ask: Reserve) -> Plan:
    return _of_budget(
        ask.run,
        ask.budget,
        "reserve",
        charging=ask.amount,
        holds=(ask.id,),
        token_sent=ask.fence,
        wanted=_wanted(amount={ask.budget: ask.amount}, id=ask.id),
    )


def _given(token: int | None) -> tuple[int, ...]:
    """A token about which it has to be known to whom it was given."""
    return () if token is None else (token,)


def _commit(ask: CommitReservation) -> Plan:
    return _of_budget(
        ask.run,
        ask.budget,
        "commit",
        seen_tokens=_given(ask.fence),
        holds=(ask.id,),
        token_sent=ask.fence,
        wanted=_wanted(amount={ask.budget: ask.amount}, id=ask.id),
    )


def _release_hold(ask: ReleaseReservation) -> Plan:
    return _of_budget(
        ask.run,
        ask.budget,
        "release-hold",
        seen_tokens=_given(ask.fence),
        holds=(ask.id,),
        token_sent=ask.fence,
        wanted=_wanted(id=ask.id),
    )


def _create_budget(ask: CreateBudget) -> Plan:
    named = [(ask.run, ask.budget.name)]
    if ask.budget.parent is not None:
        named.append((None, ask.budget.parent))
    return Plan(
        operation="create-budget",
        run=ask.run,
        runs=(ask.run,) if ask.run is not None else (),
        budgets=tuple(named),
        token_sent=ask.fence,
    )


def _change_cap(ask: ChangeCap) -> Plan:
    return _of_budget(
        ask.run,
        ask.budget,
        "change-cap",
        whole=ask.run is None,
        wanted=_wanted(cap=ask.cap, if_match=ask.if_match),
    )


def _split(ask: SplitBudget) -> Plan:
    wanted = _wanted(slots=ask.slots, if_match=ask.if_match)
    return _of_budget(None, ask.budget, "split-budget", whole=True, wanted=wanted)


def _signal(ask: SignalRun) -> Plan:
    return Plan(
        operation="signal",
        run=ask.run,
        runs=(ask.run,),
        units=(unit_of(ask.run),),
        wanted=_wanted(
            signal=ask.signal, reason=ask.reason, expect=_seen(token=ask.expected_token)
        ),
    )


def _brake(ask: BrakeRun) -> Plan:
    return Plan(
        operation="brake",
        run=ask.run,
        runs=(ask.run,),
        wanted=_wanted(
            per_second=ask.per_second,
            seconds=ask.seconds,
            reason=ask.reason,
            expect=_seen(**{"brake.until": ask.expected_until}),
        ),
    )


def _telemetry(ask: PutTelemetry) -> Plan:
    return Plan(operation="telemetry", run=ask.run, runs=(ask.run,), token_sent=ask.fence)


def _announce(ask: AnnounceWorker) -> Plan:
    return Plan(
        operation="announce",
        worker=ask.worker,
        workers=(ask.worker, ask.worker.split("~")[0]),
    )


def _checkpoint(ask: SetCheckpoint) -> Plan:
    return Plan(
        operation="checkpoint",
        worker=ask.consumer,
        wanted={"position": ask.position},
        consumer=ask.consumer,
    )


def _check(ask: Check) -> Plan:
    return Plan(operation="check", run=ask.run, runs=(ask.run,), token_sent=ask.fence)


def _composite(ask: Batch) -> Plan:
    parts = tuple(plan(operation) for operation in ask.operations)
    return Plan(
        operation="batch",
        run=parts[0].run if len({part.run for part in parts}) == 1 else None,
        token_sent=next((part.token_sent for part in parts if part.token_sent), None),
        wanted={"operations": [part.operation for part in parts]},
        parts=parts,
    )


def _import(ask: ImportRun) -> Plan:
    return Plan(operation="import", run=ask.key, runs=(ask.key,))


def _refused(ask: NoteRefused) -> Plan:
    return Plan(
        operation=ask.operation,
        run=ask.run,
        unit=ask.unit,
        runs=(ask.run,) if ask.run is not None else (),
        wanted={"scopes": list(ask.scopes)},
    )


_PLANS: dict[type[Command[Any]], Callable[[Any], Plan]] = {
    CreateRun: _create,
    Append: _append,
    Patch: _patch,
    Transition: _transition,
    AcquireLease: _acquire,
    RenewLease: _renew,
    ReleaseLease: _release,
    ReclaimLease: _reclaim,
    ProposeReclaim: _propose,
    DeclineProposal: _decline,
    ClaimRuns: _claim,
    NoteLapsed: lambda ask: Plan(operation="note-lapsed"),
    Spend: _spend,
    Reserve: _reserve,
    CommitReservation: _commit,
    ReleaseReservation: _release_hold,
    DropDeadHolds: lambda ask: Plan(operation="drop-dead-holds"),
    CreateBudget: _create_budget,
    ChangeCap: _change_cap,
    SplitBudget: _split,
    SignalRun: _signal,
    BrakeRun: _brake,
    PutTelemetry: _telemetry,
    AnnounceWorker: _announce,
    DrainWorker: lambda ask: Plan(operation="drain", worker=ask.worker),
    CarryOutDeadlines: lambda ask: Plan(operation="deadlines"),
    SetCheckpoint: _checkpoint,
    AcknowledgeAlert: lambda ask: Plan(operation="acknowledge", alert=ask.rule),
    SnoozeAlert: lambda ask: Plan(operation="snooze", alert=ask.rule),
    ChangeRule: lambda ask: Plan(operation="change-rule", alert_rule=ask.rule),
    PutRule: lambda ask: Plan(operation="put-rule", alert_rule=ask.rule),
    DeleteRule: lambda ask: Plan(operation="delete-rule", alert_rule=ask.rule),
    CreateTarget: lambda ask: Plan(operation="create-target", target=ask.name),
    ChangeTarget: lambda ask: Plan(operation="change-target", target=ask.name),
    RotateSecret: lambda ask: Plan(operation="rotate-secret", target=ask.name),
    DeleteTarget: lambda ask: Plan(operation="delete-target", target=ask.name),
    SetQuiet: lambda ask: Plan(operation="set-quiet", quiet=ask.whose),
    TryTarget: lambda ask: Plan(operation="try-target", target=ask.name),
    ResendDelivery: lambda ask: Plan(operation="resend-delivery", delivery=ask.delivery),
    CreateBulk: lambda ask: Plan(operation="create-bulk", wanted={"kind": ask.kind}),
    ChangeAge: lambda ask: Plan(operation="change-age", is_of_ages=True),
    StopBulk: lambda ask: Plan(operation="stop-bulk", bulk=ask.bulk),
    Check: _check,
    Batch: _composite,
    ImportRun: _import,
    NoteRefused: _refused,
    CreateKey: lambda ask: Plan(operation="create-key", api_keys=(ask.name,)),
    RevokeKey: lambda ask: Plan(operation="revoke-key"),
    SetRole: lambda ask: Plan(operation="set-role", person=ask.person),
    EndSessions: lambda ask: Plan(operation="end-sessions", person=ask.person),
    MakeFirstAdmin: lambda ask: Plan(operation="make-first-admin", person=ask.name, is_setup=True),
}
