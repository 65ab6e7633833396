"""Folders and processes for the tests of starting and stopping."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentstate.embedded import FORGETFUL, EmbeddedPostgres

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the database's user can enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="agentstate-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_server() -> Iterator[Callable[[Path], EmbeddedPostgres]]:
    """Servers that are stopped at the end, and what they left outside the folder removed."""
    made: list[EmbeddedPostgres] = []

    def make(base: Path) -> EmbeddedPostgres:
        made.append(EmbeddedPostgres(base, settings=FORGETFUL))
        return made[-1]

    yield make
    for server in made:
        if server.base.exists():
            server.stop()
            shutil.rmtree(server.base)
        shutil.rmtree(server.socket, ignore_errors=True)


def eventually[T](
    what: Callable[[], T], *, within_seconds: float = 60, pause_seconds: float = 0.02
) -> T:
    """The first true value of `what()`. Fails when there is none in time."""
    deadline = time.monotonic() + within_seconds
    while True:
        if value := what():
            return value
        assert time.monotonic() < deadline, f"not within {within_seconds} s"
        time.sleep(pause_seconds)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def kill_hard(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
