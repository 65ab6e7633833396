"""`./run torture` itself: a short trial passes, and nothing of it is left."""

import contextlib
import os
import re
from pathlib import Path

import pytest

from tests.bootstrap.sites import run


@pytest.mark.long
def test_a_short_trial_keeps_every_promise_and_leaves_nothing_behind(open_folder):
    home = open_folder / "home"
    # How quickly it is back depends on what else the machine does; that it is back does not.
    done = run(home, "torture", "--seed", "7", "--minutes", "1", "--stop-seconds", "60")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "seed 7" in done.stdout
    counts = dict(re.findall(r"^ +(\w[\w ]*?) {2,}([\d,]+)(?: |$)", done.stdout, re.MULTILINE))
    assert int(counts["faults"]) >= 5
    assert int(counts["acknowledged"].replace(",", "")) > 500
    assert {counts[name] for name in ("lost", "doubled", "holes", "overlaps", "audit")} == {"0"}
    assert list((home / "torture").iterdir()) == []
    assert left_behind(str(home).encode()) == []


def left_behind(place: bytes) -> list[str]:
    """Processes that have anything of the place in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if place in entry.read_bytes() and entry.parts[2] != str(os.getpid()):
                found.append((entry.parent / "cmdline").read_text())
    return found
