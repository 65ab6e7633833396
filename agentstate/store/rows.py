"""The rows that rules decide on, as plain frozen dataclasses: what was read under the lock.

They mirror the columns of `models.py` that a decision needs; a decision is a new row, made with
`replace`, never a changed one. Without slots, so that a row is copied as one dictionary: a run has
31 fields, and an append makes a new row of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agentstate.store.lean import lean
from agentstate.store.states import TERMINAL

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(row, **changes):
        """`dataclasses.replace`, ten times as fast for a row."""
        if not hasattr(row, "__dict__"):
            return dataclasses.replace(row, **changes)
        new = object.__new__(type(row))
        new.__dict__.update(row.__dict__, **changes)
        return new


RUN_UNIT = "run:"


def unit_of(run_key: str) -> str:
    """The unit that a run's lease is on."""
    return RUN_UNIT + run_key


def run_key_of(unit: str) -> str | None:
    """The run that a unit belongs to; None for a unit of another kind."""
    return unit.removeprefix(RUN_UNIT) if unit.startswith(RUN_UNIT) else None


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run's head. `token` is the current fencing token, `last_token` the highest ever given.

    `holder` is the principal to which `token` was given: it counts with no other.
    attrs, result: JSON texts. Durations in seconds, times from the database's clock.
    """

    id: UUID
    key: str
    task: str
    status: str
    version: int
    last_seq: int
    counters: Mapping[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    notes: str = ""
    attrs: str = "{}"
    result: str | None = None
    owner: str | None = None
    token: int | None = None
    holder: str | None = None
    last_token: int | None = None
    ended_token: int | None = None
    attempt: int = 0
    max_attempts: int = 5
    parent_id: UUID | None = None
    deadline_at: datetime | None = None
    deadline_policy: str = "report"
    retain_seconds: int | None = None
    created_by: str = ""
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    hold: bool = False
    expires_at: datetime | None = None
    paced_at: datetime | None = None
    brake_per_second: int | None = None
    brake_until: datetime | None = None

    @property
    def unit(self) -> str:
        return unit_of(self.key)

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    def expired(self, now: datetime) -> bool:
        """Its retention is over, and nobody holds it back."""
        return self.expires_at is not None and now >= self.expires_at and not self.hold

    @property
    def ever_leased(self) -> bool:
        return self.last_token is not None

    def facts(self) -> dict[str, Any]:
        """What a refused caller needs to know of the run."""
        return {
            "status": self.status,
            "version": self.version,
            "last_seq": self.last_seq,
            "owner": self.owner,
        }


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """A unit and who holds it. Free: owner, token and expires_at are None.

    term_ended_at: the end of the last term, so that the next one cannot overlap it.
    noted_token: the token whose lapse has been written down.
    hold_off_owner, hold_off_until: whom a reclaim keeps from coming back, and how long.
    progress: a JSON text, handed to the next holder. signals: a JSON text, told at each renewal.
    """

    unit: str
    run_id: UUID | None = None
    owner: str | None = None
    holder: str | None = None
    token: int | None = None
    ttl_seconds: int = 60
    acquired_at: datetime | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    renewals: int = 0
    progress: str | None = None
    noted_token: int | None = None
    term_ended_at: datetime | None = None
    hold_off_owner: str | None = None
    hold_off_until: datetime | None = None
    signals: str | None = None

    def live(self, now: datetime) -> bool:
        """Held at `now`. At `expires_at` itself the lease is over."""
        return self.token is not None and self.expires_at is not None and now < self.expires_at

    def lapsed(self, now: datetime) -> bool:
        """Run out, and nobody has taken the unit since."""
        return self.token is not None and not self.live(now)

    def expires_in_ms(self, now: datetime) -> int | None:
        """Milliseconds left, never below 0; None when nobody holds it."""
        if self.token is None or self.expires_at is None:
            return None
        return max(0, (self.expires_at - now) // timedelta(milliseconds=1))

    def facts(self, now: datetime) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "owner": self.owner,
            "token": self.token,
            "expires_at": self.expires_at,
            "expires_in_ms": self.expires_in_ms(now),
        }


@dataclass(frozen=True, kw_only=True)
class TermRow:
    """One term of ownership; `ends_at` None while it is open.

    ended: lapsed, released, reclaimed, run-terminal, or None while open.
    """

    token: int
    unit: str
    run_id: UUID | None
    owner: str
    holder: str
    starts_at: datetime
    ends_at: datetime | None = None
    renewals: int = 0
    ended: str | None = None
    ended_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """A cap and what counts against it, in whole `unit`s. run_id None: shared by many runs.

    slots: how many rows of their own take its charges (1: itself does). slot_of_id, slot: of such
    a row, whose it is and its number from 0; its cap is what it may admit of the whole.
    """

    id: UUID
    run_id: UUID | None
    name: str
    unit: str
    cap: int
    reserved: int = 0
    spent: int = 0
    overdrawn: bool = False
    version: int = 1
    entries: int = 0
    parent_id: UUID | None = None
    depth: int = 0
    slots: int = 1
    slot_of_id: UUID | None = None
    slot: int | None = None

    @property
    def used(self) -> int:
        return self.spent + self.reserved

    @property
    def left(self) -> int:
        return max(0, self.cap - self.reserved - self.spent)

    def facts(self) -> dict[str, Any]:
        return {
            "budget": self.name,
            "unit": self.unit,
            "cap": self.cap,
            "spent": self.spent,
            "reserved": self.reserved,
            "left": self.left,
            "version": self.version,
            "overdrawn": self.overdrawn,
        }


@dataclass(frozen=True, kw_only=True)
class EntryRow:
    """A line of a budget's ledger. `n` counts 1, 2, 3 … per budget, without a hole.

    spent, reserved: what the line adds to each (negative: gives back); cap: the new cap, if any.
    """

    budget_id: UUID
    n: int
    kind: str
    amount: int
    spent: int = 0
    reserved: int = 0
    cap: int | None = None
    entry_id: str | None = None
    run_id: UUID | None = None
    token: int | None = None
    note: str = ""
    overdrawn: bool = False
    actor: str
    request_id: str | None = None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class HoldRow:
    """A reservation. n: the ledger line that made it. state: held, committed, released, dropped,
    late (it was dropped, and the money turned out to be spent).

    slot_id: the slot that it counts in, where its outermost budget was split when it was made. One
    on a split budget itself has the slot as its budget, too.
    """

    budget_id: UUID
    n: int
    reservation_id: str
    run_id: UUID | None
    amount: int
    actual: int | None = None
    state: str = "held"
    token: int | None = None
    actor: str
    expires_at: datetime
    created_at: datetime
    settled_at: datetime | None = None
    slot_id: UUID | None = None

    def dead(self, now: datetime, current_token: int | None) -> bool:
        """Nobody will settle it: its time is up, or the lease that it was made under is over."""
        return self.state == "held" and (
            now >= self.expires_at or (self.token is not None and self.token != current_token)
        )


@lean
@dataclass(frozen=True, kw_only=True)
class EventRow:
    """A line of a run's log. data, add: JSON texts; version: the run's, once this was written."""

    run_id: UUID
    seq: int
    version: int
    type: str
    origin: str
    data: str
    event_id: str | None = None
    token: int | None = None
    add: str | None = None
    actor: str
    request_id: str | None = None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ActionRow:
    """What an operator did: who, what, to what, why, and what it was before and after."""

    actor: str
    action: str
    object: str
    run_id: UUID | None = None
    reason: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | None = None
    at: datetime
