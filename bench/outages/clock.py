"""Seconds that this machine was at work: one that stands still for a while, with all that runs on
it, makes nobody late. Begins with the first who asks."""

from __future__ import annotations

import threading
import time

TICK_SECONDS = 0.02
# More between two ticks than a busy machine makes of one: the rest stood still.
LONGEST_TICK_SECONDS = 0.5


class _Clock(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="clock", daemon=True)
        self.passed = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(TICK_SECONDS)
            at = time.monotonic()
            self.passed += min(at - last, LONGEST_TICK_SECONDS)
            last = at


_clock, _starting = _Clock(), threading.Lock()


def now() -> float:
    """Only differences mean anything; to a fiftieth of a second."""
    with _starting:
        if not _clock.is_alive():
            _clock.start()
    return _clock.passed
