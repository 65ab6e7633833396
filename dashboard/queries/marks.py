"""A run's events as its timeline draws them: so many at most, however long the run is."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from agentstate.caching import copies
from agentstate.store.models import Run

MARKS_EXACT = 2_000
MARKS_SAMPLED = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Events of one token that are drawn as one: `count` from `first_seq` on."""

    at: datetime
    token: int | None
    origin: str
    type: str
    first_seq: int
    count: int


# Exact for a run of ordinary length. Of a long one every n-th event stands for those after it: as
# many look-ups as can be told apart on screen, however long the run is. LATERAL with its LIMIT, or
# the planner, who does not know how short the series is, reads all of the run.
MARKS = """
SELECT at, token, origin, type, seq, 1 FROM agentstate_event
WHERE run_id = %(run)s AND seq BETWEEN %(first)s AND %(last)s ORDER BY seq
"""
SAMPLED_MARKS = """
SELECT at, token, origin, type, event.seq, least(%(step)s, %(last)s - event.seq + 1)
FROM generate_series(%(first)s, %(last)s, %(step)s) AS sample (seq)
CROSS JOIN LATERAL (
    SELECT * FROM agentstate_event WHERE run_id = %(run)s AND seq = sample.seq LIMIT 1) AS event
ORDER BY event.seq
"""


def read_marks(run: Run, *, past: bool = False) -> list[Mark]:
    """The events of a run for its timeline, at most two thousand marks however long it is.

    past: the run is as it was after some event, which need not be the last one of its version:
    then no copy is read, and none is made.
    """
    if past:
        return _marks_of(_read_marks(run, first=1, last=run.last_seq))
    return copies.of_run(
        "marks",
        run.id,
        run.version,
        fill=lambda: _read_marks(run, first=1, last=run.last_seq),
        read=_marks_of,
    )


def read_marks_between(
    run: Run, start: datetime, end: datetime, *, past: bool = False
) -> list[Mark]:
    """The same of a part of its time, as finely as that many marks allow.

    Where the part begins and ends in a long run is told by the marks of all of it: they are as
    dense as there are events, and an event's time is not indexed.
    """
    marks = read_marks(run, past=past)
    if run.last_seq <= MARKS_EXACT:
        return [mark for mark in marks if start <= mark.at <= end]
    times = [mark.at for mark in marks]
    before = marks[max(0, bisect.bisect_left(times, start) - 1)]
    place = bisect.bisect_right(times, end)
    last = marks[place].first_seq if place < len(marks) else run.last_seq
    found = _marks_of(_read_marks(run, first=before.first_seq, last=last))
    return [mark for mark in found if start <= mark.at <= end]


def _marks_of(rows: list[list[Any]]) -> list[Mark]:
    return [
        Mark(
            at=datetime.fromisoformat(at),
            token=token,
            origin=origin,
            type=type_,
            first_seq=seq,
            count=count,
        )
        for at, token, origin, type_, seq, count in rows
    ]


def _read_marks(run: Run, *, first: int, last: int) -> list[list[Any]]:
    count = last - first + 1
    step = -(-count // MARKS_SAMPLED)
    facts: dict[str, Any] = {"run": run.id, "first": first, "last": last, "step": step}
    with connection.cursor() as cursor:
        cursor.execute(MARKS if count <= MARKS_EXACT else SAMPLED_MARKS, facts)
        return [[at.isoformat(), *rest] for at, *rest in cursor.fetchall()]
