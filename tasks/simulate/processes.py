"""Processes of the fleet: forked, ended with their parent, and stopped without a signal's traps."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
# A report is one write of less than PIPE_BUF bytes: never torn, also not by a SIGKILL.
REPORT_BYTES_MAX = 4_000


class Stop:
    """Set by SIGTERM or SIGINT. A pipe, because an Event's lock may be held by the very thread
    that the signal interrupts.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.is_set = False

    def listen(self) -> None:
        """Take the signals of this process from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            os.write(self._write, b".")

    def wait(self, seconds: float) -> bool:
        """Sleep so long, or until it is set. Whether it is."""
        if not self.is_set and seconds > 0:
            select.select([self._read], [], [], seconds)
        return self.is_set


class Deeds:
    """What a worker is told to do at its next step. The supervisor writes a line, it reads."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def add(self, what: str) -> None:
        os.write(self._write, what.encode() + b"\n")

    def take(self) -> set[str]:
        """All that was added since."""
        try:
            return set(os.read(self._read, 4_096).decode().split())
        except BlockingIOError:
            return set()

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Reports:
    """What the processes of a fleet tell their supervisor: small JSON lines in one pipe."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._rest = b""

    def tell(self, what: str, **facts: Any) -> None:
        line = json.dumps({"pid": os.getpid(), "what": what, **facts}).encode() + b"\n"
        if len(line) <= REPORT_BYTES_MAX:
            os.write(self._write, line)

    def read(self, *, within_seconds: float) -> list[dict[str, Any]]:
        """What has come since; waits for the first at most so long."""
        select.select([self._read], [], [], within_seconds)
        try:
            self._rest += os.read(self._read, 1 << 16)
        except BlockingIOError:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


def fork(work: Callable[[], None]) -> int:
    """The pid of a child that does `work` and ends; it dies when its parent does."""
    parent = os.getpid()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent goes, in whatever way."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we could ask
        os._exit(1)


def send(pid: int, number: signal.Signals) -> None:
    """Signal a child that may have gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def gone(pid: int) -> int | None:
    """The exit status of a child that has ended (-9: killed), None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if done else None


def end_all(pids: set[int], *, within_seconds: float) -> None:
    """SIGTERM (and SIGCONT, for frozen ones), then SIGKILL for whoever is left."""
    for pid in pids:
        send(pid, signal.SIGTERM)
        send(pid, signal.SIGCONT)
    deadline, left = time.monotonic() + within_seconds, set(pids)
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if gone(pid) is None}
        time.sleep(0.02)
    for pid in left:
        send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
