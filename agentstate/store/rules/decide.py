"""Which function decides which command."""

from collections.abc import Callable
from typing import Any

from agentstate.store.callers import Caller
from agentstate.store.commands import (
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
    Result,
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
from agentstate.store.people import EndSessions, MakeFirstAdmin, SetRole
from agentstate.store.proposals import DeclineProposal, ProposeReclaim
from agentstate.store.rules.deciding.ages import change_age
from agentstate.store.rules.deciding.alerts import (
    acknowledge_alert,
    change_rule,
    delete_rule,
    put_rule,
    snooze_alert,
)
from agentstate.store.rules.deciding.batches import batch, check
from agentstate.store.rules.deciding.budgets import (
    change_cap,
    commit_reservation,
    create_budget,
    drop_dead_holds,
    release_reservation,
    reserve,
    spend,
    split_budget,
)
from agentstate.store.rules.deciding.bulks import create_bulk, stop_bulk
from agentstate.store.rules.deciding.desk import Deciding
from agentstate.store.rules.deciding.feeds import set_checkpoint
from agentstate.store.rules.deciding.imports import import_run
from agentstate.store.rules.deciding.keys import create_key, note_refused, revoke_key
from agentstate.store.rules.deciding.leases import (
    acquire_lease,
    claim_runs,
    note_lapsed,
    reclaim_lease,
    release_lease,
    renew_lease,
)
from agentstate.store.rules.deciding.people import (
    end_sessions,
    make_first_admin,
    set_role,
)
from agentstate.store.rules.deciding.proposals import decline_proposal, propose_reclaim
from agentstate.store.rules.deciding.runs import (
    append,
    brake_run,
    carry_out_deadlines,
    create_run,
    patch,
    put_telemetry,
    signal_run,
    transition,
)
from agentstate.store.rules.deciding.targets import (
    change_target,
    create_target,
    delete_target,
    resend_delivery,
    rotate_secret,
    set_quiet,
    try_target,
)
from agentstate.store.rules.deciding.workers import announce_worker, drain_worker
from agentstate.store.rules.draft import Draft


def decide(
    command: Command[Any],
    draft: Draft,
    *,
    by: Caller,
    request_id: str | None = None,
    units: tuple[str, ...] = (),
) -> Result:
    """The command's result, with its writes in `draft`. Raises a Refusal.

    units: those that were chosen and locked for a command that names none, in their order.
    """
    return _decide(command, Deciding(draft, by, request_id, units))


def _decide(command: Command[Any], on: Deciding) -> Result:
    return _DECIDERS[type(command)](command, on)


_DECIDERS: dict[type[Command[Any]], Callable[[Any, Deciding], Result]] = {
    CreateRun: create_run,
    Append: append,
    Patch: patch,
    Transition: transition,
    AcquireLease: acquire_lease,
    RenewLease: renew_lease,
    ReleaseLease: release_lease,
    ReclaimLease: reclaim_lease,
    ProposeReclaim: propose_reclaim,
    DeclineProposal: decline_proposal,
    ClaimRuns: claim_runs,
    NoteLapsed: note_lapsed,
    Spend: spend,
    Reserve: reserve,
    CommitReservation: commit_reservation,
    ReleaseReservation: release_reservation,
    DropDeadHolds: drop_dead_holds,
    CreateBudget: create_budget,
    ChangeCap: change_cap,
    SplitBudget: split_budget,
    SignalRun: signal_run,
    BrakeRun: brake_run,
    PutTelemetry: put_telemetry,
    CarryOutDeadlines: carry_out_deadlines,
    AnnounceWorker: announce_worker,
    DrainWorker: drain_worker,
    SetCheckpoint: set_checkpoint,
    AcknowledgeAlert: acknowledge_alert,
    SnoozeAlert: snooze_alert,
    ChangeRule: change_rule,
    PutRule: put_rule,
    DeleteRule: delete_rule,
    CreateTarget: create_target,
    ChangeTarget: change_target,
    RotateSecret: rotate_secret,
    DeleteTarget: delete_target,
    SetQuiet: set_quiet,
    ChangeAge: change_age,
    TryTarget: try_target,
    ResendDelivery: resend_delivery,
    CreateBulk: create_bulk,
    StopBulk: stop_bulk,
    Check: check,
    Batch: lambda ask, on: batch(ask, on, decide=_decide),
    ImportRun: import_run,
    NoteRefused: note_refused,
    SetRole: set_role,
    EndSessions: end_sessions,
    MakeFirstAdmin: make_first_admin,
    CreateKey: create_key,
    RevokeKey: revoke_key,
}
