"""The client's own clock: only for how long ago something was, never for what time it is.

The store's database decides who holds what. This clock only makes the client stop in time: it
does not follow the wall clock, and where the system offers it, it goes on while the machine
sleeps, so that a laptop that wakes up knows that its leases are over.
"""

from __future__ import annotations

import time

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds since some moment in the past; never goes back."""
    return time.monotonic() if _CLOCK_ID is None else time.clock_gettime(_CLOCK_ID)
