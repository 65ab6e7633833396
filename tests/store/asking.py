"""The store's commands in short form, for tests that read like what they test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connection

from agentstate import store
from agentstate.store import rowsql
from agentstate.store.callers import SCOPES, Caller, Circumstances
from agentstate.store.commands import (
    Acquired,
    AcquireLease,
    Append,
    Appended,
    Charge,
    Claimed,
    ClaimRuns,
    CreateRun,
    Moved,
    NewEvent,
    NoteLapsed,
    Reclaimed,
    ReclaimLease,
    Released,
    ReleaseLease,
    Renewed,
    RenewLease,
    RunCreated,
    Spend,
    Spent,
    Transition,
)
from agentstate.store.payloads import dump
from agentstate.store.rows import EventRow, LeaseRow, RunRow, TermRow, unit_of

FLEET = Caller(kind="key", name="fleet", scopes=frozenset(SCOPES))
OTHER_FLEET = Caller(kind="key", name="other-fleet", scopes=frozenset(SCOPES))
ANA = Caller(kind="person", name="ana", scopes=frozenset({"read", "payloads", "operate"}))
SENIOR = Caller(kind="person", name="bo", scopes=ANA.scopes | {"override"})
ASSISTANT = Caller(kind="key", name="assistant", scopes=frozenset({"read", "propose"}))
VIEWER = Caller(kind="person", name="vi", scopes=frozenset({"read", "payloads"}))


def event(event_type: str = "step.done", data: Any = None, id: str | None = None) -> NewEvent:
    return NewEvent(type=event_type, data=dump(data), id=id)


class Asking:
    def __init__(self, by: Caller = FLEET) -> None:
        self.by = by

    def as_caller(self, by: Caller) -> Asking:
        return Asking(by)

    def ask(self, command: Any, *, key: str | None = None, fingerprint: bytes = b"same") -> Any:
        under = Circumstances(
            idempotency_key=key, fingerprint=fingerprint if key else None, request_id="req-1"
        )
        return store.execute(command, by=self.by, under=under)

    def create(self, key: str = "42", *, task: str = "audit checkout", **more: Any) -> RunCreated:
        return self.ask(CreateRun(key=key, task=task, **more))

    def append(self, run: str, events: Sequence[NewEvent] | None = None, **more: Any) -> Appended:
        return self.ask(Append(run=run, events=tuple(events or [event()]), **more))

    def move(self, run: str, to: str, *, result: Any = None, **more: Any) -> Moved:
        text = dump(result) if result is not None else None
        return self.ask(Transition(run=run, to=to, result=text, **more))

    def acquire(self, unit: str, owner: str = "w-1", ttl_seconds: int = 60) -> Acquired:
        return self.ask(AcquireLease(unit=unit, owner=owner, ttl_seconds=ttl_seconds))

    def hold(self, run: str, owner: str = "w-1", ttl_seconds: int = 60) -> Acquired:
        """Acquire a run's unit and set it running."""
        lease = self.acquire(unit_of(run), owner, ttl_seconds)
        if self.run(run).status == "pending":
            self.move(run, "running", fence=lease.token)
        return lease

    def renew(self, unit: str, token: int, ttl_seconds: int = 60, **more: Any) -> Renewed:
        return self.ask(RenewLease(unit=unit, token=token, ttl_seconds=ttl_seconds, **more))

    def release(self, unit: str, token: int) -> Released:
        return self.ask(ReleaseLease(unit=unit, token=token))

    def reclaim(
        self, unit: str, *, token: int, owner: str = "w-1", reason: str = "frozen", **more: Any
    ) -> Reclaimed:
        return self.ask(
            ReclaimLease(
                unit=unit, expected_token=token, expected_owner=owner, reason=reason, **more
            )
        )

    def claim(self, owner: str = "w-1", limit: int = 1, ttl_seconds: int = 60) -> Claimed:
        return self.ask(ClaimRuns(owner=owner, limit=limit, ttl_seconds=ttl_seconds))

    def sweep(self, limit: int = 500) -> int:
        return store.execute(NoteLapsed(limit=limit), by=store.SWEEP).lapsed

    def spend(
        self,
        run: str,
        amount: int,
        *,
        budget: str = "budget",
        id: str | None = None,
        fence: int | None = None,
    ) -> Spent:
        return self.ask(
            Spend(run=run, charge=Charge(budget=budget, amount=amount, id=id), fence=fence)
        )

    # --- what is stored --------------------------------------------------------------------------

    def run(self, key: str) -> RunRow:
        (row,) = rows(f"SELECT {rowsql.RUN_COLUMNS} FROM agentstate_run WHERE key = %s", key)
        return rowsql.read_run(row)

    def lease(self, unit: str) -> LeaseRow | None:
        found = rows(f"SELECT {rowsql.LEASE_COLUMNS} FROM agentstate_lease WHERE unit = %s", unit)
        return rowsql.read_lease(found[0]) if found else None

    def terms(self, unit: str) -> list[TermRow]:
        found = rows(
            f"SELECT {rowsql.TERM_COLUMNS} FROM agentstate_leaseterm WHERE unit = %s"
            " ORDER BY token",
            unit,
        )
        return [rowsql.read_term(row) for row in found]

    def events(self, key: str, *, origin: str | None = None) -> list[EventRow]:
        found = rows(
            f"SELECT {rowsql.EVENT_COLUMNS} FROM agentstate_event"
            " WHERE run_id = (SELECT id FROM agentstate_run WHERE key = %s) ORDER BY seq",
            key,
        )
        events = [rowsql.read_event(row) for row in found]
        return [e for e in events if origin is None or e.origin == origin]

    def types(self, key: str, *, origin: str | None = None) -> list[str]:
        return [e.type for e in self.events(key, origin=origin)]

    def refusals(self) -> list[str]:
        return [code for (code,) in rows("SELECT code FROM agentstate_refusal ORDER BY id")]


def rows(statement: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def at_once(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """Let `count` threads, each on a connection of its own, ask at the same moment.

    What each got: its result, or the exception that it met.
    """
    together = Barrier(count)

    def one(number: int) -> Any:
        try:
            connection.ensure_connection()
            together.wait(timeout=30)
            return ask(number)
        except Exception as refused:
            return refused
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def results(outcomes: Sequence[Any], of: type) -> list[Any]:
    return [outcome for outcome in outcomes if isinstance(outcome, of)]
