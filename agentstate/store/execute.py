"""The one way in: lock, look at the clock, decide, write, commit, and only then answer.

Every change of every table goes through `execute`, from a worker's append to an operator's
reclaim; so lock order, fencing, idempotency, audit, outbox and refusals cannot be forgotten.
design.md, section 3, says why each step is where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import psycopg
from django.conf import settings
from django.db import Error as DatabaseFailure
from django.db import connection, connections, transaction

from agentstate.django_postgres.turns import Away
from agentstate.store import (
    aio,
    answers,
    bulking,
    claims,
    collisions,
    deliveries,
    distribution,
    feed,
    flights,
    listeners,
    looks,
    made,
    minutes,
    outages,
    partitions,
    plain,
    proposed,
    renewals,
    retention,
    sessions,
    spent,
    splits,
    tries,
    versions,
    workers_away,
)
from agentstate.store import rowsql as sql
from agentstate.store.ages import KeptAge
from agentstate.store.alerting import RULES
from agentstate.store.asks import OF_LEASES, Ask, Outcome, weight
from agentstate.store.callers import PLAIN, ROLES, SWEEP, Caller, Circumstances
from agentstate.store.commands import (
    AcknowledgeAlert,
    Acquired,
    AcquireLease,
    AnnounceWorker,
    Append,
    Braked,
    CarryOutDeadlines,
    ChangeAge,
    ChangeTarget,
    Claimed,
    ClaimRuns,
    Command,
    CreateBulk,
    CreateTarget,
    DeleteTarget,
    DrainWorker,
    DropDeadHolds,
    NoteLapsed,
    OpenEffect,
    PutTelemetry,
    ReclaimLease,
    ReleaseLease,
    ResendDelivery,
    Result,
    RotateSecret,
    SetCheckpoint,
    SetQuiet,
    SnoozeAlert,
    StopBulk,
    Transition,
    TryTarget,
)
from agentstate.store.delivering import TargetRow
from agentstate.store.effects import SIGN_BEGUN
from agentstate.store.errors import (
    CONFLICTS,
    IdempotencyInFlight,
    IdempotencyKeyReuse,
    Invalid,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    Refusal,
    RunHot,
    Unavailable,
)
from agentstate.store.hot import HOT
from agentstate.store.ids import uuid7
from agentstate.store.lanes import LONGEST_WAIT_SECONDS, Lane
from agentstate.store.payloads import RawJSON
from agentstate.store.plan import Plan, plan
from agentstate.store.quiet import TARGET, Quiet
from agentstate.store.rows import BudgetRow, EventRow, LeaseRow, RunRow, run_key_of, unit_of
from agentstate.store.rules.decide import decide
from agentstate.store.rules.draft import Draft, Facts
from agentstate.store.rules.slots import NeedsWhole
from agentstate.store.short import ShortBatch, ShortWay
from agentstate.store.splits import LockedBudgets

# A lock that is not had in time is a 503. A batch waits only briefly: one locked run must not hold
# up the others, so each command is then done by itself.
LOCK_TIMEOUT_SECONDS, LOCK_TIMEOUT_OF_A_BATCH = 3.0, "100ms"
TRIES, TRIES_OF_A_BATCH = 4, 2
# A server that cannot be connected to is tried again for so long. Callers can do that as well.
KNOCK_SECONDS = 1.5
BATCH = 200
DEAD_HOLDS_PER_CHARGE = 100

# Since this process began, by why; for its metrics.
ROLLED_BACK: Counter[str] = Counter()

PREPARED = sql.PREPARED | distribution.PREPARED

# Any number of our own: one at a time makes the first admin.
SETUP_LOCK = 0x61676E74_61646D6E
log = logging.getLogger(__name__)


type _Some = _Batch | ShortBatch
type _Outcomes = Sequence[Outcome | None]


def execute[R: Result](command: Command[R], *, by: Caller, under: Circumstances = PLAIN) -> R:
    """Carry out one command and return its result, or raise the Refusal.

    It is durable before this returns. The result is marked `replayed` when it is the first answer
    to a request that was repeated. Commands that other threads bring meanwhile go along
    (`lanes.py`).
    """
    ask = Ask(command=command, by=by, under=under)
    hot = HOT.refusal_of(ask)
    if hot is not None:
        raise hot
    if isinstance(command, ALONE) or connection.in_atomic_block:
        (outcome,) = execute_all([ask])
    else:
        outcome = (LEASES if isinstance(command, OF_LEASES) else WRITES).submit(ask)
    if isinstance(outcome, Exception):
        raise outcome
    return cast("R", outcome)


async def aexecute[R: Result](
    command: Command[R], *, by: Caller, under: Circumstances = PLAIN
) -> R:
    """`execute` for a task of an event loop: it waits without a thread of its own (`aio.py`)."""
    ask = Ask(command=command, by=by, under=under)
    hot = HOT.refusal_of(ask)
    if hot is not None:
        raise hot
    outcome = None if isinstance(command, ALONE) else await _on_the_loop(ask)
    if outcome is None:
        outcome = await asyncio.to_thread(_in_a_thread, ask)
    if isinstance(outcome, Exception):
        raise outcome
    return cast("R", outcome)


async def _on_the_loop(ask: Ask) -> Outcome | None:
    lanes = AIO_LEASES if isinstance(ask.command, OF_LEASES) else AIO_WRITES
    seconds = ask.under.wait_seconds(LONGEST_WAIT_SECONDS)
    try:
        return await lanes.here().submit(ask, weight=weight(ask.command), wait_seconds=seconds)
    except aio.Late:
        return Unavailable("waited too long for its turn", retry_after_ms=1_000)
    except aio.Unknown:
        return OutcomeUnknown("its batch is still being written", retry_after_ms=1_000)


def _in_a_thread(ask: Ask) -> Outcome:
    """In one of the loop's own threads, which keep no connection."""
    try:
        return execute_all([ask])[0]
    finally:
        connections.close_all()


def try_together(asks: Sequence[Ask]) -> list[Outcome | None]:
    """A batch of a lane: None for each when the database rolled it back, and nothing is done."""
    outcomes = _together(asks)
    return [None] * len(asks) if outcomes is None else list(outcomes)


def execute_all(asks: Sequence[Ask]) -> list[Outcome]:
    """Carry out up to 200 commands in one transaction, each by itself: one outcome each.

    A refused command leaves the others alone. If the database rolls the whole batch back, each
    is tried again by itself, and nothing decided before is used again.
    """
    if not 1 <= len(asks) <= BATCH:
        raise ValueError(f"1 to {BATCH} commands at a time")
    outcomes = _together(asks) if len(asks) > 1 else None
    return [_alone(ask) for ask in asks] if outcomes is None else outcomes


def _together(asks: Sequence[Ask]) -> list[Outcome] | None:
    """Several commands in one transaction; None when the database rolled it back."""
    tried, away = _Tried(), workers_away.known()
    outcomes = _of_reachable(asks, tried)
    if outcomes is None and workers_away.known() != away:
        # Met by this very batch: the others go together, without the runs of that worker.
        outcomes = _of_reachable(asks, tried)
    if outcomes is not None:
        _afterwards()
    return outcomes


def _of_reachable(asks: Sequence[Ask], tried: _Tried) -> list[Outcome] | None:
    """A batch; whoever writes to a run whose worker is away is told so at once."""
    away = _away(asks)
    left = [ask for n, ask in enumerate(asks) if n not in away] if away else asks
    if not left:
        done: list[Outcome] | None = []
    else:
        done = _short_first(
            left, tried, lock_timeout=LOCK_TIMEOUT_OF_A_BATCH, tries=TRIES_OF_A_BATCH
        )
    if done is None or not away:
        return done
    others = iter(done)
    return [
        Unavailable(workers_away.WORDS, retry_after_ms=1_000) if n in away else next(others)
        for n in range(len(asks))
    ]


def _away(asks: Sequence[Ask]) -> frozenset[int]:
    """The places of those that write to the log of a run whose worker is away."""
    if not workers_away.known():
        return frozenset()
    runs = {
        n: {key for part in (whole.parts or (whole,)) for key in part.runs}
        for n, ask in enumerate(asks)
        if isinstance(ask.command, OF_THE_LOG) and (whole := plan(ask.command))
    }
    try:
        gone = workers_away.runs_of(key for keys in runs.values() for key in keys)
    except DatabaseFailure:
        connection.close()
        return frozenset()
    return frozenset(n for n, keys in runs.items() if keys & gone)


def _short_first(
    asks: Sequence[Ask], tried: _Tried, *, lock_timeout: str, tries: int
) -> list[Outcome] | None:
    """What may go by a short way, each kind in a transaction of its own; then all that is left.

    None when the database rolled all of it back. What was left while others were done is then
    done by itself, one after the other: those that are done must not be tried again.
    """
    found: list[Outcome | None] = [None] * len(asks)
    for way in SHORT_WAYS:
        places = way.choose(asks)
        if not places:
            continue
        batch = [asks[n] for n in places]
        is_first = all(outcome is None for outcome in found)
        try:
            done = _try(batch, tried, lock_timeout=lock_timeout, tries=tries, make=way.make)
        except Exception:
            if is_first:
                raise
            log.exception("a short way failed for what was left of a batch; it goes by the rules")
            done = None
        if done is None and is_first:
            return None
        for n, outcome in zip(places, done or [None] * len(places), strict=True):
            found[n] = outcome
    left = [n for n, outcome in enumerate(found) if outcome is None]
    if not left:
        return cast("list[Outcome]", found)
    batch = [asks[n] for n in left]
    try:
        rest = _try(batch, tried, lock_timeout=lock_timeout, tries=tries)
    except Exception:
        if len(left) == len(asks):
            raise
        # Whoever is told of a failure tries all of it again, and some of it is done.
        log.exception("what was left of a batch failed; each goes by itself")
        rest = None
    if rest is None and len(left) == len(asks):
        return None
    for n, outcome in zip(left, rest or [_by_itself(ask) for ask in batch], strict=True):
        found[n] = outcome
    return cast("list[Outcome]", found)


def _by_itself(ask: Ask) -> Outcome:
    """The same as `_alone`; what it raises is the outcome of this command and of no other."""
    try:
        return _alone(ask)
    except Exception as failed:
        return failed


def _alone(ask: Ask) -> Outcome:
    """One command in a transaction of its own."""
    wait_ms = int(ask.under.wait_seconds(LOCK_TIMEOUT_SECONDS) * 1_000)
    if not wait_ms:
        return Unavailable("it could not begin in the time that it was given", retry_after_ms=1_000)
    if _away([ask]):
        return Unavailable(workers_away.WORDS, retry_after_ms=1_000)
    tried, began = _Tried(), time.monotonic()
    outcomes = _short_first([ask], tried, lock_timeout=f"{wait_ms}ms", tries=TRIES)
    if outcomes is None:
        outcomes = [_give_up(ask, tried, int((time.monotonic() - began) * 1_000))]
    _afterwards()
    return outcomes[0]


@dataclass(slots=True)
class _Tried:
    """How often a transaction was tried, and what ended the last try, in PostgreSQL's words."""

    attempts: int = 0
    last: str = ""


def _give_up(ask: Ask, tried: _Tried, took_ms: int) -> Unavailable:
    """Tell the caller how it was tried; count it where charts and alerts look."""
    named = plan(ask.command)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT agentstate_now()")
            minutes.TALLY.add(
                at=cursor.fetchone()[0],
                run_key=named.run or "",
                operation=named.operation,
                worker=named.worker or "",
                outcome=Unavailable.code,
                attempt=ask.under.attempt,
                latency_ms=took_ms,
                gave_up=True,
            )
    except DatabaseFailure:
        connection.close()  # not to be reached: nobody could be told either
    return Unavailable(
        f"given up after {tried.attempts} attempts, the last one ended by: {tried.last}",
        retry_after_ms=1_000,
        attempts=tried.attempts,
        last_conflict=tried.last,
    )


def _afterwards() -> None:
    """Beside the answer: the feed and the minutes, on the mover's thread where one runs."""
    if feed.MOVER.running:
        feed.MOVER.nudge()
    elif minutes.TALLY.due:
        minutes.TALLY.write()


def _try(
    asks: Sequence[Ask],
    tried: _Tried,
    *,
    lock_timeout: str,
    tries: int,
    make: Callable[[Sequence[Ask], str], ShortBatch] | None = None,
) -> _Outcomes | None:
    """Try a few times; None when the database rolled it back each time.

    make: what carries it out in place of `_Batch`; it may leave out some, whose outcome is None.
    """
    whole: frozenset[UUID] = frozenset()
    attempt, first_at = 0, time.monotonic()
    while attempt < tries:
        began = time.monotonic()
        batch = make(asks, lock_timeout) if make else _Batch(asks, lock_timeout, whole)
        try:
            with transaction.atomic(durable=True), batch.cursor() as cursor:
                with sessions.carrying(cursor.backend_pid, batch.plans):
                    batch.run(cursor)
                decided_at = time.perf_counter()
            spent.note_commit(time.perf_counter() - decided_at)
            batch.count(int((time.monotonic() - began) * 1_000))
            listeners.tell(batch.written)
            return batch.outcomes()
        except DatabaseFailure as failed:
            tried.attempts, tried.last = tried.attempts + 1, _in_a_word(failed)
            ROLLED_BACK[tried.last] += 1
            outages.note(failed)
            settled = _after(failed, batch)
            if settled is not None:
                return settled
            if isinstance(failed.__cause__, Away) and time.monotonic() - first_at > KNOCK_SECONDS:
                return _unavailable(asks, "the database cannot be reached")
            if _waited_for_a_lock(failed) or (len(asks) > 1 and _is_of_a_worker(failed)):
                # Whoever keeps the lock will do so again; threads are few, and others need them.
                return None
            _back_off(attempt)
            if not any(ask.under.wait_seconds(1.0) for ask in asks):
                return None
            attempt += 1
        except NeedsWhole as need:
            # Nothing was written. Once for each budget is how it goes; more is a try.
            attempt += need.budget_id in whole
            whole |= {need.budget_id}
    return None


def _after(failed: DatabaseFailure, batch: _Some) -> _Outcomes | None:
    """What a failure means: outcomes that are certain all the same, or None to try again."""
    cause = failed.__cause__
    if workers_away.note(cause):
        # Our session lives, and nothing was written. Who names its run would meet it again.
        if len(batch.asks) > 1 or not isinstance(batch.asks[0].command, OF_THE_LOG):
            return None
        return _unavailable(batch.asks, workers_away.WORDS)
    state = getattr(cause, "sqlstate", None)
    if state is None or isinstance(cause, (psycopg.errors.AdminShutdown,)) or _cut(state):
        # The connection is gone. Before COMMIT nothing happened; during it, the database knows.
        connection.close()
        return _ask_how_it_ended(batch) if batch.decided else None
    if outages.state_of(failed) == outages.READ_ONLY:
        # It recovers, or stands by for another: which one writes now, a new connection finds.
        connection.close()
        return _unavailable(batch.asks, outages.WORDS[outages.READ_ONLY])
    if state == psycopg.errors.CheckViolation.sqlstate and _no_partition(cause):
        partitions.ensure_ahead()
        return None
    if state == psycopg.errors.InternalError_.sqlstate and distribution.is_distributed():
        # So Citus hands on, without its own code, what a worker says of a week that is not there.
        if partitions.ensure_ahead():
            return None
        raise failed
    if state == psycopg.errors.FeatureNotSupported.sqlstate:
        distribution.forget()
    if state in _TRY_AGAIN:
        log.info("tried again after %s", type(cause).__name__)
        return None
    if state.startswith("22"):
        # Of several nobody knows whose value it was: each is then done by itself.
        refused = Invalid("request", f"the database refused a value ({cause})")
        return [refused] if len(batch.asks) == 1 else None
    raise failed


def _unavailable(asks: Sequence[Ask], why: str) -> _Outcomes:
    return [Unavailable(why, retry_after_ms=1_000) for _ in asks]


_TRY_AGAIN = {
    psycopg.errors.DeadlockDetected.sqlstate,
    psycopg.errors.SerializationFailure.sqlstate,
    psycopg.errors.LockNotAvailable.sqlstate,
    # Two made the same run, unit or record at once: the second look finds it.
    psycopg.errors.UniqueViolation.sqlstate,
    psycopg.errors.ExclusionViolation.sqlstate,
    psycopg.errors.QueryCanceled.sqlstate,
    psycopg.errors.DuplicateTable.sqlstate,
    # Behind a pooler: not prepared in this session (flights.py goes on without).
    psycopg.errors.InvalidSqlStatementName.sqlstate,
    psycopg.errors.DuplicatePreparedStatement.sqlstate,
    # Distributed since this session asked (distribution.py), behind a pooler.
    psycopg.errors.FeatureNotSupported.sqlstate,
}


def _is_of_a_worker(failed: DatabaseFailure) -> bool:
    return failed.__cause__ is not None and bool(workers_away.told_by(failed.__cause__))


def _in_a_word(failed: DatabaseFailure) -> str:
    """Such as `deadlock detected`: never what a row holds, nor where the database is."""
    cause = failed.__cause__
    if isinstance(cause, psycopg.Error) and cause.sqlstate:
        words = "".join(f" {c.lower()}" if c.isupper() else c for c in type(cause).__name__)
        return words.strip()
    return "connection lost"


def _waited_for_a_lock(failed: DatabaseFailure) -> bool:
    return isinstance(failed.__cause__, psycopg.errors.LockNotAvailable)


def _cut(state: str) -> bool:
    # 25P03, 25P04: this process stood still within a transaction, and the server ended the session.
    return state.startswith(("08", "57P", "25P03", "25P04"))


def _no_partition(cause: BaseException | None) -> bool:
    diag = getattr(cause, "diag", None)
    return diag is not None and diag.constraint_name is None


def _back_off(attempt: int) -> None:
    # Full jitter: two that met once should not meet again.
    time.sleep(random.uniform(0, 0.02 * 2**attempt))  # noqa: S311


def _ask_how_it_ended(batch: _Some) -> _Outcomes | None:
    """Ask on a new connection how the transaction ended whose COMMIT was not answered."""
    unknown = OutcomeUnknown("the connection was lost while it was committed", retry_after_ms=1_000)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql.XACT_STATUS, [batch.xact_id])
            status = cursor.fetchone()[0]
            # After a crash an id whose commit was not flushed is given out again: "committed" may
            # be somebody else's. Only rows of our own prove that it is ours.
            there = batch.is_there(cursor) if status == "committed" else None
            if there is False and distribution.is_distributed():
                there = None  # committed here, it may still have to be on the events' worker
    except DatabaseFailure:
        connection.close()
        return [unknown for _ in batch.asks]
    if there:
        batch.count(0)
        listeners.tell(batch.written)
        return batch.outcomes()
    lost = status == "aborted" or there is False
    return None if lost else [unknown for _ in batch.asks]


# A run and the number of an event; who wrote it: the principal, and the token if there was one.
type _Place = tuple[UUID, int]
type _Writer = tuple[str | None, int | None]


@dataclass(slots=True)
class _Item:
    """One command of a batch on its way to its outcome."""

    ask: Ask
    plan: Plan
    outcome: Outcome | None = None
    replayed_record: bool = False
    units: tuple[str, ...] = ()
    wrote: tuple[tuple[str, datetime, int], ...] = ()
    refused_run: str = ""
    worker: str | None = None
    place_met: _Place | None = None
    met: str | None = None
    about: str | None = None

    @property
    def parts(self) -> tuple[Plan, ...]:
        """What has to be locked: the command's plan, or those of a composite's operations."""
        return self.plan.parts or (self.plan,)

    @property
    def run_key(self) -> str:
        """The run that it is about; of one that names none, the only one that it wrote to."""
        written = {run for run, _, _ in self.wrote}
        return self.plan.run or (written.pop() if len(written) == 1 else "")

    @property
    def loser(self) -> str:
        """The worker that was refused; who writes without a lease is known by its principal."""
        return (self.plan.worker or self.ask.by.principal)[: collisions.NAME_CHARS]

    @property
    def record_key(self) -> tuple[str, str] | None:
        key = self.ask.under.idempotency_key
        return (self.ask.by.principal, key) if key is not None else None


class _Batch:
    """The commands of one transaction. `decided` turns true when only COMMIT is left."""

    def __init__(
        self, asks: Sequence[Ask], lock_timeout: str, whole: frozenset[UUID] = frozenset()
    ) -> None:
        self.asks, self.lock_timeout, self.whole = asks, lock_timeout, whole
        self.items = [_Item(ask, plan(ask.command)) for ask in asks]
        self.decided = False
        self.xact_id = ""
        self.frees_holds = False
        self.events: list[EventRow] = []
        self.runs: dict[UUID, RunRow] = {}  # as they were locked
        self.written = listeners.Written()
        self.now: datetime | None = None

    @staticmethod
    def cursor() -> Any:
        return flights.cursor(PREPARED)

    def outcomes(self) -> list[Outcome]:
        return [cast("Outcome", item.outcome) for item in self.items]

    def plans(self) -> list[Plan]:
        return [item.plan for item in self.items]

    def open_items(self) -> list[_Item]:
        return [item for item in self.items if item.outcome is None]

    def run(self, cursor: flights.Cursor) -> None:
        cursor.execute(sql.BEGIN, [self.lock_timeout])
        self._lock_keys(cursor)
        self._replay_kept(cursor)
        draft = self._lock_rows(cursor)
        self._decide(draft)
        self._tell_more(cursor, draft)
        self._write(cursor, draft)
        cursor.flush()
        self.events = draft.writes.events
        self.written = _written(draft)
        self.decided = True

    def is_there(self, cursor: Any) -> bool | None:
        """Whether an event of this very batch is stored; None when it wrote none to know by."""
        if not self.events:
            return None
        event = self.events[0]
        where = [event.run_id, event.seq, event.at, event.actor, event.request_id]
        cursor.execute(flights.IS_THERE, where)
        return bool(cursor.fetchone()[0])

    def count(self, latency_ms: int) -> None:
        """Add what was committed to this process's minutes.

        Under the same run, worker and code as the rows that were written, so that the minutes can
        be made again from those (`recount.rebuild`).
        """
        for item in self.items:
            refusal = item.outcome if isinstance(item.outcome, Refusal) else None
            if self.now is None or (refusal and (not refusal.recorded or refusal.replayed)):
                continue
            outcome = _outcome_code(item.outcome)
            where = {
                "operation": item.plan.operation,
                "worker": item.plan.worker or ("" if refusal else item.worker) or "",
            }
            own = (item.refused_run if refusal else item.run_key, self.now)
            minutes.TALLY.add(
                at=self.now,
                run_key=own[0],
                outcome=outcome,
                events=sum(events for *of, events in item.wrote if tuple(of) == own),
                attempt=item.ask.under.attempt,
                latency_ms=latency_ms,
                gave_up=outcome in CONFLICTS and item.ask.under.is_last_attempt,
                **where,
            )
            if item.about is not None:
                minutes.TALLY.collisions.add(
                    at=self.now,
                    run_key=item.refused_run,
                    outcome=outcome,
                    loser=item.loser,
                    winner=item.met or "",
                    about=item.about,
                    latency_ms=latency_ms,
                )
            for run_key, at, events in item.wrote:
                if (run_key, at) != own:
                    minutes.TALLY.add_events(at=at, run_key=run_key, events=events, **where)
            self._remember(item)

    def _remember(self, item: _Item) -> None:
        """What this process need not ask the database again for a moment."""
        run, now = item.plan.run, self.now
        if run is None or now is None:
            return
        if isinstance(item.outcome, RunHot):
            HOT.remember(run, item.outcome, at=now, worker=item.plan.worker or item.worker or "")
        elif isinstance(item.outcome, Braked):
            HOT.forget(run)

    # --- idempotency -----------------------------------------------------------------------------

    def _lock_keys(self, cursor: Any) -> None:
        """Whoever finds a key's lock taken is told at once, and does not wait with a connection."""
        keys = {"\x1f".join(key): key for item in self.items if (key := item.record_key)}
        if not keys:
            return
        cursor.execute(sql.TRY_LOCKS, [sorted(keys)])
        taken = {keys[name] for name, had in cursor.fetchall() if not had}
        for item in self.items:
            if item.record_key in taken:
                item.outcome = IdempotencyInFlight(retry_after_ms=1_000)

    def _replay_kept(self, cursor: Any) -> None:
        """Answer repeated requests from their records; looked up again after the lock was had."""
        wanted = [key for item in self.open_items() if (key := item.record_key)]
        if not wanted:
            return
        cursor.execute(sql.RECORDS, [[p for p, _ in wanted], [k for _, k in wanted]])
        kept = {(row[0], row[1]): row[2:] for row in cursor.fetchall()}
        for item in self.open_items():
            record = kept.get(item.record_key) if item.record_key else None
            if record is None:
                continue
            fingerprint, kind, answer = record
            if bytes(fingerprint) != item.ask.under.fingerprint:
                item.outcome = IdempotencyKeyReuse(key=item.ask.under.idempotency_key)
            else:
                item.outcome = _as_of_now(cursor, answers.load(kind, answer))
                item.replayed_record = True

    # --- lock and look ---------------------------------------------------------------------------

    def _lock_rows(self, cursor: flights.Cursor) -> Draft:
        """Units, then runs, then budgets, each sorted; the clock only after all of them."""
        items = self.open_items()
        parts = [part for item in items for part in item.parts]
        if all(part.is_of_runs_alone for part in parts):
            return self._lock_runs_alone(cursor, parts)
        new_units = sorted({part.new_unit for part in parts if part.new_unit})
        if new_units:
            cursor.execute(sql.MAKE_UNITS, [new_units])
        leases, runs = self._lock_units_and_runs(cursor, items, parts)
        parts = [part for item in items for part in item.parts]
        ids = {run.key: run.id for run in runs}
        budgets = self._lock_budgets(cursor, items, parts, ids)
        self._find_dead_holds_in_the_way(cursor, parts, budgets)
        consumers = sorted({part.consumer for part in parts if part.consumer})
        if consumers:
            cursor.execute(sql.LOCK_CONSUMERS, [consumers])
        alerts = self._lock_alerts(cursor, parts)
        splits.try_ids(cursor, parts, budgets)
        people = self._lock_people(cursor, parts)
        draft = Draft(self._look(cursor, parts, leases, runs, budgets))
        facts = draft.facts
        facts.people, facts.has_admin, facts.setup_code = people
        draft.facts.alerts = alerts
        self._lock_rules(cursor, draft.facts, parts)
        self._lock_targets(cursor, draft.facts, parts)
        self._lock_bulks(cursor, draft.facts, parts)
        if any(part.is_of_ages for part in parts):
            cursor.execute(sql.LOCK_AGES)
            draft.facts.ages = retention.read_kept(cursor)
        self._look_at_proposals(cursor, draft.facts, items)
        self._look_at_holds(cursor, draft.facts, parts, ids, budgets)
        draft.leases.update({row.unit: row for row in leases})
        draft.runs.update({row.key: row for row in runs})
        self.runs = {row.id: row for row in runs}
        draft.budgets.update({row.id: row for row in (*budgets.roots, *budgets.rows)})
        draft.splits.update(budgets.splits)
        return draft

    def _lock_units_and_runs(
        self, cursor: flights.Cursor, items: Sequence[_Item], parts: Sequence[Plan]
    ) -> tuple[list[LeaseRow], list[RunRow]]:
        """Units before runs; in one flight, unless which ones is found out only on the way."""
        units = sorted({unit for part in parts for unit in part.units})
        locked = cursor.later(sql.LOCK_UNITS, [units]) if units else None
        if not self._needs_runs(items):
            keys = sorted({key for part in parts for key in part.runs})
            found = cursor.later(sql.LOCK_RUNS_BY_KEY, [keys]) if keys else None
            return _read(locked, sql.read_lease), _read(found, sql.read_run)
        leases = _read(locked, sql.read_lease)
        for item in items:
            leases += self._choose_units(cursor, item, {row.unit for row in leases})
        keys = sorted({key for item in items for part in item.parts for key in part.runs})
        ids = sorted({row.run_id for row in leases if row.run_id})
        found = cursor.later(sql.LOCK_RUNS, [keys, ids]) if keys or ids else None
        return leases, _read(found, sql.read_run)

    def _lock_runs_alone(self, cursor: flights.Cursor, parts: Sequence[Plan]) -> Draft:
        """The same in one flight, where runs are all that is locked: each statement after the one
        before, so the clock is read with every lock in hand here, too."""
        keys = sorted({key for part in parts for key in part.runs})
        locked = cursor.later(sql.LOCK_RUNS_BY_KEY, [keys]) if keys else None
        look = cursor.later(sql.LOOK, [0])
        asked = [
            {"run_key": part.run, "event_id": event_id}
            for part in parts
            for event_id in part.event_ids
        ]
        if distribution.is_distributed():
            runs: list[RunRow] = _read(locked, sql.read_run)
            known = _ask_workers(cursor, {run.key: run.id for run in runs}, asked)
        else:
            known = cursor.later(sql.KNOWN_EVENTS_BY_KEY, [sql.records(asked)]) if asked else None
            runs = _read(locked, sql.read_run)
        self.now, self.xact_id, _ = look.rows()[0]
        facts = Facts(now=self.now, new_id=uuid7, writes_per_second=settings.RUN_WRITES_PER_SECOND)
        found: list[EventRow] = _read(known, sql.read_event)
        facts.events = {(e.run_id, cast("str", e.event_id)): e for e in found}
        draft = Draft(facts)
        draft.runs.update({row.key: row for row in runs})
        self.runs = {row.id: row for row in runs}
        return draft

    def _lock_alerts(self, cursor: Any, parts: Sequence[Plan]) -> dict[str, tuple[str, int]]:
        rules = sorted({part.alert for part in parts if part.alert})
        if not rules:
            return {}
        cursor.execute(sql.LOCK_ALERTS, [rules])
        return {rule: (state, version) for rule, state, version in cursor.fetchall()}

    def _lock_rules(self, cursor: Any, facts: Facts, parts: Sequence[Plan]) -> None:
        """A row is made of rules of ours alone: a name of somebody's own makes none."""
        names = sorted({part.alert_rule for part in parts if part.alert_rule})
        if not names:
            return
        if own := [name for name in names if made.is_made(name)]:
            cursor.execute(sql.LOCK_MADE, [own])
            cursor.execute(sql.COUNT_MADE)
            facts.made_rules = cursor.fetchone()[0]
        cursor.execute(sql.MAKE_RULES, [[name for name in names if name in RULES]])
        cursor.execute(sql.LOCK_RULES, [names])
        facts.alert_rules = {row[0]: sql.read_rule(row) for row in cursor.fetchall()}

    def _lock_targets(self, cursor: Any, facts: Facts, parts: Sequence[Plan]) -> None:
        names = sorted({part.target for part in parts if part.target})
        if whose := next((part.quiet for part in parts if part.quiet), None):
            cursor.execute(sql.LOCK_QUIET, [whose])
            cursor.execute(sql.READ_QUIET, {"whose": [whose]})
            row = cursor.fetchone()
            facts.quiet = sql.read_quiet(row) if row else None
            names += [whose.removeprefix(TARGET)] if whose.startswith(TARGET) else []
        wanted = sorted({part.delivery for part in parts if part.delivery})
        if not names and not wanted:
            return
        cursor.execute(sql.COUNT_TARGETS)
        facts.target_count = cursor.fetchone()[0]
        cursor.execute(sql.LOCK_TARGETS, {"names": names, "deliveries": wanted})
        facts.targets = {row[1]: sql.read_target(row) for row in cursor.fetchall()}
        cursor.execute(sql.LOCK_DELIVERIES, [wanted])
        facts.deliveries = {row[0]: row[1:] for row in cursor.fetchall()}

    def _lock_bulks(self, cursor: Any, facts: Facts, parts: Sequence[Plan]) -> None:
        wanted = sorted({part.bulk for part in parts if part.bulk})
        if wanted:
            cursor.execute(sql.LOCK_BULKS, [wanted])
            facts.bulks = dict(cursor.fetchall())

    def _look_at_proposals(self, cursor: Any, facts: Facts, items: Sequence[_Item]) -> None:
        """Of units that are locked by now: nobody proposes or declines meanwhile."""
        units = {part.proposals for item in items for part in item.parts if part.proposals}
        makers = {i.ask.by.principal for i in items if any(p.proposes for p in i.parts)}
        if units:
            facts.proposed = proposed.read(cursor, units=units, makers=makers)

    def _needs_runs(self, items: Sequence[_Item]) -> bool:
        choosing = (ClaimRuns, NoteLapsed, CarryOutDeadlines)
        return any(isinstance(item.ask.command, choosing) for item in items)

    def _choose_units(self, cursor: Any, item: _Item, taken: Set[str]) -> list[Any]:
        """Claims and the sweep name no unit: take those that wait and that nobody else looks at."""
        command = item.ask.command
        if isinstance(command, ClaimRuns):
            wanted: dict[str, Any] = {
                "task": command.task,
                "tag": command.tag,
                "owner": command.owner,
                "limit": command.limit,
                "taken": sorted(taken),
            }
            statement = sql.CLAIM_UNITS
        elif isinstance(command, NoteLapsed):
            statement, wanted = sql.LAPSED_UNITS, {"limit": command.limit}
        elif isinstance(command, CarryOutDeadlines):
            statement, wanted = sql.OVERDUE_UNITS, {"limit": command.limit}
        else:
            return []
        statement, away = workers_away.passed_by(cursor, statement)
        cursor.execute(statement, wanted | away)
        item.units = tuple(unit for (unit,) in cursor.fetchall())
        if not item.units:
            return []
        if isinstance(command, CarryOutDeadlines):
            # The end of a run gives back what it holds.
            keys = [key for unit in item.units if (key := run_key_of(unit)) is not None]
            ends = (
                Plan(operation="end", run=k, budgets=((k, None),), all_holds=True) for k in keys
            )
            item.plan = replace(item.plan, parts=tuple(ends))
        return _rows(cursor, sql.LOCK_UNITS, [sorted(item.units)], sql.read_lease)

    def _lock_budgets(
        self,
        cursor: Any,
        items: Sequence[_Item],
        parts: Sequence[Plan],
        ids: dict[str, Any],
    ) -> LockedBudgets:
        """Trees root to leaf, then slots: what a command names, and what the sweep chose."""
        dead = self._choose_dead_holds(cursor, items)
        whole = sorted(self.whole)
        rows = self._lock_named_budgets(cursor, parts, ids, whole)
        slots = {slot_id for *_, slot_id in dead if slot_id is not None}
        if dead:
            wanted = sorted({budget_id for budget_id, *_ in dead} - slots | self.whole)
            rows += _rows(cursor, sql.LOCK_BUDGETS_BY_ID, [wanted, whole, []], sql.read_budget)
        wanted_of_splits = splits.wanted_of(parts, ids, slots=slots, whole=self.whole)
        locked = splits.lock_slots(cursor, rows, wanted_of_splits)
        locked.dead = [(budget_id, reservation_id) for budget_id, reservation_id, _ in dead]
        return locked

    def _lock_named_budgets(
        self, cursor: Any, parts: Sequence[Plan], ids: dict[str, Any], whole: list[UUID]
    ) -> list[BudgetRow]:
        named = {
            (ids.get(run) if run is not None else None, name)
            for part in parts
            for run, name in part.budgets
            if run is None or run in ids
        }
        if not named:
            return []
        wanted = sql.records({"run_id": run_id, "name": name} for run_id, name in named)
        names = [name for part in parts if part.whole for run, name in part.budgets if run is None]
        return _rows(cursor, sql.LOCK_BUDGETS, [wanted, whole, names], sql.read_budget)

    def _choose_dead_holds(self, cursor: Any, items: Sequence[_Item]) -> list[tuple[Any, ...]]:
        """The sweep's choice; whether they are dead all the same is decided under the lock."""
        limit = sum(i.ask.command.limit for i in items if isinstance(i.ask.command, DropDeadHolds))
        if not limit:
            return []
        cursor.execute(sql.DEAD_HOLDS, [limit])
        return list(cursor.fetchall())

    def _find_dead_holds_in_the_way(
        self, cursor: Any, parts: Sequence[Plan], budgets: LockedBudgets
    ) -> None:
        """Dead holds under budgets that would else refuse a charge, and the rows they count in."""
        charging = sum(part.charging for part in parts)
        if not charging:
            return
        if budgets.lacks_room(charging):
            splits.look_again(cursor, budgets)
        full = [budget.id for budget in budgets.full(charging) if budget.reserved]
        if not full:
            return
        cursor.execute(sql.DEAD_HOLDS_BELOW, [full, DEAD_HOLDS_PER_CHARGE])
        dead = list(cursor.fetchall())
        if dead and (loose := [root.id for root in budgets.roots if root.id in full]):
            raise NeedsWhole(loose[0])
        known = {budget.id for budget in budgets.rows}
        counted = {budget_id for budget_id, *_ in dead} | {slot for *_, slot in dead if slot}
        more = sorted(counted - known)
        if more:
            at_hand = _rows(cursor, sql.LOCK_BUDGETS_AT_HAND, [more, [], []], sql.read_budget)
            new = [budget for budget in at_hand if budget.id not in known]
            splits.add_rows(cursor, budgets, new)
        budgets.dead += [(budget_id, reservation_id) for budget_id, reservation_id, _ in dead]
        self.frees_holds = bool(dead)

    def _look_at_holds(
        self,
        cursor: Any,
        facts: Facts,
        parts: Sequence[Plan],
        ids: dict[str, Any],
        budgets: LockedBudgets,
    ) -> None:
        asked = {
            (budget_id, hold)
            for part in parts
            if part.holds
            for budget_id in budgets.ids_for(part.run)
            for hold in part.holds
        } | set(budgets.dead)
        found: list[Any] = []
        if asked:
            wanted = [{"budget_id": b, "reservation_id": r} for b, r in sorted(asked)]
            found = _rows(cursor, sql.HOLDS, [sql.records(wanted)], sql.read_hold)
        ending = sorted({ids[p.run] for p in parts if p.all_holds and p.run in ids})
        if ending and any(budget.reserved for budget in budgets.rows):
            found += _rows(cursor, sql.HOLDS_OF_RUNS, [ending], sql.read_hold)
        homes = facts.homes
        facts.holds = {(homes.get(h.budget_id, h.budget_id), h.reservation_id): h for h in found}
        if budgets.dead and found:
            run_ids = sorted({hold.run_id for hold in found if hold.run_id})
            facts.holders = _rows(cursor, sql.HOLDERS, [run_ids], sql.read_run)

    def _lock_people(
        self, cursor: Any, parts: Sequence[Plan]
    ) -> tuple[dict[str, str], bool, str | None]:
        """The roles of those that are named; whether there is an admin, and the code for one."""
        names = sorted({part.person for part in parts if part.person})
        has_admin, code, roles = True, None, {}
        if any(part.is_setup for part in parts):
            cursor.execute(sql.LOCK_SETUP, [SETUP_LOCK])
            cursor.execute(sql.SETUP)
            has_admin, code = cursor.fetchone()
        if names:
            cursor.execute(sql.LOCK_PEOPLE, [names])
            cursor.execute(sql.READ_PEOPLE, {"names": names, "roles": list(ROLES)})
            roles = dict(cursor.fetchall())
        return roles, has_admin, code

    def _look(
        self,
        cursor: flights.Cursor,
        parts: Sequence[Plan],
        leases: Sequence[Any],
        runs: Sequence[Any],
        budgets: LockedBudgets,
    ) -> Facts:
        look = cursor.later(sql.LOOK, [sum(part.tokens for part in parts)])
        ids = {run.key: run.id for run in runs}
        asked_events = [
            {"run_id": ids[part.run], "event_id": event_id}
            for part in parts
            for event_id in part.event_ids
            if part.run in ids
        ]
        if distribution.is_distributed():
            named = distribution.known_events(asked_events)
            events = cursor.later(distribution.KNOWN_EVENTS, named) if named else None
        else:
            events = _ask(cursor, sql.KNOWN_EVENTS, asked_events and sql.records(asked_events))
        asked_charges = [
            {"budget_id": budget_id, "run_id": ids.get(part.run or ""), "entry_id": charge_id}
            for part in parts
            if part.charge_ids
            for budget_id in budgets.ids_for(part.run)
            for charge_id in part.charge_ids
        ]
        charges = _ask(cursor, sql.KNOWN_CHARGES, asked_charges and sql.records(asked_charges))
        tokens_seen = {token for part in parts for token in part.seen_tokens}
        tokens_seen |= {lease.token for lease in leases if lease.token is not None}
        terms = _ask(cursor, sql.TERMS, sorted(tokens_seen))
        names = {name for part in parts for name in part.workers}
        if any(part.drains_of_holders for part in parts):
            owners = {lease.owner for lease in leases if lease.owner}
            names |= owners | {owner.split("~")[0] for owner in owners}
        drains = _ask(cursor, sql.DRAINS, sorted(names))
        now, self.xact_id, tokens = look.rows()[0]
        self.now = now
        facts = Facts(
            now=now,
            new_id=uuid7,
            tokens=list(tokens),
            writes_per_second=settings.RUN_WRITES_PER_SECOND,
            homes=budgets.homes,
        )
        facts.events = {(e.run_id, e.event_id): e for e in _read(events, sql.read_event)}
        homes = facts.homes
        facts.charges = {
            (homes.get(e.budget_id, e.budget_id), e.run_id, e.entry_id): e
            for e in _read(charges, sql.read_entry)
        }
        facts.terms = {term.token: term for term in _read(terms, sql.read_term)}
        facts.drains = {
            name: {"reason": reason, "by": by, "at": at}
            for name, reason, by, at in (drains.rows() if drains is not None else ())
        }
        if any(part.tells_effects for part in parts):
            facts.open_effects = _open_effects(cursor, [run.id for run in runs])
        api_keys = sorted({name for part in parts for name in part.api_keys})
        if api_keys:
            cursor.execute(sql.TAKEN_KEYS, [api_keys])
            facts.api_keys = frozenset(name for (name,) in cursor.fetchall())
        consumers = sorted({part.consumer for part in parts if part.consumer})
        if consumers:
            cursor.execute(sql.CONSUMERS, [consumers])
            position, stand = cursor.fetchall()[0]
            facts.feed_position, facts.consumers = position or 0, json.loads(stand or "{}")
        return facts

    # --- decide ----------------------------------------------------------------------------------

    def _decide(self, draft: Draft) -> None:
        if self.frees_holds:
            fork = draft.fork()
            decide(DropDeadHolds(), fork, by=SWEEP)
            draft.adopt(fork)
        first: dict[tuple[str, str], _Item] = {}
        for item in self.open_items():
            earlier = first.get(item.record_key) if item.record_key else None
            if earlier is not None:
                item.outcome = _again(earlier, item)
                continue
            item.outcome = self._decide_one(item, draft)
            if item.record_key:
                first[item.record_key] = item

    def _decide_one(self, item: _Item, draft: Draft) -> Outcome:
        fork = draft.fork()
        try:
            result = decide(
                item.ask.command,
                fork,
                by=item.ask.by,
                request_id=item.ask.under.request_id,
                units=item.units,
            )
        except Refusal as refusal:
            return refusal
        except NeedsWhole:
            raise
        except Exception as bug:
            # It fails this command alone; the others of the batch know nothing of it.
            log.exception("a rule failed: %s", item.plan.operation)
            return bug
        finally:
            run = draft.find_run(item.plan.run) if item.plan.run else None
            item.worker = run.owner if run else None
        item.wrote = _wrote(fork)
        draft.adopt(fork)
        return result

    def _tell_more(self, cursor: Any, draft: Draft) -> None:
        """Give each refusal what the locked rows do not hold: time left, the worker's name."""
        refused = [i for i in self.items if isinstance(i.outcome, Refusal) and i.outcome.recorded]
        if not refused:
            return
        owned = {
            i.plan.run
            for i in refused
            if i.plan.run and _owner(i) and "expires_in_ms" not in _current(i)
        }
        if owned:
            cursor.execute(
                "SELECT unit, expires_at FROM agentstate_lease WHERE unit = ANY(%s)",
                [[unit_of(key) for key in owned]],
            )
            expires = dict(cursor.fetchall())
            for item in refused:
                at = expires.get(unit_of(item.plan.run)) if item.plan.run else None
                if at is not None and _owner(item):
                    left = (at - draft.now).total_seconds() * 1_000
                    _current(item)["expires_in_ms"] = max(0, int(left))
        for item in refused:
            item.place_met = _place_met(item, draft)
        writers = self._writers_met(cursor, draft, refused)
        tokens = {i.plan.token_sent for i in refused if i.plan.token_sent and not i.plan.worker}
        tokens |= {token for _, token in writers.values() if token is not None}
        owners: dict[int | None, str] = {}
        if tokens:
            cursor.execute(
                "SELECT token, owner FROM agentstate_leaseterm WHERE token = ANY(%s)",
                [sorted(tokens)],
            )
            owners = dict(cursor.fetchall())
            # A term that began in this very batch is not written yet.
            begun = (draft.writes.terms[token] for token in tokens & draft.writes.terms.keys())
            owners |= {term.token: term.owner for term in begun}
        for item in refused:
            worker = owners.get(item.plan.token_sent)
            if worker is not None and not item.plan.worker:
                item.plan = replace(item.plan, worker=worker)
            _note_collision(item, writers, owners)

    def _writers_met(
        self, cursor: Any, draft: Draft, refused: Sequence[_Item]
    ) -> dict[_Place, _Writer]:
        """Who wrote what conflicts met. What this very batch wrote is not in the log yet."""
        places = {item.place_met for item in refused if item.place_met is not None}
        if not places:
            return {}
        found: dict[_Place, _Writer] = {
            (event.run_id, event.seq): (event.actor, event.token)
            for event in draft.writes.events
            if (event.run_id, event.seq) in places
        }
        missing = sorted(places - found.keys())
        if missing:
            if distribution.is_distributed():
                cursor.execute(distribution.WRITERS, distribution.writers(missing))
            else:
                asked = [{"run_id": run_id, "seq": seq} for run_id, seq in missing]
                cursor.execute(sql.WRITERS, [sql.records(asked)])
            found |= {(run, seq): (actor, token) for run, seq, actor, token in cursor.fetchall()}
        return found

    # --- write -----------------------------------------------------------------------------------

    def _write(self, cursor: Any, draft: Draft) -> None:
        writes, now = draft.writes, draft.now
        old_runs, new_runs = _split(writes.runs, writes.new_runs)
        old_terms, new_terms = _split(writes.terms, writes.new_terms)
        old_budgets, new_budgets = _split(writes.budgets, writes.new_budgets)
        _put(cursor, sql.INSERT_RUNS, new_runs)
        self._update_runs(cursor, old_runs)
        if writes.events:
            log_events = (
                distribution.LOG_EVENTS if distribution.is_distributed() else sql.INSERT_EVENTS
            )
            cursor.execute(log_events, [sql.event_records(writes.events)])
        _put(cursor, sql.BEGIN_EFFECTS, writes.begun)
        _put(cursor, sql.END_EFFECTS, writes.ended)
        # Closed while the lease still knows their renewals, and before new ones begin, or the
        # exclusion constraint would see an overlap.
        _put(cursor, sql.CLOSE_TERMS, old_terms)
        kept = [lease for unit, lease in writes.leases.items() if draft.leases.get(unit)]
        _put(cursor, sql.SAVE_LEASES, kept)
        if writes.dropped_leases:
            cursor.execute(sql.DROP_LEASES, [sorted(writes.dropped_leases)])
        _put(cursor, sql.INSERT_TERMS, new_terms)
        _put(cursor, sql.INSERT_BUDGETS, new_budgets)
        _put(cursor, sql.UPDATE_BUDGETS, old_budgets)
        _put(cursor, sql.INSERT_ENTRIES, writes.entries)
        _put(cursor, sql.SAVE_HOLDS, list(writes.holds.values()))
        _put(cursor, sql.INSERT_OUTBOX, _outbox(draft))
        _put(cursor, sql.INSERT_ACTIONS, writes.actions)
        _put(cursor, sql.INSERT_REFUSALS, self._refusals(draft))
        _put(cursor, sql.INSERT_TRIES, tries.distinct(self._tries(draft)))
        for name, values in writes.other:
            _OTHER[name](cursor, now, **values)
        self._keep_answers(cursor, now)

    def _update_runs(self, cursor: Any, runs: Sequence[RunRow]) -> None:
        """Of those that were only written to, as by an append, just what that changes."""
        found: tuple[list[RunRow], list[RunRow]] = ([], [])
        for run in runs:
            before = self.runs.get(run.id)
            found[before is not None and sql.only_grew(before, run)].append(run)
        _put(cursor, sql.UPDATE_RUNS, found[False])
        if found[True]:
            cursor.execute(sql.GROW_RUNS, [sql.grown_records(found[True])])

    def _refusals(self, draft: Draft) -> Iterator[dict[str, Any]]:
        told: set[Any] = set()
        for item in self.items:
            refusal = item.outcome
            if not isinstance(refusal, Refusal) or not refusal.recorded or refusal.replayed:
                continue
            run = draft.find_run(item.plan.run) if item.plan.run else None
            item.refused_run = run.key if run else ""
            if isinstance(refusal, (LeaseHeld, RunHot)):
                # A row a second is enough of these (INSERT_REFUSALS); so it is within a batch.
                same = (refusal.code, item.plan.unit, item.plan.run, item.ask.by.principal)
                if (*same, item.plan.worker) in told:
                    continue
                told.add((*same, item.plan.worker))
            yield {
                "at": draft.now,
                "code": refusal.code,
                "operation": item.plan.operation,
                "run_id": run.id if run else None,
                "unit": item.plan.unit,
                "budget": refusal.facts.get("budget"),
                "actor": item.ask.by.principal,
                "worker": item.plan.worker,
                "token_sent": item.plan.token_sent,
                "token_current": run.token if run else _current(item).get("token"),
                "wanted": dict(item.plan.wanted) | _asked(refusal),
                "found": _current(item),
                "request_id": item.ask.under.request_id,
                "attempt": item.ask.under.attempt,
                "met": item.met,
                "about": item.about,
            }

    def _tries(self, draft: Draft) -> Iterator[dict[str, Any]]:
        """What people, and keys that act for them, were refused: the audit tells of it, too."""
        for item in self.items:
            refusal = item.outcome
            if not isinstance(refusal, Refusal) or not refusal.recorded or refusal.replayed:
                continue
            named = tries.named(item.ask.command, item.plan, item.ask.by)
            if named is None:
                continue
            run = draft.find_run(item.plan.run) if item.plan.run else None
            yield tries.row(
                at=draft.now,
                by=item.ask.by,
                action=named[0],
                thing=named[1],
                run_id=run.id if run else None,
                code=refusal.code,
                reason=getattr(item.ask.command, "reason", "") or "",
                expected={k: v for k, v in item.plan.wanted.items() if k != "reason"},
                found=_current(item),
                request_id=item.ask.under.request_id,
            )

    def _keep_answers(self, cursor: Any, now: datetime) -> None:
        again = [i.record_key for i in self.items if i.replayed_record and i.record_key]
        if again:
            cursor.execute(sql.COUNT_REPLAYS, [[p for p, _ in again], [k for _, k in again]])
        _put(cursor, sql.KEEP_ANSWERS, self._kept_answers(now))

    def _kept_answers(self, now: datetime) -> Iterator[dict[str, Any]]:
        seen: set[tuple[str, str]] = set()
        for item in self.items:
            key, outcome = item.record_key, item.outcome
            if key is None or outcome is None or item.replayed_record or key in seen:
                continue
            if isinstance(outcome, Exception) and not getattr(outcome, "kept", False):
                continue
            seen.add(key)
            yield answers.kept(item.ask, cast("Result | Refusal", outcome), now)


def _open_effects(
    cursor: Any, run_ids: Sequence[UUID]
) -> dict[UUID, tuple[tuple[OpenEffect, ...], int]]:
    """(the first open ones, how many) of each of the runs that has any."""
    cursor.execute(sql.COUNT_OPEN_EFFECTS, [list(run_ids)])
    counts = dict(cursor.fetchall())
    if not counts:
        return {}
    if distribution.is_distributed():
        rows = distribution.open_effects(cursor, list(counts))
    else:
        cursor.execute(sql.OPEN_EFFECTS, [list(counts)])
        rows = cursor.fetchall()
    found: dict[UUID, list[OpenEffect]] = {run_id: [] for run_id in counts}
    for run_id, event_id, seq, event_type, token, actor, at, size, data in rows:
        found[run_id].append(
            OpenEffect(
                key=event_id[len(SIGN_BEGUN) :],
                seq=seq,
                type=event_type,
                data=RawJSON(data) if data not in (None, "null") else None,
                data_bytes=size,
                token=token,
                actor=actor,
                at=at,
            )
        )
    return {run_id: (tuple(found[run_id]), count) for run_id, count in counts.items()}


def _wrote(fork: Draft) -> tuple[tuple[str, datetime, int], ...]:
    """How many events of each run and time a command decided. Imported ones keep their times."""
    events = fork.writes.events
    if not events:
        return ()
    keys = {row.id: row.key for row in fork.writes.runs.values()}
    if len(events) == 1:
        return ((keys[events[0].run_id], events[0].at, 1),)
    counted = Counter((keys[event.run_id], event.at) for event in fork.writes.events)
    return tuple((key, at, count) for (key, at), count in counted.items())


def _written(draft: Draft) -> listeners.Written:
    writes = draft.writes
    return listeners.Written(
        runs=frozenset(run.key for run in writes.runs.values()),
        types=frozenset(event.type for event in writes.events),
        units=frozenset(term.unit for term in writes.terms.values()),
    )


def _outcome_code(outcome: Outcome | None) -> str:
    if isinstance(outcome, Refusal):
        return outcome.code
    return "failed" if isinstance(outcome, Exception) else minutes.OK


def _split(rows: Mapping[Any, Any], new: Set[Any]) -> tuple[list[Any], list[Any]]:
    """(changed, new) rows."""
    return (
        [row for key, row in rows.items() if key not in new],
        [row for key, row in rows.items() if key in new],
    )


def _rows(
    cursor: Any, statement: str, params: Sequence[Any], read: Callable[..., Any]
) -> list[Any]:
    cursor.execute(statement, params)
    return [read(row) for row in cursor.fetchall()]


def _ask_workers(
    cursor: flights.Cursor, ids: Mapping[str, UUID], asked: Sequence[Mapping[str, Any]]
) -> flights.Later | None:
    """KNOWN_EVENTS_BY_KEY of a distributed log, once the runs' ids are known."""
    named = distribution.known_events(
        {"run_id": ids[row["run_key"]], "event_id": row["event_id"]}
        for row in asked
        if row["run_key"] in ids
    )
    return cursor.later(distribution.KNOWN_EVENTS, named) if named else None


def _ask(cursor: flights.Cursor, statement: str, wanted: Any) -> flights.Later | None:
    """Send a statement that takes one parameter, if there is anything to ask."""
    return cursor.later(statement, [wanted]) if wanted else None


def _read(asked: flights.Later | None, read: Callable[..., Any]) -> list[Any]:
    """The rows of a statement that was sent; none of one that had nothing to ask."""
    return [read(row) for row in asked.rows()] if asked is not None else []


def _put(cursor: Any, statement: str, rows: Iterable[Any]) -> None:
    rows = list(rows)
    if rows:
        cursor.execute(statement, [sql.records(rows)])


def _place_met(item: _Item, draft: Draft) -> _Place | None:
    """Which event a conflict met: the last one of its run as this command was refused, so that what
    an earlier command of the same batch wrote is counted, too."""
    if getattr(item.outcome, "code", None) not in CONFLICTS or not item.plan.run:
        return None
    run, seq = draft.find_run(item.plan.run), _current(item).get("last_seq")
    return (run.id, seq) if run is not None and isinstance(seq, int) and seq else None


def _note_collision(
    item: _Item, writers: Mapping[_Place, _Writer], owners: Mapping[int | None, str]
) -> None:
    """Who was first, and about what: the writer of what a conflict met, else who holds the unit."""
    refusal = item.outcome
    if not isinstance(refusal, Refusal) or refusal.code not in collisions.COUNTED:
        return
    item.about = collisions.about(refusal, wanted=item.plan.wanted, unit=_own_unit(item.plan))
    first: Any = _owner(item)
    if item.place_met is not None:
        actor, token = writers.get(item.place_met, (None, None))
        first = owners.get(token, actor)
    item.met = str(first)[: collisions.NAME_CHARS] if first else None


def _own_unit(plan: Plan) -> str | None:
    """The unit of a lease that belongs to no run: a run's own says no more than the run."""
    return plan.unit if plan.unit is not None and run_key_of(plan.unit) is None else None


def _asked(refusal: Refusal) -> dict[str, Any]:
    """What a charge asked of the level that refused it: of several charges it is one of them."""
    return {"asked": refusal.facts["asked"]} if "asked" in refusal.facts else {}


def _owner(item: _Item) -> Any:
    return _current(item).get("owner")


def _current(item: _Item) -> dict[str, Any]:
    refusal = item.outcome
    assert isinstance(refusal, Refusal)
    return refusal.current if refusal.current is not None else {}


def _again(earlier: _Item, item: _Item) -> Outcome:
    """The second of two commands with one key in a batch is answered from the first."""
    if earlier.ask.under.fingerprint != item.ask.under.fingerprint:
        return IdempotencyKeyReuse(key=item.ask.under.idempotency_key)
    outcome = cast("Outcome", earlier.outcome)
    if isinstance(outcome, Exception):
        return outcome
    return replace(outcome, replayed=True)


def _as_of_now(cursor: Any, answer: Outcome) -> Outcome:
    """A replayed grant says how long it still lasts, or that it is over."""
    if isinstance(answer, Acquired):
        left = _time_left(cursor, [answer.unit]).get(answer.unit)
        if left is None or left[0] != answer.token:
            return _over(cursor, "the lease of the first answer is over", [answer.token])
        return replace(answer, expires_at=left[1], expires_in_ms=left[2])
    if isinstance(answer, Claimed) and answer.items:
        times = _time_left(cursor, [item.unit for item in answer.items])
        items = tuple(
            replace(item, expires_at=times[item.unit][1], expires_in_ms=times[item.unit][2])
            for item in answer.items
            if item.unit in times and times[item.unit][0] == item.token
        )
        if not items:
            tokens = [item.token for item in answer.items]
            return _over(cursor, "the leases of the first answer are over", tokens)
        return replace(answer, items=items)
    return answer


def _over(cursor: Any, detail: str, tokens: list[int]) -> LeaseLost:
    """How the first of these leases ended: as a renewal would be told."""
    cursor.execute(
        "SELECT ended, ended_by, reason FROM agentstate_leaseterm WHERE token = ANY(%s)"
        " ORDER BY token LIMIT 1",
        [tokens],
    )
    ended, by, why = cursor.fetchone() or (None, None, None)
    if ended == "reclaimed":
        return LeaseLost(detail, reason=ended, by=by, why=why)
    reason = ended if ended in ("released", "run-terminal") else "expired"
    return LeaseLost(detail, reason=reason)


def _time_left(cursor: Any, units: list[str]) -> dict[str, tuple[int, datetime, int]]:
    cursor.execute(
        "SELECT unit, token, expires_at,"
        " floor(extract(epoch FROM expires_at - agentstate_now()) * 1000)::bigint"
        " FROM agentstate_lease WHERE unit = ANY(%s) AND expires_at > agentstate_now()",
        [units],
    )
    return {unit: (token, at, left) for unit, token, at, left in cursor.fetchall()}


def _outbox(draft: Draft) -> list[dict[str, Any]]:
    """One row per run and batch: from its first new number to its last."""
    keys = {row.id: row for row in draft.writes.runs.values()}
    rows: dict[Any, dict[str, Any]] = {}
    for event in draft.writes.events:
        row = rows.setdefault(
            event.run_id,
            {
                "run_id": event.run_id,
                "run_key": keys[event.run_id].key,
                "first_seq": event.seq,
                "types": [],
                "at": draft.now,
            },
        )
        row["last_seq"], row["version"] = event.seq, keys[event.run_id].version
        if event.type not in row["types"]:
            row["types"].append(event.type)
    return list(rows.values())


def _create_key(cursor: Any, now: datetime, *, ask: Any, by: str) -> None:
    cursor.execute(
        sql.CREATE_KEY,
        [
            ask.id,
            ask.name,
            list(ask.scopes),
            ask.salt,
            ask.digest,
            ask.hint,
            by,
            now,
            ask.expires_at,
        ],
    )


def _revoke_key(cursor: Any, now: datetime, *, name: str) -> None:
    cursor.execute(sql.REVOKE_KEY, [now, name])


def _set_role(cursor: Any, now: datetime, *, person: str, role: str) -> None:
    cursor.execute(sql.DROP_ROLES, [person, list(ROLES)])
    cursor.execute(sql.GIVE_ROLE, [person, role])


def _end_sessions(cursor: Any, now: datetime, *, person: str) -> None:
    cursor.execute(sql.END_SESSIONS, [person])


def _make_first_admin(cursor: Any, now: datetime, *, name: str, password: str) -> None:
    cursor.execute(sql.MAKE_PERSON, [name, password, now])
    cursor.execute(sql.GIVE_ROLE, [name, "admin"])
    cursor.execute(sql.DROP_SETUP_CODE)


def _skew_ms(worker_time: datetime | None, now: datetime) -> int | None:
    """How far a worker's clock is ahead of the database's; for people, never for a decision."""
    return None if worker_time is None else int((worker_time - now).total_seconds() * 1_000)


def _save_telemetry(cursor: Any, now: datetime, *, run_id: Any, ask: PutTelemetry) -> None:
    values = {
        "run_id": run_id,
        "host": ask.host,
        "model": ask.model,
        "progress": ask.progress.text if ask.progress else None,
        "worker_time": ask.worker_time,
        "skew_ms": _skew_ms(ask.worker_time, now),
        "token": ask.fence,
        "at": now,
    }
    cursor.execute(sql.SAVE_TELEMETRY, values)


def _save_worker(cursor: Any, now: datetime, *, ask: AnnounceWorker, by: str) -> None:
    values = {
        "name": ask.worker,
        "version": ask.version,
        "host": ask.host,
        "slots": ask.slots,
        "worker_time": ask.worker_time,
        "skew_ms": _skew_ms(ask.worker_time, now),
        "by": by,
        "at": now,
    }
    cursor.execute(sql.SAVE_WORKER, values)
    if ask.version is not None:
        cursor.execute(sql.NOTE_VERSION, versions.noted(versions.WORKERS, ask.version, now))


def _save_drain(cursor: Any, now: datetime, *, ask: DrainWorker, by: str) -> None:
    values = {
        "name": ask.worker,
        "by": by,
        "at": now,
        "drain_at": now if ask.draining else None,
        "drain_by": by if ask.draining else None,
        "reason": ask.reason if ask.draining else None,
    }
    cursor.execute(sql.SAVE_DRAIN, values)


def _save_checkpoint(cursor: Any, now: datetime, *, ask: SetCheckpoint, by: str) -> None:
    values = {"name": ask.consumer, "position": ask.position, "by": by, "at": now}
    cursor.execute(sql.SAVE_CHECKPOINT, values)


def _acknowledge(cursor: Any, now: datetime, *, ask: AcknowledgeAlert, by: str) -> None:
    values = {"rule": ask.rule, "at": now, "by": by, "why": ask.reason}
    cursor.execute(sql.ACKNOWLEDGE, values)


def _snooze(
    cursor: Any, now: datetime, *, ask: SnoozeAlert, by: str, until: datetime | None
) -> None:
    values = {"rule": ask.rule, "until": until, "by": by, "why": ask.reason}
    cursor.execute(sql.SNOOZE, values)


def _change_rule(cursor: Any, now: datetime, **values: Any) -> None:
    cursor.execute(sql.CHANGE_RULE, values | {"at": now})


def _put_rule(cursor: Any, now: datetime, **values: Any) -> None:
    cursor.execute(sql.PUT_RULE, values | {"at": now})


def _delete_rule(cursor: Any, now: datetime, *, rule: str) -> None:
    cursor.execute(sql.DELETE_RULE, {"rule": rule})


def _create_target(cursor: Any, now: datetime, *, ask: CreateTarget, by: str) -> None:
    values = {
        "id": ask.id,
        "name": ask.name,
        "kind": ask.kind,
        "address": ask.address,
        "secret": ask.secret,
        "hint": ask.hint,
        "least": ask.least,
        "rules": list(ask.rules),
        "person": ask.person,
        "by": by,
        "at": now,
    }
    cursor.execute(sql.CREATE_TARGET, values)


def _change_target(cursor: Any, now: datetime, *, target: TargetRow, off_why: str | None) -> None:
    values = {
        "id": target.id,
        "least": target.least,
        "rules": list(target.rules),
        "person": target.person,
        "version": target.version,
        "enabled": target.enabled,
        "off_why": off_why,
        "at": now,
    }
    cursor.execute(sql.CHANGE_TARGET, values)


def _rotate_secret(cursor: Any, now: datetime, **values: Any) -> None:
    cursor.execute(sql.ROTATE_TARGET, values)


def _delete_target(cursor: Any, now: datetime, *, target: TargetRow) -> None:
    cursor.execute(sql.DELETE_TARGET, {"id": target.id})


def _set_quiet(
    cursor: Any, now: datetime, *, whose: str, quiet: Quiet | None, version: int, by: str
) -> None:
    """None is kept as no day, so that its version goes on."""
    said = quiet or Quiet(zone="UTC", begins=0, ends=0, days=())
    values = {"whose": whose, "version": version, "by": by, "at": now}
    cursor.execute(sql.SAVE_QUIET, values | said.facts())
    deliveries.hold_anew(cursor, whose, now)


def _save_age(cursor: Any, now: datetime, *, kept: KeptAge) -> None:
    cursor.execute(sql.SAVE_AGE, asdict(kept))


def _test_target(cursor: Any, now: datetime, *, target: TargetRow, id: UUID, by: str) -> None:
    deliveries.enqueue_test(cursor, target, now, id=id, by=by)


def _resend(cursor: Any, now: datetime, *, id: UUID, more: int) -> None:
    cursor.execute(sql.RESEND, {"id": id, "more": more, "at": now})


def _create_bulk(
    cursor: Any, now: datetime, *, id: UUID, ask: CreateBulk, filter: str | None, by: Caller
) -> None:
    values = {
        "id": id,
        "kind": ask.kind,
        "filter": filter,
        "seen_at": ask.seen_at,
        "shown": ask.shown,
        "is_all": ask.is_all,
        "tags": list(ask.tags),
        "hold_off_seconds": ask.hold_off_seconds,
        "reason": ask.reason,
        "by": by.principal,
        "scopes": sorted(by.scopes),
        "at": now,
        "state": bulking.COLLECTING if filter is not None else bulking.WORKING,
    }
    cursor.execute(sql.CREATE_BULK, values)
    if ask.picked:
        rows = [
            {
                "n": n,
                "run": one.run,
                "seen": {"status": one.status, "owner": one.owner, "token": one.token},
            }
            for n, one in enumerate(ask.picked)
        ]
        cursor.execute(sql.PICK_ROWS, {"id": id, "at": now, "rows": sql.records(rows)})


def _stop_bulk(cursor: Any, now: datetime, *, id: UUID, by: str, why: str) -> None:
    cursor.execute(sql.STOP_BULK, {"id": id, "at": now, "by": by, "why": why})


_OTHER: dict[str, Callable[..., None]] = {
    "bulk": _create_bulk,
    "bulk-stop": _stop_bulk,
    "create-key": _create_key,
    "revoke-key": _revoke_key,
    "set-role": _set_role,
    "end-sessions": _end_sessions,
    "make-first-admin": _make_first_admin,
    "telemetry": _save_telemetry,
    "worker": _save_worker,
    "drain": _save_drain,
    "checkpoint": _save_checkpoint,
    "acknowledge": _acknowledge,
    "snooze": _snooze,
    "rule": _change_rule,
    "rule-put": _put_rule,
    "rule-delete": _delete_rule,
    "target": _create_target,
    "target-change": _change_target,
    "rotate-secret": _rotate_secret,
    "target-delete": _delete_target,
    "quiet": _set_quiet,
    "age": _save_age,
    "test": _test_target,
    "resend": _resend,
}


@contextlib.contextmanager
def moving_the_feed() -> Iterator[None]:
    """Run the mover thread while the block lasts; for web processes and for tests."""
    feed.MOVER.start()
    try:
        yield
    finally:
        feed.MOVER.stop()


# The sweeps choose their rows themselves, many at a time: they hold up nobody else's command. What
# is done to targets is decided from their rows as they are stored, and rare.
SWEEPS = (NoteLapsed, DropDeadHolds, CarryOutDeadlines)
OF_TARGETS = (
    CreateTarget,
    ChangeTarget,
    RotateSecret,
    DeleteTarget,
    SetQuiet,
    TryTarget,
    ResendDelivery,
)
ALONE = (*SWEEPS, *OF_TARGETS, CreateBulk, StopBulk, ChangeAge)
# What writes to the log of the runs that it names; more would do, and asks the database in vain.
OF_THE_LOG = (Append, Transition, AcquireLease, ReleaseLease, ReclaimLease)
SHORT_WAYS = (
    ShortWay(plain.plain_ones, plain.PlainBatch),
    ShortWay(renewals.choose, renewals.RenewalBatch),
    ShortWay(looks.choose, looks.LookBatch),
    ShortWay(claims.choose, claims.ClaimBatch),
)
WRITES = Lane(together=_together, alone=_alone)
LEASES = Lane(together=_together, alone=_alone)
AIO_WRITES = aio.LoopLanes(try_together, name="writes")
AIO_LEASES = aio.LoopLanes(try_together, name="leases")
