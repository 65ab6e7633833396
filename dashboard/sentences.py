"""What stands about a run or a unit in one sentence: what is going on, and what it waits for."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from django.utils.text import Truncator

from agentstate.store import alerting
from agentstate.store.models import Lease, Run
from agentstate.store.states import TERMINAL, Status
from dashboard.families import BY_NAME
from dashboard.queries.contention import Contention
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
    return f"It has waited {duration(now - run.created_at)} for its first worker."


# --- contention ----------------------------------------------------------------------------------

# From this share on, one run, worker or column is the cause; below it none is named as such.
MOST_PART = 0.5


def contention(found: Contention, said: str) -> str:
    """What is going on, and whether one run, worker or column has most of it."""
    total = found.total
    if not total.writes:
        return f"Nothing was written in {said}."
    parts = [_conflicts(found, said)]
    if total.fenced:
        parts.append(_fenced(found))
    if rest := total.refused - found.contested:
        parts.append(_refused_otherwise(found, rest))
    return " ".join(parts)


def _conflicts(found: Contention, said: str) -> str:
    total = found.total
    if not total.conflicts:
        return f"No conflict in {said} ({number(total.writes)} writes)."
    met = _plural(total.conflicts, "write", "writes")
    share = f"{100 * total.conflicts / total.writes:.1f} %"
    told = f"{met} of {number(total.writes)} met another writer first in {said} ({share})."
    if total.gave_up:
        told += f" {_plural(total.gave_up, 'change was', 'changes were')} given up."
    return f"{told} {_cause(found)}"


def _cause(found: Contention) -> str:
    """Who and what has most of the conflicts; or that nothing has."""
    named: list[str] = []
    most: list[str] = []
    for rows, whole, words in (
        (found.runs, found.total.conflicts, "are on {}"),
        (found.columns, found.columns_of, "are about {}"),
        (found.workers, found.total.conflicts, "come from {}"),
    ):
        row = max(rows, key=lambda one: one.conflicts, default=None)
        if row is None or not whole or not row.conflicts:
            continue
        told = f"{100 * row.conflicts // whole} % {words.format(row.name)}"
        (named if row.conflicts >= MOST_PART * whole else most).append(told)
    if named:
        return f"Of these, {_listed(named)}."
    if most:
        return f"No single cause stands out: at most {_listed(most)}."
    return "Whose they are is not known."


def _fenced(found: Contention) -> str:
    count = found.total.fenced
    told = f"{_plural(count, 'call', 'calls')} of overtaken workers {_was(count)} fenced off"
    row = max(found.workers, key=lambda one: one.families.get("fenced", 0), default=None)
    theirs = row.families.get("fenced", 0) if row else 0
    if row is None or theirs < MOST_PART * count:
        return f"{told}, of no one worker more than half."
    part = "all" if theirs == count else f"{100 * theirs // count} %"
    return f"{told}, {part} from {row.name}."


def _refused_otherwise(found: Contention, rest: int) -> str:
    names = {"held": "held by somebody else", "budget": "over budget", "other": "for other reasons"}
    parts = [f"{number(n)} {names[f]}" for f, n in found.families.items() if f in names and n]
    return f"{number(rest)} more {_was(rest)} refused: {_listed(parts)}."


def cure_of_contention(found: Contention) -> str:
    """What usually helps against what there is most of; nothing where nothing stands out."""
    if not found.contested:
        return ""
    if found.total.fenced > found.total.conflicts:
        return BY_NAME["fenced"].cure
    row = max(found.columns, key=lambda one: one.conflicts, default=None)
    if row is None or row.conflicts < MOST_PART * found.columns_of:
        return "Begin with the darkest row of the map below, and with what is on top of each list."
    return cure_of(row.name)


def cure_of(column: str) -> str:
    """What usually helps where writers meet on this column."""
    if column.startswith("counters."):
        return f"Make {column} an add: adds never conflict."
    if column.startswith(("attrs", "notes", "tags")):
        return f"Expect {column} alone instead of the whole version, or let one worker write it."
    return BY_NAME["conflict"].cure


def _plural(count: int, one: str, many: str) -> str:
    return f"{number(count)} {one if count == 1 else many}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
