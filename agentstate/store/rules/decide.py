"""One function per command: what it reads of the draft, which rules it asks, what it writes.

The order of checks is api.md's: exists, own replay, fence, terminal, preconditions, budget, write.
A function either returns the command's result, with its writes in the draft, or raises a Refusal;
then the draft is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from agentstate.store.callers import Caller
from agentstate.store.commands import (
    Acquired,
    AcquireLease,
    Append,
    Appended,
    BudgetState,
    ChangeCap,
    Changed,
    Charge,
    Claim,
    Claimed,
    ClaimRuns,
    Command,
    CommitReservation,
    CreateBudget,
    CreateKey,
    CreateRun,
    DropDeadHolds,
    Dropped,
    ImportRun,
    KeyCreated,
    KeyRevoked,
    Moved,
    NewBudget,
    NewEvent,
    Noted,
    NoteLapsed,
    Patch,
    Reclaimed,
    ReclaimLease,
    Released,
    ReleaseLease,
    ReleaseReservation,
    Renewed,
    RenewLease,
    Reserve,
    Reserved,
    Result,
    RevokeKey,
    RunCreated,
    Settled,
    Spend,
    Spent,
    Transition,
)
from agentstate.store.errors import (
    AttemptsExhausted,
    EventIdReuse,
    Exists,
    Invalid,
    LeaseHeld,
    NotFound,
    Paused,
    ReservationSettled,
    VersionConflict,
)
from agentstate.store.payloads import RawJSON, canonical, check, with_member, write
from agentstate.store.rows import (
    ActionRow,
    BudgetRow,
    EntryRow,
    EventRow,
    HoldRow,
    LeaseRow,
    RunRow,
    run_key_of,
    unit_of,
)
from agentstate.store.rules import budgets, expect, history, leases, runs
from agentstate.store.rules.draft import Draft
from agentstate.store.rules.names import AMOUNT_MAX, check_tags
from agentstate.store.states import TERMINAL, Status

KEY_OF_A_RUN_WITHOUT_ONE = "r-"
# Change ids share the events' unique index; no caller can write this sign into an event id.
CHANGE = "Δ"


class Deciding:
    """A command on its way: the draft, who asks, and the request it came with."""

    __slots__ = ("by", "draft", "request_id", "units")

    def __init__(
        self, draft: Draft, by: Caller, request_id: str | None, units: tuple[str, ...]
    ) -> None:
        self.draft, self.by, self.request_id, self.units = draft, by, request_id, units

    def log(
        self,
        run: RunRow,
        event_type: str,
        data: Mapping[str, Any],
        *,
        token: int | None = None,
        event_id: str | None = None,
        add: str | None = None,
    ) -> RunRow:
        return self.draft.log(
            run,
            event_type,
            data,
            actor=self.by.principal,
            request_id=self.request_id,
            token=token,
            event_id=event_id,
            add=add,
        )

    def act(self, action: str, thing: str, run: RunRow | None = None, **more: Any) -> None:
        """Keep an operator's action, in the transaction of its effect."""
        self.draft.writes.actions.append(
            ActionRow(
                actor=self.by.principal,
                action=action,
                object=thing,
                run_id=run.id if run else None,
                request_id=self.request_id,
                at=self.draft.now,
                **more,
            )
        )


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
    return _DECIDERS[type(command)](command, Deciding(draft, by, request_id, units))


# --- runs ----------------------------------------------------------------------------------------


def create_run(ask: CreateRun, on: Deciding) -> RunCreated:
    draft, now = on.draft, on.draft.now
    run_id = draft.facts.new_id(now)
    key = ask.key or f"{KEY_OF_A_RUN_WITHOUT_ONE}{run_id.hex}"
    existing = draft.find_run(key)
    if existing:
        raise Exists(f"a run {key} exists", current=existing.facts(), run=key)
    parent = _parent(ask, on)
    run = RunRow(
        id=run_id,
        key=key,
        task=ask.task,
        status=ask.status,
        version=0,
        last_seq=0,
        tags=ask.tags,
        attrs=ask.attrs.text,
        max_attempts=ask.max_attempts,
        parent_id=parent.id if parent else None,
        deadline_at=ask.deadline_at,
        deadline_policy=ask.deadline_policy,
        retain_seconds=ask.retain_seconds,
        created_by=on.by.principal,
        created_at=now,
        updated_at=now,
    )
    draft.put_run(run, new=True)
    draft.put_lease(LeaseRow(unit=run.unit, run_id=run.id))
    run = on.log(run, "run.created", _created(ask))
    for budget in ask.budgets:
        _open_budget(run, budget, on)
    # A run is born at version 1, its own first event and the caller's included.
    run = _append_events(run, ask.events, on, token=None, version=1)
    draft.put_run(run)
    return RunCreated(
        run=key, status=run.status, version=run.version, last_seq=run.last_seq, at=now
    )


def _parent(ask: CreateRun, on: Deciding) -> RunRow | None:
    if ask.parent is None:
        return None
    parent = on.draft.find_run(ask.parent)
    if parent is None:
        raise NotFound(f"no run {ask.parent}", run=ask.parent)
    runs.check_fence(parent, ask.fence, on.by)
    runs.check_open(parent)
    return parent


def _created(ask: CreateRun) -> dict[str, Any]:
    """What the first event says: enough to make the head row again from the log alone."""
    return {
        "task": ask.task,
        "status": ask.status,
        "tags": ask.tags,
        "attrs": ask.attrs,
        "parent": ask.parent,
        "deadline_at": ask.deadline_at,
        "deadline_policy": ask.deadline_policy,
        "max_attempts": ask.max_attempts,
        "retain_seconds": ask.retain_seconds,
        "budgets": [{"name": b.name, "unit": b.unit, "cap": b.cap} for b in ask.budgets],
    }


def _open_budget(run: RunRow | None, ask: NewBudget, on: Deciding) -> BudgetRow:
    draft = on.draft
    parent = draft.budget_named(None, ask.parent) if ask.parent else None
    budget = BudgetRow(
        id=draft.facts.new_id(draft.now),
        run_id=run.id if run else None,
        name=ask.name,
        unit=ask.unit,
        cap=ask.cap,
        entries=1,
        parent_id=parent.id if parent else None,
        depth=parent.depth + 1 if parent else 0,
    )
    draft.put_budget(budget, new=True)
    _enter(budget, on, kind="open", amount=ask.cap, cap=ask.cap, run_id=run.id if run else None)
    return budget


def _enter(
    budget: BudgetRow,
    on: Deciding,
    *,
    kind: str,
    amount: int,
    run_id: UUID | None,
    spent: int = 0,
    reserved: int = 0,
    cap: int | None = None,
    charge_id: str | None = None,
    note: str = "",
    token: int | None = None,
) -> EntryRow:
    entry = EntryRow(
        budget_id=budget.id,
        n=budget.entries,
        kind=kind,
        amount=amount,
        spent=spent,
        reserved=reserved,
        cap=cap,
        entry_id=charge_id,
        run_id=run_id,
        token=token,
        note=note,
        overdrawn=budget.overdrawn,
        actor=on.by.principal,
        request_id=on.request_id,
        at=on.draft.now,
    )
    on.draft.writes.entries.append(entry)
    return entry


def _append_events(
    run: RunRow,
    events: tuple[NewEvent, ...],
    on: Deciding,
    *,
    token: int | None,
    version: int,
    add: str | None = None,
) -> RunRow:
    """Number the events after `run.last_seq`; `add` rides on the last one."""
    now, last = on.draft.now, run.last_seq + len(events)
    for seq, event in enumerate(events, run.last_seq + 1):
        on.draft.writes.events.append(
            EventRow(
                run_id=run.id,
                seq=seq,
                version=version,
                type=event.type,
                origin="worker",
                data=event.data.text,
                event_id=event.id,
                token=token,
                add=add if seq == last else None,
                actor=on.by.principal,
                request_id=on.request_id,
                at=now,
            )
        )
    return replace(run, last_seq=last, version=version, updated_at=now)


def append(ask: Append, on: Deciding) -> Appended:
    draft = on.draft
    run = draft.run(ask.run)
    stored = {
        e.id: draft.facts.events[run.id, e.id]
        for e in ask.events
        if e.id is not None and (run.id, e.id) in draft.facts.events
    }
    if stored and all(runs.written_by(e, run, ask.fence, on.by) for e in stored.values()):
        known = runs.check_ids(ask.events, stored, run)
        if known:
            return _appended_before(known, run)
    runs.check_fence(run, ask.fence, on.by)
    runs.check_open(run)
    runs.check_ids(ask.events, stored, run)
    runs.check_version(run, ask.if_match)
    runs.check_seq(run, ask.expected_seq)
    first_seq = run.last_seq + 1
    counters = _added(run, ask.add)
    run = _append_events(
        run,
        ask.events,
        on,
        token=ask.fence,
        version=run.version + 1,
        add=write(ask.add) if ask.add else None,
    )
    run = draft.put_run(replace(run, counters=counters))
    last_seq = run.last_seq
    spent = tuple(_charge(run, charge, on, token=ask.fence) for charge in ask.spend)
    if ask.to is not None:
        run = _move(run, ask.to, on, result=ask.result, token=ask.fence)
    return Appended(
        first_seq=first_seq,
        last_seq=last_seq,
        version=run.version,
        status=run.status,
        at=draft.now,
        spent=spent,
    )


def _appended_before(known: list[EventRow], run: RunRow) -> Appended:
    return Appended(
        first_seq=known[0].seq,
        last_seq=known[-1].seq,
        version=known[-1].version,
        status=run.status,
        at=known[-1].at,
        replayed=True,
    )


def _added(run: RunRow, add: Mapping[str, int]) -> dict[str, int]:
    counters = dict(run.counters)
    for name, amount in add.items():
        counters[name] = counters.get(name, 0) + amount
        if abs(counters[name]) > AMOUNT_MAX:
            raise Invalid(f"add.{name}", f"a counter stays within ±{AMOUNT_MAX}")
    if len(counters) > 100:
        raise Invalid("add", "at most 100 counters a run")
    return counters


def patch(ask: Patch, on: Deciding) -> Changed:
    draft = on.draft
    run = draft.run(ask.run)
    before = draft.facts.events.get((run.id, CHANGE + ask.id)) if ask.id is not None else None
    if before is not None and runs.written_by(before, run, ask.fence, on.by):
        return Changed(
            run=run.key, version=before.version, last_seq=before.seq, at=before.at, replayed=True
        )
    by_operator = ask.fence is None and ask.only_tags_and_notes and on.by.may("operate")
    if not by_operator:
        on.by.need("write")
    runs.check_fence(run, ask.fence, on.by, without_token=by_operator)
    if not ask.only_tags_and_notes:
        runs.check_open(run)
    if before is not None:
        raise EventIdReuse(
            f"change id {ask.id} was used by another caller", current=run.facts(), id=ask.id
        )
    runs.check_version(run, ask.if_match)
    expect.check_expect(run, ask.expect)
    changed = _patched(run, ask)
    changed = on.log(
        changed,
        "run.changed",
        _change(ask),
        token=ask.fence,
        event_id=CHANGE + ask.id if ask.id is not None else None,
        add=write(ask.add) if ask.add else None,
    )
    if by_operator and on.by.kind == "person":
        before_it = {"notes": run.notes, "tags": list(run.tags)}
        after_it = {"notes": changed.notes, "tags": list(changed.tags)}
        on.act("run.changed", run.key, changed, before=before_it, after=after_it)
    return Changed(run=run.key, version=changed.version, last_seq=changed.last_seq, at=on.draft.now)


def _patched(run: RunRow, ask: Patch) -> RunRow:
    attrs = ask.replace.text if ask.replace is not None else run.attrs
    for path, value in ask.attrs.items():
        attrs = with_member(attrs, path.split("."), value.text)
    tags = (set(run.tags) | set(ask.tags_add)) - set(ask.tags_remove)
    return replace(
        run,
        notes=run.notes if ask.notes is None else ask.notes,
        attrs=check(attrs, path="attrs").text,
        counters=_added(run, ask.add),
        tags=check_tags("tags", tags),
    )


def _change(ask: Patch) -> dict[str, Any]:
    """What the event says: enough to make the same change again."""
    said: dict[str, Any] = {}
    if ask.notes is not None:
        said["notes"] = ask.notes
    for name in ("attrs", "replace", "add", "tags_add", "tags_remove"):
        if getattr(ask, name):
            said[name] = getattr(ask, name)
    return said


def transition(ask: Transition, on: Deciding) -> Moved:
    run = on.draft.run(ask.run)
    before = _moved_before(ask, run, on.by)
    if before:
        return before
    _check_may_move(run, ask, on.by)
    runs.check_version(run, ask.if_match)
    status = run.status
    run = _move(
        run,
        ask.to,
        on,
        result=ask.result,
        token=ask.fence,
        from_status=ask.from_status,
        reason=ask.reason,
    )
    if ask.fence is None and on.by.kind == "person":
        on.act(
            f"run.{ask.to}",
            run.key,
            run,
            reason=ask.reason,
            before={"status": status},
            after={"status": run.status},
        )
    return Moved(
        run=run.key,
        status=run.status,
        version=run.version,
        last_seq=run.last_seq,
        at=on.draft.now,
    )


def _check_may_move(run: RunRow, ask: Transition, by: Caller) -> None:
    """The holder moves its run; without a token an operator may cancel, pause and resume."""
    as_operator = (
        ask.fence is None
        and by.may("operate")
        and (run.terminal or runs.operator_may_move(run, ask.to))
    )
    if not as_operator:
        by.need("write")
    runs.check_fence(run, ask.fence, by, without_token=as_operator)
    runs.check_open(run)


def _moved_before(ask: Transition, run: RunRow, by: Caller) -> Moved | None:
    """Own replay of a terminal move: the same end with the same result, under the same token."""
    ended_alike = run.terminal and run.status == ask.to and _same_json(ask.result, run.result)
    by_this_token = ask.fence is not None and ask.fence == run.ended_token
    if not (ended_alike and by_this_token):
        return None
    return Moved(
        run=run.key,
        status=run.status,
        version=run.version,
        last_seq=run.last_seq,
        at=run.ended_at or run.updated_at,
        replayed=True,
    )


def _same_json(asked: RawJSON | None, stored: str | None) -> bool:
    if asked is None or stored is None:
        return (asked.text if asked else None) == stored
    return canonical(asked.text) == canonical(stored)


def _move(
    run: RunRow,
    to: str,
    on: Deciding,
    *,
    result: RawJSON | None,
    token: int | None,
    from_status: str | None = None,
    reason: str = "",
) -> RunRow:
    """Move a run and write `run.<status>`; a terminal move ends its lease as well."""
    runs.check_move(run, to, from_status=from_status)
    if to in TERMINAL:
        _end_lease(run, on)
        _drop_holds(on.draft.holds_of(run.id), on)
    elif result is not None:
        raise Invalid("result", f"only with a move to {', '.join(sorted(TERMINAL))}")
    came_from = run.status
    run = runs.move(run, to, now=on.draft.now, result=result.text if result else None)
    data: dict[str, Any] = {"from": came_from}
    if result is not None:
        data["result"] = result
    if reason:
        data["reason"] = reason
    return on.log(run, f"run.{to}", data, token=token)


def _end_lease(run: RunRow, on: Deciding) -> None:
    lease = on.draft.lease(run.unit)
    if lease is None:
        return
    if lease.token is not None:
        term = on.draft.term(lease.token)
        if term is not None:
            _, closed = leases.close(
                lease, term, "run-terminal", now=on.draft.now, ended_by=on.by.principal
            )
            on.draft.put_term(closed)
    on.draft.drop_lease(run.unit)


# --- leases --------------------------------------------------------------------------------------


def acquire_lease(ask: AcquireLease, on: Deciding) -> Acquired:
    draft, run = on.draft, None
    key = run_key_of(ask.unit)
    if key is not None:
        run = draft.run(key)
        leases.check_run_can_be_held(run)
    lease = draft.lease(ask.unit) or LeaseRow(unit=ask.unit, run_id=run.id if run else None)
    leases.check_free(lease, ask.owner, draft.now)
    return _grant(ask, lease, run, on)


def _grant(ask: AcquireLease, lease: LeaseRow, run: RunRow | None, on: Deciding) -> Acquired:
    draft, now = on.draft, on.draft.now
    taken_from, lapsed_token = lease.owner, lease.token
    lapsed_at = lease.expires_at
    if lease.token is not None:
        lease = _close(lease, "lapsed", on)
    token = draft.new_token()
    lease, term = leases.acquire(lease, ask, token=token, by=on.by, now=now)
    draft.put_lease(lease)
    draft.put_term(term, new=True)
    if run is not None:
        run = replace(
            run,
            owner=ask.owner,
            token=token,
            holder=on.by.principal,
            last_token=token,
            attempt=run.attempt + 1,
        )
        data: dict[str, Any] = {
            "owner": ask.owner,
            "token": token,
            "ttl_seconds": ask.ttl_seconds,
            "expires_at": lease.expires_at,
            "attempt": run.attempt,
        }
        if taken_from is not None:
            data["taken_from"] = {
                "owner": taken_from,
                "token": lapsed_token,
                "expired_at": lapsed_at,
            }
        run = on.log(run, "lease.acquired", data, token=token)
    return Acquired(
        unit=ask.unit,
        owner=ask.owner,
        token=token,
        expires_at=lease.expires_at or now,
        expires_in_ms=lease.expires_in_ms(now) or 0,
        at=now,
        taken_from=taken_from,
        version=run.version if run else None,
        last_seq=run.last_seq if run else None,
    )


def _close(
    lease: LeaseRow,
    ended: str,
    on: Deciding,
    *,
    ended_by: str | None = None,
    reason: str | None = None,
) -> LeaseRow:
    term = on.draft.term(lease.token) if lease.token is not None else None
    if term is None:
        raise AssertionError(f"{lease.unit} is held without a term of ownership")
    lease, closed = leases.close(
        lease, term, ended, now=on.draft.now, ended_by=ended_by, reason=reason
    )
    on.draft.put_term(closed)
    return lease


def renew_lease(ask: RenewLease, on: Deciding) -> Renewed:
    draft = on.draft
    lease = leases.renew(draft.lease(ask.unit), draft.term(ask.token), ask, by=on.by, now=draft.now)
    draft.put_lease(lease)
    return Renewed(
        unit=lease.unit,
        owner=lease.owner or "",
        token=ask.token,
        expires_at=lease.expires_at or draft.now,
        expires_in_ms=lease.expires_in_ms(draft.now) or 0,
        at=draft.now,
    )


def release_lease(ask: ReleaseLease, on: Deciding) -> Released:
    draft = on.draft
    lease, term = draft.lease(ask.unit), draft.term(ask.token)
    mine = term is not None and term.unit == ask.unit and term.holder == on.by.principal
    if mine and term is not None and term.ended in ("released", "run-terminal"):
        return Released(unit=ask.unit, token=ask.token, at=term.ends_at or draft.now, replayed=True)
    lease = leases.check_holder(lease, term, ask.unit, ask.token, by=on.by, now=draft.now)
    owner = lease.owner
    draft.put_lease(_close(lease, "released", on))
    run = _free_run(ask.unit, on)
    if run is not None:
        run = on.log(run, "lease.released", {"owner": owner, "token": ask.token}, token=ask.token)
    return Released(
        unit=ask.unit,
        token=ask.token,
        at=draft.now,
        version=run.version if run else None,
        last_seq=run.last_seq if run else None,
    )


def _free_run(unit: str, on: Deciding, *, spent_token: int | None = None) -> RunRow | None:
    """The run of a unit without owner and current token, so that its last holder is fenced."""
    key = run_key_of(unit)
    run = on.draft.find_run(key) if key is not None else None
    if run is None:
        return None
    return replace(
        run, owner=None, token=None, holder=None, last_token=spent_token or run.last_token
    )


def reclaim_lease(ask: ReclaimLease, on: Deciding) -> Reclaimed:
    draft, now = on.draft, on.draft.now
    lease = leases.check_reclaim(draft.lease(ask.unit), ask, by=on.by, now=now)
    owner, former_token, was_live = lease.owner, lease.token, lease.live(now)
    expired_at = lease.expires_at
    token = draft.new_token()
    lease = _close(lease, "reclaimed", on, ended_by=on.by.principal, reason=ask.reason)
    lease = _hold_off(lease, owner, ask, on)
    draft.put_lease(lease)
    run = _free_run(ask.unit, on, spent_token=token)
    told = {
        "owner": owner,
        "token": former_token,
        "spent_token": token,
        "was_live": was_live,
        "expired_at": expired_at,
        "by": on.by.principal,
        "reason": ask.reason,
        "hold_off_seconds": ask.hold_off_seconds,
    }
    if run is not None:
        run = on.log(run, "lease.reclaimed", told)
    on.act(
        "lease.reclaimed",
        ask.unit,
        run,
        reason=ask.reason,
        before={"owner": owner, "token": former_token, "live": was_live},
        after={"owner": None, "token": None, "spent_token": token},
        expected={"owner": ask.expected_owner, "token": ask.expected_token},
    )
    return Reclaimed(
        unit=ask.unit,
        former_owner=owner,
        former_token=former_token,
        token=token,
        at=now,
        version=run.version if run else None,
        last_seq=run.last_seq if run else None,
    )


def _hold_off(lease: LeaseRow, owner: str | None, ask: ReclaimLease, on: Deciding) -> LeaseRow:
    if not ask.hold_off_seconds:
        return lease
    return leases.hold_off(lease, owner, seconds=ask.hold_off_seconds, now=on.draft.now)


def claim_runs(ask: ClaimRuns, on: Deciding) -> Claimed:
    """Decide on the runs that `execute` could lock; those that moved meanwhile are passed by."""
    items: list[Claim] = []
    for unit in on.units:
        if len(items) == ask.limit:
            break
        claim = _claim_one(unit, ask, on)
        if claim is not None:
            items.append(claim)
    return Claimed(items=tuple(items), at=on.draft.now)


def _claim_one(unit: str, ask: ClaimRuns, on: Deciding) -> Claim | None:
    draft = on.draft
    run, lease = draft.find_run(run_key_of(unit) or ""), draft.lease(unit)
    if run is None or lease is None or not _wants(run, ask):
        return None
    progress = lease.progress
    grant = AcquireLease(unit=unit, owner=ask.owner, ttl_seconds=ask.ttl_seconds)
    try:
        leases.check_run_can_be_held(run)
        leases.check_free(lease, ask.owner, draft.now)
    except AttemptsExhausted:
        if not lease.live(draft.now):
            _fail_exhausted(run, on)
        return None
    except (LeaseHeld, Paused):
        return None
    given = _grant(grant, lease, run, on)
    run = draft.run(run.key)
    if run.status == Status.PENDING:
        run = _move(run, Status.RUNNING, on, result=None, token=given.token)
    return Claim(
        unit=unit,
        run=run.key,
        task=run.task,
        status=run.status,
        version=run.version,
        last_seq=run.last_seq,
        attempt=run.attempt,
        owner=given.owner,
        token=given.token,
        expires_at=given.expires_at,
        expires_in_ms=given.expires_in_ms,
        taken_from=given.taken_from,
        progress=RawJSON(progress) if progress else None,
    )


def _wants(run: RunRow, ask: ClaimRuns) -> bool:
    waits = run.status == Status.PENDING or (run.status == Status.RUNNING and run.ever_leased)
    return (
        waits
        and (ask.task is None or run.task == ask.task)
        and (ask.tag is None or ask.tag in run.tags)
    )


def _fail_exhausted(run: RunRow, on: Deciding) -> None:
    """The run kills whoever works on it: fail it, instead of feeding it another worker."""
    if run.status == Status.PENDING:
        run = _move(run, Status.RUNNING, on, result=None, token=None)
    why = RawJSON(write({"code": AttemptsExhausted.code, "attempts": run.attempt}))
    _move(run, Status.FAILED, on, result=why, token=None, reason="no attempts left")


def note_lapsed(ask: NoteLapsed, on: Deciding) -> Noted:
    """Tell of leases that ran out unseen; whoever renewed or took one meanwhile is left alone."""
    draft, noted = on.draft, 0
    for unit in on.units:
        lease = draft.lease(unit)
        run = draft.find_run(run_key_of(unit) or "")
        if lease is None or run is None or run.terminal:
            continue
        if not lease.lapsed(draft.now) or lease.noted_token == lease.token:
            continue
        draft.put_lease(replace(lease, noted_token=lease.token))
        on.log(
            run,
            "lease.lapsed",
            {"owner": lease.owner, "token": lease.token, "expired_at": lease.expires_at},
        )
        noted += 1
    return Noted(lapsed=noted)


# --- budgets -------------------------------------------------------------------------------------


def spend(ask: Spend, on: Deciding) -> Spent:
    run, budget = _budget_of(ask.run, ask.charge.budget, on)
    before = _charged_before(run, budget, ask.charge, on, token=ask.fence)
    if before:
        return before
    _check_may_charge(run, ask.fence, on)
    return _charge(run, ask.charge, on, token=ask.fence)


def _budget_of(key: str | None, name: str, on: Deciding) -> tuple[RunRow | None, BudgetRow]:
    run = on.draft.run(key) if key is not None else None
    return run, on.draft.budget_named(run, name)


def _check_may_charge(run: RunRow | None, token: int | None, on: Deciding) -> None:
    if run is not None:
        runs.check_fence(run, token, on.by)
        runs.check_open(run)


def _charge(run: RunRow | None, charge: Charge, on: Deciding, *, token: int | None) -> Spent:
    """Charge every level, or none. A charge whose id is stored already is not made again."""
    draft = on.draft
    budget = draft.budget_named(run, charge.budget)
    before = _charged_before(run, budget, charge, on, token=token)
    if before:
        return before
    levels = budgets.spend(draft.levels(budget), charge.amount)
    entry = _enter_levels(
        levels,
        on,
        kind="spend",
        amount=charge.amount,
        spent=charge.amount,
        run_id=run.id if run else None,
        charge_id=charge.id,
        note=charge.note,
        token=token,
    )
    return _spent(levels[-1], entry)


def _enter_levels(levels: list[BudgetRow], on: Deciding, **line: Any) -> EntryRow:
    """Write the levels and the same ledger line for each; the line of the last, the innermost."""
    entry: EntryRow | None = None
    for level in levels:
        on.draft.put_budget(level)
        entry = _enter(level, on, **line)
    if entry is None:
        raise AssertionError("a budget has at least its own level")
    return entry


def _charged_before(
    run: RunRow | None, budget: BudgetRow, charge: Charge, on: Deciding, *, token: int | None
) -> Spent | None:
    if charge.id is None:
        return None
    stored = on.draft.facts.charges.get((budget.id, run.id if run else None, charge.id))
    if stored is None:
        return None
    if run is not None and not _mine(stored.actor, stored.token, run, token, on):
        runs.check_fence(run, token, on.by)
    if stored.amount != charge.amount:
        raise EventIdReuse(
            f"charge id {charge.id} is stored with another amount",
            current=budget.facts(),
            id=charge.id,
        )
    return replace(_spent(budget, stored), replayed=True)


def _mine(actor: str, stored: int | None, run: RunRow, token: int | None, on: Deciding) -> bool:
    """Own replay: written by this caller, under the token it sends or now the current holder."""
    return actor == on.by.principal and token in (stored, run.token)


def _spent(budget: BudgetRow, entry: EntryRow) -> Spent:
    return Spent(
        budget=budget.name,
        unit=budget.unit,
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        overdrawn=budget.overdrawn,
        entry=entry.n,
        at=entry.at,
    )


def reserve(ask: Reserve, on: Deciding) -> Reserved:
    draft = on.draft
    run, budget = _budget_of(ask.run, ask.budget, on)
    hold = draft.find_hold(budget.id, ask.id)
    if hold is not None and (run is None or _mine(hold.actor, hold.token, run, ask.fence, on)):
        _check_same_hold(hold, ask, budget, on)
        return _reserved(hold, budget, on, replayed=True)
    _check_may_charge(run, ask.fence, on)
    if hold is not None:
        _check_same_hold(hold, ask, budget, on)
    levels = budgets.reserve(draft.levels(budget), ask.amount)
    run_id = run.id if run else None
    entry = _enter_levels(
        levels,
        on,
        kind="reserve",
        amount=ask.amount,
        reserved=ask.amount,
        run_id=run_id,
        charge_id=ask.id,
        token=ask.fence,
    )
    hold = draft.put_hold(
        HoldRow(
            budget_id=budget.id,
            n=entry.n,
            reservation_id=ask.id,
            run_id=run_id,
            amount=ask.amount,
            token=ask.fence,
            actor=on.by.principal,
            expires_at=draft.now + timedelta(seconds=ask.ttl_seconds),
            created_at=draft.now,
        )
    )
    return _reserved(hold, levels[-1], on)


def _check_same_hold(hold: HoldRow, ask: Reserve, budget: BudgetRow, on: Deciding) -> None:
    if hold.amount != ask.amount or hold.actor != on.by.principal:
        raise EventIdReuse(
            f"reservation {ask.id} is stored with another amount or by another caller",
            current=budget.facts(),
            id=ask.id,
        )
    if hold.state != "held":
        raise ReservationSettled(
            f"reservation {ask.id} is {hold.state}", current=budget.facts(), state=hold.state
        )


def _reserved(
    hold: HoldRow, budget: BudgetRow, on: Deciding, *, replayed: bool = False
) -> Reserved:
    left = (hold.expires_at - on.draft.now) // timedelta(milliseconds=1)
    return Reserved(
        budget=budget.name,
        id=hold.reservation_id,
        amount=hold.amount,
        expires_at=hold.expires_at,
        expires_in_ms=max(0, left),
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        at=hold.created_at,
        replayed=replayed,
    )


def commit_reservation(ask: CommitReservation, on: Deciding) -> Settled:
    return _settle(ask, on, actual=ask.amount, to="committed")


def release_reservation(ask: ReleaseReservation, on: Deciding) -> Settled:
    return _settle(ask, on, actual=0, to="released")


def _settle(
    ask: CommitReservation | ReleaseReservation, on: Deciding, *, actual: int, to: str
) -> Settled:
    draft = on.draft
    run, budget = _budget_of(ask.run, ask.budget, on)
    hold = draft.find_hold(budget.id, ask.id)
    if hold is None:
        raise NotFound(f"no reservation {ask.id}", budget=ask.budget, id=ask.id)
    if run is not None and not _may_settle(run, ask.fence, on):
        runs.check_fence(run, ask.fence, on.by)
    if hold.state == "dropped" and to == "committed":
        to = "late"
    elif hold.state == "dropped":
        return _settled(hold, budget, replayed=True)
    elif hold.state != "held":
        wanted = ("committed", "late") if to == "committed" else (to,)
        if hold.state not in wanted or hold.actual != actual:
            raise ReservationSettled(
                f"reservation {ask.id} is {hold.state} with {hold.actual}",
                current=budget.facts(),
                state=hold.state,
                actual=hold.actual,
            )
        return _settled(hold, budget, replayed=True)
    levels = _settle_levels(hold, actual, to, on, token=ask.fence)
    hold = draft.put_hold(replace(hold, state=to, actual=actual, settled_at=draft.now))
    return _settled(hold, levels[-1])


def _may_settle(run: RunRow, token: int | None, on: Deciding) -> bool:
    """The holder, or whoever ended the run: what was spent until then may come in late."""
    ended_it = run.terminal and token is not None and token == run.ended_token
    never_leased = not run.ever_leased and token is None
    return ended_it or never_leased


def _settle_levels(
    hold: HoldRow, actual: int, to: str, on: Deciding, *, token: int | None = None
) -> list[BudgetRow]:
    kinds = {"committed": "commit", "released": "release", "dropped": "drop", "late": "late"}
    draft = on.draft
    levels = budgets.settle(draft.levels(draft.budget(hold.budget_id)), hold, actual)
    _enter_levels(
        levels,
        on,
        kind=kinds[to],
        amount=actual if to in ("committed", "late") else hold.amount,
        spent=actual,
        reserved=-hold.amount if hold.state == "held" else 0,
        run_id=hold.run_id,
        charge_id=hold.reservation_id,
        token=token,
    )
    return levels


def _settled(hold: HoldRow, budget: BudgetRow, *, replayed: bool = False) -> Settled:
    return Settled(
        budget=budget.name,
        id=hold.reservation_id,
        state=hold.state,
        amount=hold.amount,
        actual=hold.actual or 0,
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        overdrawn=budget.overdrawn,
        at=hold.settled_at or hold.created_at,
        replayed=replayed,
    )


def _drop_holds(holds: Iterable[HoldRow], on: Deciding) -> int:
    """Give dead holds back; their ids stay known."""
    count = 0
    for hold in holds:
        _settle_levels(hold, 0, "dropped", on)
        on.draft.put_hold(replace(hold, state="dropped", actual=0, settled_at=on.draft.now))
        count += 1
    return count


def drop_dead_holds(ask: DropDeadHolds, on: Deciding) -> Dropped:
    """Of the holds that were chosen and locked, give back those that are dead all the same."""
    tokens = {row.id: row.token for row in on.draft.facts.holders}
    dead = [
        hold
        for hold in on.draft.facts.holds.values()
        if hold.dead(on.draft.now, tokens.get(hold.run_id) if hold.run_id else None)
        and on.draft.has_levels(hold.budget_id)
    ]
    return Dropped(holds=_drop_holds(sorted(dead, key=lambda h: (h.budget_id, h.n)), on))


def create_budget(ask: CreateBudget, on: Deciding) -> BudgetState:
    run = on.draft.run(ask.run) if ask.run is not None else None
    _check_may_charge(run, ask.fence, on)
    existing = on.draft.find_budget_named(run, ask.budget.name)
    if existing is not None:
        raise Exists(f"a budget {existing.name} exists", current=existing.facts())
    budget = _open_budget(run, ask.budget, on)
    return _budget_state(budget, on)


def change_cap(ask: ChangeCap, on: Deciding) -> BudgetState:
    on.by.need("override")
    _, budget = _budget_of(ask.run, ask.budget, on)
    if ask.if_match is not None and ask.if_match != budget.version:
        raise VersionConflict(
            f"expected b{ask.if_match}, found b{budget.version}",
            current=budget.facts(),
            expected=ask.if_match,
            found=budget.version,
        )
    changed = budgets.change_cap(budget, ask.cap)
    on.draft.put_budget(changed)
    _enter(
        changed,
        on,
        kind="cap",
        amount=ask.cap,
        cap=ask.cap,
        note=ask.reason,
        run_id=budget.run_id,
    )
    thing = f"{ask.run}/{ask.budget}" if ask.run is not None else ask.budget
    run = on.draft.find_run(ask.run) if ask.run is not None else None
    on.act(
        "budget.cap-changed",
        thing,
        run,
        reason=ask.reason,
        before={"cap": budget.cap, "version": budget.version},
        after={"cap": ask.cap, "version": changed.version},
        expected={"version": ask.if_match},
    )
    return _budget_state(changed, on)


def _budget_state(budget: BudgetRow, on: Deciding) -> BudgetState:
    return BudgetState(
        budget=budget.name,
        unit=budget.unit,
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        overdrawn=budget.overdrawn,
        at=on.draft.now,
    )


# --- import, keys --------------------------------------------------------------------------------


def import_run(ask: ImportRun, on: Deciding) -> RunCreated:
    draft = on.draft
    existing = draft.find_run(ask.key)
    if existing:
        raise Exists(f"a run {ask.key} exists", current=existing.facts(), run=ask.key)
    run, events = history.rebuild(
        ask, run_id=draft.facts.new_id(draft.now), actor=on.by.principal, now=draft.now
    )
    draft.put_run(run, new=True)
    draft.writes.events.extend(events)
    for asked in ask.budgets:
        budget_id: UUID = draft.facts.new_id(draft.now)
        budget, entries = history.rebuild_budget(
            asked, run=run, budget_id=budget_id, actor=on.by.principal, now=draft.now
        )
        draft.put_budget(budget, new=True)
        draft.writes.entries.extend(entries)
    if not run.terminal:
        draft.put_lease(LeaseRow(unit=unit_of(run.key), run_id=run.id))
    on.act("run.imported", run.key, run, after={"last_seq": run.last_seq, "status": run.status})
    return RunCreated(
        run=run.key,
        status=run.status,
        version=run.version,
        last_seq=run.last_seq,
        at=draft.now,
    )


def create_key(ask: CreateKey, on: Deciding) -> KeyCreated:
    on.by.need("admin")
    on.draft.writes.other.append(("create-key", {"ask": ask, "by": on.by.principal}))
    on.act("key.created", ask.name, after={"scopes": list(ask.scopes), "hint": ask.hint})
    return KeyCreated(id=ask.id, name=ask.name, at=on.draft.now)


def revoke_key(ask: RevokeKey, on: Deciding) -> KeyRevoked:
    on.by.need("admin")
    on.draft.writes.other.append(("revoke-key", {"name": ask.name}))
    on.act("key.revoked", ask.name, reason=ask.reason)
    return KeyRevoked(name=ask.name, at=on.draft.now)


_DECIDERS: dict[type[Command[Any]], Callable[[Any, Deciding], Result]] = {
    CreateRun: create_run,
    Append: append,
    Patch: patch,
    Transition: transition,
    AcquireLease: acquire_lease,
    RenewLease: renew_lease,
    ReleaseLease: release_lease,
    ReclaimLease: reclaim_lease,
    ClaimRuns: claim_runs,
    NoteLapsed: note_lapsed,
    Spend: spend,
    Reserve: reserve,
    CommitReservation: commit_reservation,
    ReleaseReservation: release_reservation,
    DropDeadHolds: drop_dead_holds,
    CreateBudget: create_budget,
    ChangeCap: change_cap,
    ImportRun: import_run,
    CreateKey: create_key,
    RevokeKey: revoke_key,
}
