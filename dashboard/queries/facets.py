"""What is to be found under a filter: values with their numbers, and what may be typed next."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from agentstate.store.filters import Filter
from agentstate.store.models import Budget, Lease, Run
from agentstate.store.search import matching
from dashboard.queries.clock import at_most
from dashboard.queries.runs import refusals_of
from dashboard.queries.search import beyond, reach

# Counts are of so many: the newest that match. All of them when there are fewer.
SAMPLE_RUNS = 2_000
VALUES_SHOWN = 8
NAMED_RUNS = 500
FACETS_MS = 2_500
SUGGESTIONS_MS = 300
SUGGESTED = 12
BUDGET_SHARES = (50, 80, 95)
CONFLICT_NUMBERS = (0, 10, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """Field → value → how many of the runs that were looked at. sampled: there are more."""

    counts: dict[str, dict[str, int]]
    looked_at: int
    sampled: bool


def read_facets(wanted: Filter, *, now: datetime) -> Facets:
    """Of the newest runs under the filter. Raises TooSlow."""
    with at_most(FACETS_MS):
        runs = _newest(wanted, now=now)
        sampled = len(runs) > SAMPLE_RUNS
        runs = runs[:SAMPLE_RUNS]
        ids = [run.id for run in runs]
        counts = {
            "task": _most(run.task for run in runs),
            "worker": _most(run.owner.split("~")[0] for run in runs if run.owner),
            "tag": _most(tag for run in runs for tag in run.tags),
            "lease": _leases([run.id for run in runs if run.token is not None], now),
            "budget": _budgets(ids),
            "conflicts": _conflicts(ids),
        }
    return Facets(counts=counts, looked_at=len(runs), sampled=sampled)


def _newest(wanted: Filter, *, now: datetime) -> list[Run]:
    found = matching(wanted, now=now)
    stop = reach(wanted, now=now, start=Q())
    if stop is not None:
        found = found.filter(beyond(stop.place, newer=True, inclusive=True))
    read = found.only("id", "task", "owner", "token", "tags")
    return list(read.order_by("-created_at", "-id")[: SAMPLE_RUNS + 1])


def _most(values: Iterable[str]) -> dict[str, int]:
    """The most frequent ones, those first."""
    return dict(Counter(values).most_common(VALUES_SHOWN))


def _leases(held: list[UUID], now: datetime) -> dict[str, int]:
    ends = list(Lease.objects.filter(run__in=held).values_list("expires_at", flat=True))
    lapsed = sum(1 for at in ends if at is not None and at <= now)
    return {"live": len(ends) - lapsed, "lapsed": lapsed}


def _budgets(ids: list[UUID]) -> dict[str, int]:
    fullest: dict[UUID | None, float] = {}
    told = Budget.objects.filter(run__in=ids).values_list("run_id", "spent", "reserved", "cap")
    for run, spent, reserved, cap in told:
        used = (spent + reserved) * 100 / cap if cap else 100.0
        fullest[run] = max(used, fullest.get(run, 0.0))
    return {f">{share}%": sum(used > share for used in fullest.values()) for share in BUDGET_SHARES}


def _conflicts(ids: list[UUID]) -> dict[str, int]:
    numbers = [conflicts for _, conflicts in refusals_of(ids).values()]
    return {f">{least}": sum(n > least for n in numbers) for least in CONFLICT_NUMBERS}


def known_values(field: str, beginning: str) -> list[str]:
    """Values of a field that begin so, among the newest runs and the leases. Raises TooSlow."""
    with at_most(SUGGESTIONS_MS):
        found = _values(field, beginning)
    return [value for value in dict.fromkeys(found) if value][:SUGGESTED]


def _values(field: str, beginning: str) -> list[str]:
    newest = Run.objects.order_by("-created_at", "-id")
    match field:
        case "task":
            return _begin(_most_of(newest, "task"), beginning)
        case "tag":
            tags = newest.values_list("tags", flat=True)[:NAMED_RUNS]
            return _begin([t for t, _ in Counter(t for some in tags for t in some).most_common()],
                          beginning)  # fmt: skip
        case "worker":
            owners = Lease.objects.filter(owner__startswith=beginning).values_list(
                "owner", flat=True
            )
            return sorted({str(owner).split("~")[0] for owner in owners[:NAMED_RUNS]})
        case "key" | "parent":
            keys = Run.objects.filter(key__startswith=beginning, key__istartswith=beginning)
            return list(keys.order_by("key").values_list("key", flat=True)[:SUGGESTED])
        case _:
            return []


def _most_of(runs: Iterable[Run], field: str) -> list[str]:
    values = runs.values_list(field, flat=True)[:NAMED_RUNS]  # type: ignore[attr-defined]
    return [value for value, _ in Counter(values).most_common()]


def _begin(values: Iterable[str], beginning: str) -> list[str]:
    return [value for value in values if value.lower().startswith(beginning.lower())]


def known_attrs(name: str, beginning: str | None) -> list[str]:
    """Names of members of attrs, or one's values, among the newest runs. Raises TooSlow.

    Of attrs that can be read at a glance: a long text is not opened for this.
    """
    with at_most(SUGGESTIONS_MS):
        texts = list(Run.objects.raw(ATTRS, [NAMED_RUNS]))
    members = [json.loads(run.attrs) for run in texts]
    found = [one for one in members if isinstance(one, dict)]
    if beginning is None:
        names = Counter(key for one in found for key in one)
        return _begin([key for key, _ in names.most_common()], name)[:SUGGESTED]
    values = Counter(str(one[name]) for one in found if isinstance(one.get(name), str | int))
    return _begin([value for value, _ in values.most_common()], beginning)[:SUGGESTED]


ATTRS = """
SELECT id, attrs::text AS attrs FROM (
    SELECT id, attrs FROM agentstate_run ORDER BY created_at DESC, id DESC LIMIT %s) AS newest
WHERE pg_column_size(attrs) < 2000
"""
