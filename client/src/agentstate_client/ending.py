"""Being told to end: SIGTERM and SIGINT, for a worker that finishes what it holds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_end(stop: Callable[[], None]) -> Iterator[None]:
    """In the block the first SIGTERM or SIGINT calls `stop`; the next one does what it did before.

    Only in the main thread; elsewhere signals are not this block's to take.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told: SimpleQueue[bool] = SimpleQueue()
    before: dict[int, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        # A handler runs between any two steps of this thread, also while it holds a lock: so it
        # only passes on what it was told.
        _restore(before)
        told.put(True)

    def pass_on() -> None:
        if told.get():
            stop()

    threading.Thread(target=pass_on, name="agentstate-ending", daemon=True).start()
    for number in SIGNALS:
        before[number] = signal.signal(number, note)
    try:
        yield
    finally:
        _restore(before)
        told.put(False)


def _restore(before: dict[int, Any]) -> None:
    while before:
        number, handler = before.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
