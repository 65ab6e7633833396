"""Budgets, of a run and shared by many: what is left, what was spent, charging and reserving.

Both kinds have the same calls; a run's are fenced like every write to it.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel

from agentstate import store
from agentstate.api import fields, schemas
from agentstate.api.access import OVERRIDE, READ, WRITE, WorkerRequest
from agentstate.api.asks import new_budget
from agentstate.api.contract import (
    ATTEMPT,
    FENCE,
    IDEMPOTENCY_KEY,
    IF_MATCH_BUDGET,
    Sent,
    contract,
)
from agentstate.api.cursors import read_cursor, write_cursor
from agentstate.api.headers import check_unused, circumstances, fence, version_to_match
from agentstate.api.replies import (
    budget_etag,
    budget_members,
    hold_members,
    ledger_members,
    reply,
    reply_result,
    slot_members,
    told,
)
from agentstate.api.writes import Write, carried_out
from agentstate.store import reads
from agentstate.store.commands import (
    ChangeCap,
    Charge,
    Command,
    CommitReservation,
    CreateBudget,
    ReleaseReservation,
    Reserve,
    Spend,
    SplitBudget,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    CapBelowUse,
    EventIdReuse,
    Exists,
    FenceRequired,
    Invalid,
    NotFound,
    ReservationSettled,
    RunExpired,
    RunHot,
    StaleFence,
    VersionConflict,
)

UNKNOWN = (NotFound, RunExpired)
FENCED = (StaleFence, FenceRequired, AlreadyTerminal)
KEYED = (IDEMPOTENCY_KEY, ATTEMPT)
# A shared budget has no holder, and its version guards its cap and slots alone.
UNUSED = ("If-Match", "Agentstate-Fence")

router = Router(tags=["budgets"])
shared = Router(tags=["shared budgets"])


class EntriesWanted(BaseModel):
    """Which lines of a ledger: numbers above `after`."""

    after: fields.SeqInQuery = 0
    limit: fields.RowsLimit = 100


class ReservationsWanted(BaseModel):
    """Which reservations: made by lines of the ledger above `after`."""

    state: fields.HoldState | None = None
    after: fields.SeqInQuery = 0
    limit: fields.RowsLimit = 100


class SharedEntriesWanted(EntriesWanted):
    """Which lines: after a cursor, or of a budget that is not split, with numbers above `after`."""

    cursor: fields.CursorText | None = None


class SharedReservationsWanted(ReservationsWanted):
    """Which reservations: after a cursor, or as `after` says of a budget that is not split."""

    cursor: fields.CursorText | None = None


class SharedWanted(BaseModel):
    """Which page of the shared budgets."""

    cursor: fields.CursorText | None = None
    limit: fields.RowsLimit = 100


def _ask(request: WorkerRequest, command: Command[Any], *, status: int = 200) -> HttpResponse:
    """Carry it out; every answer about a budget has its version as ETag."""
    done = store.execute(command, by=request.caller, under=circumstances(request))
    return reply_result(done, status=status, etag=budget_etag(done.version))


def _opened(
    request: WorkerRequest, run: str | None, ask: schemas.BudgetAsked, *, slots: int = 1
) -> HttpResponse:
    budget = replace(new_budget(ask), slots=slots)
    command = CreateBudget(run=run, budget=budget, fence=fence(request))
    made = store.execute(command, by=request.caller, under=circumstances(request))
    return reply(
        told(made) | {"parent": ask.parent},
        status=HTTPStatus.CREATED,
        replayed=made.replayed,
        etag=budget_etag(made.version),
    )


def _told(run: str | None, name: str) -> HttpResponse:
    view = reads.budget(run_key=run, name=name)
    members = budget_members(view) | slot_members(view)
    return reply(members, etag=budget_etag(view.budget.version))


def _capped(
    request: WorkerRequest, run: str | None, name: str, *, cap: int, reason: str
) -> HttpResponse:
    check_unused(request, "Agentstate-Fence")
    if_match = version_to_match(request, letter="b")
    command = ChangeCap(run=run, budget=name, cap=cap, reason=reason, if_match=if_match)
    return _ask(request, command)


def _split(request: WorkerRequest, name: str, *, slots: int, reason: str) -> HttpResponse:
    check_unused(request, "Agentstate-Fence")
    if_match = version_to_match(request, letter="b")
    return _ask(request, SplitBudget(budget=name, slots=slots, reason=reason, if_match=if_match))


def _charged(request: WorkerRequest, run: str | None, name: str, ask: schemas.SpendAsked) -> Write:
    charge = Charge(budget=name, amount=ask.amount, id=ask.id, note=ask.note)
    command = Spend(run=run, charge=charge, fence=fence(request))
    return Write(command, circumstances(request), etag="b")


def _held(
    request: WorkerRequest, run: str | None, name: str, ask: schemas.ReserveAsked
) -> HttpResponse:
    command = Reserve(
        run=run,
        budget=name,
        amount=ask.amount,
        id=ask.id,
        ttl_seconds=ask.ttl_seconds,
        fence=fence(request),
    )
    return _ask(request, command)


def _committed(
    request: WorkerRequest, run: str | None, name: str, id: str, ask: schemas.CommitAsked
) -> HttpResponse:
    command = CommitReservation(
        run=run, budget=name, id=id, amount=ask.amount, fence=fence(request)
    )
    return _ask(request, command)


def _released(request: WorkerRequest, run: str | None, name: str, id: str) -> HttpResponse:
    return _ask(request, ReleaseReservation(run=run, budget=name, id=id, fence=fence(request)))


def _reservations(run: str, name: str, wanted: ReservationsWanted) -> HttpResponse:
    views, now = reads.reservations(
        run_key=run, name=name, state=wanted.state, after=wanted.after, limit=wanted.limit
    )
    return reply({"items": [hold_members(view, now) for view in views], "as_of": now})


def _ledger(run: str, name: str, wanted: EntriesWanted) -> HttpResponse:
    found = reads.ledger(run_key=run, name=name, after=wanted.after, limit=wanted.limit)
    return reply(ledger_members(found))


# --- of one run -----------------------------------------------------------------------------------


@router.post(
    "/{key}/budgets",
    **contract(
        "create_budget",
        answers=schemas.BudgetStateTold,
        status=HTTPStatus.CREATED,
        access=WRITE,
        refuses=(
            Exists,
            *UNKNOWN,
            *FENCED,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE),
    ),
)
def create_budget(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.BudgetAsked]
) -> HttpResponse:
    """Open a budget of the run. parent: a shared one, which is charged as well."""
    check_unused(request, "If-Match")
    return _opened(request, key, ask)


@router.get(
    "/{key}/budgets",
    **contract("list_budgets", answers=schemas.BudgetsTold, access=READ, refuses=UNKNOWN),
)
def list_budgets(request: WorkerRequest, key: fields.RunKey) -> HttpResponse:
    """The run's own budgets, by name."""
    return reply({"items": [budget_members(view) for view in reads.budgets(run_key=key)]})


@router.get(
    "/{key}/budgets/{name}",
    **contract(
        "read_budget",
        answers=schemas.BudgetTold,
        access=READ,
        refuses=(*UNKNOWN,),
    ),
)
def read_budget(
    request: WorkerRequest, key: fields.RunKey, name: fields.BudgetName
) -> HttpResponse:
    """One budget of a run. Its ETag is its own version, not the run's."""
    return _told(key, name)


@router.patch(
    "/{key}/budgets/{name}",
    **contract(
        "change_cap",
        answers=schemas.BudgetStateTold,
        access=OVERRIDE,
        refuses=(
            *UNKNOWN,
            VersionConflict,
            CapBelowUse,
        ),
        takes_body=True,
        headers=(*KEYED, IF_MATCH_BUDGET),
    ),
)
def change_cap(
    request: WorkerRequest, key: fields.RunKey, name: fields.BudgetName, ask: Sent[schemas.CapAsked]
) -> HttpResponse:
    """Set the cap, under If-Match if somebody else might. Not below what is used: 409."""
    return _capped(request, key, name, cap=ask.cap, reason=ask.reason)


@router.post(
    "/{key}/budgets/{name}/spend",
    **contract(
        "spend",
        answers=schemas.SpentTold,
        access=WRITE,
        refuses=(
            *UNKNOWN,
            BudgetExhausted,
            EventIdReuse,
            RunHot,
            *FENCED,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE),
    ),
)
@carried_out
def spend(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    ask: Sent[schemas.SpendAsked],
) -> Write:
    """Charge a budget, and every budget above it: all levels admit it, or nothing is added.

    402 names the level that has no room. The same id again answers as before.
    """
    check_unused(request, "If-Match")
    return _charged(request, key, name, ask)


@router.post(
    "/{key}/budgets/{name}/reserve",
    **contract(
        "reserve",
        answers=schemas.ReservedTold,
        access=WRITE,
        refuses=(
            *UNKNOWN,
            BudgetExhausted,
            EventIdReuse,
            ReservationSettled,
            RunHot,
            *FENCED,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE),
    ),
)
def reserve(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    ask: Sent[schemas.ReserveAsked],
) -> HttpResponse:
    """Hold an amount on every level before it is spent.

    The hold is dead once its ttl or the token that it was made under is over. The same id and
    amount again answers as before.
    """
    check_unused(request, "If-Match")
    return _held(request, key, name, ask)


@router.post(
    "/{key}/budgets/{name}/reservations/{id}/commit",
    **contract(
        "commit_reservation",
        answers=schemas.SettledTold,
        access=WRITE,
        refuses=(
            *UNKNOWN,
            ReservationSettled,
            StaleFence,
            FenceRequired,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE),
    ),
)
def commit_reservation(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    id: fields.ReservationId,
    ask: Sent[schemas.CommitAsked],
) -> HttpResponse:
    """Record what was really used, once; the rest of the hold is given back.

    More than was held is money already spent: recorded in full, and flagged `overdrawn`, as long
    as what each budget has used stays within 2^53 - 1. After the hold was dropped it is recorded
    as `late`.
    """
    check_unused(request, "If-Match")
    return _committed(request, key, name, id, ask)


@router.post(
    "/{key}/budgets/{name}/reservations/{id}/release",
    **contract(
        "release_reservation",
        answers=schemas.SettledTold,
        access=WRITE,
        refuses=(
            *UNKNOWN,
            ReservationSettled,
            StaleFence,
            FenceRequired,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE),
    ),
)
def release_reservation(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    id: fields.ReservationId,
    ask: Sent[schemas.NothingAsked],
) -> HttpResponse:
    """Give a hold back unused; send `{}`. Repeating it is harmless."""
    check_unused(request, "If-Match")
    return _released(request, key, name, id)


@router.get(
    "/{key}/budgets/{name}/reservations",
    **contract(
        "list_reservations",
        answers=schemas.ReservationsTold,
        access=READ,
        refuses=(*UNKNOWN,),
    ),
)
def list_reservations(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    wanted: Query[ReservationsWanted],
) -> HttpResponse:
    """What was reserved, in the order of the ledger; go on with `after` = the last `n`."""
    return _reservations(key, name, wanted)


@router.get(
    "/{key}/budgets/{name}/ledger",
    **contract(
        "list_ledger",
        answers=schemas.LedgerTold,
        access=READ,
        refuses=(*UNKNOWN,),
    ),
)
def list_ledger(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    wanted: Query[EntriesWanted],
) -> HttpResponse:
    """Everything that ever counted against a budget, in order; spent is always the sum.

    `refused`: the charges that it refused in the time of these lines, the first 100 of them.
    """
    return _ledger(key, name, wanted)


# --- shared by many runs --------------------------------------------------------------------------


@shared.post(
    "",
    **contract(
        "create_shared_budget",
        answers=schemas.BudgetStateTold,
        status=HTTPStatus.CREATED,
        access=WRITE,
        refuses=(
            Exists,
            NotFound,
        ),
        takes_body=True,
        headers=KEYED,
    ),
)
def create_shared_budget(
    request: WorkerRequest, ask: Sent[schemas.SharedBudgetAsked]
) -> HttpResponse:
    """Open a budget that many runs share: their own name it as `parent`.

    One under another is charged with it; a charge is admitted by every level, or by none. A hot
    one can be split: each of its `slots` takes charges of its own, and none beyond the cap.
    """
    check_unused(request, *UNUSED)
    return _opened(request, None, ask, slots=ask.slots)


@shared.get("", **contract("list_shared_budgets", answers=schemas.SharedBudgetsTold, access=READ))
def list_shared_budgets(request: WorkerRequest, wanted: Query[SharedWanted]) -> HttpResponse:
    """The budgets that many runs share, by name, in pages."""
    of = {"list": "budgets"}
    page = reads.shared_budgets(limit=wanted.limit, place=read_cursor(wanted.cursor, of=of))
    return reply(
        {
            "items": [budget_members(view) for view in page.items],
            "next": write_cursor(page.next, of=of),
            "prev": write_cursor(page.prev, of=of),
            "as_of": page.now,
        }
    )


@shared.get(
    "/{name}",
    **contract(
        "read_shared_budget",
        answers=schemas.BudgetTold,
        access=READ,
        refuses=(NotFound,),
    ),
)
def read_shared_budget(request: WorkerRequest, name: fields.BudgetName) -> HttpResponse:
    """One shared budget. Its ETag is the version to guard its cap with."""
    return _told(None, name)


@shared.patch(
    "/{name}",
    **contract(
        "change_shared_budget",
        answers=schemas.BudgetStateTold,
        access=OVERRIDE,
        refuses=(
            NotFound,
            VersionConflict,
            CapBelowUse,
        ),
        takes_body=True,
        headers=(*KEYED, IF_MATCH_BUDGET),
    ),
)
def change_shared_budget(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[schemas.SharedChangeAsked]
) -> HttpResponse:
    """Set the cap or the number of slots, under If-Match if somebody else might.

    The cap not below what is used: 409. Slots are never taken away, for holds remember theirs.
    """
    if ask.cap is not None and ask.slots is None:
        return _capped(request, None, name, cap=ask.cap, reason=ask.reason)
    if ask.slots is not None and ask.cap is None:
        return _split(request, name, slots=ask.slots, reason=ask.reason)
    raise Invalid("cap", "one of cap and slots")


@shared.post(
    "/{name}/spend",
    **contract(
        "spend_shared",
        answers=schemas.SpentTold,
        access=WRITE,
        refuses=(
            NotFound,
            BudgetExhausted,
            EventIdReuse,
        ),
        takes_body=True,
        headers=KEYED,
    ),
)
@carried_out
def spend_shared(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[schemas.SpendAsked]
) -> Write:
    """Charge a shared budget, and every one above it: all levels admit it, or nothing is added.

    402 names the level that has no room. The same id again answers as before.
    """
    check_unused(request, *UNUSED)
    return _charged(request, None, name, ask)


@shared.post(
    "/{name}/reserve",
    **contract(
        "reserve_shared",
        answers=schemas.ReservedTold,
        access=WRITE,
        refuses=(
            NotFound,
            BudgetExhausted,
            EventIdReuse,
            ReservationSettled,
        ),
        takes_body=True,
        headers=KEYED,
    ),
)
def reserve_shared(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[schemas.ReserveAsked]
) -> HttpResponse:
    """Hold an amount on every level before it is spent. The hold is dead once its ttl is over.

    The same id and amount again answers as before.
    """
    check_unused(request, *UNUSED)
    return _held(request, None, name, ask)


@shared.post(
    "/{name}/reservations/{id}/commit",
    **contract(
        "commit_shared_reservation",
        answers=schemas.SettledTold,
        access=WRITE,
        refuses=(
            NotFound,
            ReservationSettled,
        ),
        takes_body=True,
        headers=KEYED,
    ),
)
def commit_shared_reservation(
    request: WorkerRequest,
    name: fields.BudgetName,
    id: fields.ReservationId,
    ask: Sent[schemas.CommitAsked],
) -> HttpResponse:
    """Record what was really used, once; the rest of the hold is given back.

    More than was held is money already spent: recorded in full, and flagged `overdrawn`, as long
    as what each budget has used stays within 2^53 - 1. After the hold was dropped it is recorded
    as `late`.
    """
    check_unused(request, *UNUSED)
    return _committed(request, None, name, id, ask)


@shared.post(
    "/{name}/reservations/{id}/release",
    **contract(
        "release_shared_reservation",
        answers=schemas.SettledTold,
        access=WRITE,
        refuses=(
            NotFound,
            ReservationSettled,
        ),
        takes_body=True,
        headers=KEYED,
    ),
)
def release_shared_reservation(
    request: WorkerRequest,
    name: fields.BudgetName,
    id: fields.ReservationId,
    ask: Sent[schemas.NothingAsked],
) -> HttpResponse:
    """Give a hold back unused; send `{}`. Repeating it is harmless."""
    check_unused(request, *UNUSED)
    return _released(request, None, name, id)


@shared.get(
    "/{name}/reservations",
    **contract(
        "list_shared_reservations",
        answers=schemas.SharedReservationsTold,
        access=READ,
        refuses=(NotFound,),
    ),
)
def list_shared_reservations(
    request: WorkerRequest, name: fields.BudgetName, wanted: Query[SharedReservationsWanted]
) -> HttpResponse:
    """What was reserved of it itself, as it was made; `next` is where to go on."""
    of = {"list": "reservations", "budget": name, "state": wanted.state}
    place = _place(name, wanted.after, wanted.cursor, of)
    page = reads.shared_reservations(name=name, state=wanted.state, place=place, limit=wanted.limit)
    return reply(
        {
            "items": [hold_members(view, page.now) for view in page.items],
            "next": write_cursor(page.next, of=of),
            "as_of": page.now,
        }
    )


@shared.get(
    "/{name}/ledger",
    **contract(
        "list_shared_ledger",
        answers=schemas.SharedLedgerTold,
        access=READ,
        refuses=(NotFound,),
    ),
)
def list_shared_ledger(
    request: WorkerRequest, name: fields.BudgetName, wanted: Query[SharedEntriesWanted]
) -> HttpResponse:
    """Everything that ever counted against a budget; spent is always the sum.

    `refused`: the charges that it refused in the time of these lines, the first 100 of them.

    A split one has a ledger for each slot: they come by time, each line with its `slot` and its
    number `n` there. `next` is where to go on, and misses none that is written meanwhile.
    """
    of = {"list": "ledger", "budget": name}
    place = _place(name, wanted.after, wanted.cursor, of)
    page = reads.shared_ledger(name=name, place=place, limit=wanted.limit)
    return reply({**ledger_members(page), "next": write_cursor(page.next, of=of)})


def _place(name: str, after: int, cursor: str | None, of: dict[str, Any]) -> reads.Place | None:
    """Where to go on. A number means one ledger: a split budget has several. Raises Invalid."""
    if cursor is not None:
        return read_cursor(cursor, of=of)
    if after == 0:
        return None
    if reads.budget(run_key=None, name=name).slots:
        raise Invalid("after", "of a split budget, `cursor` in its place")
    return reads.Place(key=(after,))
