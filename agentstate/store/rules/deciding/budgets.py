"""Budgets: charge, hold, settle, open, change the cap. Every level gets its ledger line."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from agentstate.store.commands import (
    BudgetState,
    ChangeCap,
    Charge,
    CommitReservation,
    CreateBudget,
    DropDeadHolds,
    Dropped,
    NewBudget,
    ReleaseReservation,
    Reserve,
    Reserved,
    Settled,
    SlotState,
    Spend,
    Spent,
    SplitBudget,
)
from agentstate.store.errors import (
    EventIdReuse,
    Exists,
    Invalid,
    NotFound,
    ReservationSettled,
    VersionConflict,
)
from agentstate.store.rows import (
    BudgetRow,
    EntryRow,
    HoldRow,
    RunRow,
    replace,
)
from agentstate.store.rules import budgets, runs, slots
from agentstate.store.rules.deciding.desk import Deciding
from agentstate.store.rules.slots import NeedsWhole, Split


def spend(ask: Spend, on: Deciding) -> Spent:
    run, budget = _budget_of(ask.run, ask.charge.budget, on)
    before = _charged_before(run, budget, ask.charge, on, token=ask.fence)
    if before:
        return before
    _check_may_charge(run, ask.fence, on)
    _pace(run, on)
    return make_charge(run, ask.charge, on, token=ask.fence)


def _budget_of(key: str | None, name: str, on: Deciding) -> tuple[RunRow | None, BudgetRow]:
    run = on.draft.run(key) if key is not None else None
    return run, on.draft.budget_named(run, name)


def _check_may_charge(run: RunRow | None, token: int | None, on: Deciding) -> None:
    if run is not None:
        runs.check_fence(run, token, on.by)
        runs.check_open(run)


def _pace(run: RunRow | None, on: Deciding) -> None:
    """Under a brake a charge counts among its run's writes; else it does not touch the run's row,
    and the budget's own lock is what slows it down."""
    if run is not None and run.brake_until is not None:
        on.pace(run)


def make_charge(run: RunRow | None, charge: Charge, on: Deciding, *, token: int | None) -> Spent:
    """Charge every level, or none. A charge whose id is stored already is not made again."""
    draft = on.draft
    budget = draft.budget_named(run, charge.budget)
    before = _charged_before(run, budget, charge, on, token=token)
    if before:
        return before
    levels = budgets.spend(_with_room(budget, charge.amount, on), charge.amount)
    entry = _enter_levels(
        levels,
        on,
        kind="spend",
        amount=charge.amount,
        spent=charge.amount,
        run_id=run.id if run else None,
        charge_id=charge.id,
        note=charge.note,
        token=token,
    )
    return _spent(draft.seen(levels[-1]), entry, on)


def _with_room(budget: BudgetRow, amount: int, on: Deciding) -> list[BudgetRow]:
    """The levels to charge, the outermost first; of a split budget a slot that has the room.

    Raises NeedsWhole when caps must be moved to know, BudgetExhausted when the whole has no room.
    """
    draft = on.draft
    levels = draft.levels(budget)
    root = draft.budget(draft.home(levels[0].id))
    split = draft.split(root.id)
    if split is not None and not slots.takes(levels[0], amount):
        if split.exact:
            # To refuse, it is enough to know that the whole had no room at one moment.
            budgets.check_room([draft.seen(root)], amount)
        _check_whole(root, on)
        _deal(root, on, asking=levels[0].id, amount=amount)
        levels[0] = draft.budget(levels[0].id)
    return levels


def _check_whole(root: BudgetRow, on: Deciding) -> None:
    """Raises NeedsWhole unless the split budget is locked with all of its slots."""
    split = on.draft.split(root.id)
    if split is None or not split.whole:
        raise NeedsWhole(root.id)


def _deal(root: BudgetRow, on: Deciding, *, asking: UUID | None = None, amount: int = 0) -> None:
    """Move caps between the slots of a budget that is locked whole, with a line for each."""
    draft = on.draft
    split = draft.split(root.id)
    if split is None:
        raise AssertionError(f"{root.name} is not split")
    before = {slot.id: slot for slot in draft.slots(split)}
    dealt, changed = slots.deal(root, list(before.values()), asking=asking, amount=amount)
    if dealt != root:
        draft.put_budget(dealt)
    for slot in changed:
        draft.put_budget(slot)
        moved = slot.cap - before[slot.id].cap
        if moved:
            _enter(slot, on, kind="shift", amount=moved, cap=slot.cap, run_id=None)


def open_budget(run: RunRow | None, ask: NewBudget, on: Deciding) -> BudgetRow:
    draft = on.draft
    parent = draft.budget_named(None, ask.parent) if ask.parent else None
    budget = BudgetRow(
        id=draft.facts.new_id(draft.now),
        run_id=run.id if run else None,
        name=ask.name,
        unit=ask.unit,
        cap=ask.cap,
        entries=1,
        parent_id=parent.id if parent else None,
        depth=parent.depth + 1 if parent else 0,
        slots=ask.slots,
    )
    draft.put_budget(budget, new=True)
    _enter(budget, on, kind="open", amount=ask.cap, cap=ask.cap, run_id=run.id if run else None)
    if ask.slots > 1:
        _open_slots(budget, on)
    return budget


def _open_slots(budget: BudgetRow, on: Deciding) -> None:
    """Make the slots that a budget has not yet, and deal the room anew. All of it is locked."""
    draft = on.draft
    before = draft.split(budget.id)
    ids = list(before.slots if before else ())
    for number in range(len(ids), budget.slots):
        slot = slots.slot_row(budget, number, draft.facts.new_id(draft.now))
        draft.put_budget(slot, new=True)
        _enter(slot, on, kind="open", amount=0, cap=0, run_id=None)
        ids.append(slot.id)
    chosen = before.chosen if before else ids[0]
    draft.put_split(budget.id, Split(slots=tuple(ids), chosen=chosen, whole=True))
    _deal(budget, on)


def _enter(
    budget: BudgetRow,
    on: Deciding,
    *,
    kind: str,
    amount: int,
    run_id: UUID | None,
    spent: int = 0,
    reserved: int = 0,
    cap: int | None = None,
    charge_id: str | None = None,
    note: str = "",
    token: int | None = None,
) -> EntryRow:
    entry = EntryRow(
        budget_id=budget.id,
        n=budget.entries,
        kind=kind,
        amount=amount,
        spent=spent,
        reserved=reserved,
        cap=cap,
        entry_id=charge_id,
        run_id=run_id,
        token=token,
        note=note,
        overdrawn=budget.overdrawn,
        actor=on.by.principal,
        request_id=on.request_id,
        at=on.draft.now,
    )
    on.draft.put_entry(entry)
    return entry


def _enter_levels(levels: list[BudgetRow], on: Deciding, **line: Any) -> EntryRow:
    """Write the levels and the same ledger line for each; the line of the last, the innermost."""
    entry: EntryRow | None = None
    for level in levels:
        on.draft.put_budget(level)
        again = line["kind"] == "spend" and _is_charged(level, on, **line)
        entry = _enter(level, on, **(line | {"charge_id": None} if again else line))
    if entry is None:
        raise AssertionError("a budget has at least its own level")
    return entry


def _is_charged(
    level: BudgetRow, on: Deciding, *, run_id: UUID | None, charge_id: str | None, **_line: Any
) -> bool:
    """Whether this id of the run is in this ledger already: by another budget below this one.

    An id is one budget's; so the line above goes without it.
    """
    if charge_id is None:
        return False
    return on.draft.find_charge(on.draft.home(level.id), run_id, charge_id) is not None


def _charged_before(
    run: RunRow | None, budget: BudgetRow, charge: Charge, on: Deciding, *, token: int | None
) -> Spent | None:
    if charge.id is None:
        return None
    stored = on.draft.find_charge(budget.id, run.id if run else None, charge.id)
    if stored is None:
        return None
    if run is not None and not runs.is_own(stored.actor, stored.token, run, token, on.by):
        runs.check_fence(run, token, on.by)
    if stored.amount != charge.amount:
        raise EventIdReuse(
            f"charge id {charge.id} is stored with another amount",
            current=on.draft.seen(budget).facts(),
            id=charge.id,
        )
    return replace(_spent(on.draft.seen(budget), stored, on), replayed=True)


def _spent(budget: BudgetRow, entry: EntryRow, on: Deciding) -> Spent:
    return Spent(
        budget=budget.name,
        unit=budget.unit,
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        overdrawn=budget.overdrawn,
        entry=entry.n,
        slot=on.draft.slot_number(entry.budget_id),
        at=entry.at,
    )


def reserve(ask: Reserve, on: Deciding) -> Reserved:
    draft = on.draft
    run, budget = _budget_of(ask.run, ask.budget, on)
    hold = draft.find_hold(budget.id, ask.id)
    if hold is not None and (
        run is None or runs.is_own(hold.actor, hold.token, run, ask.fence, on.by)
    ):
        _check_same_hold(hold, ask, budget, on)
        return _reserved(hold, draft.seen(budget), on, replayed=True)
    _check_may_charge(run, ask.fence, on)
    if hold is not None:
        _check_same_hold(hold, ask, budget, on)
    _pace(run, on)
    levels = budgets.reserve(_with_room(budget, ask.amount, on), ask.amount)
    run_id = run.id if run else None
    entry = _enter_levels(
        levels,
        on,
        kind="reserve",
        amount=ask.amount,
        reserved=ask.amount,
        run_id=run_id,
        charge_id=ask.id,
        token=ask.fence,
    )
    hold = draft.put_hold(
        HoldRow(
            budget_id=levels[-1].id,
            n=entry.n,
            reservation_id=ask.id,
            run_id=run_id,
            amount=ask.amount,
            token=ask.fence,
            actor=on.by.principal,
            expires_at=draft.now + timedelta(seconds=ask.ttl_seconds),
            created_at=draft.now,
            slot_id=levels[0].id if levels[0].slot_of_id is not None else None,
        )
    )
    return _reserved(hold, draft.seen(levels[-1]), on)


def _check_same_hold(hold: HoldRow, ask: Reserve, budget: BudgetRow, on: Deciding) -> None:
    anothers = hold.run_id is None and hold.actor != on.by.principal
    if hold.amount != ask.amount or anothers:
        raise EventIdReuse(
            f"reservation {ask.id} is stored with another amount or by another caller",
            current=on.draft.seen(budget).facts(),
            id=ask.id,
        )
    if hold.state != "held":
        raise ReservationSettled(
            f"reservation {ask.id} is {hold.state}",
            current=on.draft.seen(budget).facts(),
            state=hold.state,
        )


def _reserved(
    hold: HoldRow, budget: BudgetRow, on: Deciding, *, replayed: bool = False
) -> Reserved:
    left = (hold.expires_at - on.draft.now) // timedelta(milliseconds=1)
    return Reserved(
        budget=budget.name,
        id=hold.reservation_id,
        amount=hold.amount,
        expires_at=hold.expires_at,
        expires_in_ms=max(0, left),
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        at=hold.created_at,
        replayed=replayed,
    )


def commit_reservation(ask: CommitReservation, on: Deciding) -> Settled:
    return _settle(ask, on, actual=ask.amount, to="committed")


def release_reservation(ask: ReleaseReservation, on: Deciding) -> Settled:
    return _settle(ask, on, actual=0, to="released")


def _settle(
    ask: CommitReservation | ReleaseReservation, on: Deciding, *, actual: int, to: str
) -> Settled:
    draft = on.draft
    run, budget = _budget_of(ask.run, ask.budget, on)
    hold = draft.find_hold(budget.id, ask.id)
    if hold is None:
        raise NotFound(f"no reservation {ask.id}", budget=ask.budget, id=ask.id)
    if run is not None and not _may_settle(run, ask.fence, on):
        runs.check_fence(run, ask.fence, on.by)
    if hold.state == "dropped" and to == "committed":
        to = "late"
    elif hold.state == "dropped":
        return _settled(hold, draft.seen(budget), replayed=True)
    elif hold.state != "held":
        wanted = ("committed", "late") if to == "committed" else (to,)
        if hold.state not in wanted or hold.actual != actual:
            raise ReservationSettled(
                f"reservation {ask.id} is {hold.state} with {hold.actual}",
                current=draft.seen(budget).facts(),
                state=hold.state,
                actual=hold.actual,
            )
        return _settled(hold, draft.seen(budget), replayed=True)
    levels = _settle_levels(hold, actual, to, on, token=ask.fence)
    hold = draft.put_hold(replace(hold, state=to, actual=actual, settled_at=draft.now))
    return _settled(hold, draft.seen(levels[-1]))


def _may_settle(run: RunRow, token: int | None, on: Deciding) -> bool:
    """The holder, or whoever ended the run: what was spent until then may come in late."""
    never_leased = not run.ever_leased and token is None
    return never_leased or on.ended(run, token)


def _settle_levels(
    hold: HoldRow, actual: int, to: str, on: Deciding, *, token: int | None = None
) -> list[BudgetRow]:
    kinds = {"committed": "commit", "released": "release", "dropped": "drop", "late": "late"}
    draft = on.draft
    more = actual - (hold.amount if hold.state == "held" else 0)
    levels = draft.levels_of(hold)
    root = draft.budget(draft.home(levels[0].id))
    together = draft.split(root.id) is not None and not slots.takes(levels[0], more)
    if together:
        _check_whole(root, on)
    seen = draft.seen(root)
    budgets.check_countable([seen, *levels[1:]], actual, more)
    levels = budgets.settle(levels, hold, actual)
    if together:
        levels[0] = replace(levels[0], overdrawn=seen.used + more > seen.cap)
    _enter_levels(
        levels,
        on,
        kind=kinds[to],
        amount=actual if to in ("committed", "late") else hold.amount,
        spent=actual,
        reserved=-hold.amount if hold.state == "held" else 0,
        run_id=hold.run_id,
        charge_id=hold.reservation_id,
        token=token,
    )
    if together:
        _deal(draft.budget(root.id), on, asking=hold.slot_id)
    return levels


def _settled(hold: HoldRow, budget: BudgetRow, *, replayed: bool = False) -> Settled:
    return Settled(
        budget=budget.name,
        id=hold.reservation_id,
        state=hold.state,
        amount=hold.amount,
        actual=hold.actual or 0,
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        overdrawn=budget.overdrawn,
        at=hold.settled_at or hold.created_at,
        replayed=replayed,
    )


def drop_holds(holds: Iterable[HoldRow], on: Deciding) -> int:
    """Give dead holds back; their ids stay known."""
    count = 0
    for hold in holds:
        _settle_levels(hold, 0, "dropped", on)
        on.draft.put_hold(replace(hold, state="dropped", actual=0, settled_at=on.draft.now))
        count += 1
    return count


def drop_dead_holds(ask: DropDeadHolds, on: Deciding) -> Dropped:
    """Of the holds that were chosen and locked, give back those that are dead all the same."""
    tokens = {row.id: row.token for row in on.draft.facts.holders}
    dead = [
        hold
        for hold in on.draft.holds().values()
        if hold.dead(on.draft.now, tokens.get(hold.run_id) if hold.run_id else None)
        and on.draft.has_levels(hold)
    ]
    return Dropped(holds=drop_holds(sorted(dead, key=lambda h: (h.budget_id, h.n)), on))


def create_budget(ask: CreateBudget, on: Deciding) -> BudgetState:
    run = on.draft.run(ask.run) if ask.run is not None else None
    _check_may_charge(run, ask.fence, on)
    existing = on.draft.find_budget_named(run, ask.budget.name)
    if existing is not None:
        current = on.draft.seen(existing).facts()
        raise Exists(f"a budget {existing.name} exists", current=current)
    budget = open_budget(run, ask.budget, on)
    return _budget_state(budget, on)


def change_cap(ask: ChangeCap, on: Deciding) -> BudgetState:
    on.by.need("override")
    draft = on.draft
    run, budget = _budget_of(ask.run, ask.budget, on)
    split = draft.split(budget.id)
    if split is not None:
        _check_whole(budget, on)
    _check_version(budget, ask.if_match, on)
    seen = draft.seen(budget)
    changed = budgets.change_cap(seen, ask.cap)
    own = replace(changed, spent=budget.spent, reserved=budget.reserved)
    draft.put_budget(own)
    _enter(
        own,
        on,
        kind="cap",
        amount=ask.cap,
        cap=ask.cap,
        note=ask.reason,
        run_id=budget.run_id,
    )
    if split is not None:
        _deal(own, on)
    _act(
        "budget.cap-changed",
        ask,
        run,
        on,
        before={"cap": budget.cap, "version": budget.version},
        after={"cap": ask.cap, "version": changed.version},
    )
    return _budget_state(own, on)


def _check_version(budget: BudgetRow, if_match: int | None, on: Deciding) -> None:
    if if_match is not None and if_match != budget.version:
        raise VersionConflict(
            f"expected b{if_match}, found b{budget.version}",
            current=on.draft.seen(budget).facts(),
            expected=if_match,
            found=budget.version,
        )


def _act(
    action: str,
    ask: ChangeCap | SplitBudget,
    run: RunRow | None,
    on: Deciding,
    *,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    on.act(
        action,
        f"{run.key}/{ask.budget}" if run is not None else ask.budget,
        run,
        reason=ask.reason,
        before=before,
        after=after,
        expected={"version": ask.if_match},
    )


def split_budget(ask: SplitBudget, on: Deciding) -> BudgetState:
    on.by.need("override")
    _, budget = _budget_of(None, ask.budget, on)
    if budget.slots > 1:
        _check_whole(budget, on)
    _check_version(budget, ask.if_match, on)
    if budget.parent_id is not None:
        raise Invalid("slots", "only a budget without a parent can be split")
    if ask.slots < budget.slots:
        raise Invalid("slots", f"at least {budget.slots}, as many as it has: none is taken away")
    if ask.slots == budget.slots:
        return _budget_state(budget, on)
    over = on.draft.seen(budget).overdrawn
    grown = replace(budgets.enter(replace(budget, slots=ask.slots)), overdrawn=over)
    on.draft.put_budget(grown)
    _enter(grown, on, kind="split", amount=ask.slots, note=ask.reason, run_id=None)
    _open_slots(grown, on)
    _act(
        "budget.split",
        ask,
        None,
        on,
        before={"slots": budget.slots, "version": budget.version},
        after={"slots": ask.slots, "version": grown.version},
    )
    return _budget_state(grown, on)


def _budget_state(own: BudgetRow, on: Deciding) -> BudgetState:
    budget = on.draft.seen(own)
    split = on.draft.split(own.id)
    return BudgetState(
        budget=budget.name,
        unit=budget.unit,
        cap=budget.cap,
        spent=budget.spent,
        reserved=budget.reserved,
        left=budget.left,
        version=budget.version,
        overdrawn=budget.overdrawn,
        slots=tuple(map(_slot_state, on.draft.slots(split))) if split is not None else None,
        at=on.draft.now,
    )


def _slot_state(slot: BudgetRow) -> SlotState:
    return SlotState(slot=slot.slot or 0, cap=slot.cap, spent=slot.spent, reserved=slot.reserved)
