"""A run's events as its timeline draws them: so many at most, however long the run is."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate.caching import copies
from agentstate.store.models import Run
from dashboard.queries import together
from dashboard.queries.together import Read

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


# What this process last drew of a run: events stay as they are, so only those after it are read.
# So many runs are looked at at a time; beyond that some are read anew.
KNOWN_RUNS = 64
TAIL_MAX = 500
_known: OrderedDict[UUID, tuple[int, list[Mark]]] = OrderedDict()
_knowing = threading.Lock()


def know(run: UUID, last_seq: int, marks: list[Mark]) -> None:
    with _knowing:
        _known[run] = (last_seq, marks)
        _known.move_to_end(run)
        while len(_known) > KNOWN_RUNS:
            _known.popitem(last=False)


def tail_reads(run: UUID) -> dict[str, Read[Any]]:
    """The events after those that are known here, to be read together with something else."""
    last_seq, _ = _known.get(run, (0, []))
    asked = {"run": run, "first": last_seq + 1, "last": last_seq + TAIL_MAX}
    return {"marks": together.sql_of(MARKS, asked, columns=6)}


def with_tail(run: Run, tail: list[list[Any]]) -> list[Mark]:
    """The marks of a run with what `tail_reads` found; if that is not all, they are read."""
    last_seq, marks = _known.get(run.id, (0, []))
    fresh = _marks_of([row for row in tail if row[4] > last_seq])
    reached = fresh[-1].first_seq if fresh else last_seq
    has_gap = bool(fresh) and fresh[0].first_seq != last_seq + 1
    # A long run's marks stand for many events each: with too many beside them they are read anew.
    if has_gap or reached != run.last_seq or len(marks) + len(fresh) > MARKS_EXACT + TAIL_MAX:
        marks = read_marks(run)
    else:
        marks = [*marks, *fresh]
    know(run.id, run.last_seq, marks)
    return marks


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
