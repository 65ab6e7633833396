"""Runs: create, append, patch, move."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from agentstate.store.callers import Caller
from agentstate.store.commands import (
    UNSEEN,
    Append,
    Appended,
    Braked,
    BrakeRun,
    CarryOutDeadlines,
    Changed,
    CreateRun,
    DeadlinesCarriedOut,
    Moved,
    NewEvent,
    Patch,
    PutTelemetry,
    RunCreated,
    Signalled,
    SignalRun,
    TelemetryKept,
    Transition,
)
from agentstate.store.errors import (
    EventIdReuse,
    Exists,
    Invalid,
    NotFound,
)
from agentstate.store.payloads import RawJSON, canonical, check, with_member, write
from agentstate.store.rows import (
    EventRow,
    LeaseRow,
    RunRow,
    replace,
    run_key_of,
)
from agentstate.store.rules import expect, leases, pacing, runs
from agentstate.store.rules.deciding.budgets import drop_holds, make_charge, open_budget
from agentstate.store.rules.deciding.desk import Deciding, told
from agentstate.store.rules.names import AMOUNT_MAX, COUNTERS_MAX, SIGN_CHANGE, check_tags
from agentstate.store.states import TERMINAL, Status

KEY_OF_A_RUN_WITHOUT_ONE = "r-"


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
        open_budget(run, budget, on)
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


def _append_events(
    run: RunRow,
    events: tuple[NewEvent, ...],
    on: Deciding,
    *,
    token: int | None,
    version: int,
    add: str | None = None,
    counters: Mapping[str, int] | None = None,
) -> RunRow:
    """Number the events after `run.last_seq`; `add` rides on the last one."""
    now, last = on.draft.now, run.last_seq + len(events)
    for seq, event in enumerate(events, run.last_seq + 1):
        on.draft.put_event(
            EventRow(
                run_id=run.id,
                seq=seq,
                version=version,
                type=event.type,
                origin="worker",
                data=event.data.text,
                event_id=event.stored_id,
                token=token,
                add=add if seq == last else None,
                actor=on.by.principal,
                request_id=on.request_id,
                at=now,
            )
        )
    counters = run.counters if counters is None else counters
    return replace(run, last_seq=last, version=version, updated_at=now, counters=counters)


def append(ask: Append, on: Deciding) -> Appended:
    draft = on.draft
    run = draft.run(ask.run)
    stored = _stored(ask.events, run, on)
    if stored and all(
        runs.is_own(e.actor, e.token, run, ask.fence, on.by) for e in stored.values()
    ):
        known = runs.check_ids(ask.events, stored, run)
        if known:
            return _appended_before(known, run)
    runs.check_fence(run, ask.fence, on.by)
    runs.check_open(run)
    known = runs.check_ids(ask.events, stored, run)
    if known:
        return _appended_before(known, run)
    runs.check_version(run, ask.if_match)
    runs.check_seq(run, ask.expected_seq)
    if ask.to not in TERMINAL:
        run = on.pace(run)
    first_seq = run.last_seq + 1
    counters = _added(run, ask.add) if ask.add else run.counters
    run = _append_events(
        run,
        ask.events,
        on,
        token=ask.fence,
        version=run.version + 1,
        add=write(ask.add) if ask.add else None,
        counters=counters,
    )
    draft.put_run(run)
    last_seq = run.last_seq
    spent = tuple(make_charge(run, charge, on, token=ask.fence) for charge in ask.spend)
    if ask.to is not None:
        run = move_run(run, ask.to, on, result=ask.result, token=ask.fence)
    return Appended(
        first_seq=first_seq,
        last_seq=last_seq,
        version=run.version,
        status=run.status,
        at=draft.now,
        spent=spent,
    )


def _stored(events: Sequence[NewEvent], run: RunRow, on: Deciding) -> dict[str, EventRow]:
    """Those of the events that are stored already, by their ids."""
    ids = [event.stored_id for event in events if event.stored_id is not None]
    found = ((event_id, on.draft.find_event(run.id, event_id)) for event_id in ids)
    return {event_id: row for event_id, row in found if row is not None}


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
    if len(counters) > COUNTERS_MAX:
        raise Invalid("add", f"at most {COUNTERS_MAX} counters a run")
    return counters


def patch(ask: Patch, on: Deciding) -> Changed:
    draft = on.draft
    run = draft.run(ask.run)
    before = draft.find_event(run.id, SIGN_CHANGE + ask.id) if ask.id is not None else None
    if before is not None and runs.is_own(before.actor, before.token, run, ask.fence, on.by):
        return Changed(
            run=run.key,
            version=before.version,
            last_seq=before.seq,
            at=before.at,
            duplicate=True,
            replayed=True,
        )
    by_operator = ask.fence is None and ask.only_keeping and on.by.may("operate")
    if not by_operator:
        on.by.need("write")
    runs.check_fence(run, ask.fence, on.by, without_token=by_operator)
    if not ask.only_keeping:
        runs.check_open(run)
    if before is not None:
        raise EventIdReuse(
            f"change id {ask.id} was used by another caller", current=run.facts(), id=ask.id
        )
    runs.check_version(run, ask.if_match)
    expect.check_expect(run, ask.expect)
    run = on.pace(run)
    changed = _patched(run, ask)
    changed = on.log(
        changed,
        "run.changed",
        _change(ask),
        token=ask.fence,
        event_id=SIGN_CHANGE + ask.id if ask.id is not None else None,
        add=write(ask.add) if ask.add else None,
    )
    if by_operator and _is_an_operators(run, on.by):
        kept = {"before": _kept(run), "after": _kept(changed)}
        on.act("run.changed", run.key, changed, reason=ask.reason, **kept)
    return Changed(run=run.key, version=changed.version, last_seq=changed.last_seq, at=on.draft.now)


def _kept(run: RunRow) -> dict[str, Any]:
    return {
        "notes": run.notes,
        "tags": list(run.tags),
        "hold": run.hold,
        "retain_seconds": run.retain_seconds,
    }


def _patched(run: RunRow, ask: Patch) -> RunRow:
    attrs = ask.replace.text if ask.replace is not None else run.attrs
    for path, value in ask.attrs.items():
        attrs = with_member(attrs, path.split("."), value.text)
    tags = (set(run.tags) | set(ask.tags_add)) - set(ask.tags_remove)
    retain = run.retain_seconds if ask.retain_seconds is None else ask.retain_seconds
    return replace(
        run,
        notes=run.notes if ask.notes is None else ask.notes,
        attrs=check(attrs, path="attrs").text,
        counters=_added(run, ask.add),
        tags=check_tags("tags", tags),
        hold=run.hold if ask.hold is None else ask.hold,
        retain_seconds=retain,
        expires_at=runs.expiry(run.ended_at, retain),
    )


def _change(ask: Patch) -> dict[str, Any]:
    """What the event says: enough to make the same change again."""
    said: dict[str, Any] = {}
    for name in ("notes", "hold", "retain_seconds"):
        if getattr(ask, name) is not None:
            said[name] = getattr(ask, name)
    for name in ("attrs", "replace", "add", "tags_add", "tags_remove"):
        if getattr(ask, name):
            said[name] = getattr(ask, name)
    return said


def transition(ask: Transition, on: Deciding) -> Moved:
    run = on.draft.run(ask.run)
    before = _moved_before(ask, run, on)
    if before:
        return before
    _check_may_move(run, ask, on.by)
    runs.check_version(run, ask.if_match)
    expect.check_expect(run, ask.expect)
    runs.check_move(run, ask.to, from_status=ask.from_status)
    if ask.to not in TERMINAL:
        run = on.pace(run)
    status, is_action = run.status, ask.fence is None and _is_an_operators(run, on.by)
    run = move_run(
        run,
        ask.to,
        on,
        result=ask.result,
        token=ask.fence,
        from_status=ask.from_status,
        reason=ask.reason,
    )
    if is_action:
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


def _is_an_operators(run: RunRow, by: Caller) -> bool:
    """Whether what `by` does to the run without a token is an operator's action, not a worker's: a
    person's always; a key's when no worker could have done it so."""
    return by.kind == "person" or (by.kind == "key" and (run.ever_leased or not by.may("write")))


def _check_may_move(run: RunRow, ask: Transition, by: Caller) -> None:
    """The holder moves its run; without a token an operator may cancel, pause and resume."""
    as_operator = (
        ask.fence is None
        and by.may("operate")
        and (run.terminal or runs.operator_may_move(run, ask.to) or not runs.is_move(run, ask.to))
    )
    if not as_operator:
        by.need("write")
    runs.check_fence(run, ask.fence, by, without_token=as_operator)
    runs.check_open(run)


def _moved_before(ask: Transition, run: RunRow, on: Deciding) -> Moved | None:
    """Own replay of a terminal move: the same end with the same result, under the same token."""
    ended_alike = run.terminal and run.status == ask.to and _same_json(ask.result, run.result)
    if not (ended_alike and on.ended(run, ask.fence)):
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


def move_run(
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
        drop_holds(on.draft.holds_of(run.id), on)
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


def signal_run(ask: SignalRun, on: Deciding) -> Signalled:
    """Keep it on the lease, where every renewal reads it, and write it down."""
    on.by.need("operate")
    draft = on.draft
    run = draft.run(ask.run)
    runs.check_open(run)
    lease = draft.lease(run.unit) or LeaseRow(unit=run.unit, run_id=run.id)
    leases.check_seen_holder(lease, ask.expected_token, now=draft.now)
    said = {"signal": ask.signal, "reason": ask.reason, "by": on.by.principal, "at": draft.now}
    lease = draft.put_lease(leases.with_signal(lease, said))
    run = on.log(run, "run.changed", {"signal": ask.signal, "reason": ask.reason})
    saw = {} if ask.expected_token is UNSEEN else {"expected": {"token": ask.expected_token}}
    on.act(f"run.signalled-{ask.signal}", run.key, run, reason=ask.reason, **saw)
    return Signalled(
        run=run.key,
        signals=told(lease.signals),
        version=run.version,
        last_seq=run.last_seq,
        at=draft.now,
    )


def brake_run(ask: BrakeRun, on: Deciding) -> Braked:
    """Put a brake on a run, or lift it; lifting one that is over changes nothing."""
    on.by.need("operate")
    run = on.draft.run(ask.run)
    runs.check_open(run)
    before = pacing.brake_of(run, on.draft.now)
    if ask.per_second is None and before is None:
        return _braked(run, on, replayed=True)
    pacing.check_brake(run, ask.expected_until, now=on.draft.now)
    until = on.draft.now + timedelta(seconds=ask.seconds) if ask.seconds else None
    run = replace(run, brake_per_second=ask.per_second, brake_until=until)
    brake = pacing.brake_of(run, on.draft.now)
    saw = {} if ask.expected_until is UNSEEN else {"expected": {"until": ask.expected_until}}
    run = on.log(run, "run.changed", {"brake": brake, "reason": ask.reason})
    on.act(
        "run.braked" if brake else "run.brake-lifted",
        run.key,
        run,
        reason=ask.reason,
        before={"brake": before},
        after={"brake": brake},
        **saw,
    )
    return _braked(run, on)


def _braked(run: RunRow, on: Deciding, *, replayed: bool = False) -> Braked:
    brake = pacing.brake_of(run, on.draft.now) or {"per_second": None, "until": None}
    return Braked(
        run=run.key,
        **brake,
        version=run.version,
        last_seq=run.last_seq,
        at=on.draft.now,
        replayed=replayed,
    )


def put_telemetry(ask: PutTelemetry, on: Deciding) -> TelemetryKept:
    run = on.draft.run(ask.run)
    runs.check_fence(run, ask.fence, on.by)
    runs.check_open(run)
    on.draft.writes.other.append(("telemetry", {"run_id": run.id, "ask": ask}))
    return TelemetryKept(run=run.key, at=on.draft.now)


def carry_out_deadlines(ask: CarryOutDeadlines, on: Deciding) -> DeadlinesCarriedOut:
    """Of the runs that were chosen, end those that are overdue all the same."""
    counts = {Status.FAILED: 0, Status.CANCELLED: 0}
    for unit in on.units:
        run = on.draft.find_run(run_key_of(unit) or "")
        if run is None or run.terminal or run.deadline_at is None or on.draft.now < run.deadline_at:
            continue
        to = Status.FAILED if run.deadline_policy == "fail" else Status.CANCELLED
        if to == Status.FAILED and run.status == Status.PENDING:
            run = move_run(run, Status.RUNNING, on, result=None, token=None)
        why = RawJSON(write({"code": "deadline", "deadline_at": run.deadline_at}))
        move_run(run, to, on, result=why, token=None, reason="the deadline has passed")
        counts[to] += 1
    return DeadlinesCarriedOut(failed=counts[Status.FAILED], cancelled=counts[Status.CANCELLED])
