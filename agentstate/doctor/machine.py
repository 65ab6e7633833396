"""The files and the disk of this machine."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from agentstate.doctor.findings import Finding, problem, warning
from agentstate.embedded import LEAST_FREE_BYTES

FREE_WANTED_BYTES = 2 * 2**30


def look(home: Path, *, embedded: bool) -> Iterator[Finding]:
    """home: AGENTSTATE_HOME. embedded: the database is in it, too."""
    while not home.exists():  # made when it is first needed: then what it is made in counts
        home = home.parent
    yield from look_at_files(home)
    yield from look_at_disk(home, shutil.disk_usage(home).free, embedded=embedded)


def look_at_files(home: Path) -> Iterator[Finding]:
    if not os.access(home, os.W_OK | os.X_OK):
        mend = f"chown {os.geteuid()} {home}, or set AGENTSTATE_HOME to another folder"
        yield problem("files", f"{home} cannot be written", mend)
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield problem(
            "files", f"everybody on this machine may write in {home}", f"chmod o-w {home}"
        )
    key = home / "secret-key"
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        yield problem(
            "files",
            f"others on this machine may read {key}, which signs sessions and opens what is sealed",
            f"chmod 600 {key}, and make another key (docs/hardening.md, Secrets)",
        )


def look_at_disk(where: Path, free: int, *, embedded: bool) -> Iterator[Finding]:
    if free < LEAST_FREE_BYTES:
        yield problem(
            "disk",
            f"{free // 2**20} MB are free in {where}",
            "make room: PostgreSQL does not start, and logs end" if embedded else "make room",
        )
    elif embedded and free < FREE_WANTED_BYTES:
        yield warning(
            "disk",
            f"{free / 2**30:.1f} GB are free in {where}, where the database grows",
            "make room, or let runs go sooner (AGENTSTATE_RETAIN_SECONDS)",
        )
