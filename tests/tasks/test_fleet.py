"""The fleet as it is started: processes of its own that are killed, frozen and raced, and end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.db import connection

from agentstate.store import audit, reads
from agentstate.store.callers import SYSTEM
from agentstate.store.keys import create_key
from agentstate.store.models import Run
from tasks.fleet import work_shift
from tasks.simulate import __main__ as command
from tasks.simulate import processes
from tasks.summary import summarize

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = [
    "--speed",
    "12",
    "--ttl",
    "1",
    "--crash-rate",
    "50",
    "--freeze-rate",
    "30",
    "--race-rate",
    "60",
]


@pytest.fixture
def key(live_server):
    yield create_key(name="fleet", scopes=("write", "read", "payloads"), by=SYSTEM).text
    connection.close()


def start(url, key, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.simulate", "--url", url, *QUICK, *options],
        cwd=ROOT,
        env=os.environ
        | {"AGENTSTATE_KEY": key, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid):
    """Processes whose parent is `pid`. Linux only, as are the tests that ask."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(holds, within_seconds=20):
    deadline = time.monotonic() + within_seconds
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.long
@pytest.mark.many
def test_killed_workers_are_recovered_late_ones_fenced_and_everything_adds_up(live_server, key):
    since = reads.now()
    fleet = start(live_server.url, key, "--workers", "3")
    enough = wait_until(lambda: has_broken_enough(since), within_seconds=90)
    fleet.send_signal(signal.SIGTERM)
    out, _ = fleet.communicate(timeout=20)

    assert enough, out
    assert fleet.returncode == 0, out
    assert audit.verify() == []
    assert audit.overdrafts() == []


def has_broken_enough(since):
    """Three crashed workers recovered, a late one fenced, and work done meanwhile."""
    found = summarize(since=since)
    return (
        found.takeovers - found.came_back >= 3
        and found.came_back >= 1
        and found.statuses.get("completed", 0) >= 1
    )


def test_a_fleet_that_is_asked_to_end_does_so_soon_and_leaves_no_process(live_server, key):
    fleet = start(live_server.url, key, "--workers", "2")
    workers = wait_until(lambda: len(found := children(fleet.pid)) >= 3 and found)
    fleet.send_signal(signal.SIGTERM)
    began = time.monotonic()
    out, _ = fleet.communicate(timeout=20)

    assert (fleet.returncode, time.monotonic() - began < 4) == (0, True), out
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_fleet_that_is_killed_takes_its_workers_with_it(live_server, key):
    fleet = start(live_server.url, key, "--workers", "2", "--freeze-rate", "0")
    workers = wait_until(lambda: len(found := children(fleet.pid)) >= 3 and found)
    fleet.kill()
    fleet.communicate(timeout=20)

    assert wait_until(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()])


@pytest.mark.long
@pytest.mark.many
def test_a_shift_is_a_celery_task_too(live_server, key, monkeypatch):
    monkeypatch.setenv("AGENTSTATE_KEY", key)
    work_shift.apply(
        kwargs={"url": live_server.url, "seconds": 8, "workers": 1, "speed": 30, "crash_rate": 0},
        throw=True,
    )

    assert Run.objects.filter(status="completed").exists()


def test_without_a_key_it_says_which_variable_is_missing(monkeypatch, capsys):
    monkeypatch.delenv("AGENTSTATE_KEY", raising=False)

    assert command.main(["--url", "http://127.0.0.1:1"]) == 2
    assert "AGENTSTATE_KEY is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "0"],
        ["--speed", "0"],
        ["--speed", "nan"],
        ["--crash-rate", "-1"],
        ["--ttl", "x"],
    ],
)
def test_a_strange_option_is_refused_by_name(options, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--url", "http://127.0.0.1:1", *options])

    assert ended.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err


def test_a_report_is_never_torn_and_none_is_lost():
    reports = processes.Reports()
    for number in range(300):
        reports.tell("step", step=number)
    reports.tell("trouble", detail="x" * processes.REPORT_BYTES_MAX)

    found = reports.read(within_seconds=0)
    assert [report["step"] for report in found] == list(range(300))


def test_a_stop_ends_a_wait_at_once():
    stop = processes.Stop()
    stop.set()
    stop.set()

    began = time.monotonic()
    assert stop.wait(60)
    assert time.monotonic() - began < 1


@pytest.mark.long
@pytest.mark.many
def test_a_run_that_kills_every_worker_is_failed_and_the_fleet_goes_on(live_server, key, tmp_path):
    """Case O-46 (docs/cases.md)."""
    scenario = tmp_path / "poison.toml"
    scenario.write_text(
        "workers = 2\nspeed = 12\nlease_ttl_seconds = 1\n[runs]\nbacklog = 2\npoison_every = 3\n"
    )
    fleet = start(
        live_server.url, key, "--scenario", str(scenario), "--crash-rate", "0", "--freeze-rate", "0"
    )
    failed = wait_until(
        lambda: Run.objects.filter(status="failed", max_attempts=3).first(),
        within_seconds=90,
    )
    after = wait_until(
        lambda: Run.objects.filter(status="completed", ended_at__gt=failed.ended_at).exists(), 60
    )
    fleet.send_signal(signal.SIGTERM)
    out, _ = fleet.communicate(timeout=20)

    assert after, out
    assert failed.attempt == 3
    assert f"{failed.key} killed " in out


def test_a_scenario_that_is_none_is_refused_at_start(monkeypatch, capsys):
    monkeypatch.setenv("AGENTSTATE_KEY", "k")

    assert command.main(["--url", "http://127.0.0.1:1", "--scenario", "nowhere"]) == 2
    assert "one of calm, day, storm" in capsys.readouterr().err
