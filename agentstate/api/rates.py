"""Conflict and retry rates of a window."""

from __future__ import annotations

from math import isfinite
from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from agentstate.api import fields
from agentstate.api.access import READ, WorkerRequest
from agentstate.api.contract import contract
from agentstate.api.replies import reply
from agentstate.api.schemas import Told
from agentstate.store import rates
from agentstate.store.minutes import LATENCY_MS
from agentstate.store.rates import BY, Figures, Group

router = Router(tags=["rates"])


class RatesWanted(BaseModel):
    """Which window and what of it: since and until are widened to whole minutes; without them the
    last hour. by: what to group by, repeated for several.
    """

    since: fields.Moment | None = None
    until: fields.Moment | None = None
    by: list[fields.Grouping] = Field([], max_length=len(BY))
    run: fields.RunKey | None = None
    operation: fields.Operation | None = None
    worker: fields.Worker | None = None
    outcome: fields.OutcomeCode | None = None
    limit: fields.GroupsLimit = 100


class LatencyTold(Told):
    """In milliseconds within the store. A percentile is the least of `bounds_ms` under which that
    share of the writes took; null: more than the last bound, or no write at all. counts: of writes
    up to each bound, and of those above the last one.
    """

    mean_ms: float | None
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    bounds_ms: list[int]
    counts: list[int]


class FiguresTold(Told):
    """docs/rates.md defines each. attempts: writes that were a 1st, 2nd, 3rd, 4th, later try."""

    writes: int
    accepted: int
    refused: int
    failed: int
    conflicts: int
    conflict_ratio: float | None
    fenced: int
    retries: int
    retries_per_success: float | None
    gave_up: int
    attempts: list[int]
    events: int
    added_ms: int
    added_ms_per_success: float | None
    latency: LatencyTold


class GroupTold(FiguresTold):
    """Only what was grouped by is there; null: of no run, or of a worker that is not known."""

    minute: fields.Moment | None = None
    run: str | None = None
    operation: str | None = None
    worker: str | None = None
    outcome: str | None = None


class RatesTold(Told):
    """since is included, until is not. more: there are groups beyond the limit."""

    since: fields.Moment
    until: fields.Moment
    by: list[fields.Grouping]
    total: FiguresTold
    items: list[GroupTold]
    more: bool
    as_of: fields.Moment


@router.get("", **contract("read_rates", answers=RatesTold, access=READ))
def read_rates(request: WorkerRequest, wanted: Query[RatesWanted]) -> HttpResponse:
    """How often writes conflict, are retried, given up and fenced, in a window of whole minutes.

    Groups with the most conflicts and fenced calls come first, then those with the most refused,
    then the most written; grouped by minute, the newest minute first. About a second behind.
    """
    found = rates.read(
        since=wanted.since,
        until=wanted.until,
        by=wanted.by,
        runs=() if wanted.run is None else (wanted.run,),
        operation=wanted.operation,
        worker=wanted.worker,
        outcome=wanted.outcome,
        limit=wanted.limit,
    )
    return reply(
        {
            "since": found.since,
            "until": found.until,
            "by": list(found.by),
            "total": figures_members(found.total),
            "items": [group_members(group) for group in found.groups],
            "more": found.more,
            "as_of": found.as_of,
        }
    )


def group_members(group: Group) -> dict[str, Any]:
    return {**group.keys, **figures_members(group.figures)}


def figures_members(found: Figures) -> dict[str, Any]:
    return {
        "writes": found.writes,
        "accepted": found.accepted,
        "refused": found.refused,
        "failed": found.failed,
        "conflicts": found.conflicts,
        "conflict_ratio": _rounded(found.conflict_ratio),
        "fenced": found.fenced,
        "retries": found.retries,
        "retries_per_success": _rounded(found.retries_per_success),
        "gave_up": found.gave_up,
        "attempts": list(found.attempts),
        "events": found.events,
        "added_ms": found.conflict_ms,
        "added_ms_per_success": _rounded(found.added_ms_per_success),
        "latency": {
            "mean_ms": _rounded(found.mean_ms),
            **{f"p{part}_ms": _bound(found.percentile_ms(part / 100)) for part in (50, 95, 99)},
            "bounds_ms": list(LATENCY_MS),
            "counts": list(found.latency),
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _bound(value: float | None) -> int | None:
    return int(value) if value is not None and isfinite(value) else None
