"""Leases: acquire, renew, release, reclaim, claim what waits, tell of what lapsed."""

from typing import Any

from agentstate.store.commands import (
    Acquired,
    AcquireLease,
    Claim,
    Claimed,
    ClaimRuns,
    Noted,
    NoteLapsed,
    OpenEffect,
    Reclaimed,
    ReclaimLease,
    Released,
    ReleaseLease,
    Renewed,
    RenewLease,
    SignalTold,
)
from agentstate.store.errors import (
    AttemptsExhausted,
    LeaseHeld,
    Paused,
)
from agentstate.store.payloads import RawJSON, write
from agentstate.store.rows import (
    LeaseRow,
    RunRow,
    replace,
    run_key_of,
)
from agentstate.store.rules import leases
from agentstate.store.rules.deciding import proposals
from agentstate.store.rules.deciding.desk import Deciding, told
from agentstate.store.rules.deciding.runs import move_run
from agentstate.store.rules.draft import Draft
from agentstate.store.states import Status


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
    effects, count = _open_effects(run, on) if run is not None else (None, None)
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
        open_effects=effects,
        open_effects_count=count,
    )


def _open_effects(run: RunRow, on: Deciding) -> tuple[tuple[OpenEffect, ...], int]:
    """The first open ones, and how many there are."""
    return on.draft.facts.open_effects.get(run.id, ((), 0))


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
        signals=told(lease.signals) + _drain(lease.owner, draft),
    )


def _drain(owner: str | None, draft: Draft) -> tuple[SignalTold, ...]:
    """A drain of the worker, by its full name or without the process's random part."""
    for name in (owner, owner.split("~")[0]) if owner else ():
        if name in draft.facts.drains:
            return (SignalTold(signal="drain", **draft.facts.drains[name]),)
    return ()


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
    proposal = proposals.confirmed(ask, on)
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
        after={"owner": None, "token": None, "spent_token": token}
        | ({"proposal": str(proposal.id), "proposed_by": proposal.by} if proposal else {}),
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
        run = move_run(run, Status.RUNNING, on, result=None, token=given.token)
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
        open_effects=given.open_effects or (),
        open_effects_count=given.open_effects_count or 0,
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
        run = move_run(run, Status.RUNNING, on, result=None, token=None)
    why = RawJSON(write({"code": AttemptsExhausted.code, "attempts": run.attempt}))
    move_run(run, Status.FAILED, on, result=why, token=None, reason="no attempts left")


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
