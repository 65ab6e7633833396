"""Our own periodic jobs: which there are, and the heartbeat that each leaves in the database.

A heartbeat says when a job last began and ended by the database's clock, what it did and what it
left for the next pass. It decides nothing; without it nobody would see that a job is dead.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, connection, transaction

from agentstate.store.errors import Refusal

# Every job and its period in seconds; `tasks/schedule.py` starts them by it. "move feed" beats for
# the mover threads too, so not at each of its passes; "work bulks" comes oftener, for who waits.
JOBS: dict[str, int] = {
    "note lapsed leases": 5,
    "carry out deadlines": 5,
    "move feed": 5,
    "drop dead holds": 10,
    "evaluate alerts": 15,
    "deliver alerts": 5,
    "work bulks": 5,
    "end quiet traces": 30,
    "purge what is past its age": 300,
    "drop weeks that are over": 300,
    "make partitions": 3_600,
}
FAILED_CHARS = 200
_BEGIN = """
INSERT INTO agentstate_heartbeat (name, every_seconds, started_at, did, passes, host)
VALUES (%(name)s, %(every)s, agentstate_now(), 0, 0, %(host)s)
ON CONFLICT (name) DO UPDATE SET every_seconds = excluded.every_seconds,
    started_at = excluded.started_at, host = excluded.host
RETURNING started_at
"""
_END = """
UPDATE agentstate_heartbeat SET ended_at = agentstate_now(), passes = passes + %(passes)s,
    took_ms = greatest(0, extract(epoch FROM agentstate_now() - %(began)s) * 1000)::bigint,
    did = %(did)s, behind = %(behind)s, failed = %(failed)s
WHERE name = %(name)s
"""
# What a message of a driver may carry.
_SECRET = re.compile(r"(?<=://)[^/@\s]*@|(?<=password=)\S+", re.IGNORECASE)

log = logging.getLogger(__name__)


# A start that lies in the future was written before the clock was set back.
_DUE = """
SELECT NOT EXISTS (SELECT FROM agentstate_heartbeat WHERE name = %(name)s
    AND started_at > agentstate_now() - make_interval(secs => %(least)s)
    AND started_at <= agentstate_now())
"""


def is_due(name: str) -> bool:
    """Whether the job last began at least half a period ago, by the database's clock.

    What is started by a host's clock asks this, so that a second beat, a queue full of old starts
    or a host's wrong clock cost one look each. It decides nothing else: two may be told yes.
    """
    found = _say(_DUE, {"name": name, "least": JOBS[name] / 2})
    return found is None or bool(found[0])


@dataclass(slots=True)
class Pass:
    """What one pass of a job did, and how much of what it knows of is left for the next.

    behind None: it cannot say. late_from: what was due by then, a period before the pass began by
    the database's clock, and is due still, was left; None: there is no heartbeat.
    """

    late_from: datetime | None = None
    did: int = 0
    behind: int | None = None


@contextmanager
def beat(name: str) -> Iterator[Pass]:
    """Keep the heartbeat of the job `name` (one of JOBS) while the block does one pass of it.

    `with beat("note lapsed leases") as this: this.did = sweep()`. What fails in the block is noted
    and raised; a heartbeat that cannot be written stops no job.
    """
    began = _begin(name)
    this = Pass(late_from=began and began - timedelta(seconds=JOBS[name]))
    failed: str | None = None
    try:
        yield this
    except Exception as error:
        failed = in_short(error)
        raise
    finally:
        _end(name, this, began, passes=1, failed=failed)


def in_short(error: Exception) -> str:
    """An error in one line of at most 200 characters, without credentials and without payloads."""
    if isinstance(error, Refusal):
        return f"refused: {error.code}"
    first = next(iter(str(error).strip().splitlines()), "")
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return _SECRET.sub("…", said)[:FAILED_CHARS]


def _begin(name: str) -> datetime | None:
    values = {"name": name, "every": JOBS[name], "host": socket.gethostname()}
    found = _say(_BEGIN, values)
    return found[0] if found else None


def _end(name: str, this: Pass, began: datetime | None, *, passes: int, failed: str | None) -> None:
    if began is not None:
        _say(
            _END,
            {
                "name": name,
                "began": began,
                "passes": passes,
                "did": this.did,
                "behind": this.behind,
                "failed": failed,
            },
        )


def _say(statement: str, values: dict[str, Any]) -> tuple[Any, ...] | None:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone() if cursor.description else None
    except DatabaseError as lost:
        log.warning("no heartbeat of %r: %s", values["name"], in_short(lost))
        return None


class FrequentBeat:
    """The heartbeat of a job with many passes a second: at most one write per period.

    It adds up what the passes did meanwhile. For one thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said_at = float("-inf")
        self._passes = self._did = 0

    def note(
        self,
        did: int,
        *,
        failed: Exception | None = None,
        behind: Callable[[], int] | None = None,
    ) -> None:
        """Count one pass; written when the period is over, and only then is asked what is left."""
        self._passes, self._did = self._passes + 1, self._did + did
        if time.monotonic() - self._said_at < JOBS[self._name]:
            return
        left = behind() if behind is not None else None
        this, passes = Pass(did=self._did, behind=left), self._passes
        self._passes = self._did = 0
        self._said_at = time.monotonic()
        told = in_short(failed) if failed is not None else None
        _end(self._name, this, _begin(self._name), passes=passes, failed=told)
