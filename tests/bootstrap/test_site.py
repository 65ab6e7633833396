"""`./run serve` as a person starts it: what it refuses, what it survives, what it leaves."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentstate.cli.site import only_start
from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import ROOT, eventually, is_gone, kill_hard

START_SECONDS = 60


@dataclass
class Site:
    process: subprocess.Popen[bytes] | None
    home: Path
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    @property
    def url(self) -> str:
        found = re.search(r"Console and API: (\S+)", self.said())
        return found[1] if found else ""

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/live", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def child(self, name: str) -> int:
        """The process id of a child, found by the log that it writes to."""
        log = str(self.home / "log" / f"{name}.log")
        for link in Path("/proc").glob("[0-9]*/fd/2"):
            pid = int(link.parts[2])
            try:
                is_leader = os.getpgid(pid) == pid
                if is_leader and os.readlink(link) == log:
                    return pid
            except OSError:
                continue
        return 0

    def processes(self) -> list[str]:
        """Every process that has this home in its environment: of it, whatever its parent."""
        marker = f"AGENTSTATE_HOME={self.home}\0".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if marker in entry.read_bytes() and entry.parts[2] != str(os.getpid()):
                    found.append((entry.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTSTATE")}
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE"):
        kept.pop(name, None)
    return kept | {"AGENTSTATE_HOME": str(home), "PYTHONPATH": f"{ROOT}:{ROOT}/client/src"} | more


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentstate", *arguments]


def run(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd="/", env=environment(home, **more), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def begin(home: Path, *arguments: str) -> Site:
    output = home.parent / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(*arguments), cwd="/", env=environment(home), stdin=subprocess.DEVNULL,
            stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    return Site(process=process, home=home, output=output)


@pytest.fixture
def site(open_folder) -> Iterator[Site]:
    site = begin(open_folder / "home", "serve", "--port", "0")
    try:
        eventually(
            lambda: "Ctrl-C stops" in site.said() or site.process.poll() is not None,
            within_seconds=START_SECONDS,
        )
        assert site.process.poll() is None, site.said()
        yield site
    finally:
        end(site)


def end(site: Site) -> None:
    if site.process.poll() is None:
        site.process.send_signal(signal.SIGINT)
        site.process.wait(30)
    EmbeddedPostgres(site.home / "postgres").stop()


@pytest.mark.long
def test_it_starts_refuses_a_second_one_and_leaves_nothing(site):
    assert site.answers()
    assert "Nobody can log in yet: ./run user" in site.said()

    second = run(site.home, "serve", "--port", "0")
    assert second.returncode == 1
    assert f"already running here: process {site.process.pid} at {site.url}" in second.stderr
    assert second.stderr.count("\n") == 1

    other = run(site.home, "serve", "--port", site.url.rsplit(":", 1)[1])
    assert other.returncode == 1

    made = run(site.home, "user", "--name", "ana", "--role", "operator")
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.strip()) == 12
    key = run(site.home, "key", "--name", "fleet", "--scope", "write", "--scope", "read")
    assert re.fullmatch(r"as_[0-9a-f]{32}_[\w-]{43}\n", key.stdout)
    again = run(site.home, "key", "--name", "fleet", "--scope", "write")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("agentstate: key 'fleet': ")

    assert site.answers()  # they used the running server and left it running
    started = time.monotonic()
    site.process.send_signal(signal.SIGINT)
    assert site.process.wait(15) == 0
    assert time.monotonic() - started < 10
    assert site.processes() == []
    assert not (site.home / "postgres" / "data" / "postmaster.pid").exists()


@pytest.mark.long
def test_what_is_killed_comes_back(site):
    for name in ("web", "worker", "beat"):
        first = eventually(lambda name=name: site.child(name))
        kill_hard(first)
        eventually(lambda name=name, first=first: site.child(name) not in (0, first))
        assert f"{name} (process {first}) was killed by SIGKILL" in site.said()
    eventually(site.answers)

    database = EmbeddedPostgres(site.home / "postgres")
    first = database.postmaster_pid()
    kill_hard(first)
    eventually(lambda: "PostgreSQL is back" in site.said())
    assert database.postmaster_pid() != first
    eventually(site.answers)


@pytest.mark.long
def test_when_it_is_killed_its_children_end_and_the_next_start_goes_on(site):
    database = EmbeddedPostgres(site.home / "postgres")
    pid = database.postmaster_pid()
    children = [
        eventually(lambda name=name: site.child(name)) for name in ("web", "worker", "beat")
    ]
    kill_hard(site.process.pid)
    site.process.wait()
    eventually(lambda: all(map(is_gone, children)), within_seconds=15)
    eventually(lambda: len(site.processes()) <= len(postgres_processes(site)), within_seconds=15)
    assert database.postmaster_pid() == pid

    again = begin(site.home, "serve", "--port", "0")
    try:
        eventually(lambda: "Ctrl-C stops" in again.said(), within_seconds=START_SECONDS)
        assert again.answers()
        assert database.postmaster_pid() == pid
    finally:
        end(again)
    assert not database.is_listening()


@pytest.mark.long
def test_a_demo_of_some_seconds_sums_up_and_leaves_nothing(open_folder):
    home = open_folder / "home"
    done = run(home, "demo", "--port", "0", "--seconds", "20", "--workers", "3", "--speed", "3")
    assert done.returncode == 0, done.stderr
    assert "Log in as   operator" in done.stdout
    assert "numbers without a hole" in done.stdout
    left = Site(process=None, home=home, output=home)
    assert left.processes() == []


def postgres_processes(site: Site) -> list[str]:
    return [line for line in site.processes() if "postgres" in line]


def test_a_second_start_in_one_home_names_the_first(open_folder):
    with only_start(open_folder) as claim:
        claim("http://127.0.0.1:8000")
        refused = run(open_folder, "serve", "--port", "0")
    assert refused.returncode == 1
    assert refused.stderr == (
        f"agentstate: already running here: process {os.getpid()} at http://127.0.0.1:8000. "
        "Stop it first, or set AGENTSTATE_HOME to another folder\n"
    )


def test_a_port_that_is_taken_is_told_before_anything_starts(open_folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run(open_folder / "home", "serve", "--port", str(port))
    assert refused.returncode == 1
    assert refused.stderr == (
        f"agentstate: cannot listen on 127.0.0.1 port {port}: Address already in use. "
        "Choose another with --port\n"
    )
    assert not (open_folder / "home" / "postgres").exists()


def test_a_setting_that_breaks_its_rule_is_one_line(open_folder):
    refused = run(open_folder / "home", "serve", AGENTSTATE_LOG_LEVEL="loud")
    assert refused.returncode == 2
    told = "AGENTSTATE_LOG_LEVEL is 'loud', but must be one of DEBUG, ERROR, INFO, WARNING"
    assert refused.stderr == f"agentstate: {told}\n"


def test_a_database_that_cannot_be_reached_is_one_line_without_the_password(open_folder):
    refused = run(
        open_folder / "home", "serve", "--port", "0",
        DATABASE_URL="postgresql://ana:hunter2@127.0.0.1:1/store",
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr.startswith("agentstate: the database cannot be reached: ")
    assert "hunter2" not in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_home_that_cannot_be_made_is_one_line(open_folder):
    (open_folder / "file").touch()
    refused = run(open_folder / "file" / "home", "serve", "--port", "0")
    assert refused.returncode == 1
    assert refused.stderr.startswith("agentstate: ")
    assert "Not a directory" in refused.stderr
    assert refused.stderr.count("\n") == 1
