"""Renewals that nothing stands against, many in one statement.

A worker renews all that it holds every few seconds: this is what a fleet asks most. PostgreSQL
locks the units in their order, looks at its clock, and prolongs the leases that every guard lets
pass (the function `agentstate_renew_plain`). A lost lease, and one whose holder is to be told of a
signal or a drain, is left as it was and decided in `rules/leases.py`; both are compared by
`tests/store/test_short_leases.py`. Why: docs/decisions/0030-leases-hot-path.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring
from typing import Any, cast

from django.db import transaction

from agentstate.store import flights, minutes
from agentstate.store.asks import Ask, Outcome
from agentstate.store.commands import Renewed, RenewLease
from agentstate.store.rows import run_key_of
from agentstate.store.short import ShortBatch

CALL = "SELECT agentstate_renew_plain(%s, %s)::text"
# Calls that renew many are big: of very many at once the database would do each in small pieces,
# and all of them late. So few of a process are at it, unless they wait for somebody's lock.
MANY, AT_ONCE, LONGEST_TURN_SECONDS = 50, 3, 0.5
_TURNS = threading.BoundedSemaphore(AT_ONCE)


def choose(asks: Sequence[Ask]) -> list[int]:
    """The places of renewals without an idempotency key; of one unit only the first."""
    found, seen = [], set()
    for n, ask in enumerate(asks):
        if type(ask.command) is RenewLease and ask.under.idempotency_key is None:
            unit = ask.command.unit
            if unit not in seen:
                seen.add(unit)
                found.append(n)
    return found


@contextmanager
def _turn(count: int) -> Iterator[None]:
    """Wait for a turn, if this is a big one; after half a second it goes on without."""
    had = count >= MANY and _TURNS.acquire(timeout=LONGEST_TURN_SECONDS)
    try:
        yield
    finally:
        if had:
            _TURNS.release()


class RenewalBatch(ShortBatch):
    """Renewals in one transaction; None is the outcome of those that a guard stopped."""

    PREPARED = frozenset({CALL})

    def __init__(self, asks: Sequence[Ask], lock_timeout: str) -> None:
        super().__init__(asks, lock_timeout)
        self._at: datetime | None = None
        # The places among the asks of those that were done, by who holds the units.
        self._done: dict[str, list[int]] = {}

    def run(self, cursor: flights.Cursor) -> None:
        with _turn(len(self.asks)):
            cursor.execute(CALL, [_records(self.asks), self.lock_timeout])
            (told,) = cursor.fetchall()[0]
        answer = json.loads(told)
        self._at = datetime.fromisoformat(answer["at"]).astimezone(UTC)
        self.xact_id, self._done = answer["xid"], answer["done"] or {}
        if self._done:
            self.decided = True
        else:
            transaction.set_rollback(True)  # nothing was written: no flush for that

    def outcomes(self) -> list[Outcome | None]:
        found: list[Outcome | None] = [None] * len(self.asks)
        assert self._at is not None
        for owner, places in self._done.items():
            for n in places:
                command = _renewal(self.asks[n])
                found[n] = Renewed(
                    unit=command.unit,
                    owner=owner,
                    token=command.token,
                    expires_at=self._at + timedelta(seconds=command.ttl_seconds),
                    expires_in_ms=command.ttl_seconds * 1_000,
                    at=self._at,
                )
        return found

    def is_there(self, cursor: Any) -> bool | None:
        """Nothing that it wrote is sure to be as it was."""
        return None

    def count(self, latency_ms: int) -> None:
        """Add what was committed to this process's minutes, as `_Batch.count` does."""
        assert self._at is not None
        done = [self.asks[n] for places in self._done.values() for n in places]
        minutes.TALLY.add_alike(
            [(run_key_of(_renewal(ask).unit) or "", "", ask.under.attempt) for ask in done],
            at=self._at,
            operation="renew",
            outcome=minutes.OK,
            latency_ms=latency_ms,
        )


def _renewal(ask: Ask) -> RenewLease:
    return cast("RenewLease", ask.command)


def _records(asks: Sequence[Ask]) -> str:
    """What the function takes of each. Put together by hand: a renewal waits for it."""
    text, rows = encode_basestring, []
    for n, ask in enumerate(asks):
        command = _renewal(ask)
        more = f',"progress":{text(command.progress.text)}' if command.progress else ""
        rows.append(
            f'{{"n":{n},"unit":{text(command.unit)},"token":{command.token},'
            f'"by":{text(ask.by.principal)},"ttl":{command.ttl_seconds}{more}}}'
        )
    return f"[{','.join(rows)}]"
