"""What can be asked of the store: one frozen dataclass per command, and one per answer.

A command checks its own shape when it is made and raises Invalid, UnstorableText or TooLarge with
the field and the rule, so nothing malformed ever reaches a lock. `Command[R]` names the result
that `execute` returns for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from agentstate.store import ages, alerting, bulking, delivering, filters, made
from agentstate.store.effects import Effect
from agentstate.store.errors import Invalid, TooLarge
from agentstate.store.payloads import NULL, PROGRESS_BYTES_MAX, RawJSON, check
from agentstate.store.quiet import PERSON, TARGET, Quiet
from agentstate.store.rules import names
from agentstate.store.rules.expect import check_clauses
from agentstate.store.states import MOVES, Status

EVENTS_PER_APPEND = 500
BUDGETS_PER_RUN = 20
CLAIM_LIMIT = 100
OPERATIONS_PER_BATCH = 100
SIGNALS = ("cancel", "pause", "resume", "drain")
RETAIN_SECONDS_MAX = 10 * 366 * 86_400
PER_SECOND_MAX = 100_000
BRAKE_SECONDS_MAX = 86_400
EMPTY_OBJECT = RawJSON("{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An answer. replayed: it is the first answer to this request, nothing was written now."""

    replayed: bool = False


class Command[R: Result]:
    """Something the store can be asked to do."""

    __slots__ = ()


class Unseen(Enum):
    """In the place of what a caller saw: it did not look. None is something that can be seen."""

    UNSEEN = "unseen"


UNSEEN: Final = Unseen.UNSEEN


def _set(command: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(command, name, value)


def _check_object(field_name: str, raw: RawJSON) -> None:
    if not raw.text.lstrip().startswith("{"):
        raise Invalid(field_name, "a JSON object")


def _check_status(field_name: str, value: Any, among: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in among:
        raise Invalid(field_name, f"one of {', '.join(among)}")


EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def _check_moment(field_name: str, value: datetime | None) -> None:
    """Of the years that every zone, PostgreSQL and the API's own rule can tell."""
    if value is None:
        return
    if value.tzinfo is None:
        raise Invalid(field_name, "an instant with a time zone")
    if not EARLIEST <= value <= LATEST:
        raise Invalid(field_name, "an instant from 1970 to 9998")


def _check_fence(token: Any) -> None:
    if token is not None:
        names.check_whole("fence", token, at_least=1, at_most=2**63 - 1)


def _check_version(field_name: str, version: Any) -> None:
    if version is not None:
        names.check_whole(field_name, version, at_least=1, at_most=2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append. id: unique in the run for its life; makes repeating it safe.

    effect: it is the one before or the one after an effect, whose key is its id then.
    """

    type: str
    data: RawJSON = NULL
    id: str | None = None
    effect: Effect | None = None

    def __post_init__(self) -> None:
        names.check_event_type("type", self.type)
        if not self.data.checked:
            check(self.data.text)
        _check_event_id(self.id, self.effect)

    @property
    def stored_id(self) -> str | None:
        """What the store knows it by."""
        return self.id if self.effect is None else self.effect.event_id


def _check_event_id(event_id: str | None, effect: Effect | None) -> None:
    if event_id is not None:
        names.check_id("id", event_id)
        if effect is not None:
            raise Invalid("id", "none beside `effect`: its key is the event's id")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBudget:
    """A cap to begin with, in whole `unit`s; parent: a shared budget that is charged as well.

    slots: how many rows take its charges; more than one only of a shared budget without a parent.
    """

    name: str
    cap: int
    unit: str = "tokens"
    parent: str | None = None
    slots: int = 1

    def __post_init__(self) -> None:
        names.check_budget_name("budgets[].name", self.name)
        names.check_budget_name("budgets[].unit", self.unit)
        names.check_amount("budgets[].cap", self.cap)
        if self.parent is not None:
            names.check_budget_name("budgets[].parent", self.parent)
        names.check_whole("slots", self.slots, at_least=1, at_most=names.SLOTS_MAX)
        if self.slots > 1 and self.parent is not None:
            raise Invalid("slots", "only a budget without a parent can be split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """An amount against one budget of the run. id: makes repeating it safe."""

    budget: str
    amount: int
    id: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        names.check_budget_name("budget", self.budget)
        names.check_amount("amount", self.amount, at_least=1)
        names.check_line("note", self.note, at_least=0, at_most=names.REASON_CHARS)
        if self.id is not None:
            names.check_id("id", self.id)


# --- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCreated(Result):
    run: str
    status: str
    version: int
    last_seq: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRun(Command[RunCreated]):
    """Make a run, its budgets and its first events in one transaction.

    key: made when it is left out. fence: the parent's token, when the parent is leased.
    Refuses Exists, NotFound (parent, parent budget), StaleFence, FenceRequired.
    """

    task: str
    key: str | None = None
    status: str = Status.PENDING
    tags: tuple[str, ...] = ()
    attrs: RawJSON = EMPTY_OBJECT
    parent: str | None = None
    deadline_at: datetime | None = None
    deadline_policy: str = "report"
    max_attempts: int = 5
    budgets: tuple[NewBudget, ...] = ()
    events: tuple[NewEvent, ...] = ()
    retain_seconds: int | None = None
    fence: int | None = None

    def __post_init__(self) -> None:
        names.check_line("task", self.task, at_least=1, at_most=names.TASK_CHARS)
        if self.key is not None:
            names.check_run_key("key", self.key)
        _check_status("status", self.status, (Status.PENDING, Status.RUNNING))
        _set(self, tags=names.check_tags("tags", self.tags), status=str(self.status))
        check(self.attrs.text, path="attrs")
        _check_object("attrs", self.attrs)
        if self.parent is not None:
            names.check_run_key("parent", self.parent)
        _check_moment("deadline_at", self.deadline_at)
        _check_status("deadline_policy", self.deadline_policy, ("report", "fail", "cancel"))
        names.check_whole("max_attempts", self.max_attempts, at_least=1, at_most=names.ATTEMPTS_MAX)
        if len({b.name for b in self.budgets}) != len(self.budgets):
            raise Invalid("budgets", "each name once")
        if len(self.budgets) > BUDGETS_PER_RUN:
            raise Invalid("budgets", f"at most {BUDGETS_PER_RUN}")
        _check_unsplit(*self.budgets)
        _check_retain(self.retain_seconds)
        _check_fence(self.fence)
        _check_events(self.events, at_least=0)


def _check_unsplit(*budgets: NewBudget) -> None:
    if any(budget.slots > 1 for budget in budgets):
        raise Invalid("slots", "only a shared budget can be split")


def _check_retain(seconds: int | None) -> None:
    if seconds is not None:
        names.check_whole("retain_seconds", seconds, at_least=0, at_most=RETAIN_SECONDS_MAX)


def _check_events(events: tuple[NewEvent, ...], *, at_least: int) -> None:
    if not at_least <= len(events) <= EVENTS_PER_APPEND:
        raise Invalid("events", f"{at_least} to {EVENTS_PER_APPEND} events")
    ids = [e.stored_id for e in events if e.stored_id is not None]
    if len(set(ids)) != len(ids):
        raise Invalid("events[].id", "each id once, and each effect's begin and end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent(Result):
    """The budget after the charge; version is the budget's. entry: the line of its ledger.

    Of a split budget the figures are those of the whole, the other slots' as last committed; slot:
    in whose ledger the line is.
    """

    budget: str
    unit: str
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    overdrawn: bool
    entry: int
    at: datetime
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(Result):
    """first_seq to last_seq of the caller's events; version and status are the run's after all."""

    first_seq: int
    last_seq: int
    version: int
    status: str
    at: datetime
    spent: tuple[Spent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Command[Appended]):
    """Append events, all or none; counters, charges and a move may ride along.

    expected_seq: the last number the caller has seen; None: after whatever is there.
    Refuses NotFound, SeqConflict, PartialDuplicate, EventIdReuse, StaleFence, FenceRequired,
    AlreadyTerminal, VersionConflict, BudgetExhausted, IllegalTransition.
    """

    run: str
    events: tuple[NewEvent, ...]
    expected_seq: int | None = None
    add: dict[str, int] = field(default_factory=dict)
    spend: tuple[Charge, ...] = ()
    to: str | None = None
    result: RawJSON | None = None
    if_match: int | None = None
    fence: int | None = None

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        _check_events(self.events, at_least=1)
        if self.expected_seq is not None:
            names.check_whole("expected_seq", self.expected_seq, at_least=0, at_most=2**53 - 1)
        names.check_counters("add", self.add)
        if len({c.budget for c in self.spend}) != len(self.spend):
            raise Invalid("spend", "each budget once")
        if self.to is not None:
            _check_status("to", self.to, tuple(str(s) for s in MOVES))
        _check_result(self.result, self.to)
        _check_version("If-Match", self.if_match)
        _check_fence(self.fence)
        size = sum(len(e.data.text) for e in self.events)
        if size > 4 * 1024 * 1024:
            raise TooLarge("events", limit=4 * 1024 * 1024, actual=size)


def _check_result(result: RawJSON | None, to: str | None) -> None:
    if result is None:
        return
    if to is None:
        raise Invalid("result", "only together with a move")
    check(result.text, path="result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Result):
    run: str
    status: str
    version: int
    last_seq: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Command[Moved]):
    """Move a run to another status; a terminal move ends its lease.

    Refuses NotFound, StaleFence, FenceRequired, AlreadyTerminal, IllegalTransition,
    VersionConflict, ExpectationFailed, NotAllowed (an operator without the token may only cancel,
    pause, resume).
    """

    run: str
    to: str
    from_status: str | None = None
    result: RawJSON | None = None
    reason: str = ""
    expect: dict[str, Any] = field(default_factory=dict)
    if_match: int | None = None
    fence: int | None = None

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        _check_status("to", self.to, tuple(str(s) for s in MOVES))
        if self.from_status is not None:
            _check_status("from", self.from_status, tuple(str(s) for s in MOVES))
        _check_result(self.result, self.to)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)
        _set(self, expect=check_clauses(self.expect))
        _check_version("If-Match", self.if_match)
        _check_fence(self.fence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(Result):
    """duplicate: the change id was applied before, at this version; nothing was written now."""

    run: str
    version: int
    last_seq: int
    at: datetime
    duplicate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch(Command[Changed]):
    """Change a run's fields, each by its own policy (`policy.py`), in one event `run.changed`.

    notes, attrs (path -> value): newest wins, unless guarded. replace: all attrs at once.
    add: to counters. tags_add, tags_remove: as sets. hold: keep it whatever its retention says.
    retain_seconds: how long it is kept after its end. expect: clauses that have to hold
    (`rules/expect.py`). id: a change id; the same id again answers the first version.
    An operator without the holder's token may change tags, notes, hold and retention alone; the
    reason is kept with what the operator did.
    Refuses NotFound, StaleFence, FenceRequired, AlreadyTerminal (a run that has ended takes those
    four), VersionConflict, ExpectationFailed, Invalid.
    """

    run: str
    notes: str | None = None
    attrs: dict[str, RawJSON] = field(default_factory=dict)
    replace: RawJSON | None = None
    add: dict[str, int] = field(default_factory=dict)
    tags_add: tuple[str, ...] = ()
    tags_remove: tuple[str, ...] = ()
    hold: bool | None = None
    retain_seconds: int | None = None
    expect: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    if_match: int | None = None
    fence: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)
        if self.notes is not None:
            names.check_text("notes", self.notes, at_most=names.NOTES_CHARS)
        for path, value in self.attrs.items():
            names.check_attrs_path("set", path)
            check(value.text, path=f"attrs.{path}")
        if self.replace is not None:
            check(self.replace.text, path="replace")
            _check_object("replace", self.replace)
        names.check_counters("add", self.add)
        _set(
            self,
            tags_add=names.check_tags("tags_add", self.tags_add),
            tags_remove=names.check_tags("tags_remove", self.tags_remove),
            expect=check_clauses(self.expect),
        )
        if self.id is not None:
            names.check_id("id", self.id)
        _check_version("If-Match", self.if_match)
        _check_fence(self.fence)
        if self.hold is not None and type(self.hold) is not bool:
            raise Invalid("hold", "true or false")
        _check_retain(self.retain_seconds)
        if self.only_keeping and not self.keeps_anything:
            raise Invalid("set", "at least one change: set, replace, add, tags_add or tags_remove")

    @property
    def only_keeping(self) -> bool:
        """Tags, notes, hold and retention alone: what an ended run takes, and an operator edits."""
        return not (self.attrs or self.replace or self.add)

    @property
    def keeps_anything(self) -> bool:
        kept = (self.notes, self.hold, self.retain_seconds)
        return any(value is not None for value in kept) or bool(self.tags_add or self.tags_remove)


# --- leases --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEffect:
    """An effect that was begun and not ended, by the event at `seq`: whether it happened is not
    known here. token: under which it was begun.

    data: as it was sent, of the first ones up to 64 KiB together; else None.
    """

    key: str
    seq: int
    type: str
    data: RawJSON | None
    data_bytes: int
    token: int | None
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired(Result):
    """A grant. version, last_seq and open effects are the run's, None for a unit that is no run's.

    taken_from: the owner whose lease had lapsed or was taken back, if any. open_effects: the first
    100; open_effects_count: of all, counted up to 1,000.
    """

    unit: str
    owner: str
    token: int
    expires_at: datetime
    expires_in_ms: int
    at: datetime
    taken_from: str | None = None
    version: int | None = None
    last_seq: int | None = None
    open_effects: tuple[OpenEffect, ...] | None = None
    open_effects_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireLease(Command[Acquired]):
    """Take a unit that is free or whose lease is over. A run's unit is `run:<key>`.

    Refuses LeaseHeld while another lease is live (the same owner's too), and for a run NotFound,
    AlreadyTerminal, Paused.
    """

    unit: str
    owner: str
    ttl_seconds: int = names.TTL_SECONDS_DEFAULT

    def __post_init__(self) -> None:
        names.check_unit("unit", self.unit)
        names.check_worker("owner", self.owner)
        names.check_ttl_seconds("ttl_seconds", self.ttl_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTold:
    """What an operator wants of a holder: cancel, pause, resume or drain; told until it is over."""

    signal: str
    reason: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(Result):
    unit: str
    owner: str
    token: int
    expires_at: datetime
    expires_in_ms: int
    at: datetime
    signals: tuple[SignalTold, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease(Command[Renewed]):
    """Keep a unit: expiry = now + ttl, also when that is sooner; the same token.

    Refuses LeaseLost once it has expired or been superseded.
    """

    unit: str
    token: int
    ttl_seconds: int = names.TTL_SECONDS_DEFAULT
    progress: RawJSON | None = None

    def __post_init__(self) -> None:
        names.check_unit("unit", self.unit)
        names.check_whole("token", self.token, at_least=1, at_most=2**63 - 1)
        names.check_ttl_seconds("ttl_seconds", self.ttl_seconds)
        if self.progress is not None:
            check(self.progress.text, path="progress", bytes_max=PROGRESS_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Result):
    unit: str
    token: int
    at: datetime
    version: int | None = None
    last_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease(Command[Released]):
    """Give a unit back. Repeating it is harmless. Refuses LeaseLost for a superseded token."""

    unit: str
    token: int

    def __post_init__(self) -> None:
        names.check_unit("unit", self.unit)
        names.check_whole("token", self.token, at_least=1, at_most=2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed(Result):
    """The unit is free; `token` was spent on it, so that everything older is fenced."""

    unit: str
    former_owner: str | None
    former_token: int | None
    token: int
    at: datetime
    version: int | None = None
    last_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimLease(Command[Reclaimed]):
    """An operator frees a unit and fences its holder at once.

    expected_token, expected_owner: what the operator saw. Refuses HolderChanged when that is not
    so any more, LeaseHeld for a live lease without `force` (scope override), NotAllowed, NotFound.
    hold_off_seconds: keep the former owner from acquiring the unit again for so long.
    proposal: whose it is (proposals.py), if the operator confirms one. Refuses ExpectationFailed
    when it is declined, too old or about another holder.
    """

    unit: str
    expected_token: int
    expected_owner: str
    reason: str
    force: bool = False
    hold_off_seconds: int = 0
    proposal: UUID | None = None

    def __post_init__(self) -> None:
        names.check_unit("unit", self.unit)
        names.check_whole("expected_token", self.expected_token, at_least=1, at_most=2**63 - 1)
        names.check_worker("expected_owner", self.expected_owner)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)
        if type(self.force) is not bool:
            raise Invalid("force", "true or false")
        names.check_whole("hold_off_seconds", self.hold_off_seconds, at_least=0, at_most=86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that was given to a worker by ClaimRuns. open_effects: as in Acquired."""

    unit: str
    run: str
    task: str
    status: str
    version: int
    last_seq: int
    attempt: int
    owner: str
    token: int
    expires_at: datetime
    expires_in_ms: int
    taken_from: str | None = None
    progress: RawJSON | None = None
    open_effects: tuple[OpenEffect, ...] = ()
    open_effects_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Result):
    items: tuple[Claim, ...]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRuns(Command[Claimed]):
    """Lease up to `limit` runs that wait: pending, or running and not held now; oldest first.

    A run that has used up its attempts is failed instead. Never gives one run to two.
    """

    owner: str
    ttl_seconds: int = names.TTL_SECONDS_DEFAULT
    task: str | None = None
    tag: str | None = None
    limit: int = 1

    def __post_init__(self) -> None:
        names.check_worker("owner", self.owner)
        names.check_ttl_seconds("ttl_seconds", self.ttl_seconds)
        names.check_whole("limit", self.limit, at_least=1, at_most=CLAIM_LIMIT)
        if self.task is not None:
            names.check_line("task", self.task, at_least=1, at_most=names.TASK_CHARS)
        if self.tag is not None:
            names.check_line("tag", self.tag, at_least=1, at_most=names.TAG_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Result):
    """How many lapses were written down now."""

    lapsed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteLapsed(Command[Noted]):
    """Write down leases that ran out unseen; changes nothing else. Bounded by `limit`."""

    limit: int = 500

    def __post_init__(self) -> None:
        names.check_whole("limit", self.limit, at_least=1, at_most=5_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled(Result):
    """signals: everything that the holder will be told now."""

    run: str
    signals: tuple[SignalTold, ...]
    version: int
    last_seq: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRun(Command[Signalled]):
    """Tell a run's holder something at its next renewal. Needs operate.

    cancel and pause are told to the next holder too; resume takes a pause back.
    expected_token: of whom the operator saw as the holder; None: nobody held it. Refuses NotFound,
    NotAllowed, AlreadyTerminal, HolderChanged when that is not so any more.
    """

    run: str
    signal: str
    reason: str
    expected_token: int | Unseen | None = UNSEEN

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        _check_status("signal", self.signal, SIGNALS)
        if self.expected_token not in (None, UNSEEN):
            names.check_whole("expected_token", self.expected_token, at_least=1, at_most=2**63 - 1)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Braked(Result):
    """per_second, until: the brake now; both None when there is none."""

    run: str
    per_second: int | None
    until: datetime | None
    version: int
    last_seq: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeRun(Command[Braked]):
    """Limit how fast a run is written to, for some seconds; per_second None lifts the brake.

    It ends by itself, and never holds up renewals, releases, the end of the run or an operator.
    expected_until: when the brake ends that the operator saw; None: none was on. Needs operate.
    Refuses NotFound, NotAllowed, AlreadyTerminal, ExpectationFailed when that is not so any more.
    """

    run: str
    per_second: int | None
    reason: str
    seconds: int | None = None
    expected_until: datetime | Unseen | None = UNSEEN

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        if not isinstance(self.expected_until, Unseen):
            _check_moment("expected_until", self.expected_until)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)
        if self.per_second is None:
            if self.seconds is not None:
                raise Invalid("seconds", "only with per_second")
            return
        names.check_whole("per_second", self.per_second, at_least=1, at_most=PER_SECOND_MAX)
        if self.seconds is None:
            raise Invalid("seconds", "how long the brake is on")
        names.check_whole("seconds", self.seconds, at_least=1, at_most=BRAKE_SECONDS_MAX)


# --- workers and what they say of themselves -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryKept(Result):
    run: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTelemetry(Command[TelemetryKept]):
    """Keep what a holder says of itself; the newest stands. Fenced; no version, no event.

    What is left out stays as it was. Refuses NotFound, StaleFence, FenceRequired,
    AlreadyTerminal.
    """

    run: str
    host: str | None = None
    model: str | None = None
    progress: RawJSON | None = None
    worker_time: datetime | None = None
    fence: int | None = None

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        for name in ("host", "model"):
            if getattr(self, name) is not None:
                names.check_line(name, getattr(self, name), at_least=1, at_most=names.TASK_CHARS)
        if self.progress is not None:
            check(self.progress.text, path="progress", bytes_max=PROGRESS_BYTES_MAX)
        _check_moment("worker_time", self.worker_time)
        _check_fence(self.fence)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen(Result):
    worker: str
    now: datetime
    signals: tuple[SignalTold, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceWorker(Command[WorkerSeen]):
    """A worker process says that it is there; answered with the database's clock and a drain."""

    worker: str
    version: str | None = None
    host: str | None = None
    slots: int | None = None
    worker_time: datetime | None = None

    def __post_init__(self) -> None:
        names.check_worker("worker", self.worker)
        for name in ("version", "host"):
            if getattr(self, name) is not None:
                names.check_line(name, getattr(self, name), at_least=1, at_most=names.UNIT_CHARS)
        if self.slots is not None:
            names.check_whole("slots", self.slots, at_least=0, at_most=1_000_000)
        _check_moment("worker_time", self.worker_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrained(Result):
    worker: str
    draining: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker(Command[WorkerDrained]):
    """Ask a worker to finish what it holds and take nothing more; draining=False takes it back.

    Needs operate. Refuses NotFound, NotAllowed.
    """

    worker: str
    reason: str
    draining: bool = True

    def __post_init__(self) -> None:
        names.check_worker("worker", self.worker)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinesCarriedOut(Result):
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryOutDeadlines(Command[DeadlinesCarriedOut]):
    """Fail or cancel runs whose deadline has passed, as their policy says. Bounded by `limit`."""

    limit: int = 200

    def __post_init__(self) -> None:
        names.check_whole("limit", self.limit, at_least=1, at_most=2_000)


# --- budgets -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend(Command[Spent]):
    """Charge a budget, and every budget above it, or none of them.

    run None: a shared budget itself. Refuses NotFound, StaleFence, FenceRequired,
    AlreadyTerminal, BudgetExhausted (naming the level).
    """

    run: str | None
    charge: Charge
    fence: int | None = None

    def __post_init__(self) -> None:
        _check_run_of_budget(self.run, self.fence)


def _check_run_of_budget(run: str | None, fence: int | None) -> None:
    if run is not None:
        names.check_run_key("run", run)
    elif fence is not None:
        raise Invalid("fence", "a shared budget has no holder")
    _check_fence(fence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved(Result):
    """A hold; the sums are the budget's after it."""

    budget: str
    id: str
    amount: int
    expires_at: datetime
    expires_in_ms: int
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Command[Reserved]):
    """Hold an amount on a budget and every budget above it, before it is spent.

    The hold is dead once its ttl or the token it was made under is over. The same id and amount
    again is a replay. Refuses as Spend does.
    """

    run: str | None
    budget: str
    amount: int
    id: str
    ttl_seconds: int = names.TTL_SECONDS_DEFAULT
    fence: int | None = None

    def __post_init__(self) -> None:
        _check_run_of_budget(self.run, self.fence)
        names.check_budget_name("budget", self.budget)
        names.check_amount("amount", self.amount, at_least=1)
        names.check_id("id", self.id)
        names.check_ttl_seconds("ttl_seconds", self.ttl_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Result):
    """How a reservation ended. state: committed, released or late (recorded after it was dropped).

    overdrawn: more was used than the cap allows; nothing more is admitted until it does.
    """

    budget: str
    id: str
    state: str
    amount: int
    actual: int
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    overdrawn: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReservation(Command[Settled]):
    """Record what was really used, once; the rest is given back.

    More than was held is money already spent: recorded in full and flagged overdrawn, as long as
    what each level has used stays within 2^53 - 1 (Invalid). After the hold was dropped it is
    recorded as `late`, under the current token or the one that ended the run. Refuses NotFound,
    StaleFence, FenceRequired, ReservationSettled.
    """

    run: str | None
    budget: str
    id: str
    amount: int
    fence: int | None = None

    def __post_init__(self) -> None:
        _check_run_of_budget(self.run, self.fence)
        names.check_budget_name("budget", self.budget)
        names.check_id("id", self.id)
        names.check_amount("amount", self.amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReservation(Command[Settled]):
    """Give a hold back unused. Repeating it is harmless. Refuses as CommitReservation does."""

    run: str | None
    budget: str
    id: str
    fence: int | None = None

    def __post_init__(self) -> None:
        _check_run_of_budget(self.run, self.fence)
        names.check_budget_name("budget", self.budget)
        names.check_id("id", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A slot of a split budget: what it may admit of the whole, and what it has."""

    slot: int
    cap: int
    spent: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState(Result):
    """slots: of a split budget; else None."""

    budget: str
    unit: str
    cap: int
    spent: int
    reserved: int
    left: int
    version: int
    overdrawn: bool
    at: datetime
    slots: tuple[SlotState, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBudget(Command[BudgetState]):
    """Open a budget: of a run, or with run None one that many share.

    parent: a shared budget that is charged as well; it comes before its children for good.
    Refuses Exists, NotFound, and for a run StaleFence, FenceRequired, AlreadyTerminal.
    """

    run: str | None
    budget: NewBudget
    fence: int | None = None

    def __post_init__(self) -> None:
        _check_run_of_budget(self.run, self.fence)
        if self.run is None and self.budget.parent == self.budget.name:
            raise Invalid("parent", "another budget")
        if self.run is not None:
            _check_unsplit(self.budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCap(Command[BudgetState]):
    """Set a budget's cap, guarded by its version. Needs override.

    Refuses NotFound, VersionConflict, CapBelowUse, NotAllowed.
    """

    run: str | None
    budget: str
    cap: int
    reason: str
    if_match: int | None = None

    def __post_init__(self) -> None:
        _check_run_of_budget(self.run, None)
        names.check_budget_name("budget", self.budget)
        names.check_amount("cap", self.cap)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)
        _check_version("If-Match", self.if_match)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBudget(Command[BudgetState]):
    """Have a shared budget's charges taken by so many slots, guarded by its version.

    Only more than it has: a slot is never taken away, for holds remember theirs. As many as it has
    changes nothing. Needs override. Refuses NotFound, VersionConflict, Invalid, NotAllowed.
    Why: docs/decisions/0010-budget-slots.md.
    """

    budget: str
    slots: int
    reason: str
    if_match: int | None = None

    def __post_init__(self) -> None:
        names.check_budget_name("budget", self.budget)
        names.check_whole("slots", self.slots, at_least=1, at_most=names.SLOTS_MAX)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)
        _check_version("If-Match", self.if_match)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Result):
    """How many dead holds were given back."""

    holds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDeadHolds(Command[Dropped]):
    """Give back what dead workers hold; bounded by `limit`."""

    limit: int = 500

    def __post_init__(self) -> None:
        names.check_whole("limit", self.limit, at_least=1, at_most=5_000)


# --- many at once --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Result):
    run: str
    version: int
    last_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Command[Checked]):
    """Write nothing; the batch stands or falls with what is expected of this run.

    Refuses NotFound, StaleFence, VersionConflict, SeqConflict, ExpectationFailed.
    """

    run: str
    expect: dict[str, Any] = field(default_factory=dict)
    expected_seq: int | None = None
    if_match: int | None = None
    fence: int | None = None

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        _set(self, expect=check_clauses(self.expect))
        if self.expected_seq is not None:
            names.check_whole("expected_seq", self.expected_seq, at_least=0, at_most=2**53 - 1)
        _check_version("if_match", self.if_match)
        _check_fence(self.fence)


type Operation = (
    CreateRun
    | Append
    | Patch
    | Transition
    | Spend
    | Reserve
    | CommitReservation
    | ReleaseReservation
    | Check
    | ImportRun
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone(Result):
    """The operations' results, in order."""

    results: tuple[Result, ...]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Command[BatchDone]):
    """Up to 100 operations, in order, in one transaction: all of them or none.

    Each sees what the ones before it did. Refuses BatchRefused with every operation that fails.
    """

    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.operations) <= OPERATIONS_PER_BATCH:
            raise Invalid("operations", f"1 to {OPERATIONS_PER_BATCH} operations")


# --- the feed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSet(Result):
    consumer: str
    position: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCheckpoint(Command[CheckpointSet]):
    """Say how far a consumer has read the feed; the first time makes the consumer.

    It never goes back, and holds no retention up. The same position again is harmless. Refuses
    VersionConflict (a lower one; `current` has the position), Invalid (beyond the feed's last).
    """

    consumer: str
    position: int

    def __post_init__(self) -> None:
        names.check_worker("consumer", self.consumer)
        names.check_whole("position", self.position, at_least=0, at_most=2**53 - 1)


# --- import --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEvent:
    """A line of a run's history as it was exported. at None: now. id: of a change of fields,
    behind the sign that tells it from events' own."""

    seq: int
    version: int
    type: str
    origin: str
    data: RawJSON = NULL
    id: str | None = None
    token: int | None = None
    add: RawJSON | None = None
    actor: str = ""
    request_id: str | None = None
    at: datetime | None = None
    effect: Effect | None = None

    def __post_init__(self) -> None:
        names.check_whole("seq", self.seq, at_least=1, at_most=2**53 - 1)
        names.check_whole("version", self.version, at_least=1, at_most=2**53 - 1)
        names.check_event_type("type", self.type)
        _check_status("origin", self.origin, ("store", "worker"))
        check(self.data.text)
        of_change = self.origin == "store" and isinstance(self.id, str)
        _check_event_id(
            self.id.removeprefix(names.SIGN_CHANGE) if self.id and of_change else self.id,
            self.effect,
        )
        if self.effect is not None and self.origin == "store":
            raise Invalid("effect", "of a worker's events only")
        _check_fence(self.token)
        if self.add is not None:
            names.check_counters("add", self.add.value())
        names.check_line("actor", self.actor, at_least=0, at_most=names.REASON_CHARS, unseen=True)
        if self.request_id is not None:
            names.check_id("request_id", self.request_id)
        _check_moment("at", self.at)

    @property
    def stored_id(self) -> str | None:
        """What the store knows it by."""
        return self.id if self.effect is None else self.effect.event_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEntry:
    """A line of a budget's ledger as it was exported."""

    n: int
    kind: str
    amount: int
    spent: int = 0
    reserved: int = 0
    cap: int | None = None
    id: str | None = None
    token: int | None = None
    note: str = ""
    overdrawn: bool = False
    actor: str = ""
    request_id: str | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        names.check_whole("n", self.n, at_least=1, at_most=2**53 - 1)
        names.check_event_type("kind", self.kind)
        for name in ("amount", "spent", "reserved"):
            value = getattr(self, name)
            names.check_whole(name, value, at_least=-names.AMOUNT_MAX, at_most=names.AMOUNT_MAX)
        if self.cap is not None:
            names.check_amount("cap", self.cap)
        if self.id is not None:
            names.check_id("id", self.id)
        _check_fence(self.token)
        names.check_line("note", self.note, at_least=0, at_most=names.REASON_CHARS, unseen=True)
        names.check_line("actor", self.actor, at_least=0, at_most=names.REASON_CHARS, unseen=True)
        _check_moment("at", self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBudget:
    """A run's own budget with its whole ledger; spent and reserved are summed from it."""

    name: str
    unit: str
    cap: int
    version: int = 1
    overdrawn: bool = False
    entries: tuple[ImportedEntry, ...] = ()

    def __post_init__(self) -> None:
        names.check_budget_name("name", self.name)
        names.check_budget_name("unit", self.unit)
        names.check_amount("cap", self.cap)
        names.check_whole("version", self.version, at_least=1, at_most=2**53 - 1)
        if [e.n for e in self.entries] != list(range(1, len(self.entries) + 1)):
            raise Invalid("entries[].n", "1, 2, 3 … without a hole")
        _check_once("entries[].id", [e.id for e in self.entries if e.kind == "spend"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRun(Command[RunCreated]):
    """Bring in a run with its whole history, as `export` wrote it; all of it or nothing.

    Status, counters and numbers have to be what the events say. It comes without a holder: a
    run that is not terminal goes on when a worker claims it. Refuses Exists, Invalid.
    """

    key: str
    task: str
    status: str
    tags: tuple[str, ...] = ()
    notes: str = ""
    attrs: RawJSON = EMPTY_OBJECT
    result: RawJSON | None = None
    attempt: int = 0
    max_attempts: int = 5
    deadline_at: datetime | None = None
    deadline_policy: str = "report"
    retain_seconds: int | None = None
    created_by: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None
    budgets: tuple[ImportedBudget, ...] = ()
    events: tuple[ImportedEvent, ...] = ()

    def __post_init__(self) -> None:
        names.check_run_key("key", self.key)
        names.check_line("task", self.task, at_least=1, at_most=names.TASK_CHARS, unseen=True)
        _check_status("status", self.status, tuple(str(s) for s in MOVES))
        _set(self, tags=names.check_tags("tags", self.tags, unseen=True))
        names.check_text("notes", self.notes, at_most=names.NOTES_CHARS)
        check(self.attrs.text, path="attrs")
        _check_object("attrs", self.attrs)
        if self.result is not None:
            check(self.result.text, path="result")
        names.check_whole("attempt", self.attempt, at_least=0, at_most=1_000_000)
        names.check_whole("max_attempts", self.max_attempts, at_least=1, at_most=names.ATTEMPTS_MAX)
        for name in ("deadline_at", "created_at", "ended_at"):
            _check_moment(name, getattr(self, name))
        _check_status("deadline_policy", self.deadline_policy, ("report", "fail", "cancel"))
        if [e.seq for e in self.events] != list(range(1, len(self.events) + 1)):
            raise Invalid("events[].seq", "1, 2, 3 … without a hole")
        if not self.events or self.events[0].type != "run.created":
            raise Invalid("events[0]", "the first event is run.created")
        _check_once("events[].id", [e.stored_id for e in self.events])
        _check_once("budgets[].name", [b.name for b in self.budgets])


def _check_once(field_name: str, values: Iterable[str | None]) -> None:
    known = [value for value in values if value is not None]
    if len(set(known)) != len(known):
        raise Invalid(field_name, "each one once")


# --- alerts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertAcknowledged(Result):
    rule: str
    state: str
    version: int
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeAlert(Command[AlertAcknowledged]):
    """Say that somebody is at it; lasts until it is over or gets worse. Needs operate.

    version: of the alert, as the operator saw it. A second one stands in the first one's place.
    Refuses NotFound (no such rule was judged yet), VersionConflict (it has changed state since, or
    does not fire any more; `current` has both).
    """

    rule: str
    version: int
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("rule", self.rule)
        _check_version("version", self.version)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSnoozed(Result):
    """until: nobody is told before; None: it was woken."""

    rule: str
    state: str
    version: int
    until: datetime | None
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SnoozeAlert(Command[AlertSnoozed]):
    """Let nobody be told of an alert for `seconds` from now; None: wake it. Needs operate.

    It goes on being judged, and when the time is over and it still fires, that is told.
    version: of the alert, as the operator saw it. Refuses NotFound (no such rule was judged yet),
    VersionConflict (it has changed state since).
    """

    rule: str
    version: int
    seconds: int | None
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("rule", self.rule)
        _check_version("version", self.version)
        if self.seconds is not None:
            names.check_whole(
                "seconds",
                self.seconds,
                at_least=alerting.SNOOZE_SECONDS_MIN,
                at_most=alerting.SNOOZE_SECONDS_MAX,
            )
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChanged(Result):
    rule: str
    warn: float | None
    alert: float | None
    version: int
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRule(Command[RuleChanged]):
    """Give a rule other bounds; UNSEEN: as it is, None: never. Needs operate.

    version: of the bounds as the operator saw them, 0 for the rule's own.
    Refuses NotFound, VersionConflict, Invalid (bounds that no figure can be judged by).
    """

    rule: str
    version: int
    warn: float | Unseen | None = UNSEEN
    alert: float | Unseen | None = UNSEEN
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("rule", self.rule)
        names.check_whole("version", self.version, at_least=0, at_most=2**63 - 1)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRule(Command[RuleChanged]):
    """Make a rule of one's own (version 0), or change one as it was seen. Needs operate.

    Refuses Exists, NotFound, VersionConflict, and Invalid (what no figure can be judged by, or
    there are too many).
    """

    rule: str
    version: int
    definition: made.Definition
    warn: float | None
    alert: float | None
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("rule", self.rule)
        if not made.is_made(self.rule):
            raise Invalid("rule", f"a name that begins with {made.PREFIX}")
        names.check_whole("version", self.version, at_least=0, at_most=2**63 - 1)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)
        alerting.check_bounds(
            made.rule_of(self.rule, self.definition, warn=self.warn, alert=self.alert)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDeleted(Result):
    rule: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRule(Command[RuleDeleted]):
    """Delete a rule that somebody made; what it has changed and told stays. Needs operate.

    Refuses NotFound (also for rules of our own), VersionConflict.
    """

    rule: str
    version: int
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("rule", self.rule)
        _check_version("version", self.version)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


# --- targets of alerts ---------------------------------------------------------------------------

# As long as a name may be that somebody signs in with.
PERSON_CHARS = 150


def _check_told(least: str | None, rules: tuple[str, ...] | None) -> None:
    if least is not None and least not in delivering.LEAST:
        raise Invalid("least", "warn or alert")
    # Of rules that people made some may be gone by now: that is no harm.
    unknown = sorted(n for n in rules or () if n not in alerting.RULES and not made.is_made(n))
    if unknown:
        raise Invalid("rules", f"there is no rule {unknown[0][:100]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCreated(Result):
    name: str
    kind: str
    hint: str
    version: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTarget(Command[TargetCreated]):
    """Keep where alerts are told; address and secret come sealed (`targets.py`). Needs admin.

    least: the severity from which it is told. rules: of which; none: of all.
    Refuses Exists, and Invalid when there are too many.
    """

    id: UUID
    name: str
    kind: str
    address: str = field(repr=False)
    secret: str | None = field(repr=False)
    hint: str
    least: str = "warn"
    rules: tuple[str, ...] = ()
    person: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        names.check_budget_name("name", self.name)
        names.check_line("person", self.person, at_least=0, at_most=PERSON_CHARS)
        if self.kind not in delivering.KINDS:
            raise Invalid("kind", "webhook or apprise")
        _check_told(self.least, self.rules)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChanged(Result):
    name: str
    enabled: bool
    least: str
    rules: tuple[str, ...]
    version: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTarget(Command[TargetChanged]):
    """Switch a target on or off, or change what it is told; None: as it is. Needs admin.

    version: as the admin saw it. Refuses NotFound, VersionConflict.
    """

    name: str
    version: int
    enabled: bool | None = None
    least: str | None = None
    rules: tuple[str, ...] | None = None
    person: str | None = None
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("name", self.name)
        _check_version("version", self.version)
        names.check_line("person", self.person or "", at_least=0, at_most=PERSON_CHARS)
        _check_told(self.least, self.rules)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRotated(Result):
    """old_until: the secret before signs as well until then."""

    name: str
    version: int
    old_until: datetime
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateSecret(Command[SecretRotated]):
    """Give a webhook another secret; both come sealed as one text (`targets.py`). Needs admin.

    version: as the admin saw it. Refuses NotFound, VersionConflict, Invalid (it has no secret).
    """

    name: str
    version: int
    secret: str = field(repr=False)
    old_until: datetime
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("name", self.name)
        _check_version("version", self.version)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDeleted(Result):
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTarget(Command[TargetDeleted]):
    """Delete a target with its address and secret; its log stays. Needs admin.

    What waits for it is dropped. Refuses NotFound, VersionConflict.
    """

    name: str
    version: int
    reason: str

    def __post_init__(self) -> None:
        names.check_budget_name("name", self.name)
        _check_version("version", self.version)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryQueued(Result):
    """delivery: its id, as the receiver is told it."""

    delivery: str
    target: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TryTarget(Command[DeliveryQueued]):
    """Send a target a test, tried once, also when it is off. Needs admin. While one waits, another
    one is the same. Refuses NotFound.
    """

    name: str

    def __post_init__(self) -> None:
        names.check_budget_name("name", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendDelivery(Command[DeliveryQueued]):
    """Send a message again, with the same id, however it ended. Needs admin.

    Refuses NotFound (no such delivery, or its target is gone), Invalid (the target is off).
    """

    delivery: UUID


# --- bulks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """A run that was ticked, as the operator saw it."""

    run: str
    status: str
    owner: str | None = None
    token: int | None = None

    def __post_init__(self) -> None:
        names.check_run_key("run", self.run)
        _check_status("status", self.status, tuple(str(s) for s in MOVES))
        if self.owner is not None:
            names.check_worker("owner", self.owner)
        _check_fence(self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkCreated(Result):
    bulk: UUID
    kind: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBulk(Command[BulkCreated]):
    """Begin to do one thing to many runs: those that were picked, or all that match a filter.

    seen_at: when the operator looked. The filter asks as of then, and runs that were made later are
    none of it. shown: to how many it can be done by what the operator saw; is_all False: those were
    not counted to the end. No more than were shown are done, if they were counted.
    Needs operate; of more than bulking.ALONE_MAX override. Refuses Invalid.
    """

    kind: str
    filter: str | None = None
    picked: tuple[Picked, ...] = ()
    seen_at: datetime
    shown: int
    is_all: bool = True
    tags: tuple[str, ...] = ()
    hold_off_seconds: int = 0
    reason: str

    def __post_init__(self) -> None:
        if self.kind not in bulking.KINDS:
            raise Invalid("kind", f"one of {', '.join(bulking.KINDS)}")
        self._check_which()
        _check_moment("seen_at", self.seen_at)
        names.check_whole("shown", self.shown, at_least=1, at_most=bulking.ROWS_MAX)
        _set(self, tags=names.check_tags("tags", self.tags))
        if bool(self.tags) is not bulking.KINDS[self.kind].tags:
            raise Invalid("tags", "at least one, of an action on tags, and of no other")
        if len(self.tags) > bulking.TAGS_MAX:
            raise Invalid("tags", f"at most {bulking.TAGS_MAX} at once")
        most = bulking.HOLD_OFF_SECONDS_MAX if self.kind == "reclaim" else 0
        names.check_whole("hold_off_seconds", self.hold_off_seconds, at_least=0, at_most=most)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)

    def _check_which(self) -> None:
        if (self.filter is None) is not bool(self.picked):
            raise Invalid("filter", "a filter, or runs that were picked")
        if self.filter is not None and filters.parse(self.filter).problems:
            raise Invalid("filter", "it is not understood")
        if len(self.picked) > bulking.PICKED_MAX:
            raise Invalid("picked", f"at most {bulking.PICKED_MAX} runs")
        _check_once("picked", [one.run for one in self.picked])


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStopped(Result):
    """already: it had ended before; nothing was written."""

    bulk: UUID
    state: str
    at: datetime
    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBulk(Command[BulkStopped]):
    """Let a bulk begin no more rows. What was done stays done. Needs operate. Refuses NotFound."""

    bulk: UUID
    reason: str

    def __post_init__(self) -> None:
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


# --- quiet hours ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietSet(Result):
    whose: str
    version: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuiet(Command[QuietSet]):
    """Say when a target (`target:NAME`, needs admin) or oneself (`person:NAME`) is not to be told;
    quiet None: always. What is held back at that moment goes by what is said now.

    version: as it was seen, 0 for none yet. Refuses NotFound, VersionConflict, NotAllowed.
    """

    whose: str
    version: int
    quiet: Quiet | None
    reason: str

    def __post_init__(self) -> None:
        names.check_line("whose", self.whose, at_least=1, at_most=PERSON_CHARS + 20)
        if not self.whose.startswith((TARGET, PERSON)):
            raise Invalid("whose", f"{TARGET}NAME or {PERSON}NAME")
        names.check_whole("version", self.version, at_least=0, at_most=2**63 - 1)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)


# --- how long things are kept --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeChanged(Result):
    """days: None for the default."""

    kind: str
    days: int | None
    version: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAge(Command[AgeChanged]):
    """Keep the rows of a kind (`ages.AGES`) for so many days; None: as long as by default. What is
    older then goes with the next passes, for good. Needs admin.

    version: as it was seen, 0 for never changed. Refuses NotFound, VersionConflict, Invalid (less
    than something else promises).
    """

    kind: str
    version: int
    days: int | None
    reason: str

    def __post_init__(self) -> None:
        names.check_line("kind", self.kind, at_least=1, at_most=ages.KIND_CHARS)
        names.check_whole("version", self.version, at_least=0, at_most=2**63 - 1)
        if self.days is not None:
            names.check_whole("days", self.days, at_least=1, at_most=ages.DAYS_MAX)
        names.check_line("reason", self.reason, at_least=1, at_most=names.REASON_CHARS)


# --- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRefused(Command[Result]):
    """A call by one who has none of the scopes that it needs; refused, so that it is written down.

    operation: what was called. run, unit: what it was about, if it named one.
    Refuses NotAllowed, always.
    """

    operation: str
    scopes: tuple[str, ...]
    run: str | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        if self.run is not None:
            names.check_run_key("run", self.run)
        if self.unit is not None:
            names.check_unit("unit", self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCreated(Result):
    """The id of a new key; the key itself is known to the caller alone."""

    id: UUID
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateKey(Command[KeyCreated]):
    """Keep a new API key as a salted hash (`agentstate.store.keys` makes both). Needs admin."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    salt: bytes
    digest: bytes
    hint: str
    expires_at: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        names.check_worker("name", self.name)
        _check_moment("expires_at", self.expires_at)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRevoked(Result):
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeKey(Command[KeyRevoked]):
    """End a key: the next call with it is refused. Needs admin. Repeating it is harmless."""

    name: str
    reason: str = ""

    def __post_init__(self) -> None:
        names.check_worker("name", self.name)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)
