"""Keeps the processes of one site running, and ends all of them when it ends.

Each child is the leader of a process group of its own, so that Ctrl-C reaches only the supervisor
and a child's own children end with it. A child that dies is started again, at once the first time
and then with growing pauses. Of a child that is slow to start another can stand by, with everything
loaded, until it is told to begin. The database's server is watched in the same loop.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentstate.embedded import EmbeddedFailure, EmbeddedPostgres

TURN_SECONDS = 0.2  # how often children are looked at; a signal ends the wait at once
DATABASE_TURN_SECONDS = 1.0
PAUSES_SECONDS = (0.0, 0.5, 1, 2, 4, 8, 15)  # before each further start of a child that keeps dying
STEADY_SECONDS = 30.0  # a child that ran this long has not been dying
STAND_BY_SECONDS = 3.0  # after a start, which has the processor first, until the next stands by
BEGIN = b"begin\n"  # what a process that stands by is told
STOP_SECONDS = 7.5  # from the request to end until SIGKILL; a Celery worker takes 4 to 7
LONGEST_LOG_BYTES = 16 * 2**20
LAST_BYTES = 64 * 2**10  # of a log, in which its last lines are; it may be a device without end
ECHO_SECONDS = 0.5
JANITOR = Path(__file__).with_name("janitor.py")
ROOT = JANITOR.parent.parent  # whence the janitor finds the module that stops the database


class StartFailure(Exception):
    """The site cannot start. The text is for a person, with the cause."""


@dataclass
class Child:
    """A process to keep running. environment: in addition to ours; keys and passwords go here,
    never into the command, which every user of the machine can read."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    pass_fds: tuple[int, ...] = ()
    may_end: bool = False  # its end with code 0 is no failure
    stands_by: bool = False  # it loads, waits for a line of its input, and only then begins
    process: subprocess.Popen[bytes] | None = None
    standby: subprocess.Popen[bytes] | None = None
    stand_by_at: float = 0.0
    started_at: float = 0.0  # monotonic, as are all times here
    start_again_at: float | None = None
    failures: int = 0
    is_asked: bool = False  # to end

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def last_lines(self, count: int = 8) -> str:
        """The end of its log, for a person who wants to know why it died."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - LAST_BYTES))
                lines = log.read(LAST_BYTES).decode(errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(f"    {line}" for line in lines[-count:])


class Supervisor:
    """Use it as a context manager: at the end of the block nothing of it runs any more.

    folder: where children run. report: gets one line for each event that a person should know.
    """

    def __init__(
        self,
        *,
        folder: Path,
        report: Callable[[str], None],
        database: EmbeddedPostgres | None = None,
    ) -> None:
        self.folder = folder
        self.report = report
        self.database = database
        self.children: list[Child] = []
        self.signals: list[float] = []  # when each came that asks to stop
        self._janitor: subprocess.Popen[bytes] | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._database_try_at = 0.0
        self._database_failed = False
        if database is not None:
            database.give_up = lambda: bool(self.signals)

    def __enter__(self) -> "Supervisor":
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Started by nohup it shall outlive the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: self.signals.append(time.monotonic()))
        self._start_janitor()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(self.children)
        if self._janitor and self._janitor.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._janitor.stdin.write(b"bye\n")
                self._janitor.stdin.close()
            self._janitor.wait(5)
        signal.set_wakeup_fd(-1)
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- starting ---------------------------------------------------------------------------

    def add(self, child: Child) -> Child:
        """Start a child and keep it running from now on."""
        self.children.append(child)
        self._start(child)
        return child

    def _start(self, child: Child) -> None:
        waiting, child.standby = child.standby, None
        if waiting is None or waiting.poll() is not None or not begin(waiting):
            waiting = self._launch(child)
            if child.stands_by:
                begin(waiting)
        child.process = waiting
        child.started_at, child.start_again_at = time.monotonic(), None
        child.stand_by_at = child.started_at + STAND_BY_SECONDS

    def _launch(self, child: Child) -> subprocess.Popen[bytes]:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            process = subprocess.Popen(
                child.command,
                cwd=self.folder,
                env=os.environ | dict(child.environment),
                stdin=subprocess.PIPE if child.stands_by else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=child.pass_fds,
                start_new_session=True,
            )
        self._tell_janitor(f"+{process.pid}")
        return process

    def _keep_standby(self, child: Child, now: float) -> None:
        """Have one stand by. One that cannot load says so in the log, and is tried now and then."""
        if not child.stands_by or now < child.stand_by_at:
            return
        if child.standby is not None and child.standby.poll() is not None:
            self._tell_janitor(f"-{child.standby.pid}")
            child.standby, child.stand_by_at = None, now + PAUSES_SECONDS[-1]
        elif child.standby is None:
            with contextlib.suppress(OSError):  # no memory: later, perhaps
                child.standby = self._launch(child)
            child.stand_by_at = now + STAND_BY_SECONDS

    def _start_janitor(self) -> None:
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", JANITOR],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self.database is not None:
            stop = [sys.executable, "-m", "agentstate.embedded", str(self.database.wanted)]
            self._tell_janitor(f"!{json.dumps(stop)}")
        for child in self.children:
            if child.is_running():
                self._tell_janitor(f"+{child.pid}")

    def _tell_janitor(self, word: str) -> None:
        if self._janitor and self._janitor.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._janitor.stdin.write(f"{word}\n".encode())
                self._janitor.stdin.flush()

    # --- watching ---------------------------------------------------------------------------

    def turns(self) -> Iterator[None]:
        """Look after everything, a turn at a time, until a signal asks to stop."""
        while not self.signals:
            self.look_after_database()
            for child in self.children:
                self.look_after(child)
            if self._janitor and self._janitor.poll() is not None:
                self._start_janitor()
            yield
            self.wait(TURN_SECONDS)

    def wait(self, seconds: float) -> None:
        """Sleep, or less when a signal comes."""
        readable, _, _ = select.select([self._wake_read], [], [], seconds)
        if readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 1024)

    def look_after(self, child: Child) -> None:
        """Start the child again if it died, after its pause. Keep its log within bounds."""
        now = time.monotonic()
        if child.is_running():
            self._trim(child.log)
            self._keep_standby(child, now)
            return
        if child.process is not None:
            self._note_death(child, now)
        if child.start_again_at is not None and now >= child.start_again_at:
            self._start_again(child)

    def _start_again(self, child: Child) -> None:
        try:
            self._start(child)
        except OSError as error:  # no memory, no disk: later, perhaps
            child.start_again_at = time.monotonic() + PAUSES_SECONDS[-1]
            self.report(f"{child.name} cannot be started, trying on: {error.strerror}")
            return
        self.report(f"{child.name} is back (process {child.pid})")

    def _note_death(self, child: Child, now: float) -> None:
        assert child.process is not None
        code, pid = child.process.returncode, child.process.pid
        self._end_group(child, signal.SIGKILL)  # its own children, if it left any
        self._tell_janitor(f"-{pid}")
        child.process = None
        if child.may_end and code == 0:
            return
        if now - child.started_at > STEADY_SECONDS:
            child.failures = 0
        pause = PAUSES_SECONDS[min(child.failures, len(PAUSES_SECONDS) - 1)]
        child.failures += 1
        child.start_again_at = now + pause
        when = f"in {pause:g} s" if pause else "now"
        self.report(f"{child.name} (process {pid}) {manner_of(code)}; starting it again {when}")
        if child.failures == len(PAUSES_SECONDS):
            self.report(f"{child.name} keeps dying; the end of {child.log}:\n{child.last_lines()}")

    def _trim(self, log: Path) -> None:
        """Children append, so what is copied away can be cut off under them."""
        with contextlib.suppress(OSError):
            if log.stat().st_size > LONGEST_LOG_BYTES:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)

    def look_after_database(self) -> None:
        """Start the embedded server again when nobody listens on its socket any more."""
        now = time.monotonic()
        if self.database is None or now < self._database_try_at:
            return
        self._database_try_at = now + DATABASE_TURN_SECONDS
        if self.database.is_listening():
            self._database_failed = False
            return
        if not self._database_failed:
            self.report("PostgreSQL is gone; starting it again")
        try:
            self.database.start()
            self.report("PostgreSQL is back")
        except EmbeddedFailure as failure:
            if not self._database_failed:
                self.report(f"PostgreSQL cannot be started, trying on: {failure}")
            self._database_failed = True
            self._database_try_at = time.monotonic() + 5

    # --- stopping ---------------------------------------------------------------------------

    def ask_to_end(self, child: Child) -> None:
        """SIGTERM to the child, once: a second one makes some programs drop what they do."""
        if child.is_running() and not child.is_asked:
            assert child.process is not None
            child.is_asked = True
            child.process.terminate()

    def stop(self, children: Sequence[Child], *, within_seconds: float = STOP_SECONDS) -> None:
        """Ask the children to end, and kill those that have not after the time, or as soon as
        a second signal comes. They are no longer looked after."""
        deadline = time.monotonic() + within_seconds
        for child in children:
            self._dismiss_standby(child)
            self.ask_to_end(child)
        while time.monotonic() < deadline and not self.is_urged():
            if not any(child.is_running() for child in children):
                break
            self.wait(0.05)
        for child in children:
            if child.process is not None:
                self._end_group(child, signal.SIGKILL)
                child.process.wait()
                self._tell_janitor(f"-{child.pid}")
        self.children = [child for child in self.children if child not in children]

    def _dismiss_standby(self, child: Child) -> None:
        """It has begun nothing, so there is nothing to wait for."""
        if child.standby is not None:
            child.standby.kill()
            child.standby.wait()
            self._tell_janitor(f"-{child.standby.pid}")
            child.standby = None

    def is_urged(self) -> bool:
        """Whether a person asked twice. What comes at once with the first is only an echo."""
        return len(self.signals) > 1 and self.signals[-1] - self.signals[0] > ECHO_SECONDS

    def _end_group(self, child: Child, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, number) if child.process else None


def begin(process: subprocess.Popen[bytes]) -> bool:
    """Tell a process that stands by to begin. False when it is not there to hear it."""
    assert process.stdin is not None
    try:
        process.stdin.write(BEGIN)
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def manner_of(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
