"""Places in the list of runs, and how far a search goes at a time (agentstate/store/search.py)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from agentstate.store.filters import Filter
from agentstate.store.models import Run
from agentstate.store.search import edge, side
from dashboard import cursors

SALT = "runs"


def place(run: Run) -> str:
    return cursors.write(run.created_at, run.id.hex, salt=SALT)


def beyond(cursor: str, *, newer: bool, inclusive: bool = False) -> Q:
    """Runs on one side of a place. Raises cursors.BadCursor."""
    at, tie = cursors.read(cursor, salt=SALT)
    try:
        return side(at, UUID(tie), newer=newer, inclusive=inclusive)
    except ValueError:
        raise cursors.BadCursor from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a search went: to the run that was created `at`, whose place this is."""

    at: datetime
    place: str


def reach(
    wanted: Filter, *, now: datetime, start: Q, newer: bool = False, runs: int = 0
) -> Reach | None:
    """Where a dear search from `start` on stops for now; None: it can go to the end of the list."""
    last = edge(wanted, now=now, start=start, newer=newer, runs=runs)
    return Reach(at=last.created_at, place=place(last)) if last else None
