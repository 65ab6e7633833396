"""What Celery does by the clock in the store, by the names that its tasks use."""

from __future__ import annotations

from agentstate.store import retention


def purge_idempotency(*, limit: int = retention.BATCH) -> int:
    """Delete expired idempotency records, at most `limit`; how many went.

    An expired record is not looked at any more: this only frees the room.
    """
    return retention.purge("idempotency records", limit=limit)
