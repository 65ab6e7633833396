"""What a follower of one run asks again and again: is there more, and will there ever be?"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from agentstate.store import reads
from agentstate.store.errors import Invalid, NotFound, RunExpired
from agentstate.store.rows import EventRow

HEAD = """
SELECT last_seq, ended_at IS NOT NULL,
    coalesce(expires_at <= agentstate_now() AND NOT hold, false)
FROM agentstate_run WHERE key = %(key)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Events behind a number, with the bytes of each payload. last_seq: the run's last number.

    ended: the run is over, and these are its last events. Notes may still be added to such a run,
    but whoever follows its work need not wait for them.
    """

    items: tuple[EventRow, ...]
    sizes: tuple[int, ...]
    last_seq: int
    ended: bool


def read_tail(*, run_key: str, after: int, limit: int, with_payloads: bool) -> Tail:
    """The events behind `after`, at most `limit` and 1 MiB; one quick look when there are none.

    Raises NotFound, RunExpired, and Invalid when the run has not come as far as `after`.
    """
    last_seq, ended = _head(run_key)
    if after > last_seq:
        # Whoever waited there would miss everything up to it.
        raise Invalid("after", f"at most {last_seq}, the run's last number", last_seq=last_seq)
    if after == last_seq:
        return Tail(items=(), sizes=(), last_seq=last_seq, ended=ended)
    page = reads.events(
        run_key=run_key,
        wanted=reads.EventFilter(after=after),
        limit=limit,
        with_payloads=with_payloads,
    )
    complete = bool(page.items) and page.items[-1].seq == page.last_seq
    return Tail(
        items=page.items, sizes=page.sizes, last_seq=page.last_seq, ended=ended and complete
    )


def _head(run_key: str) -> tuple[int, bool]:
    with connection.cursor() as cursor:
        cursor.execute(HEAD, {"key": run_key})
        row = cursor.fetchone()
    if row is None:
        raise NotFound(f"no run {run_key}", run=run_key)
    last_seq, ended, expired = row
    if expired:
        raise RunExpired(f"the run {run_key} is past its retention", run=run_key)
    return last_seq, ended
