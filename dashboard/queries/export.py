"""Runs under a filter, or named ones, row by row: read page by page and never held as a whole.

No transaction and no cursor stays open in between: a reader who is slow holds no connection. Runs
that are created meanwhile are newer than where it began, and are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db.models import F, Q

from agentstate.store.filters import Filter
from agentstate.store.payloads import RawJSON
from agentstate.store.search import matching, of_keys
from dashboard.queries.clock import at_most
from dashboard.queries.runs import Line, describe
from dashboard.queries.search import beyond, place, reach

PAGE_ROWS = 500
PAGE_MS = 10_000
# Of which each row may be a megabyte.
PAYLOADS = ("attrs", "result")
PAYLOAD_ROWS = 20


def export(wanted: Filter, *, now: datetime, payloads: bool) -> Iterator[Line]:
    """All runs that a filter without problems lets through, newest first. Raises TooSlow."""
    rows = PAYLOAD_ROWS if payloads else PAGE_ROWS
    start = Q(created_at__lte=now)
    while True:
        with at_most(PAGE_MS):
            stop = reach(wanted, now=now, start=start)
            found = _read(matching(wanted, now=now).filter(start), payloads=payloads)
            if stop is not None:
                found = found.filter(beyond(stop.place, newer=True, inclusive=True))
            runs = list(found.order_by("-created_at", "-id")[:rows])
            lines = describe(runs, now=now)
        yield from lines
        if len(runs) == rows:
            start = beyond(place(runs[-1]), newer=False)
        elif stop is not None:
            start = beyond(stop.place, newer=False)
        else:
            return


def export_keys(keys: Iterable[str], *, now: datetime, payloads: bool) -> Iterator[Line]:
    """These runs, in the order in which they are named; what is hidden or gone is left out."""
    named = list(dict.fromkeys(keys))
    rows = PAYLOAD_ROWS if payloads else PAGE_ROWS
    for first in range(0, len(named), rows):
        some = named[first : first + rows]
        with at_most(PAGE_MS):
            runs = {run.key: run for run in _read(of_keys(some, now=now), payloads=payloads)}
            lines = describe([runs[key] for key in some if key in runs], now=now)
        yield from lines


def _read(runs: Any, *, payloads: bool) -> Any:
    runs = runs.annotate(parent_key=F("parent__key"))
    return runs if payloads else runs.defer(*PAYLOADS)


def facts(line: Line, *, payloads: bool) -> dict[str, Any]:
    """What a row says, by name, in the order of the columns; payloads last, as they were sent."""
    run, lease, budget = line.run, line.lease, line.budget
    told = {
        "key": run.key,
        "task": run.task,
        "status": run.status,
        "version": run.version,
        "events": run.last_seq,
        "attempt": run.attempt,
        "max_attempts": run.max_attempts,
        "tags": list(run.tags),
        "parent": getattr(run, "parent_key", None),
        "holder": lease.owner if lease and line.held else None,
        "token": lease.token if lease and line.held else None,
        "lease": ("live" if line.live else "lapsed") if line.held else "free",
        "lease_expires_at": lease.expires_at if lease and line.held else None,
        "budget": budget.name if budget else None,
        "budget_cap": budget.cap if budget else None,
        "budget_spent": budget.spent if budget else None,
        "budget_reserved": budget.reserved if budget else None,
        "refused": line.refusals,
        "conflicts": line.conflicts,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "ended_at": run.ended_at,
        "deadline_at": run.deadline_at,
        "created_by": run.created_by,
    }
    if payloads:
        told |= {name: _raw(getattr(run, name)) for name in PAYLOADS}
    return told


def _raw(text: str | None) -> RawJSON | None:
    return None if text is None else RawJSON(text)


COLUMNS = (
    "key", "task", "status", "version", "events", "attempt", "max_attempts", "tags", "parent",
    "holder", "token", "lease", "lease_expires_at", "budget", "budget_cap", "budget_spent",
    "budget_reserved", "refused", "conflicts", "created_at", "updated_at", "ended_at",
    "deadline_at", "created_by",
)  # fmt: skip
