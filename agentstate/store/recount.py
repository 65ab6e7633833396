"""Minutes and collisions counted again from what is kept: events per run, and recorded refusals.

What a killed process had not written is lost from the minutes and never from the log, so the log
tells what they should say. Attempts and latency have no other trace: they are best effort and stay.
The current minute and the one before are left alone, because processes may still be writing them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from agentstate.store import distribution
from agentstate.store.collisions import COUNTED, NAME_CHARS
from agentstate.store.errors import LeaseHeld, RunHot
from agentstate.store.minutes import ATTEMPTS, LATENCY_MS, OK
from agentstate.store.payloads import moment
from agentstate.store.retention import whole_since

ADVISORY_LOCK = 7210
# The operation of events of which only the log knows.
REBUILT = "rebuilt"
# Counted each time, and kept as one row a second (rowsql.INSERT_REFUSALS): rows cannot tell.
ONCE_A_SECOND = (LeaseHeld.code, RunHot.code)

_BOUNDS = """
SELECT date_trunc('minute', %s) + interval '1 minute',
    date_trunc('minute', agentstate_now()) - interval '1 minute'
"""
# Of a run that is past its retention, events and refusals may be gone already.
_KEPT = "(r.expires_at IS NULL OR r.expires_at > agentstate_now() OR r.hold)"
_EVENTS = f"""
WITH told AS (
    SELECT date_trunc('minute', e.at) AS minute, r.key AS run_key, count(*) AS n
    FROM agentstate_event e JOIN agentstate_run r ON r.id = e.run_id
    WHERE e.at >= %(since)s AND e.at < %(until)s AND {_KEPT}
        AND (%(run)s::text IS NULL OR r.key = %(run)s)
    GROUP BY 1, 2
), counted AS (
    SELECT m.minute, m.run_key, sum(m.events) AS n
    FROM agentstate_minute m LEFT JOIN agentstate_run r ON r.key = m.run_key
    WHERE m.minute >= %(since)s AND m.minute < %(until)s AND (m.run_key = '' OR (
            {_KEPT} AND m.minute >= date_trunc('minute', r.created_at)))
        AND (%(run)s::text IS NULL OR m.run_key = %(run)s)
    GROUP BY 1, 2
)
SELECT minute, run_key, coalesce(told.n, 0)::bigint, coalesce(counted.n, 0)::bigint
FROM told FULL JOIN counted USING (minute, run_key)
WHERE coalesce(told.n, 0) <> coalesce(counted.n, 0) ORDER BY 1, 2
"""
_REFUSALS = f"""
WITH told AS (
    SELECT date_trunc('minute', f.at) AS minute, coalesce(r.key, '') AS run_key, f.operation,
        coalesce(f.worker, '') AS worker, f.code AS outcome, count(*) AS n
    FROM agentstate_refusal f LEFT JOIN agentstate_run r ON r.id = f.run_id
    WHERE f.at >= %(since)s AND f.at < %(until)s AND f.code <> ALL(%(once)s)
        AND (f.run_id IS NULL OR (r.id IS NOT NULL AND {_KEPT}))
        AND (%(run)s::text IS NULL OR r.key = %(run)s)
    GROUP BY 1, 2, 3, 4, 5
), counted AS (
    SELECT m.minute, m.run_key, m.operation, m.worker, m.outcome, m.count AS n
    FROM agentstate_minute m LEFT JOIN agentstate_run r ON r.key = m.run_key
    WHERE m.minute >= %(since)s AND m.minute < %(until)s AND m.outcome <> ALL(%(once)s)
        AND m.outcome NOT IN ('{OK}', 'failed') AND (m.run_key = '' OR (
            {_KEPT} AND m.minute >= date_trunc('minute', r.created_at)))
        AND (%(run)s::text IS NULL OR m.run_key = %(run)s)
)
SELECT minute, run_key, coalesce(told.n, 0), coalesce(counted.n, 0), operation, worker, outcome
FROM told FULL JOIN counted USING (minute, run_key, operation, worker, outcome)
WHERE coalesce(told.n, 0) <> coalesce(counted.n, 0) ORDER BY 1, 2, 5, 6, 7
"""
# Refusals of an older release say nothing of whom they met. A minute that had too much to tell
# apart has a row without names, and stays as it is: which of its pairs were counted, nobody knows.
_COLLISIONS = f"""
WITH full_minutes AS (
    SELECT DISTINCT minute FROM agentstate_collision
    WHERE minute >= %(since)s AND minute < %(until)s AND loser = ''
), told AS (
    SELECT date_trunc('minute', f.at) AS minute, coalesce(r.key, '') AS run_key, f.code AS outcome,
        left(coalesce(f.worker, f.actor), {NAME_CHARS}) AS loser, coalesce(f.met, '') AS winner,
        f.about, count(*) AS n
    FROM agentstate_refusal f LEFT JOIN agentstate_run r ON r.id = f.run_id
    WHERE f.at >= %(since)s AND f.at < %(until)s AND f.code = ANY(%(met)s) AND f.about IS NOT NULL
        AND (f.run_id IS NULL OR (r.id IS NOT NULL AND {_KEPT}))
        AND (%(run)s::text IS NULL OR r.key = %(run)s)
    GROUP BY 1, 2, 3, 4, 5, 6
), counted AS (
    SELECT c.minute, c.run_key, c.outcome, c.loser, c.winner, c.about, c.count AS n
    FROM agentstate_collision c LEFT JOIN agentstate_run r ON r.key = c.run_key
    WHERE c.minute >= %(since)s AND c.minute < %(until)s AND c.outcome = ANY(%(met)s)
        AND (c.run_key = '' OR ({_KEPT} AND c.minute >= date_trunc('minute', r.created_at)))
        AND (%(run)s::text IS NULL OR c.run_key = %(run)s)
)
SELECT minute, run_key, coalesce(told.n, 0), coalesce(counted.n, 0), outcome, loser, winner, about
FROM told FULL JOIN counted USING (minute, run_key, outcome, loser, winner, about)
WHERE coalesce(told.n, 0) <> coalesce(counted.n, 0)
    AND minute NOT IN (SELECT minute FROM full_minutes)
ORDER BY 1, 2, 5, 6, 7, 8
"""

_WRONG = """
json_to_recordset(%(wrong)s) AS w (minute timestamptz, run_key text, told bigint, operation text,
    worker text, outcome text, loser text, winner text, about text)
"""
_EMPTY = f"array_fill(0::bigint, ARRAY[{ATTEMPTS}]), array_fill(0::bigint, ARRAY[{{}}])".format(
    len(LATENCY_MS) + 1
)
# Of too many nobody knows which are wrong: all of them go to one row.
_MEND_EVENTS = (
    f"""
DELETE FROM agentstate_minute m USING {_WRONG}
WHERE (m.minute, m.run_key, m.operation) = (w.minute, w.run_key, '{REBUILT}')
""",
    f"""
UPDATE agentstate_minute m SET events = 0 FROM {_WRONG}
WHERE (m.minute, m.run_key) = (w.minute, w.run_key) AND m.events <> 0 AND w.told < (
    SELECT sum(o.events) FROM agentstate_minute o
    WHERE (o.minute, o.run_key) = (w.minute, w.run_key))
""",
    f"""
INSERT INTO agentstate_minute
    (minute, run_key, operation, worker, outcome, count, events, latency_ms, attempts, latency)
SELECT w.minute, w.run_key, '{REBUILT}', '', '{OK}', 0, w.told - o.events, 0, {_EMPTY}
FROM {_WRONG}, LATERAL (SELECT coalesce(sum(m.events), 0) AS events FROM agentstate_minute m
    WHERE (m.minute, m.run_key) = (w.minute, w.run_key)) AS o
WHERE w.told > o.events ORDER BY w.minute, w.run_key
""",
)
_MEND_REFUSALS = (
    f"""
DELETE FROM agentstate_minute m USING {_WRONG}
WHERE w.told = 0 AND (m.minute, m.run_key, m.operation, m.worker, m.outcome) =
    (w.minute, w.run_key, w.operation, w.worker, w.outcome)
""",
    f"""
INSERT INTO agentstate_minute
    (minute, run_key, operation, worker, outcome, count, events, latency_ms, attempts, latency)
SELECT w.minute, w.run_key, w.operation, w.worker, w.outcome, w.told, 0, 0, {_EMPTY}
FROM {_WRONG} WHERE w.told > 0 ORDER BY w.minute, w.run_key, w.operation, w.worker, w.outcome
ON CONFLICT (minute, run_key, operation, worker, outcome) DO UPDATE SET count = excluded.count
""",
)
_PAIR = "(w.minute, w.run_key, w.outcome, w.loser, w.winner, w.about)"
_MEND_COLLISIONS = (
    f"""
DELETE FROM agentstate_collision c USING {_WRONG}
WHERE w.told = 0 AND (c.minute, c.run_key, c.outcome, c.loser, c.winner, c.about) = {_PAIR}
""",
    f"""
INSERT INTO agentstate_collision (minute, run_key, outcome, loser, winner, about, count)
SELECT w.minute, w.run_key, w.outcome, w.loser, w.winner, w.about, w.told
FROM {_WRONG} WHERE w.told > 0 ORDER BY {_PAIR}
ON CONFLICT (minute, run_key, outcome, loser, winner, about) DO UPDATE SET count = excluded.count
""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Miscount:
    """A minute that says something else than what is kept. run: "" for none in particular.

    refusal: its operation, worker and code. pair: of a collision its code, who lost, to whom, and
    about what. what: of which of the three, else events.
    """

    minute: datetime
    run: str
    told: int
    counted: int
    refusal: tuple[str, str, str] | None = None
    pair: tuple[str, str, str, str] | None = None

    @property
    def what(self) -> str:
        if self.pair is not None:
            code, loser, winner, about = self.pair
            return " ".join(filter(None, (loser, code, winner and f"by {winner}", about)))
        return "events" if self.refusal is None else " ".join(filter(None, self.refusal))


def difference(*, run: str | None = None) -> list[Miscount]:
    """Every minute, of one run or of all, whose counts are not those of the events and refusals."""
    with connection.cursor() as cursor:
        return _difference(cursor, run)


def rebuild(*, run: str | None = None) -> int:
    """Count those minutes again; how many were wrong. Twice is once, and writers go on.

    A process that writes a minute's counts later than this adds them a second time: the next
    rebuild finds it.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        wrong = _difference(cursor, run)
        _mend(cursor, _MEND_EVENTS, [w for w in wrong if not w.refusal and not w.pair])
        _mend(cursor, _MEND_REFUSALS, [w for w in wrong if w.refusal is not None])
        _mend(cursor, _MEND_COLLISIONS, [w for w in wrong if w.pair is not None])
    return len(wrong)


def _difference(cursor: Any, run: str | None) -> list[Miscount]:
    # Of what went before its minute, or came after it, nothing can be counted again.
    cursor.execute(_BOUNDS, [whole_since("minutes", "refusals", "collisions")])
    since, until = cursor.fetchone()
    params = {"since": since, "until": until, "run": run, "once": list(ONCE_A_SECOND)}
    params["met"] = sorted(COUNTED - set(ONCE_A_SECOND))
    found: list[Miscount] = []
    for statement in (_EVENTS, _REFUSALS):
        cursor.execute(*distribution.by_one_clock(cursor, statement, params))
        for minute, key, told, counted, *refusal in cursor.fetchall():
            of = (refusal[0], refusal[1], refusal[2]) if refusal else None
            found.append(Miscount(minute=minute, run=key, told=told, counted=counted, refusal=of))
    cursor.execute(_COLLISIONS, params)
    for minute, key, told, counted, *pair in cursor.fetchall():
        met = (pair[0], pair[1], pair[2], pair[3])
        found.append(Miscount(minute=minute, run=key, told=told, counted=counted, pair=met))
    return found


def _mend(cursor: Any, statements: tuple[str, ...], wrong: list[Miscount]) -> None:
    if not wrong:
        return
    rows = [_row(miscount) for miscount in wrong]
    for statement in statements:
        cursor.execute(statement, {"wrong": json.dumps(rows)})


def _row(wrong: Miscount) -> dict[str, Any]:
    operation, worker, outcome = wrong.refusal or ("", "", OK)
    if wrong.pair is not None:
        names = ("outcome", "loser", "winner", "about")
        told = dict(zip(names, wrong.pair, strict=True))
        return told | {"minute": moment(wrong.minute), "run_key": wrong.run, "told": wrong.told}
    return {
        "minute": moment(wrong.minute),
        "run_key": wrong.run,
        "told": wrong.told,
        "operation": operation,
        "worker": worker,
        "outcome": outcome,
    }
