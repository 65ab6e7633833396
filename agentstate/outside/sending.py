"""One try of one delivery, by whichever way its target has."""

from __future__ import annotations

import json

from agentstate.outside import services, webhooks
from agentstate.store.deliveries import Claim
from agentstate.store.delivering import WEBHOOK, Answer, id_told, in_words

UNREADABLE = "its address cannot be read: it was sealed under another AGENTSTATE_SECRET_KEY"


async def send(claim: Claim) -> Answer:
    """Try it once, within the limit of its way. Never raises for what a receiver does."""
    if claim.address is None or (claim.kind == WEBHOOK and claim.secret is None):
        return Answer(arrived=False, text=UNREADABLE)
    if claim.kind == WEBHOOK:
        return await webhooks.send(
            address=claim.address,
            secret=claim.secret or "",
            message_id=id_told(claim.id),
            body=claim.message,
            now=claim.now,
        )
    message = json.loads(claim.message)
    title, text = in_words(message)
    return await services.send(
        address=claim.address, title=title, text=text, kind=services.kind_of(message)
    )
