"""Who asks for a unit that is held is refused by a look: no lock, nothing written, no flush.

A look without a lock may refuse, never allow. It finds that the lease is live and that the run
could else be held; the refusal itself is made where the rule is (`rules/leases.py`). A row a second
tells of each contender (`rowsql.INSERT_REFUSALS`): where none does yet, and whatever else is the
matter, the command is left to be decided under the lock. `tests/store/test_short_leases.py`
compares both. Why: docs/decisions/0030-leases-hot-path.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from json.encoder import encode_basestring
from typing import Any, cast

from django.db import transaction

from agentstate.store import collisions, flights, keyed, minutes
from agentstate.store import rowsql as sql
from agentstate.store.asks import Ask, Outcome
from agentstate.store.commands import AcquireLease
from agentstate.store.errors import LeaseHeld
from agentstate.store.rows import LeaseRow, replace, run_key_of
from agentstate.store.rules import leases
from agentstate.store.short import ShortBatch

# Each lease by its index, whatever the statistics say; the clock once, after the snapshot.
LOOK = """
WITH clock AS MATERIALIZED (SELECT agentstate_now() AS now)
SELECT w.n, c.now, l.owner, l.token, l.expires_at
FROM clock c CROSS JOIN json_to_recordset(%s) AS w (n int, unit text, run text, by text, owner text)
CROSS JOIN LATERAL (
    SELECT owner, token, expires_at FROM agentstate_lease WHERE unit = w.unit LIMIT 1) l
LEFT JOIN LATERAL (SELECT * FROM agentstate_run WHERE key = w.run LIMIT 1) r ON true
WHERE l.expires_at > c.now
    AND (w.run IS NULL OR (r.status IN ('pending', 'running') AND r.attempt < r.max_attempts))
    AND EXISTS (SELECT FROM agentstate_refusal o WHERE o.at > c.now - interval '1 second'
        AND o.code = 'lease-held' AND o.unit = w.unit AND o.run_id IS NOT DISTINCT FROM r.id
        AND o.actor = w.by AND o.worker = w.owner)
"""
ROLLBACK = "ROLLBACK"
_ANY = LeaseRow(unit="")


def choose(asks: Sequence[Ask]) -> list[int]:
    """The places of keys that ask for a unit; what people are refused, the audit has to tell."""
    found = [
        n
        for n, ask in enumerate(asks)
        if type(ask.command) is AcquireLease and ask.by.kind == "key"
    ]
    if not found:
        return []
    first = keyed.first_of_each([asks[n] for n in found])
    return [place for n, place in enumerate(found) if n in first]


class LookBatch(ShortBatch):
    """Units that are asked for; None is the outcome of those that are not refused at sight."""

    PREPARED = frozenset({sql.BEGIN, LOOK, ROLLBACK}) | keyed.STATEMENTS

    def __init__(self, asks: Sequence[Ask], lock_timeout: str) -> None:
        super().__init__(asks, lock_timeout)
        self._refused: dict[int, LeaseHeld] = {}
        self._at: datetime | None = None

    def run(self, cursor: flights.Cursor) -> None:
        is_first = cursor.is_first
        cursor.later(sql.BEGIN, [self.lock_timeout])
        first_time = keyed.unanswered(cursor, self.asks)
        looked = cursor.later(LOOK, [_records(self.asks, first_time)])
        if is_first:
            cursor.later(ROLLBACK)  # nothing is written: no flush, and no round trip, for that
        for n, now, owner, token, expires_at in looked.rows():
            command = _acquire(self.asks[n])
            lease = replace(
                _ANY, unit=command.unit, owner=owner, token=token, expires_at=expires_at
            )
            try:
                leases.check_free(lease, command.owner, now)
            except LeaseHeld as held:
                self._refused[n], self._at = held, now
        transaction.set_rollback(True)

    def outcomes(self) -> list[Outcome | None]:
        return [self._refused.get(n) for n in range(len(self.asks))]

    def is_there(self, cursor: Any) -> bool | None:
        """It writes nothing."""
        return None

    def count(self, latency_ms: int) -> None:
        """Add what was refused to this process's minutes and collisions, as `_Batch.count` does."""
        if self._at is None:
            return
        found = [
            (refusal, command, run_key_of(command.unit), self.asks[n].under.attempt)
            for n, refusal in self._refused.items()
            for command in (_acquire(self.asks[n]),)
        ]
        minutes.TALLY.add_alike(
            [(run or "", command.owner, attempt) for _, command, run, attempt in found],
            at=self._at,
            operation="acquire",
            outcome=LeaseHeld.code,
            latency_ms=latency_ms,
        )
        for refusal, command, run, _ in found:
            own_unit = command.unit if run is None else None
            minutes.TALLY.collisions.add(
                at=self._at,
                run_key=run or "",
                outcome=LeaseHeld.code,
                loser=command.owner[: collisions.NAME_CHARS],
                winner=str(refusal.facts["owner"])[: collisions.NAME_CHARS],
                about=collisions.about(refusal, wanted={}, unit=own_unit),
                latency_ms=latency_ms,
            )


def _acquire(ask: Ask) -> AcquireLease:
    return cast("AcquireLease", ask.command)


def _records(asks: Sequence[Ask], places: set[int]) -> str:
    text, rows = encode_basestring, []
    for n in sorted(places):
        command = _acquire(asks[n])
        run = run_key_of(command.unit)
        more = "" if run is None else f',"run":{text(run)}'
        rows.append(
            f'{{"n":{n},"unit":{text(command.unit)},"by":{text(asks[n].by.principal)},'
            f'"owner":{text(command.owner)}{more}}}'
        )
    return f"[{','.join(rows)}]"
