"""Appends that nothing stands against, many in one statement: the hot path of `execute`.

A plain append is events to a run, with a fence, ids, what the caller saw of the run and what it
adds to counters, if it likes: no charge, move, effect or idempotency key. PostgreSQL locks the
runs, looks at its clock, and carries out those that every guard lets pass (the function
`agentstate_append_events`). What a guard stops is left as it was, and decided once more where the
rule is (`rules/deciding/runs.py`): so a refusal, a replay and whatever is rare has one home, and
the guards here may stop too much but never too little. `tests/store/test_plain.py` compares both.

Why: docs/decisions/0029-hot-path.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, cast

from django.conf import settings
from django.db import transaction

from agentstate.store import flights, listeners, minutes
from agentstate.store.asks import Ask, Outcome
from agentstate.store.commands import Append, Appended, NewEvent
from agentstate.store.payloads import write
from agentstate.store.rules import pacing
from agentstate.store.rules.names import AMOUNT_MAX, COUNTERS_MAX
from agentstate.store.short import ShortBatch
from agentstate.store.states import TERMINAL

CALL = "SELECT agentstate_append_events(%s, %s, %s, %s, %s, %s)::text"
_TERMINAL = sorted(str(status) for status in TERMINAL)


def is_plain(ask: Ask) -> bool:
    """Whether it may be done here; the guards, which need the run, are asked later."""
    command = ask.command
    return (
        type(command) is Append
        and command.to is None
        and not command.spend
        and ask.under.idempotency_key is None
        and all(event.effect is None for event in command.events)
    )


def plain_ones(asks: Sequence[Ask]) -> list[int]:
    """The places of those that go together: of an event's id to one run only the first."""
    found: list[int] = []
    seen: set[tuple[str, str]] = set()
    for n, ask in enumerate(asks):
        if not is_plain(ask):
            continue
        command = _append(ask)
        named = [(command.run, event.id) for event in command.events if event.id is not None]
        if seen.isdisjoint(named):
            seen.update(named)
            found.append(n)
    return found


class PlainBatch(ShortBatch):
    """Plain appends in one transaction; None is the outcome of those that a guard stopped."""

    PREPARED = frozenset({CALL})

    def __init__(self, asks: Sequence[Ask], lock_timeout: str) -> None:
        super().__init__(asks, lock_timeout)
        self._at: datetime | None = None
        # Of each that was done: its place among the asks, its first and last number, version,
        # status, owner, run's id.
        self._done: list[tuple[int, int, int, int, str, str | None, str]] = []

    def run(self, cursor: flights.Cursor) -> None:
        params = [
            _records(self.asks),
            self.lock_timeout,
            _TERMINAL,
            AMOUNT_MAX,
            COUNTERS_MAX,
            pacing.AHEAD_MAX,
        ]
        cursor.execute(CALL, params)
        answer = json.loads(cursor.fetchall()[0][0])
        self._at = datetime.fromisoformat(answer["at"]).astimezone(UTC)
        self.xact_id, self._done = answer["xid"], answer["done"] or []
        commands = [_append(self.asks[n]) for n, *_ in self._done]
        self.written = listeners.Written(
            runs=frozenset(command.run for command in commands),
            types=frozenset(event.type for command in commands for event in command.events),
        )
        if self._done:
            self.decided = True
        else:
            transaction.set_rollback(True)  # nothing was written: no flush for that

    def outcomes(self) -> list[Outcome | None]:
        found: list[Outcome | None] = [None] * len(self.asks)
        assert self._at is not None
        for n, first, last, version, status, *_ in self._done:
            found[n] = Appended(
                first_seq=first,
                last_seq=last,
                version=version,
                status=status,
                at=self._at,
                spent=(),
            )
        return found

    def is_there(self, cursor: Any) -> bool | None:
        """Whether an event of this very batch is stored; None when it wrote none to know by."""
        if not self._done:
            return None
        n, seq, *_, run_id = self._done[0]
        ask = self.asks[n]
        where = [run_id, seq, self._at, ask.by.principal, ask.under.request_id]
        cursor.execute(flights.IS_THERE, where)
        return bool(cursor.fetchone()[0])

    def count(self, latency_ms: int) -> None:
        """Add what was committed to this process's minutes, as `_Batch.count` does."""
        assert self._at is not None
        for n, first, last, _, _, owner, _ in self._done:
            ask = self.asks[n]
            minutes.TALLY.add(
                at=self._at,
                run_key=_append(ask).run,
                operation="append",
                worker=owner or "",
                outcome=minutes.OK,
                events=last - first + 1,
                attempt=ask.under.attempt,
                latency_ms=latency_ms,
            )


def _append(ask: Ask) -> Append:
    return cast("Append", ask.command)


def _records(asks: Sequence[Ask]) -> str:
    """What the function takes of each. Put together by hand: an append waits for it."""
    text, rows = encode_basestring, []
    limit = pacing.of_site(settings.RUN_WRITES_PER_SECOND)
    for n, ask in enumerate(asks):
        command = _append(ask)
        paced = limit is not None and pacing.is_counted(ask.by)
        more = [_pace(limit) if limit is not None and paced else ""]
        if command.fence is not None:
            more.append(f',"token":{command.fence}')
        ids = [text(event.id) for event in command.events if event.id is not None]
        if ids:
            more.append(f',"ids":[{",".join(ids)}]')
        if command.add:
            more.append(f',"add":{text(write(command.add))}')
        if command.expected_seq is not None or command.if_match is not None:
            more.append(',"seen":true')
        if command.expected_seq is not None:
            more.append(f',"seq":{command.expected_seq}')
        if command.if_match is not None:
            more.append(f',"version":{command.if_match}')
        if ask.under.request_id is not None:
            more.append(f',"request_id":{text(ask.under.request_id)}')
        types = ",".join({text(event.type) for event in command.events})
        events = ",".join(map(_event, command.events))
        rows.append(
            f'{{"n":{n},"run":{text(command.run)},"principal":{text(ask.by.principal)},'
            f'"size":{len(command.events)},"types":[{types}],"events":[{events}]{"".join(more)}}}'
        )
    return f"[{','.join(rows)}]"


def _event(event: NewEvent) -> str:
    text = encode_basestring
    named = "" if event.id is None else f',"id":{text(event.id)}'
    return f'{{"type":{text(event.type)},"data":{text(event.data.text)}{named}}}'


@lru_cache(maxsize=8)
def _pace(limit: pacing.Limit) -> str:
    """What a write takes of the limit, and how far all of them may be ahead."""
    burst = limit.burst * limit.gap_us
    return f',"gap":"{limit.gap_us} us","burst":"{burst} us"'
