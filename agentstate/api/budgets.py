"""A run's budgets: what is left, what was spent, and charging them."""

from __future__ import annotations

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel

from agentstate import store
from agentstate.api import fields, schemas
from agentstate.api.access import READ, WRITE, WorkerRequest
from agentstate.api.contract import ATTEMPT, FENCE, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.headers import check_unused, circumstances, fence
from agentstate.api.replies import (
    budget_etag,
    budget_members,
    entry_members,
    reply,
    reply_result,
)
from agentstate.store import reads
from agentstate.store.commands import Charge, Spend
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    FenceRequired,
    NotFound,
    RunExpired,
    StaleFence,
)

UNKNOWN = (NotFound, RunExpired)

router = Router(tags=["budgets"])


class EntriesWanted(BaseModel):
    """Which lines of a ledger: numbers above `after`."""

    after: fields.SeqInQuery = 0
    limit: fields.RowsLimit = 100


@router.get(
    "/{key}/budgets",
    **contract("list_budgets", answers=schemas.BudgetsTold, access=READ, refuses=UNKNOWN),
)
def list_budgets(request: WorkerRequest, key: fields.RunKey) -> HttpResponse:
    """The run's own budgets, by name."""
    return reply({"items": [budget_members(view) for view in reads.budgets(run_key=key)]})


@router.get(
    "/{key}/budgets/{name}",
    **contract("read_budget", answers=schemas.BudgetTold, access=READ, refuses=UNKNOWN),
)
def read_budget(
    request: WorkerRequest, key: fields.RunKey, name: fields.BudgetName
) -> HttpResponse:
    """One budget of a run. Its ETag is its own version, not the run's."""
    view = reads.budget(run_key=key, name=name)
    return reply(budget_members(view), etag=budget_etag(view.budget.version))


@router.post(
    "/{key}/budgets/{name}/spend",
    **contract(
        "spend",
        answers=schemas.SpentTold,
        access=WRITE,
        refuses=(*UNKNOWN, BudgetExhausted, StaleFence, FenceRequired, AlreadyTerminal),
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT, FENCE),
    ),
)
def spend(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    ask: Sent[schemas.SpendAsked],
) -> HttpResponse:
    """Charge a budget, and every budget above it: all levels admit it, or nothing is added.

    402 names the level that has no room. The same id again answers as before.
    """
    check_unused(request, "If-Match")
    charge = Charge(budget=name, amount=ask.amount, id=ask.id, note=ask.note)
    command = Spend(run=key, charge=charge, fence=fence(request))
    spent = store.execute(command, by=request.caller, under=circumstances(request))
    return reply_result(spent, etag=budget_etag(spent.version))


@router.get(
    "/{key}/budgets/{name}/ledger",
    **contract("list_ledger", answers=schemas.LedgerTold, access=READ, refuses=UNKNOWN),
)
def list_ledger(
    request: WorkerRequest,
    key: fields.RunKey,
    name: fields.BudgetName,
    wanted: Query[EntriesWanted],
) -> HttpResponse:
    """Everything that ever counted against a budget, in order; spent is always the sum."""
    found = reads.ledger(run_key=key, name=name, after=wanted.after, limit=wanted.limit)
    return reply({"items": [entry_members(entry) for entry in found]})
