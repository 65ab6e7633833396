"""All migrations over a store of half a million events, with everybody at work. The real one has
20 million: bench.upgrade by itself."""

import os
import re
import subprocess
import sys

import pytest

from tests.bootstrap.conftest import ROOT, open_folder

__all__ = ["open_folder"]


@pytest.mark.long
@pytest.mark.deep
def test_no_migration_keeps_a_call_waiting_for_its_lock_for_two_seconds(open_folder):
    told = os.environ | {"DJANGO_SETTINGS_MODULE": "agentstate.settings"}  # the tests' have a home
    found = subprocess.run(
        [sys.executable, "-m", "bench.upgrade", "--home", open_folder, "--events", "500000"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1_800, env=told,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3_000:] + found.stderr[-3_000:]
    longest = re.search(r"the longest wait of a call for a lock: ([\d,]+) ms", found.stdout)
    assert longest is not None
    assert int(longest[1].replace(",", "")) < 2_000
    for kind in ("append", "renew", "charge", "read events", "append over HTTP"):
        assert f"· {kind}: " in found.stdout
    assert "FAILED" not in found.stdout
