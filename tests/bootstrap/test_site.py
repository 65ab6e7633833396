"""`./run serve` and `./run demo`: what they refuse, what they survive, what they leave."""

import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest

from agentstate.cli.site import only_start
from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import eventually, is_gone, kill_hard
from tests.bootstrap.sites import Site, begin, end, run, wait_for_start


@pytest.fixture
def site(open_folder) -> Iterator[Site]:
    site = begin(open_folder / "home", "serve", "--port", "0")
    try:
        wait_for_start(site)
        yield site
    finally:
        end(site)


@pytest.mark.long
def test_it_starts_refuses_a_second_one_and_leaves_nothing(site):
    assert site.answers()
    assert "Nobody can log in yet: there, or ./run user" in site.said()
    told = re.search(r"(http\S+/setup) makes one with the code (\S+)", site.said())
    assert told[1] == f"{site.url}/setup"
    newer = run(site.home, "setup-code")
    assert re.fullmatch(r"(?:\w{4}-){2}\w{4}\n", newer.stdout)
    assert newer.stdout.strip() != told[2]

    second = run(site.home, "serve", "--port", "0")
    assert second.returncode == 1
    assert f"already running here: process {site.process.pid} at {site.url}" in second.stderr
    assert second.stderr.count("\n") == 1

    other = run(site.home, "serve", "--port", site.url.rsplit(":", 1)[1])
    assert other.returncode == 1

    made = run(site.home, "user", "--name", "ana", "--role", "operator")
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.strip()) == 12
    there = run(site.home, "user", "--name", "ana", "--role", "admin")
    assert (there.returncode, there.stdout) == (1, "")
    assert "there is a person ana already. --reset" in there.stderr
    assert run(site.home, "user", "--name", "ana", "--role", "admin", "--reset").returncode == 0
    assert run(site.home, "setup-code").returncode == 1
    key = run(site.home, "key", "--name", "fleet", "--scope", "write", "--scope", "read")
    assert re.fullmatch(r"as_[0-9a-f]{32}_[\w-]{43}\n", key.stdout)
    again = run(site.home, "key", "--name", "fleet", "--scope", "write")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("agentstate: key 'fleet': ")
    assert run(site.home, "key", "--name", "ci", "--scope", "read", "--days", "7").returncode == 0
    assert run(site.home, "keys", "--revoke", "fleet", "--reason", "lost").returncode == 0
    ci, fleet = run(site.home, "keys").stdout.splitlines()
    assert re.fullmatch(r"ci  valid  read  ….{4}  made .* UTC", ci)
    assert "ends" in ci
    assert re.fullmatch(r"fleet  over  read,write  ….{4}  made .*, revoked .* UTC", fleet)
    assert run(site.home, "keys", "--revoke", "nobody").returncode == 1

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
        first = site.kill(name)
        assert f"{name} (process {first}) was killed by SIGKILL" in site.said()
    first = site.kill_database()
    assert EmbeddedPostgres(site.home / "postgres").postmaster_pid() != first
    eventually(site.answers)


@pytest.mark.long
def test_with_a_full_log_folder_the_periodic_jobs_are_done_all_the_same(open_folder):
    """S-512. Worker and beat ended at once, for ever: Celery's banner had no room."""
    log = open_folder / "home" / "log"
    log.mkdir(parents=True)
    for name in ("web", "worker", "beat"):
        (log / f"{name}.log").symlink_to("/dev/full")
    site = begin(open_folder / "home", "serve", "--port", "0")
    try:
        wait_for_start(site)
        eventually(lambda: jobs_done(site), within_seconds=60)
        assert "ended with code" not in site.said()
    finally:
        end(site)


def jobs_done(site: Site) -> bool:
    """Whether a task that beat asks for and the worker carries out was done here."""
    try:
        with urllib.request.urlopen(f"{site.url}/health/jobs", timeout=5) as answer:
            jobs = json.load(answer)["jobs"]
    except OSError:
        return False
    return any(job["name"] == "note lapsed leases" and job["ended_at"] for job in jobs)


@pytest.mark.long
def test_a_start_right_after_a_kill_goes_on_and_a_kill_leaves_nothing(site):
    database = EmbeddedPostgres(site.home / "postgres")
    made = run(site.home, "key", "--name", "kept", "--scope", "read")
    assert made.returncode == 0, made.stderr
    children = [
        eventually(lambda name=name: site.child(name)) for name in ("web", "worker", "beat")
    ]
    port = site.url.rsplit(":", 1)[1]
    kill_hard(site.process.pid)
    site.process.wait()
    # At once, while web still ends and has the port.
    again = begin(site.home, "serve", "--port", port)
    try:
        wait_for_start(again)
        assert again.answers()
        assert again.url == site.url
        assert all(map(is_gone, children))
        assert "kept  valid  read" in run(site.home, "keys").stdout

        # This time nobody starts again.
        kill_hard(again.process.pid)
        again.process.wait()
        eventually(lambda: again.processes() == [])
        assert not database.is_listening()
        assert database.postmaster_pid() is None  # it was stopped, not killed
    finally:
        end(again)


@pytest.mark.long
def test_a_demo_goes_on_whatever_is_killed_sums_up_and_leaves_nothing(open_folder):
    demo = begin(
        open_folder / "home", "demo", "--port", "0", "--seconds", "40", "--workers", "3",
        "--speed", "3",
    )  # fmt: skip
    try:
        wait_for_start(demo)
        assert "Log in as   operator" in demo.said()
        demo.kill("web")
        demo.kill_database()
        demo.kill("worker")
        assert demo.process.wait(300) == 0, demo.said()
        assert "holds   numbers without a hole" in demo.said()
        assert demo.processes() == []
    finally:
        end(demo)


def test_a_second_start_in_one_home_names_the_first(open_folder):
    with only_start(open_folder) as claim:
        claim("http://127.0.0.1:8000")
        refused = run(open_folder, "serve", "--port", "0")
    assert refused.returncode == 1
    assert refused.stderr == (
        f"agentstate: already running here: process {os.getpid()} at http://127.0.0.1:8000. "
        "Stop it first, or set AGENTSTATE_HOME to another folder\n"
    )


def test_a_lock_that_a_crash_of_the_machine_damaged_is_taken(open_folder):
    """S-501 (docs/sweeps.md): a traceback, at each start."""
    (open_folder / "run.lock").write_bytes(b"\xff\xfe\0process")
    with only_start(open_folder) as claim:
        assert claim.follows_a_killed_one
        claim("http://127.0.0.1:8000")
        assert (open_folder / "run.lock").read_text().endswith("at http://127.0.0.1:8000")
    assert (open_folder / "run.lock").read_bytes() == b""


@pytest.mark.long
def test_a_command_of_djangos_is_the_first_that_runs_in_a_home(open_folder):
    """S-514. So is it after a first start that was killed between its server and its database:
    eighty lines of a traceback, whichever command it was."""
    told = run(open_folder / "home", "manage", "showmigrations", "agentstate")
    assert told.returncode == 0, told.stderr
    assert "[ ] 0001_" in told.stdout
    assert "Traceback" not in told.stderr


@pytest.mark.long
def test_the_key_of_a_demo_that_was_killed_ends_with_the_next_start(open_folder):
    """S-507 (docs/sweeps.md): it stayed valid for ever, and nobody knew of it."""
    site = begin(open_folder / "home", "demo", "--port", "0", "--workers", "1")
    try:
        wait_for_start(site)
        assert re.search(r"^demo-\w+  valid  ", run(site.home, "keys").stdout, re.MULTILINE)
        kill_hard(site.process.pid)
        site.process.wait()
        site = begin(open_folder / "home", "serve", "--port", "0")
        wait_for_start(site)
        assert re.fullmatch(r"demo-\w+  over  .*\n", run(site.home, "keys").stdout)
        assert not (site.home / "demo-key").exists()
    finally:
        end(site)


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
