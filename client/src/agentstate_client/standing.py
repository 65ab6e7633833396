"""What a handle has seen of its run: the same for the sync and the async client."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

OWN_VERSIONS_MAX = 1_000


class Standing:
    """status, version, last_seq: as of the latest answer; None before. From any thread.

    version_read: the version up to which everything is known: read, or written through here right
    behind what was read. Somebody else's write in between stops it, until the run is read again.
    """

    def __init__(self) -> None:
        self.task: str | None = None
        self.attempt: int | None = None
        self.status: str | None = None
        self.version: int | None = None
        self.last_seq: int | None = None
        self.version_read: int | None = None
        self._own: set[int] = set()  # versions that were written here and are not next yet
        self._lock = threading.Lock()

    def note_read(self, seen: Mapping[str, Any]) -> None:
        """The run was read, made or granted: this is how it stood."""
        with self._lock:
            self._note(seen)
            version = seen.get("version")
            if isinstance(version, int) and version >= (self.version_read or 0):
                self.version_read = version
                self._go_on()

    def note_write(self, seen: Mapping[str, Any], *, versions: int = 1) -> None:
        """A write through this handle was answered; it moved the version by so much."""
        with self._lock:
            self._note(seen)
            version = seen.get("version")
            if isinstance(version, int):
                self._own.update(range(version - versions + 1, version + 1))
                self._go_on()

    def _go_on(self) -> None:
        while self.version_read is not None and self.version_read + 1 in self._own:
            self.version_read += 1
        self._own = {own for own in self._own if own > (self.version_read or 0)}
        if len(self._own) > OWN_VERSIONS_MAX:
            self._own.clear()

    def _note(self, seen: Mapping[str, Any]) -> None:
        """Two threads may be answered in another order than the store decided: newest wins."""
        self.task = seen.get("task") or self.task
        self.attempt = seen.get("attempt") or self.attempt
        version = seen.get("version")
        if isinstance(version, int) and version >= (self.version or 0):
            self.version = version
            self.status = seen.get("status") or self.status
            self.last_seq = seen.get("last_seq", self.last_seq)
