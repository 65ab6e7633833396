"""What became of a request, for whoever sent it: by its key or its id, among all callers."""

from __future__ import annotations

from dataclasses import dataclass

from agentstate.store import receipts
from agentstate.store.models import IdempotencyRecord, Refusal
from agentstate.store.receipts import ROWS_MAX, Receipt, Refused
from dashboard.because import because

CALLERS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A receipt and how it was found. principal: whose key it was; None: by the request's id.

    whys: of each refusal, in their order, why.
    """

    receipt: Receipt
    principal: str | None = None
    whys: tuple[str, ...] = ()

    @property
    def replays(self) -> int:
        return sum(kept.replays for kept in self.receipt.kept)

    @property
    def refusals(self) -> list[tuple[Refused, str]]:
        """Each with why."""
        whys = dict(enumerate(self.whys))
        return [(one, whys.get(n, "")) for n, one in enumerate(self.receipt.refusals)]


def by_key(key: str) -> list[Found]:
    """Of each caller that sent this key: keys are their own. Without an index: records live a
    day, and this is asked by people."""
    kept = IdempotencyRecord.objects.filter(key=key).order_by("principal")
    principals = kept.values_list("principal", flat=True)[:CALLERS_SHOWN]
    return [
        _found(receipts.by_key(principal=principal, key=key), principal=principal)
        for principal in principals
    ]


def by_request(request_id: str) -> list[Found]:
    receipt = receipts.by_request(request_id)
    return [] if receipt.state == "unknown" else [_found(receipt, request_id=request_id)]


def by_either(text: str) -> list[Found]:
    """By the id of a request and by a key: one text may be both. What a request says of the key
    that it was sent with is not said twice."""
    requests = by_request(text)
    said = {kept.key for found in requests for kept in found.receipt.kept}
    return requests if text in said else [*requests, *by_key(text)]


def _found(
    receipt: Receipt, *, principal: str | None = None, request_id: str | None = None
) -> Found:
    if receipt.kept and request_id is None:
        request_id = receipt.kept[0].request_id
    if not receipt.refusals or request_id is None:
        return Found(receipt=receipt, principal=principal)
    # The same ones in the same order as the receipt has them.
    found = Refusal.objects.filter(request_id=request_id).order_by("id")
    if principal is not None:
        found = found.filter(actor=principal)
    whys = tuple(because(refusal) for refusal in found[:ROWS_MAX])
    return Found(receipt=receipt, principal=principal, whys=whys[: len(receipt.refusals)])
