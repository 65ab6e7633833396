"""What stands about a run or a unit in one sentence: what is going on, and what it waits for."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from django.utils.text import Truncator

from agentstate.store import alerting
from agentstate.store.models import Lease, Run
from agentstate.store.states import TERMINAL, Status
from dashboard.queries.story import is_live
from dashboard.templatetags.console import duration, number

LATE_PART = alerting.LATE_PART
WHY_CHARS = 120


def lease_state(lease: Lease | None, now: datetime) -> str:
    """`free`, `lapsed`, `late` or `live`; `held` of a past one whose end is not known any more."""
    if lease is None or lease.token is None:
        return "free"
    if lease.expires_at is None:
        return "held"
    if not is_live(lease, now):
        return "lapsed"
    return "late" if since_renewal_seconds(lease, now) > LATE_PART * lease.ttl_seconds else "live"


def since_renewal_seconds(lease: Lease, now: datetime) -> float:
    at = lease.renewed_at or lease.acquired_at
    return max(0.0, (now - at).total_seconds()) if at else 0.0


def waiting_for(run: Run, lease: Lease | None, now: datetime) -> str:
    """Why a run moves or does not, told to somebody who was just woken up."""
    if run.status in TERMINAL:
        return _ended(run)
    if run.status not in set(Status):
        return f"A newer release gave it the status “{run.status}”, which this one does not know."
    if run.status == Status.PAUSED:
        return "Paused: no worker can take it until somebody resumes it."
    state = lease_state(lease, now)
    if lease is not None and state != "free":
        return _held(lease, state, now)
    return _free(run, lease, now)


def _ended(run: Run) -> str:
    span = (run.ended_at or run.updated_at) - run.created_at
    took = duration(span) if span >= timedelta(seconds=1) else "less than a second"
    why = _why(run.result) if run.status == Status.FAILED else None
    told = f"It {_ENDINGS[run.status]} after {took}, with {number(run.last_seq)} events"
    return f"{told}: {why}" if why else f"{told}."


def _why(result: str | None) -> str | None:
    """What a failed run's result gives as its reason, if it says so in the usual words."""
    try:
        said = json.loads(result) if result else None
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    found = next((said[name] for name in ("reason", "error", "code") if name in said), None)
    return Truncator(found).chars(WHY_CHARS) if isinstance(found, str) else None


_ENDINGS = {
    str(Status.COMPLETED): "was completed",
    str(Status.FAILED): "failed",
    str(Status.CANCELLED): "was cancelled",
}


def _held(lease: Lease, state: str, now: datetime) -> str:
    if state == "held":
        return f"{lease.owner} held it; when it had last renewed then is not kept."
    quiet = duration(since_renewal_seconds(lease, now))
    if state == "live":
        return f"{lease.owner} holds it and was last heard of {quiet} ago."
    if state == "late":
        return (
            f"{lease.owner} holds it but is late: silent for {quiet} of a lease of"
            f" {duration(lease.ttl_seconds)}."
        )
    ago = duration(now - lease.expires_at) if lease.expires_at else "a while"
    return (
        f"{lease.owner} let its lease run out {ago} ago and nobody has taken the unit since."
        " The next worker that asks gets it."
    )


def _free(run: Run, lease: Lease | None, now: datetime) -> str:
    if run.attempt >= run.max_attempts:
        return f"All {run.max_attempts} attempts are used up: no worker gets it any more."
    if lease is not None and lease.hold_off_until is not None and now < lease.hold_off_until:
        left = duration(lease.hold_off_until - now)
        return f"Free for anybody but {lease.hold_off_owner}, who is kept off for {left} more."
    if lease is not None and lease.term_ended_at is not None:
        return (
            f"Nobody has held it for {duration(now - lease.term_ended_at)}. It waits for a worker."
        )
    if run.status == Status.RUNNING and run.last_token is None:  # as what came as a trace
        quiet = duration(now - run.updated_at)
        return f"It runs without a lease: no worker is given it. Last written to {quiet} ago."
    return f"It has waited {duration(now - run.created_at)} for its first worker."
