"""What became of a request, for whoever sent it: by its key or its id, among all callers."""

from __future__ import annotations

from dataclasses import dataclass

from agentstate.store import receipts
from agentstate.store.models import IdempotencyRecord
from agentstate.store.receipts import Receipt

CALLERS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A receipt and how it was found. principal: whose key it was; None: by the request's id."""

    receipt: Receipt
    principal: str | None = None

    @property
    def replays(self) -> int:
        return sum(kept.replays for kept in self.receipt.kept)


def by_key(key: str) -> list[Found]:
    """Of each caller that sent this key: keys are their own. Without an index: records live a
    day, and this is asked by people."""
    kept = IdempotencyRecord.objects.filter(key=key).order_by("principal")
    principals = kept.values_list("principal", flat=True)[:CALLERS_SHOWN]
    return [
        Found(receipt=receipts.by_key(principal=principal, key=key), principal=principal)
        for principal in principals
    ]


def by_request(request_id: str) -> list[Found]:
    receipt = receipts.by_request(request_id)
    return [] if receipt.state == "unknown" else [Found(receipt=receipt)]


def by_either(text: str) -> list[Found]:
    """By the id of a request, else by a key."""
    return by_request(text) or by_key(text)
