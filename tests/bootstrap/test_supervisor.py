import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentstate import supervisor as module
from agentstate.supervisor import Child, Supervisor, manner_of
from tests.bootstrap.conftest import ROOT, eventually, is_gone, kill_hard

STUBBORN = "trap '' TERM; echo up; while true; do sleep 0.1; done"
PARENT = """
import sys
from pathlib import Path
from agentstate.supervisor import Child, Supervisor
folder = Path(sys.argv[1])
with Supervisor(folder=folder, report=print) as site:
    for name, script in (("mild", "sleep 60 & wait"), ("stubborn", sys.argv[2])):
        child = site.add(Child(name=name, command=["sh", "-c", script], log=folder / f"{name}.log"))
        print(child.pid, flush=True)
    for _ in site.turns():
        pass
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def site(tmp_path, said) -> Iterator[Supervisor]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Supervisor(folder=tmp_path, report=said.append) as supervisor:
        yield supervisor
    for number, handler in kept.items():
        signal.signal(number, handler)


def shell(tmp_path: Path, script: str, **more) -> Child:
    return Child(name="it", command=["sh", "-c", script], log=tmp_path / "it.log", **more)


def turn_until(site: Supervisor, what) -> None:
    deadline = time.monotonic() + 60
    for _ in site.turns():
        if what():
            return
        assert time.monotonic() < deadline


def test_a_killed_child_is_back_at_once_and_a_line_says_so(site, said, tmp_path):
    child = site.add(shell(tmp_path, "exec sleep 60"))
    first = child.pid
    kill_hard(first)
    turn_until(site, lambda: child.is_running() and child.pid != first)
    assert said == [
        f"it (process {first}) was killed by SIGKILL; starting it again now",
        f"it is back (process {child.pid})",
    ]


def test_a_child_that_keeps_dying_gets_longer_pauses_and_its_log_is_shown(
    site, said, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "PAUSES_SECONDS", (0.0, 0.01, 0.3))
    child = site.add(shell(tmp_path, "echo because; exit 3"))
    turn_until(site, lambda: child.failures == 3)
    assert [line.rsplit(" ", 1)[0] for line in said if "again in 0.3" in line]
    assert "it keeps dying" in said[-1]
    assert "because" in said[-1]


LOADS_FIRST = "echo loaded; read line && echo $line && exec sleep 60"


def log_of(child: Child) -> list[str]:
    return child.log.read_text().split()


def test_one_that_stands_by_begins_when_the_first_dies_and_another_takes_its_place(
    site, said, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "STAND_BY_SECONDS", 0.0)
    child = site.add(shell(tmp_path, LOADS_FIRST, stands_by=True))
    # Which of two processes is faster nobody knows.
    turn_until(site, lambda: sorted(log_of(child)) == ["begin", "loaded", "loaded"])
    first, second = child.pid, child.standby.pid
    kill_hard(first)
    turn_until(site, lambda: child.pid == second and log_of(child).count("begin") == 2)
    assert said[-1] == f"it is back (process {second})"
    turn_until(site, lambda: log_of(child).count("loaded") == 3)
    third = child.standby.pid
    site.stop([child])
    assert is_gone(second)
    assert is_gone(third)


def test_one_that_stands_by_and_dies_is_replaced_and_does_no_harm(
    site, said, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "STAND_BY_SECONDS", 0.0)
    monkeypatch.setattr(module, "PAUSES_SECONDS", (0.0, 0.01))
    child = site.add(shell(tmp_path, LOADS_FIRST, stands_by=True))
    turn_until(site, lambda: child.standby is not None)
    first, second = child.pid, child.standby.pid
    kill_hard(second)
    turn_until(site, lambda: child.standby is not None and child.standby.pid != second)
    assert child.pid == first
    assert child.is_running()
    assert not said


def test_a_death_before_another_stands_by_is_a_plain_start(site, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STAND_BY_SECONDS", 3600.0)
    child = site.add(shell(tmp_path, LOADS_FIRST, stands_by=True))
    turn_until(site, lambda: log_of(child) == ["loaded", "begin"])
    kill_hard(child.pid)
    turn_until(site, lambda: log_of(child) == ["loaded", "begin"] * 2)
    assert child.is_running()
    assert child.standby is None


def test_its_own_children_end_with_a_child(site, tmp_path):
    child = site.add(shell(tmp_path, "sleep 60 & echo $!; wait"))
    grandchild = int(eventually(lambda: child.log.read_text().strip()))
    first = child.pid
    kill_hard(first)
    turn_until(site, lambda: child.pid != first and is_gone(grandchild))


def test_an_end_that_was_foreseen_is_no_failure(site, said, tmp_path):
    child = site.add(shell(tmp_path, "exit 0", may_end=True))
    turn_until(site, lambda: child.process is None)
    site.look_after(child)
    assert said == []


def test_a_child_that_does_not_end_when_asked_is_killed(site, tmp_path):
    child = site.add(shell(tmp_path, STUBBORN))
    eventually(lambda: child.log.read_text())
    site.stop([child], within_seconds=0.3)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
    assert site.children == []


def test_a_second_signal_kills_at_once_but_an_echo_of_the_first_does_not(site, tmp_path):
    child = site.add(shell(tmp_path, STUBBORN))
    eventually(lambda: child.log.read_text())
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    eventually(lambda: len(site.signals) == 2)
    assert not site.is_urged()
    later = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    later.start()
    site.stop([child], within_seconds=60)
    assert site.is_urged()
    assert child.process is not None
    assert is_gone(child.process.pid)


def test_secrets_are_handed_over_in_the_environment_and_not_shown(site, tmp_path):
    child = site.add(shell(tmp_path, "echo $AGENTSTATE_KEY", environment={"AGENTSTATE_KEY": "k1"}))
    assert eventually(lambda: child.log.read_text()) == "k1\n"
    assert "k1" not in repr(child)


def test_a_log_is_kept_within_bounds(site, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LOG_BYTES", 1000)
    child = site.add(shell(tmp_path, "while true; do echo 123456789; done"))
    turn_until(site, lambda: child.log.with_suffix(".log.1").exists())
    assert "123456789" in child.log.with_suffix(".log.1").read_text()


def test_only_the_end_of_a_log_is_read(tmp_path):
    """S-513. All of it was read: of a device, such as /dev/full, until there was no memory."""
    child = shell(tmp_path, "exit 1")
    with child.log.open("wb") as log:
        log.truncate(2**25)
        log.seek(0, os.SEEK_END)
        log.write(b"\nwhy it died\n")
    tracemalloc.start()
    try:
        assert child.last_lines(1) == "    why it died"
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


@pytest.mark.long  # the stubborn one is given eight seconds
def test_when_the_parent_is_killed_its_children_end(open_folder):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(open_folder), STUBBORN],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        mild, stubborn = (int(parent.stdout.readline()) for _ in range(2))
        eventually(lambda: (open_folder / "stubborn.log").read_text())
        parent.kill()
    eventually(lambda: is_gone(mild), within_seconds=3)
    eventually(lambda: is_gone(stubborn), within_seconds=12)


def test_the_janitor_is_replaced_when_it_is_killed(site, tmp_path):
    site.add(shell(tmp_path, "exec sleep 60"))
    first = site._janitor.pid
    kill_hard(first)
    turn_until(site, lambda: site._janitor.pid != first)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with code 0"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99")],
)
def test_how_a_process_ended_is_told_in_words(code, words):
    assert manner_of(code) == words
