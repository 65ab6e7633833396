"""Waiting for a condition, with a deadline; never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_for(holds: Callable[[], object], *, deadline_seconds: float = 20) -> None:
    """Return when `holds()` is true; fail when it never is."""
    ends, nap = time.monotonic() + deadline_seconds, threading.Event()
    while not holds():
        assert time.monotonic() < ends, "it never came true"
        nap.wait(0.02)
