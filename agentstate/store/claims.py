"""Claims of runs that wait and that nothing stands against, of several workers in one statement.

PostgreSQL picks the oldest that nobody has a lock on, looks at its clock, and gives them to the
claimers in their order (the function `agentstate_claim_plain`). A lapsed lease, a run that was
started too often, and whatever its next holder has to be told of (open effects, signals) is left to
`rules/deciding/leases.py`, with the claim that would get it. `tests/store/test_short_leases.py`
compares both. Why: docs/decisions/0030-leases-hot-path.md.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from json.encoder import encode_basestring
from typing import Any, NamedTuple, cast

from django.db import transaction

from agentstate.store import flights, keyed, listeners, minutes, workers_away
from agentstate.store import rowsql as sql
from agentstate.store.answers import kept
from agentstate.store.asks import Ask, Outcome
from agentstate.store.commands import Claim, Claimed, ClaimRuns
from agentstate.store.payloads import RawJSON
from agentstate.store.short import ShortBatch
from agentstate.store.states import Status

CALL = "SELECT agentstate_claim_plain(%s, %s, %s, %s, %s, %s)::text"
ACQUIRED, RUNNING = "lease.acquired", "run.running"
IS_THERE = "SELECT EXISTS (SELECT FROM agentstate_leaseterm WHERE token = %s AND unit = %s)"
LONGEST_QUIET_SECONDS = 1.0
KINDS_MAX = 1_000


class Kind(NamedTuple):
    """What a claim chooses among."""

    task: str | None
    tag: str | None


class _Quiet(NamedTuple):
    """Between these moments of the database's clock nothing lapses; looked at by ours."""

    begins: datetime
    ends: datetime
    looked_at: float


class QuietTimes:
    """Until when no lease of a kind lapses: so that not every claim reads all leases that are held.

    Looked at again after a second at the latest, by whichever clock that is sooner. Losing it costs
    a look at the database.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Kind, _Quiet] = {}

    def of(self, kind: Kind) -> tuple[datetime | None, datetime | None]:
        quiet = self._known.get(kind)
        if quiet is None or time.monotonic() - quiet.looked_at > LONGEST_QUIET_SECONDS:
            return None, None
        return quiet.begins, quiet.ends

    def note(self, kind: Kind, begins: datetime, ends: datetime) -> None:
        with self._lock:
            before = self._known.get(kind)
            if before is not None and (before.begins, before.ends) == (begins, ends):
                return
            if len(self._known) >= KINDS_MAX:
                self._known.clear()
            self._known[kind] = _Quiet(begins, ends, time.monotonic())

    def forget(self) -> None:
        """Forget all; for tests, whose database was emptied."""
        with self._lock:
            self._known = {}


QUIET = QuietTimes()


def choose(asks: Sequence[Ask]) -> list[int]:
    """The places of claims; of one idempotency key the first."""
    found = [n for n, ask in enumerate(asks) if type(ask.command) is ClaimRuns]
    # While a worker is away, the rule chooses: it passes by that worker's runs.
    if not found or workers_away.known():
        return []
    first = keyed.first_of_each([asks[n] for n in found])
    return [place for n, place in enumerate(found) if n in first]


@dataclass(slots=True)
class _Given:
    """What a claim got. at: when, by the database's clock."""

    at: datetime
    items: list[Claim] = field(default_factory=list)
    # Of each item the number of events that it was written with.
    events: list[int] = field(default_factory=list)


class ClaimBatch(ShortBatch):
    """Claims in one transaction; None is the outcome of those that a guard stopped."""

    PREPARED = frozenset({CALL}) | keyed.STATEMENTS

    def __init__(self, asks: Sequence[Ask], lock_timeout: str) -> None:
        super().__init__(asks, lock_timeout)
        self._given: dict[int, _Given] = {}

    def run(self, cursor: flights.Cursor) -> None:
        first_time = keyed.unanswered(cursor, self.asks)
        sent = [
            (kind, places, self._send(cursor, kind, places))
            for kind, places in self._by_kind(first_time)
        ]
        for kind, places, later in sent:
            self._take(kind, places, json.loads(later.rows()[0][0]))
        kept_answers = [
            kept(self.asks[n], self._claimed(n), self._given[n].at)
            for n in sorted(self._given)
            if self.asks[n].under.idempotency_key is not None
        ]
        if kept_answers:
            cursor.execute(sql.KEEP_ANSWERS, [sql.records(kept_answers)])
            cursor.flush()
        claims = [claim for given in self._given.values() for claim in given.items]
        if claims or kept_answers:
            self.decided = True
            self.written = _written(self._given.values())
        else:
            transaction.set_rollback(True)  # nothing was written: no flush for that

    def _by_kind(self, places: Iterable[int]) -> list[tuple[Kind, list[int]]]:
        def named(n: int) -> tuple[str, str]:
            kind = self._kind(n)
            return (kind.task or "", kind.tag or "")

        ordered = sorted(places, key=lambda n: (named(n), n))
        found = [list(several) for _, several in groupby(ordered, key=named)]
        return [(self._kind(several[0]), several) for several in found]

    def _kind(self, n: int) -> Kind:
        command = _claim(self.asks[n])
        return Kind(command.task, command.tag)

    def _send(self, cursor: flights.Cursor, kind: Kind, places: Sequence[int]) -> flights.Later:
        records = _records(self.asks, places)
        return cursor.later(CALL, [records, self.lock_timeout, *kind, *QUIET.of(kind)])

    def _take(self, kind: Kind, places: Sequence[int], answer: dict[str, Any]) -> None:
        if answer.get("lapsed"):
            return
        QUIET.note(kind, *(datetime.fromisoformat(moment) for moment in answer["quiet"]))
        at = datetime.fromisoformat(answer["at"]).astimezone(UTC)
        self.xact_id = answer["xid"] or self.xact_id
        left = set(answer["left"] or ())
        self._given |= {n: _Given(at) for n in places if n not in left}
        for n, *rest in answer["done"] or ():
            given = self._given[n]
            claim, events = _read(_claim(self.asks[n]), at, *rest)
            given.items.append(claim)
            given.events.append(events)

    def _claimed(self, n: int) -> Claimed:
        given = self._given[n]
        return Claimed(items=tuple(given.items), at=given.at)

    def outcomes(self) -> list[Outcome | None]:
        return [self._claimed(n) if n in self._given else None for n in range(len(self.asks))]

    def is_there(self, cursor: Any) -> bool | None:
        """Whether a term of this very batch is stored; None when it gave nothing to know by."""
        for given in self._given.values():
            for claim in given.items:
                cursor.execute(IS_THERE, [claim.token, claim.unit])
                return bool(cursor.fetchone()[0])
        return None

    def count(self, latency_ms: int) -> None:
        """Add what was committed to this process's minutes, as `_Batch.count` does."""
        for n, given in self._given.items():
            ask = self.asks[n]
            owner = _claim(ask).owner
            only = given.items[0].run if len(given.items) == 1 else ""
            minutes.TALLY.add(
                at=given.at,
                run_key=only,
                operation="claim",
                worker=owner,
                outcome=minutes.OK,
                events=given.events[0] if only else 0,
                attempt=ask.under.attempt,
                latency_ms=latency_ms,
            )
            if only:
                continue
            for claim, events in zip(given.items, given.events, strict=True):
                minutes.TALLY.add_events(
                    at=given.at, run_key=claim.run, operation="claim", worker=owner, events=events
                )


def _written(all_given: Iterable[_Given]) -> listeners.Written:
    several = list(all_given)
    claims = [claim for given in several for claim in given.items]
    moved = any(events > 1 for given in several for events in given.events)
    return listeners.Written(
        runs=frozenset(claim.run for claim in claims),
        types=frozenset({ACQUIRED, RUNNING} if moved else {ACQUIRED}) if claims else frozenset(),
        units=frozenset(claim.unit for claim in claims),
    )


def _claim(ask: Ask) -> ClaimRuns:
    return cast("ClaimRuns", ask.command)


def _read(
    command: ClaimRuns,
    at: datetime,
    unit: str,
    run: str,
    task: str,
    moves: int,
    version: int,
    last_seq: int,
    attempt: int,
    token: int,
    progress: str | None,
) -> tuple[Claim, int]:
    """One run that was given, and how many events were written with it."""
    claim = Claim(
        unit=unit,
        run=run,
        task=task,
        status=str(Status.RUNNING),
        version=version,
        last_seq=last_seq,
        attempt=attempt,
        owner=command.owner,
        token=token,
        expires_at=at + timedelta(seconds=command.ttl_seconds),
        expires_in_ms=command.ttl_seconds * 1_000,
        progress=RawJSON(progress) if progress else None,
    )
    return claim, 1 + moves


def _records(asks: Sequence[Ask], places: Sequence[int]) -> str:
    """What the function takes of each. Put together by hand: a claim waits for it."""
    text, rows = encode_basestring, []
    for n in places:
        ask, command = asks[n], _claim(asks[n])
        request = ask.under.request_id
        more = "" if request is None else f',"request_id":{text(request)}'
        rows.append(
            f'{{"n":{n},"owner":{text(command.owner)},"by":{text(ask.by.principal)},'
            f'"ttl":{command.ttl_seconds},"most":{command.limit}{more}}}'
        )
    return f"[{','.join(rows)}]"
