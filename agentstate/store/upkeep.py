"""What ages out, in bounded passes. Late, twice or never is safe: nothing here decides anything."""

from __future__ import annotations

from django.db import connection

# Answers are kept for 24 h; a purge only frees the room, since an expired one is not looked at.
_PURGE_IDEMPOTENCY = """
DELETE FROM agentstate_idempotencyrecord WHERE (principal, key) IN (
    SELECT principal, key FROM agentstate_idempotencyrecord
    WHERE expires_at <= agentstate_now() ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def purge_idempotency(*, limit: int = 1_000) -> int:
    """Delete expired idempotency records, at most `limit`; how many went."""
    with connection.cursor() as cursor:
        cursor.execute(_PURGE_IDEMPOTENCY, [limit])
        return int(cursor.rowcount)
