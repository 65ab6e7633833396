"""What a command decides on, and what it decided: locked rows, facts read after the lock, writes.

A command works on a fork, which `execute` adopts only if it succeeds; so a command that is refused
in its middle leaves nothing behind, and the next one in the batch sees just what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from agentstate.store.ages import KeptAge
from agentstate.store.commands import OpenEffect
from agentstate.store.delivering import TargetRow
from agentstate.store.effects import BEGUN, effect_of
from agentstate.store.errors import Invalid, NotFound, RunExpired
from agentstate.store.made import KeptRule
from agentstate.store.payloads import write
from agentstate.store.proposals import Proposed
from agentstate.store.quiet import KeptQuiet
from agentstate.store.rows import (
    ActionRow,
    BudgetRow,
    EntryRow,
    EventRow,
    HoldRow,
    LeaseRow,
    RunRow,
    TermRow,
    replace,
)
from agentstate.store.rules.slots import NeedsWhole, Split, summed


@dataclass(slots=True, kw_only=True)
class Facts:
    """What was read in the second statement, after every lock was held.

    now: the database's clock. tokens: fresh fencing tokens, ascending, to be popped from the front.
    events, charges: those whose ids the commands name and that are stored already.
    consumers: where those of the feed stand that the commands name; feed_position: its last one.
    api_keys: names of keys that the commands want to give, and that are taken.
    homes: of each slot of a split budget, that budget; its charges and holds are known under it.
    open_effects: of the runs that are given out here, (the first ones, how many) of those with any.
    alerts: (state, version) of those that the commands acknowledge or snooze. alert_rules:
    those whose bounds they change; made_rules: how many people have made.
    quiet: the quiet hours that are set.
    targets: those of alerts by name, target_count: how many there are; deliveries: the name of the
    target and what it says, of those that are to be sent again.
    bulks: the state of those that are stopped. ages: how long things are kept, where that was ever
    changed.
    proposed: what was proposed to be done to units that the commands name, and how much by whom.
    people: the roles of those that the commands name, joined with commas. has_admin, setup_code:
    whether there is an admin, and the digest of the code for the first one, if that is asked.
    writes_per_second: the site's limit for one run, 0 for none.
    """

    now: datetime
    new_id: Callable[[datetime], UUID]
    tokens: list[int] = field(default_factory=list)
    events: dict[tuple[UUID, str], EventRow] = field(default_factory=dict)
    charges: dict[tuple[UUID, UUID | None, str], EntryRow] = field(default_factory=dict)
    terms: dict[int, TermRow] = field(default_factory=dict)
    drains: dict[str, dict[str, Any]] = field(default_factory=dict)
    holds: dict[tuple[UUID, str], HoldRow] = field(default_factory=dict)
    holders: list[RunRow] = field(default_factory=list)
    consumers: dict[str, int] = field(default_factory=dict)
    feed_position: int = 0
    api_keys: frozenset[str] = frozenset()
    homes: dict[UUID, UUID] = field(default_factory=dict)
    open_effects: dict[UUID, tuple[tuple[OpenEffect, ...], int]] = field(default_factory=dict)
    alerts: dict[str, tuple[str, int]] = field(default_factory=dict)
    alert_rules: dict[str, KeptRule] = field(default_factory=dict)
    made_rules: int = 0
    quiet: KeptQuiet | None = None
    targets: dict[str, TargetRow] = field(default_factory=dict)
    target_count: int = 0
    deliveries: dict[UUID, tuple[str, str]] = field(default_factory=dict)
    bulks: dict[UUID, str] = field(default_factory=dict)
    ages: dict[str, KeptAge] = field(default_factory=dict)
    proposed: Proposed = field(default_factory=Proposed)
    people: dict[str, str] = field(default_factory=dict)
    has_admin: bool = True
    setup_code: str | None = None
    writes_per_second: int = 0


@dataclass(slots=True, kw_only=True)
class Writes:
    """The decided rows of a batch, by table. New and changed rows are told apart.

    begun, ended: rows of open effects that come and, after those, that go.
    """

    runs: dict[UUID, RunRow] = field(default_factory=dict)
    new_runs: set[UUID] = field(default_factory=set)
    events: list[EventRow] = field(default_factory=list)
    leases: dict[str, LeaseRow] = field(default_factory=dict)
    dropped_leases: set[str] = field(default_factory=set)
    terms: dict[int, TermRow] = field(default_factory=dict)
    new_terms: set[int] = field(default_factory=set)
    budgets: dict[UUID, BudgetRow] = field(default_factory=dict)
    new_budgets: set[UUID] = field(default_factory=set)
    entries: list[EntryRow] = field(default_factory=list)
    holds: dict[tuple[UUID, str], HoldRow] = field(default_factory=dict)
    begun: list[Mapping[str, Any]] = field(default_factory=list)
    ended: list[Mapping[str, Any]] = field(default_factory=list)
    actions: list[ActionRow] = field(default_factory=list)
    other: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def absorb(self, later: Writes) -> None:
        """Take what a later command decided on top of this."""
        for name, take in _TAKING:
            if given := getattr(later, name):
                take(getattr(self, name), given)


_TAKING: tuple[tuple[str, Callable[[Any, Any], None]], ...] = (
    *((name, dict.update) for name in ("runs", "leases", "terms", "budgets", "holds")),
    *((n, set.update) for n in ("new_runs", "dropped_leases", "new_terms", "new_budgets")),
    *((n, list.extend) for n in ("events", "entries", "begun", "ended", "actions", "other")),
)


class Draft:
    """The state as this command sees it: the locked rows below, its own decisions on top."""

    __slots__ = (
        "_below",
        "budgets",
        "charges",
        "events",
        "facts",
        "leases",
        "runs",
        "splits",
        "terms",
        "writes",
    )

    def __init__(self, facts: Facts, *, below: Draft | None = None) -> None:
        self.facts = facts
        self._below = below
        self.runs: dict[str, RunRow] = {}
        self.leases: dict[str, LeaseRow | None] = {}
        self.budgets: dict[UUID, BudgetRow] = {}
        self.splits: dict[UUID, Split] = {}
        self.terms: dict[int, TermRow] = {}
        self.events: dict[tuple[UUID, str], EventRow] = {}
        self.charges: dict[tuple[UUID, UUID | None, str], EntryRow] = {}
        self.writes = Writes()

    def fork(self) -> Draft:
        return Draft(self.facts, below=self)

    def adopt(self, fork: Draft) -> None:
        """Make what `fork` decided true for whoever comes next.

        Here alone and not in the facts: of a batch that is refused in the end, nothing stays.
        """
        for own, decided in (
            (self.runs, fork.runs),
            (self.leases, fork.leases),
            (self.budgets, fork.budgets),
            (self.splits, fork.splits),
            (self.terms, fork.terms),
            (self.events, fork.events),
            (self.charges, fork.charges),
        ):
            if decided:
                cast("dict[Any, Any]", own).update(decided)
        self.writes.absorb(fork.writes)

    @property
    def now(self) -> datetime:
        return self.facts.now

    def find_run(self, key: str) -> RunRow | None:
        found = self.runs.get(key)
        return found if found or not self._below else self._below.find_run(key)

    def run(self, key: str) -> RunRow:
        """Raises NotFound, RunExpired."""
        found = self.find_run(key)
        if found is None:
            raise NotFound(f"no run {key}", run=key)
        if found.expired(self.now):
            raise RunExpired(f"the run {key} expired", run=key, expired_at=found.expires_at)
        return found

    def lease(self, unit: str) -> LeaseRow | None:
        if unit in self.leases:
            return self.leases[unit]
        return self._below.lease(unit) if self._below else None

    def term(self, token: int) -> TermRow | None:
        found = self.terms.get(token)
        if found:
            return found
        return self._below.term(token) if self._below else self.facts.terms.get(token)

    def budget(self, budget_id: UUID) -> BudgetRow:
        found = self.budgets.get(budget_id)
        if found is None and self._below is not None:
            found = self._below.budget(budget_id)
        if found is None:
            raise NotFound("no such budget")
        return found

    def find_event(self, run_id: UUID, event_id: str) -> EventRow | None:
        """The event of the run with this id, stored or decided before."""
        found = self.events.get((run_id, event_id))
        if found:
            return found
        below = self._below
        return (
            below.find_event(run_id, event_id)
            if below
            else self.facts.events.get((run_id, event_id))
        )

    def find_charge(self, budget_id: UUID, run_id: UUID | None, charge_id: str) -> EntryRow | None:
        """The charge of the run with this id, in this budget or, of a split one, in any slot."""
        key = (budget_id, run_id, charge_id)
        found = self.charges.get(key)
        if found:
            return found
        below = self._below
        return below.find_charge(*key) if below else self.facts.charges.get(key)

    def holds(self) -> dict[tuple[UUID, str], HoldRow]:
        """Every hold that is known here, by its budget and id, as decided so far."""
        below = self._below.holds() if self._below else self.facts.holds
        return below | self.writes.holds if self.writes.holds else below

    def find_hold(self, budget_id: UUID, reservation_id: str) -> HoldRow | None:
        found = self.writes.holds.get((budget_id, reservation_id))
        if found:
            return found
        below = self._below
        return (
            below.find_hold(budget_id, reservation_id)
            if below
            else self.facts.holds.get((budget_id, reservation_id))
        )

    def holds_of(self, run_id: UUID) -> list[HoldRow]:
        """The run's holds that are still held, oldest first."""
        found = [h for h in self.holds().values() if h.run_id == run_id and h.state == "held"]
        return sorted(found, key=lambda h: (h.budget_id, h.n))

    def find_budget_named(self, run: RunRow | None, name: str) -> BudgetRow | None:
        """A run's budget, or with None a shared one. No slot: a name has no '#'."""
        run_id = run.id if run else None
        layer: Draft | None = self
        while layer is not None:
            for row in layer.budgets.values():
                if row.run_id == run_id and row.name == name:
                    return self.budget(row.id)
            layer = layer._below
        return None

    def budget_named(self, run: RunRow | None, name: str) -> BudgetRow:
        """The same. Raises NotFound."""
        found = self.find_budget_named(run, name)
        if found is None:
            raise NotFound(f"no budget {name}", budget=name)
        return found

    def home(self, budget_id: UUID) -> UUID:
        """Of a slot, the budget that it is one of; of any other budget, itself."""
        return self.facts.homes.get(budget_id, budget_id)

    def slot_number(self, budget_id: UUID) -> int | None:
        """Of a slot, its number; None for any other budget."""
        split = self.split(self.home(budget_id))
        return split.slots.index(budget_id) if split and budget_id in split.slots else None

    def split(self, budget_id: UUID) -> Split | None:
        """How this transaction has a budget that is split."""
        found = self.splits.get(budget_id)
        return found if found or self._below is None else self._below.split(budget_id)

    def slots(self, split: Split) -> list[BudgetRow]:
        """Those of its slots that are locked here, by number."""
        return [self.budget(slot) for slot in split.slots if self._has(slot)]

    def seen(self, budget: BudgetRow) -> BudgetRow:
        """A budget as everybody sees it: a split one with what its slots have.

        What slots have that are not locked here is as it was last committed.
        """
        split = self.split(self.home(budget.id))
        if split is None:
            return budget
        return summed(self.budget(self.home(budget.id)), self.slots(split), split)

    def _has(self, budget_id: UUID) -> bool:
        layer: Draft | None = self
        while layer is not None:
            if budget_id in layer.budgets:
                return True
            layer = layer._below
        return False

    def has_levels(self, hold: HoldRow) -> bool:
        """Whether every row that a hold counts in is locked here."""
        if hold.slot_id is not None and not self._has(hold.slot_id):
            return False
        budget_id: UUID | None = self.home(hold.budget_id)
        while budget_id is not None and self._has(budget_id):
            budget_id = self.budget(budget_id).parent_id
        return budget_id is None

    def levels(self, budget: BudgetRow) -> list[BudgetRow]:
        """The budget and every one above it, the outermost first; of a split one its slot that
        takes the charges made here. Raises NeedsWhole when none does."""
        found = self._path(budget)
        split = self.split(found[0].id)
        if split is not None:
            found[0] = self._slot(found[0], split.chosen)
        return found

    def levels_of(self, hold: HoldRow) -> list[BudgetRow]:
        """The rows that a hold counts in, the outermost first. Raises NeedsWhole."""
        found = self._path(self.budget(self.home(hold.budget_id)))
        split = self.split(found[0].id)
        if split is not None and hold.slot_id is not None:
            found[0] = self._slot(found[0], hold.slot_id)
        elif split is not None and not split.whole:
            raise NeedsWhole(found[0].id)
        return found

    def _path(self, budget: BudgetRow) -> list[BudgetRow]:
        found = [budget]
        while found[0].parent_id is not None:
            found.insert(0, self.budget(found[0].parent_id))
        return found

    def _slot(self, root: BudgetRow, slot_id: UUID) -> BudgetRow:
        if not self._has(slot_id):
            raise NeedsWhole(root.id)
        return self.budget(slot_id)

    def put_run(self, run: RunRow, *, new: bool = False) -> RunRow:
        self.runs[run.key] = run
        self.writes.runs[run.id] = run
        if new:
            self.writes.new_runs.add(run.id)
        return run

    def put_lease(self, lease: LeaseRow) -> LeaseRow:
        self.leases[lease.unit] = lease
        self.writes.leases[lease.unit] = lease
        return lease

    def drop_lease(self, unit: str) -> None:
        self.leases[unit] = None
        self.writes.dropped_leases.add(unit)

    def put_term(self, term: TermRow, *, new: bool = False) -> None:
        self.terms[term.token] = term
        self.writes.terms[term.token] = term
        if new:
            self.writes.new_terms.add(term.token)

    def put_budget(self, budget: BudgetRow, *, new: bool = False) -> None:
        split = self.split(budget.id)
        if split is not None and not split.whole:
            raise AssertionError(f"{budget.name} is not locked here")
        self.budgets[budget.id] = budget
        self.writes.budgets[budget.id] = budget
        if new:
            self.writes.new_budgets.add(budget.id)

    def put_split(self, budget_id: UUID, split: Split) -> None:
        self.splits[budget_id] = split
        self.facts.homes.update(dict.fromkeys(split.slots, budget_id))

    def put_hold(self, hold: HoldRow) -> HoldRow:
        self.writes.holds[self.home(hold.budget_id), hold.reservation_id] = hold
        return hold

    def put_event(self, event: EventRow) -> None:
        """Write an event; one that begins or ends an effect opens or closes it.

        Raises Invalid for the end of what was never begun.
        """
        self.writes.events.append(event)
        if event.event_id is None:
            return
        self.events[event.run_id, event.event_id] = event
        effect = effect_of(event.event_id)
        if effect is None:
            return
        begun = self.find_event(event.run_id, effect.begin_id)
        if begun is None:
            raise Invalid("effect", f"the run never began {effect.key}, so nothing of it can end")
        changed = self.writes.begun if effect.state == BEGUN else self.writes.ended
        changed.append({"run_id": event.run_id, "seq": begun.seq})

    def put_entry(self, entry: EntryRow) -> None:
        self.writes.entries.append(entry)
        if entry.entry_id is not None and entry.kind == "spend":
            self.charges[self.home(entry.budget_id), entry.run_id, entry.entry_id] = entry

    def new_token(self) -> int:
        return self.facts.tokens.pop(0)

    def log(
        self,
        run: RunRow,
        event_type: str,
        data: Mapping[str, Any],
        *,
        actor: str,
        request_id: str | None,
        token: int | None = None,
        event_id: str | None = None,
        add: str | None = None,
    ) -> RunRow:
        """Write one event of the store's own: number and version move by one."""
        run = replace(run, last_seq=run.last_seq + 1, version=run.version + 1, updated_at=self.now)
        self.put_event(
            EventRow(
                run_id=run.id,
                seq=run.last_seq,
                version=run.version,
                type=event_type,
                origin="store",
                data=write(data),
                event_id=event_id,
                token=token,
                add=add,
                actor=actor,
                request_id=request_id,
                at=self.now,
            )
        )
        return self.put_run(run)
