"""The feed: every change of every run in one order, from one mover, and the hint that it moved;
and what its readers ask for.

A writer leaves an outbox row in its own transaction. Whoever gets the mover's lock takes all rows
that are visible and gives them the next positions. A run's next append cannot begin before the one
before it has committed, so any snapshot sees a prefix of every run: nothing is skipped, and no run
goes back. NOTIFY is sent afterwards, in a transaction of its own: inside a writer's it would
serialise all commits (store.md, 3.3 and 3.4).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connection, transaction

from agentstate.store import backlog, minutes
from agentstate.store.errors import CursorExpired, Invalid, NotFound
from agentstate.store.schema.releases import has_restores, without_restores
from agentstate.store.upkeep import FrequentBeat

CHANNEL = "agentstate"
ADVISORY_LOCK = 7207
ROWS_PER_PASS = 5_000
HINT_BYTES_MAX = 7_000
SHORTEST_PAUSE_SECONDS = 0.05
# What one read looks at when it searches for types: enough to get on, little enough to be quick.
ROWS_PER_SEARCH = 2_000

MOVE = """
WITH taken AS (
    DELETE FROM agentstate_outbox WHERE gid IN (
        SELECT gid FROM agentstate_outbox ORDER BY gid LIMIT %(limit)s)
    RETURNING *
), head AS (
    INSERT INTO agentstate_feedhead AS h (id, position, moved_at)
    SELECT 1, count(*), agentstate_now() FROM taken HAVING count(*) > 0
    ON CONFLICT (id) DO UPDATE SET position = h.position + excluded.position,
        moved_at = excluded.moved_at
    RETURNING position
), moved AS (
    INSERT INTO agentstate_feed
        (position, run_id, run_key, first_seq, last_seq, version, types, at)
    SELECT (SELECT position FROM head) - (SELECT count(*) FROM taken)
            + row_number() OVER (ORDER BY gid),
        run_id, run_key, first_seq, last_seq, version, types, at
    FROM taken ORDER BY gid
    RETURNING position, run_key, last_seq, types
)
SELECT max(position), json_object_agg(run_key, last_seq ORDER BY position), array(
    SELECT DISTINCT kind FROM moved, unnest(types) AS t, split_part(t, '.', 1) AS kind
    WHERE kind IN ('run', 'lease') ORDER BY kind)
FROM moved
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """The last position that was given, and the runs that moved with their last numbers.

    kinds: `run` when an event like run.created was among them, `lease` for one like lease.lapsed.
    """

    position: int
    runs: dict[str, int]
    kinds: tuple[str, ...] = ()


def move(*, limit: int = ROWS_PER_PASS) -> Moved | None:
    """Move what waits in the outbox to the feed, and hint at it. None: nothing, or not our turn.

    Once a second from Celery as a backstop, at once from the mover thread of a web process.
    Twice, late or never is safe: the rows stay in the outbox, in order.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        if not cursor.fetchone()[0]:
            return None
        cursor.execute(MOVE, {"limit": limit})
        position, runs, kinds = cursor.fetchone()
    if position is None:
        return None
    runs = json.loads(runs) if isinstance(runs, str) else runs
    moved = Moved(position, runs, tuple(kinds))
    hint(moved)
    return moved


def hint(moved: Moved) -> None:
    """Tell whoever listens; a lost hint only delays, because pages poll behind it."""
    short = {"position": moved.position, "kinds": moved.kinds}
    payload = json.dumps(short | {"runs": moved.runs})
    if len(payload.encode()) > HINT_BYTES_MAX:
        payload = json.dumps(short)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


class Mover:
    """A thread that moves the feed soon after this process has written something.

    It sleeps until it is nudged: an idle system costs nothing. At most one pass per 50 ms.
    """

    def __init__(self) -> None:
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._beat = FrequentBeat("move feed")

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def nudge(self) -> None:
        self._nudged.set()

    def start(self) -> None:
        """Begin, once per process; a web process does so when it starts."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stopping.clear()
                self._thread = threading.Thread(target=self._run, name="feed-mover", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._nudged.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # With something counted and not written, it looks again when a second is over.
            self._nudged.wait(minutes.PAUSE_SECONDS if minutes.TALLY.waiting else None)
            if self._nudged.is_set():
                self._nudged.clear()
                began = time.monotonic()
                self._pass()
                self._stopping.wait(max(0.0, SHORTEST_PAUSE_SECONDS - (time.monotonic() - began)))
            if minutes.TALLY.due or self._stopping.is_set():
                minutes.TALLY.write()
        connection.close()

    def _pass(self) -> None:
        try:
            moved = move()
            self._beat.note(len(moved.runs) if moved else 0, behind=backlog.unmoved)
        except DatabaseError as lost:
            # The rows are safe in the outbox; Celery's backstop or the next nudge takes them.
            log.warning("the feed did not move: %s", str(lost).strip().splitlines()[0])
            connection.close()


MOVER = Mover()


# --- for readers ---------------------------------------------------------------------------------

# One snapshot for all of it. A row of the feed is all that one batch wrote for a run, so no page
# can split it. Rows of runs that are past their retention, or gone, are passed over.
READ = """
WITH bounds AS (
    SELECT coalesce((SELECT position FROM agentstate_feedhead WHERE id = 1), 0) AS latest,
        (SELECT min(position) FROM agentstate_feed) AS earliest,
        (SELECT max(feed_begins) FROM agentstate_restore r
            WHERE feed_after < %(after)s AND %(after)s < feed_begins) AS begins_anew
), scanned AS MATERIALIZED (
    SELECT * FROM agentstate_feed WHERE position > %(after)s ORDER BY position LIMIT %(rows)s
), found AS (
    SELECT f.* FROM scanned f JOIN agentstate_run r ON r.id = f.run_id
    WHERE (r.expires_at IS NULL OR r.expires_at > agentstate_now() OR r.hold)
        AND (NOT %(chosen)s OR f.types && %(types)s::text[] OR EXISTS (
            SELECT FROM unnest(f.types) AS t, unnest(%(prefixes)s::text[]) AS p
            WHERE starts_with(t, p)))
    ORDER BY f.position LIMIT %(limit)s
)
SELECT b.latest, b.earliest, b.begins_anew, (SELECT max(position) FROM scanned),
    f.position, f.run_key, f.first_seq, f.last_seq, f.version, f.types, f.at
FROM bounds b LEFT JOIN found f ON true ORDER BY f.position
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one batch wrote for a run: events `first_seq` to `last_seq`, of these types."""

    position: int
    run: str
    first_seq: int
    last_seq: int
    version: int
    types: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPage:
    """position: where to go on from, also when nothing was found. latest: the feed's last one."""

    items: tuple[Change, ...]
    position: int
    latest: int


def read(*, after: int, types: Sequence[str] = (), limit: int) -> FeedPage:
    """Up to `limit` changes behind the position `after`, in the feed's order.

    types: only changes with an event of one of these types; `run.*` stands for all that begin with
    `run.`. A read looks at a bounded number of rows: go on from `position` until it is `latest`.
    Raises CursorExpired (earliest, latest) when what follows `after` is no longer kept, or `after`
    is of before a restore and what was there is gone; Invalid when the feed has not come so far.
    """
    rows = _rows(_known(READ), _wanted(after, types, limit))
    latest, earliest, begins_anew, scanned = rows[0][:4]
    _check_not_left_out(after, latest, begins_anew)
    _check_kept(after, latest, earliest)
    items = tuple(_change(row[4:]) for row in rows if row[4] is not None)
    full = len(items) == limit
    position = items[-1].position if full else max(after, scanned or 0)
    return FeedPage(items=items, position=position, latest=latest)


def _wanted(after: int, types: Sequence[str], limit: int) -> dict[str, Any]:
    return {
        "after": after,
        "chosen": bool(types),
        "types": [name for name in types if not name.endswith("*")],
        "prefixes": [name.removesuffix("*") for name in types if name.endswith("*")],
        "rows": max(ROWS_PER_SEARCH, limit) if types else limit,
        "limit": limit,
    }


# Restores are few and never change, so a look without a lock may refuse.
LEFT_OUT = """
SELECT coalesce((SELECT position FROM agentstate_feedhead WHERE id = 1), 0), max(feed_begins)
FROM agentstate_restore r WHERE feed_after < %(after)s AND %(after)s < feed_begins
"""


def check_position(position: int) -> None:
    """Raises CursorExpired for a position that was given out before a restore, and is gone."""
    latest, begins_anew = _rows(_known(LEFT_OUT), {"after": position})[0]
    _check_not_left_out(position, latest, begins_anew)


def _check_not_left_out(after: int, latest: int, begins_anew: int | None) -> None:
    if begins_anew is not None:
        raise CursorExpired(
            f"the store was restored from a backup made before the position {after}: what you read"
            f" last may never have happened. Read anew; the feed goes on behind {begins_anew}",
            earliest=begins_anew + 1,
            latest=latest,
        )


def _check_kept(after: int, latest: int, earliest: int | None) -> None:
    first_kept = latest + 1 if earliest is None else earliest
    if after > latest:
        # Whoever waited there would miss everything up to it.
        raise Invalid("after", f"at most {latest}, the feed's last position", latest=latest)
    if after + 1 < first_kept:
        raise CursorExpired(
            f"what follows {after} is no longer kept; the feed begins at {first_kept}",
            earliest=first_kept,
            latest=latest,
        )


def _change(row: Sequence[Any]) -> Change:
    position, run, first_seq, last_seq, version, types, at = row
    return Change(
        position=position,
        run=run,
        first_seq=first_seq,
        last_seq=last_seq,
        version=version,
        types=tuple(types),
        at=at,
    )


# --- consumers -----------------------------------------------------------------------------------

_CONSUMERS = """
SELECT c.name, c.position, c.principal, c.at, agentstate_feed_lag(c.position, h.latest),
    coalesce(extract(epoch FROM agentstate_now() - (
        SELECT f.at FROM agentstate_feed f WHERE f.position > c.position ORDER BY f.position LIMIT 1
    )), 0)::double precision,
    c.position + 1 < coalesce((SELECT min(position) FROM agentstate_feed), h.latest + 1)
        OR EXISTS (SELECT FROM agentstate_restore r
            WHERE r.feed_after < c.position AND c.position < r.feed_begins)
FROM agentstate_feedconsumer c,
    (SELECT coalesce(max(position), 0) AS latest FROM agentstate_feedhead) AS h
"""
CONSUMERS = f"{_CONSUMERS} WHERE c.name > %(after)s ORDER BY c.name LIMIT %(limit)s"
CONSUMER = f"{_CONSUMERS} WHERE c.name = %(name)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """How far somebody has read. lag: positions behind the last one; lag_seconds: the age of the
    first change that is not read. expired: what follows is no longer kept. principal: who said so
    last, at `at`.
    """

    name: str
    position: int
    principal: str
    at: datetime
    lag: int
    lag_seconds: float
    expired: bool


def consumers(*, after: str = "", limit: int) -> tuple[Consumer, ...]:
    """Consumers by name, those behind the name `after`."""
    return tuple(
        _consumer(row) for row in _rows(_known(CONSUMERS), {"after": after, "limit": limit})
    )


def consumer(name: str) -> Consumer:
    """One consumer. Raises NotFound for one that has never said where it is."""
    rows = _rows(_known(CONSUMER), {"name": name})
    if not rows:
        raise NotFound(f"no consumer {name}", consumer=name)
    return _consumer(rows[0])


def _consumer(row: Sequence[Any]) -> Consumer:
    name, position, principal, at, lag, lag_seconds, expired = row
    return Consumer(
        name=name,
        position=position,
        principal=principal,
        at=at,
        lag=lag,
        # A database's clock that was set back.
        lag_seconds=max(0.0, lag_seconds),
        expired=expired,
    )


def _known(statement: str) -> str:
    """On the schema of the release before, which knows of no restore: without what asks for one."""
    return statement if has_restores() else without_restores(statement)


def _rows(statement: str, params: dict[str, Any]) -> list[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())
