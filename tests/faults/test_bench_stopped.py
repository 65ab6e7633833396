"""Whoever stops a benchmark, or kills it, finds nothing of it running or lying about."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bench.budget_slots import ROOT

END_SECONDS = 60


@pytest.fixture
def folder():
    """Where the server's own user can enter, which is not root."""
    made = Path(tempfile.mkdtemp(prefix="bench-stopped-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def running_in(folder: Path) -> list[str]:
    """The command lines, with what they were given to know, that name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended
        if str(folder).encode() in told:
            found.append(told.split(b"\0AGENTSTATE", 1)[0][:80].decode(errors="replace"))
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_benchmark_that_is_stopped_leaves_nothing(folder, how):
    asked = subprocess.Popen(
        [sys.executable, "-m", "agentstate", "bench", "appends", "--quick"],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert asked.stderr is not None
    said: list[str] = []
    while not said or (said[-1] and "round 1" not in said[-1]):
        said.append(asked.stderr.readline())
    assert said[-1], "".join(said)
    assert len(running_in(folder)) > 4
    asked.send_signal(how)
    assert asked.wait(END_SECONDS) == (130 if how == signal.SIGTERM else -signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while (left := running_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    # Of a process that was killed its own empty folder is left.
    assert [file.name for file in folder.rglob("*") if not file.is_dir()] == []
