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
