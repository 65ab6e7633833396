"""`./run backup` and `./run restore` as a person types them."""

import json
import os
import urllib.error
import urllib.request

import pytest

from agentstate.cli import backups
from tests.bootstrap.sites import begin, end, run, wait_for_start

MAKE_RUN = """
from agentstate import store
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import AcquireLease, CreateRun
store.execute(CreateRun(key="{key}", task="t"), by=SYSTEM)
store.execute(AcquireLease(unit="run:{key}", owner="w", ttl_seconds=3600), by=SYSTEM)
"""
CLOSE = """
from agentstate.store.restoring import Begun, close_gate
close_gate(Begun(source="a restore that was killed"))
"""


def call(url, key, body=None, method="GET"):
    ask = urllib.request.Request(
        url, method=method, headers={"Authorization": f"Bearer {key}"},
        data=None if body is None else json.dumps(body).encode(),
    )  # fmt: skip
    if body is not None:
        ask.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(ask, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


@pytest.mark.long
def test_a_site_is_backed_up_at_work_and_restored_only_when_that_is_meant(open_folder):
    home, backups = open_folder / "home", open_folder / "backups"
    backups.mkdir()
    site = begin(home, "serve", "--port", "0")
    try:
        wait_for_start(site)
        key = run(home, "key", "--name", "k", "--scope", "read", "--scope", "write").stdout.strip()
        assert run(home, "manage", "shell", "-c", MAKE_RUN.format(key="kept")).returncode == 0
        made = run(home, "backup", str(backups))
        assert made.returncode == 0, made.stderr
        (file,) = backups.iterdir()
        assert made.stdout == f"{file}\n"
        assert file.stat().st_mode & 0o077 == 0
        assert run(home, "backup", str(file)).returncode == 1  # nothing is overwritten
        assert run(home, "manage", "shell", "-c", MAKE_RUN.format(key="lost")).returncode == 0
        beside = run(home, "restore", str(file), "--replace")
        assert (beside.returncode, "already running here" in beside.stderr) == (1, True)
        assert site.answers()
    finally:
        end(site)

    refused = run(home, "restore", str(file))
    assert refused.returncode == 1
    assert "2 in agentstate_run" in refused.stderr
    assert "--replace" in refused.stderr
    assert run(home, "restore", str(file), "--finish").returncode == 2
    assert run(home, "restore", "--finish").returncode == 1

    assert run(home, "restore", "--finish", "--end-keys").returncode == 1
    done = run(home, "restore", str(file), "--replace", "--reason", "a trial")
    assert done.returncode == 0, done.stderr
    assert "key k (read,write), never used" in done.stderr
    assert f"restored from {file.name}: 1 leases are ended" in done.stdout
    assert run(home, "manage", "verify").returncode == 0
    # As if it had been killed before it was done: the next start goes on with it.
    assert run(home, "manage", "shell", "-c", CLOSE).returncode == 0
    site = begin(home, "serve", "--port", "0")
    try:
        wait_for_start(site)
        api = f"{site.url}/api/v1"
        assert call(f"{api}/runs/kept", key)[0] == 200
        assert call(f"{api}/runs/lost", key)[0] == 404
        status, lease = call(
            f"{api}/leases/run:kept/acquire", key, {"owner": "w", "ttl_seconds": 60}, "POST"
        )
        assert (status, lease["token"] > 10**12) == (200, True)
    finally:
        end(site)


def test_of_a_folder_the_newest_stay_and_what_is_not_ours_does_too(tmp_path, capsys):
    names = [f"agentstate-202611{day:02}T030000Z.dump" for day in range(1, 8)]
    others = ["agentstate-before-the-upgrade.dump", "agentstate-20261101T030000Z.dump.gpg", "x"]
    for name in [*names, *others, ".agentstate-20261107T030000Z.dump.77"]:
        (tmp_path / name).touch()
    # Begun days ago and killed. One that was begun just now may be another backup at work.
    killed = tmp_path / ".agentstate-20261103T030000Z.dump.12"
    killed.touch()
    os.utime(killed, (1, 1))
    backups.drop_older(tmp_path, keep=3)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*names[-3:], *others, ".agentstate-20261107T030000Z.dump.77"])
    assert "removed agentstate-20261101T030000Z.dump" in capsys.readouterr().err


def test_what_a_killed_backup_left_is_in_nobodys_way(tmp_path):
    """S-506 (docs/sweeps.md): with the same process id, as in a container, it failed for ever."""
    first, second = (backups.draft_of(tmp_path / "store.dump") for _ in range(2))
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert {path.stat().st_mode & 0o777 for path in (first, second)} == {0o600}


@pytest.mark.long
@pytest.mark.many
def test_what_is_no_backup_is_refused_before_anything_is_touched(open_folder):
    home, file = open_folder / "home", open_folder / "x.dump"
    file.write_text("PGDMP no more than a beginning")
    refused = run(home, "restore", str(file))
    assert (refused.returncode, "is no backup of ours" in refused.stderr) == (1, True)
    assert run(home, "restore", str(open_folder / "nowhere")).returncode == 1
