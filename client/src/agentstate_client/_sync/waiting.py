"""Waiting, for the sync client: with threads. Written by hand, like its counterpart in _async."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from agentstate_client.errors import ClientClosed

T = TypeVar("T")

Flag = threading.Event
Lock = threading.Lock
Timer = threading.Timer
Spawned = threading.Thread


class Home:
    """Where a client may be used: in the process that made it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises ClientClosed after a fork: the sockets are the parent's."""
        if not self.is_here:
            raise ClientClosed("the client was made before a fork: make another one here")


def later(seconds: float, work: Callable[[], None]) -> Timer:
    """Do something in a while. The interpreter does not end before it is done."""
    timer = threading.Timer(seconds, work)
    timer.name = "agentstate-later"
    timer.start()
    return timer


def spawn(work: Callable[[], None], *, name: str) -> Spawned:
    """Begin something beside; what it raises it has to tell by itself. Raises RuntimeError when
    the system has no thread left.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def abandon(spawned: Spawned | None) -> None:
    """Nobody waits for it any more. A thread cannot be ended: it finds that its lease is over."""


def acquired(lock: Lock, seconds: float | None) -> bool:
    """Take a lock, waiting for it so long; False when that was not long enough."""
    return lock.acquire(timeout=-1 if seconds is None else seconds)


def carried_through(granted: T, undo: Callable[[T], object] | None = None) -> T:
    """Whoever waits for an answer gets it here; see _async for those who may leave meanwhile."""
    return granted


def taking(taken: T) -> T:
    """What is had at once, and given back by its own block or call."""
    return taken


def resolved(made: T) -> T:
    """What a caller's function made."""
    return made


def pause(seconds: float) -> None:
    time.sleep(seconds)
