"""Runs under a filter of the console's language, page by page, for callers of the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from agentstate.store import bulks, reads
from agentstate.store.errors import Invalid
from agentstate.store.filters import Filter
from agentstate.store.reads import Place, RunView

SEARCH_MS = 2_000

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """next: where to go on; None: the search came to its end."""

    items: list[RunView]
    next: Place | None
    now: datetime


def read(wanted: Filter, *, limit: int, place: Place | None = None) -> Searched:
    """The next runs that the filter lets through, newest first; at most `limit`.

    A filter that no index helps looks at some thousand runs: then `items` may be few or none, and
    `next` is where it goes on. Raises Invalid for one that takes too long all the same.
    """
    now = reads.now()
    after = None
    if place is not None:
        after = (_EPOCH + _MICROSECOND * place.key[0], UUID(place.key[1]))
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(SEARCH_MS)])
            stretch = bulks.read_stretch(wanted, at=now, after=after, limit=limit)
            items = reads.runs_by_id([run.id for run in stretch.runs])
    except OperationalError as slow:
        if not isinstance(slow.__cause__, QueryCanceled):
            raise
        rule = f"one that is answered within {SEARCH_MS // 1_000} s: add a status or since:"
        raise Invalid("filter", rule) from None
    return Searched(items=items, next=_place(stretch.next), now=now)


def _place(at: tuple[datetime, UUID] | None) -> Place | None:
    return at and Place(key=((at[0] - _EPOCH) // _MICROSECOND, at[1].hex))
