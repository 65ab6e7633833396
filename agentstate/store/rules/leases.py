"""Leases: one holder at a time, by the database's clock, read after the unit was locked.

Expiry only permits a takeover; what keeps a late worker out is its token (fencing). So a lapsed
lease that nobody has taken is not renewed, but does not stop its holder's writes either.
Why: docs/decisions/0003-leases.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from agentstate.store.callers import Caller
from agentstate.store.commands import (
    UNSEEN,
    AcquireLease,
    ReclaimLease,
    RenewLease,
    Unseen,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    AttemptsExhausted,
    HolderChanged,
    LeaseHeld,
    LeaseLost,
    Paused,
)
from agentstate.store.payloads import write
from agentstate.store.rows import LeaseRow, RunRow, TermRow, replace
from agentstate.store.states import Status

SHORTEST_TERM = timedelta(microseconds=1)


def check_run_can_be_held(run: RunRow) -> None:
    """Raises AlreadyTerminal, Paused, or AttemptsExhausted."""
    if run.terminal:
        raise AlreadyTerminal(f"the run is {run.status}", current=run.facts())
    if run.status == Status.PAUSED:
        raise Paused("the run is paused", current=run.facts())
    if run.attempt >= run.max_attempts:
        raise AttemptsExhausted(
            f"the run was started {run.attempt} times, which is its max_attempts",
            current=run.facts(),
            attempts=run.attempt,
        )


def check_free(lease: LeaseRow, owner: str, now: datetime) -> None:
    """Raises LeaseHeld while the unit is held, or while `owner` is kept off it."""
    if lease.live(now):
        raise LeaseHeld(
            f"{lease.owner} holds {lease.unit}",
            current=lease.facts(now),
            owner=lease.owner,
            expires_in_ms=lease.expires_in_ms(now),
            retry_after_ms=lease.expires_in_ms(now),
        )
    until = lease.hold_off_until
    if until is not None and now < until and _same_worker(lease.hold_off_owner, owner):
        wait_ms = (until - now) // timedelta(milliseconds=1) + 1
        raise LeaseHeld(
            f"{owner} is kept off {lease.unit} by an operator",
            current=lease.facts(now),
            owner=None,
            expires_in_ms=wait_ms,
            retry_after_ms=wait_ms,
        )


def _same_worker(kept_off: str | None, owner: str) -> bool:
    # A restarted process has another random part; the operator meant the worker.
    return kept_off is not None and kept_off.split("~")[0] == owner.split("~")[0]


def acquire(
    lease: LeaseRow, ask: AcquireLease, *, token: int, by: Caller, now: datetime
) -> tuple[LeaseRow, TermRow]:
    """Give a free unit to `ask.owner` for `ask.ttl_seconds` from `now`, under a new token.

    The term starts at `now`, or where the one before ended if the clock was set back: terms of a
    unit never overlap. Raises LeaseHeld.
    """
    check_free(lease, ask.owner, now)
    ended_at = lease.term_ended_at
    starts_at = now if ended_at is None else max(now, ended_at)
    held = replace(
        lease,
        owner=ask.owner,
        holder=by.principal,
        token=token,
        ttl_seconds=ask.ttl_seconds,
        acquired_at=starts_at,
        renewed_at=now,
        expires_at=now + timedelta(seconds=ask.ttl_seconds),
        renewals=0,
        hold_off_owner=None,
        hold_off_until=None,
        signals=inherited_signals(lease),
    )
    term = TermRow(
        token=token,
        unit=lease.unit,
        run_id=lease.run_id,
        owner=ask.owner,
        holder=by.principal,
        starts_at=starts_at,
    )
    return held, term


def renew(
    lease: LeaseRow | None, term: TermRow | None, ask: RenewLease, *, by: Caller, now: datetime
) -> LeaseRow:
    """Give the holder `ask.ttl_seconds` more from `now`; never adds to what is left.

    now: the database's clock, read after the row was locked.
    Refuses LeaseLost when the token has been superseded or the time is up, even if nobody took
    the unit since: only a new acquire, with a higher token, may start again.
    """
    held = check_holder(lease, term, ask.unit, ask.token, by=by, now=now)
    if not held.live(now):
        raise LeaseLost(
            "the lease ran out before it was renewed", current=held.facts(now), reason="expired"
        )
    return replace(
        held,
        ttl_seconds=ask.ttl_seconds,
        renewed_at=now,
        expires_at=now + timedelta(seconds=ask.ttl_seconds),
        renewals=held.renewals + 1,
        progress=ask.progress.text if ask.progress else held.progress,
    )


def check_holder(
    lease: LeaseRow | None,
    term: TermRow | None,
    unit: str,
    token: int,
    *,
    by: Caller,
    now: datetime,
) -> LeaseRow:
    """The lease, if `token` is its current one and was given to this caller; else LeaseLost.

    term: what is known of the token, so that the refusal can say how it ended.
    """
    if lease is not None and lease.token == token and lease.holder == by.principal:
        return lease
    reason, detail = _why_lost(lease, term, unit, token)
    facts = lease.facts(now) if lease else {"unit": unit, "owner": None}
    ended_by = term.ended_by if term and reason == "reclaimed" else None
    why = term.reason if term and reason == "reclaimed" else None
    raise LeaseLost(detail, current=facts, reason=reason, by=ended_by, why=why)


def _why_lost(
    lease: LeaseRow | None, term: TermRow | None, unit: str, token: int
) -> tuple[str, str]:
    if term is None or term.unit != unit or (lease is not None and lease.token == token):
        return "unknown", f"token {token} was never given to this caller for {unit}"
    if term.ended == "reclaimed":
        return "reclaimed", f"reclaimed by {term.ended_by}: {term.reason}"
    if term.ended in ("released", "run-terminal"):
        return term.ended, f"the lease under token {token} ended: {term.ended}"
    owner = lease.owner if lease else None
    return "taken", f"the lease ran out and {owner or 'another worker'} took {unit}"


def close(
    lease: LeaseRow,
    term: TermRow,
    ended: str,
    *,
    now: datetime,
    ended_by: str | None = None,
    reason: str | None = None,
) -> tuple[LeaseRow, TermRow]:
    """End the current term: the unit is free. A lapsed lease ended when it ran out.

    ended: lapsed, released, reclaimed or run-terminal. A term lasts at least a microsecond.
    """
    expires_at = lease.expires_at or now
    ends_at = max(min(now, expires_at), term.starts_at + SHORTEST_TERM)
    closed = replace(
        term,
        ends_at=ends_at,
        renewals=lease.renewals,
        ended=ended,
        ended_by=ended_by,
        reason=reason,
    )
    free = replace(
        lease, owner=None, holder=None, token=None, expires_at=None, term_ended_at=ends_at
    )
    return free, closed


def check_reclaim(
    lease: LeaseRow | None, ask: ReclaimLease, *, by: Caller, now: datetime
) -> LeaseRow:
    """The lease, if it is what the operator saw and may be taken.

    Raises HolderChanged, LeaseHeld (live, without force), NotAllowed (force needs override).
    """
    by.need("operate")
    lease = check_seen(
        lease, unit=ask.unit, owner=ask.expected_owner, token=ask.expected_token, now=now
    )
    if lease.live(now):
        if not ask.force:
            raise LeaseHeld(
                f"{lease.owner} still renews: taking a live lease needs force",
                current=lease.facts(now),
                owner=lease.owner,
                expires_in_ms=lease.expires_in_ms(now),
                retry_after_ms=lease.expires_in_ms(now),
            )
        by.need("override")
    return lease


def check_seen(
    lease: LeaseRow | None, *, unit: str, owner: str, token: int, now: datetime
) -> LeaseRow:
    """The lease, if it is with the holder that somebody saw. Raises HolderChanged."""
    if lease is not None and (lease.token, lease.owner) == (token, owner):
        return lease
    facts = lease.facts(now) if lease else {"unit": unit, "owner": None, "token": None}
    saw, holder = f"you saw {owner} with token {token}", facts["owner"]
    is_so = f"{holder} holds it with token {facts['token']}" if holder else "it is free"
    raise HolderChanged(f"{saw}; now {is_so}", current=facts)


def check_seen_holder(
    lease: LeaseRow, expected_token: int | Unseen | None, *, now: datetime
) -> None:
    """Raises HolderChanged unless the unit is with whom the operator saw; None: with nobody."""
    if expected_token is UNSEEN or expected_token == lease.token:
        return
    saw = f"you saw token {expected_token}" if expected_token else "you saw that nobody holds it"
    is_so = f"{lease.owner} holds it with token {lease.token}" if lease.token else "it is free"
    raise HolderChanged(f"{saw}; now {is_so}", current=lease.facts(now))


def hold_off(lease: LeaseRow, owner: str | None, *, seconds: int, now: datetime) -> LeaseRow:
    """Keep the worker that was just put off the unit from coming back for `seconds`."""
    return replace(lease, hold_off_owner=owner, hold_off_until=now + timedelta(seconds=seconds))


def with_signal(lease: LeaseRow, said: Mapping[str, Any]) -> LeaseRow:
    """One of each signal; a resume takes a pause back, and a pause a resume."""
    opposite = {"pause": "resume", "resume": "pause"}.get(said["signal"])
    kept = [one for one in _signals(lease) if one["signal"] not in (said["signal"], opposite)]
    return replace(lease, signals=write([*kept, said]))


def inherited_signals(lease: LeaseRow) -> str | None:
    """What the next holder is told as well: a drain was meant for the worker, not for the run."""
    kept = [one for one in _signals(lease) if one["signal"] in ("cancel", "pause")]
    return write(kept) if kept else None


def _signals(lease: LeaseRow) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lease.signals or "[]")
    return found
