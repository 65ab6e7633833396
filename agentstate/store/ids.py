"""UUIDv7 made here, so that PostgreSQL 15 to 17 work, from the database's clock, so that a host's
clock never decides into which week's partition a run goes (RFC 9562, 5.7)."""

from __future__ import annotations

import secrets
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_last = (0, 0)
_taking_turns = threading.Lock()


def uuid7(at: datetime) -> UUID:
    """An id that sorts by `at` (milliseconds), and within one by the order of the calls here.

    74 random bits; within a millisecond they only grow, by a random step (RFC 9562, 6.2).
    """
    global _last
    milliseconds = (at - _EPOCH) // timedelta(milliseconds=1)
    with _taking_turns:
        random = secrets.randbits(74)
        if _last[0] == milliseconds:
            random = (_last[1] + 1 + secrets.randbits(32)) % 2**74
        _last = (milliseconds, random)
    return UUID(
        int=milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | 0x2 << 62 | random & (2**62 - 1)
    )


def lowest_uuid7(at: datetime) -> UUID:
    """The bound that every id made at or after `at` is not below; borders of partitions."""
    return UUID(int=((at - _EPOCH) // timedelta(milliseconds=1)) << 80)


def made_at(run_id: UUID) -> datetime:
    """The instant (to the millisecond) that a UUIDv7 was made from."""
    return _EPOCH + timedelta(milliseconds=run_id.int >> 80)
