"""Looking things up by their key: rows of the single table, and what became of a request."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from agentstate.api import fields, schemas
from agentstate.api.access import READ, WorkerRequest
from agentstate.api.contract import contract
from agentstate.api.replies import reply
from agentstate.store import receipts, story
from agentstate.store.errors import Invalid, NotFound, RunExpired

router = Router(tags=["look-ups"])


class ItemsWanted(BaseModel):
    """Which rows: under `pk`, with sort keys that begin with `sk_prefix` and come after `after`."""

    pk: fields.PartitionKey
    sk_prefix: fields.SortKey | None = None
    after: fields.SortKey | None = None
    limit: fields.RowsLimit = 100


class ReceiptWanted(BaseModel):
    """Which request: by the Idempotency-Key that this API key sent, or by its X-Request-Id."""

    key: fields.Id | None = Field(None, description="the Idempotency-Key of the request")
    request_id: fields.Id | None = None


@router.get(
    "/items",
    **contract(
        "list_items", answers=schemas.ItemsTold, access=READ, refuses=(NotFound, RunExpired)
    ),
)
def list_items(request: WorkerRequest, wanted: Query[ItemsWanted]) -> HttpResponse:
    """The rows under any key of the single table: `run#42`, `unit#7` or `budget#tokens`.

    A run has `budget` (more of them: `budget#calls`), `evt#000001` and on, and `meta`; a unit has
    `lease`. The order is by kind and number. In an address # is written %23.
    """
    found = story.items(
        wanted.pk,
        sk_prefix=wanted.sk_prefix or "",
        after=wanted.after,
        limit=wanted.limit,
        payloads=request.caller.may("payloads"),
    )
    return reply({"items": found.items, "after": found.after})


@router.get("/receipts", **contract("read_receipt", answers=schemas.ReceiptTold, access=READ))
def read_receipt(request: WorkerRequest, wanted: Query[ReceiptWanted]) -> HttpResponse:
    """What became of a request whose answer did not arrive: applied, refused, or never seen.

    Ask with `key` or with `request_id`. Answers to keys are kept for 24 hours; after that the
    request's id still finds what it wrote.
    """
    if (wanted.key is None) == (wanted.request_id is None):
        raise Invalid("key", "either key or request_id")
    found = (
        receipts.by_key(principal=request.caller.principal, key=wanted.key)
        if wanted.key is not None
        else receipts.by_request(str(wanted.request_id))
    )
    return reply({"state": found.state, **asdict(found)})
