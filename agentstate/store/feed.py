"""The feed: every change of every run in one order, from one mover, and the hint that it moved.

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
from dataclasses import dataclass

from django.db import DatabaseError, connection, transaction

from agentstate.store import minutes

CHANNEL = "agentstate"
ADVISORY_LOCK = 7207
ROWS_PER_PASS = 5_000
HINT_BYTES_MAX = 7_000
SHORTEST_PAUSE_SECONDS = 0.05

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
    RETURNING position, run_key, last_seq
)
SELECT max(position), json_object_agg(run_key, last_seq ORDER BY position) FROM moved
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """The last position that was given, and the runs that moved with their last numbers."""

    position: int
    runs: dict[str, int]


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
        position, runs = cursor.fetchone()
    if position is None:
        return None
    moved = Moved(position, json.loads(runs) if isinstance(runs, str) else runs)
    hint(moved)
    return moved


def hint(moved: Moved) -> None:
    """Tell whoever listens; a lost hint only delays, because pages poll behind it."""
    payload = json.dumps({"position": moved.position, "runs": moved.runs})
    if len(payload.encode()) > HINT_BYTES_MAX:
        payload = json.dumps({"position": moved.position})
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
            move()
        except DatabaseError as lost:
            # The rows are safe in the outbox; Celery's backstop or the next nudge takes them.
            log.warning("the feed did not move: %s", str(lost).strip().splitlines()[0])
            connection.close()


MOVER = Mover()
