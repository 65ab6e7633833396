"""When the clocks of a zone are set ahead: what both the console and quiet hours have to know."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo


def jump(low: datetime, high: datetime, zone: tzinfo) -> datetime:
    """The first second between two instants with the later offset, by halving: clocks are set at
    whole seconds.

    low, high: in UTC, before the jump and not before it.
    """
    offset = low.astimezone(zone).utcoffset()
    low, high = (at.replace(microsecond=0) for at in (low, high))
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high
