"""A database whose disk is full: it is said so, and nothing is lost."""

import os
import shutil
import subprocess

import psycopg
import pytest

from tests.bootstrap.layout import Layout, patiently

DATA = {"events": [{"type": "step.done", "data": {"text": "x" * 30_000}}] * 20}
KEPT = "SELECT count(*) FROM agentstate_event WHERE type = 'step.done'"


@pytest.fixture
def small_disk(open_folder):
    """A folder with a disk of its own for the database."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    disk = open_folder / "pg"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs", disk], check=True)
    yield open_folder
    subprocess.run(["umount", disk], check=True)


@pytest.mark.long
@pytest.mark.deep
def test_a_full_disk_is_told_and_nothing_is_lost(small_disk):
    with Layout(small_disk) as site:
        web = site.start_web()
        api = f"{web}/api/v1"
        assert site.call(f"{api}/runs", {"key": "42", "task": "t"})[0] == 201
        filling = small_disk / "pg" / "filling"
        with filling.open("wb") as file:
            file.write(b"x" * max(0, shutil.disk_usage(small_disk / "pg").free - 2**20))
        acknowledged, refused = 0, None
        for _ in range(200):
            status, told = site.call(f"{api}/runs/42/events", DATA)
            if status != 201:
                refused = status, told
                break
            acknowledged += len(DATA["events"])
        assert refused is not None
        assert (refused[0], refused[1]["code"]) == (503, "unavailable"), refused
        assert refused[1]["detail"] == "the database has no room left on its disk"
        status, ready = site.call(f"{web}/health/ready")
        assert (status, ready["checks"]["database"]) == (503, "has no room left on its disk")
        checked = site.ask("doctor")
        assert checked.returncode == 1
        assert "no room left on its disk" in checked.stdout, checked.stdout
        assert site.call(f"{api}/runs/42")[0] == 200  # what is there can be read

        filling.unlink()
        patiently(lambda: site.call(f"{web}/health/ready")[0] == 200)
        assert site.call(f"{api}/runs/42/events", DATA)[0] == 201
        with psycopg.connect(site.variables["DATABASE_URL"]) as session:
            (kept,) = session.execute(KEPT).fetchone()
        assert kept == acknowledged + len(DATA["events"])  # the refused one is not there
        assert site.ask("manage", "verify").returncode == 0
