"""A worker built on the client survives what is done to it, to the store and to what is between.

On a site as a person starts it, with the worker as a process of its own, sync and async.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from agentstate_client import AgentStateError, Client
from blocking import FLAVOURS

from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import ROOT, eventually
from tests.bootstrap.layout import patiently
from tests.bootstrap.sites import begin, end, environment, run, wait_for_start
from tests.client import stubborn
from tests.client.proxy import Proxy

pytestmark = [pytest.mark.long, pytest.mark.many]

PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def site():
    with tempfile.TemporaryDirectory(prefix="agentstate-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        site = begin(Path(folder) / "home", "serve", "--port", "0")
        try:
            wait_for_start(site)
            yield site
        finally:
            end(site)


@pytest.fixture(scope="module")
def key(site):
    scopes = ("read", "write", "payloads", "operate", "override")
    named = [part for scope in scopes for part in ("--scope", scope)]
    return run(site.home, "key", "--name", "fleet", *named).stdout.strip()


@pytest.fixture
def boss(site, key):
    """Plans runs and looks at them; holds none."""
    with Client(site.url, key, worker="boss") as client:
        yield client


class Worker:
    """The process of `tests/client/working.py`."""

    def __init__(self, flavour, url, key, *, ttl_seconds, folder, home):
        self.done, self.log = folder / "done", folder / "log"
        self.done.touch()
        arguments = (flavour, url, key, str(ttl_seconds), str(self.done))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.client.working", *arguments],
                cwd=ROOT, env=environment(home), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def lines(self):
        return self.done.read_text().splitlines()

    def begins(self, key, number=0):
        """Wait until it is in this step of the run."""
        self.eventually(lambda: f"{key} {number} begins" in self.lines())

    def ends(self, key, number):
        self.eventually(lambda: f"{key} {number} ends" in self.lines())

    def says(self, text):
        self.eventually(lambda: text in self.log.read_text())

    def eventually(self, what):
        try:
            eventually(
                lambda: what() or self.process.poll() is not None, within_seconds=PATIENCE_SECONDS
            )
        finally:
            assert self.process.poll() is None, self.log.read_text()

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)


@pytest.fixture(params=FLAVOURS)
def working(request, site, key, tmp_path):
    """working(ttl_seconds=…): a worker that takes what there is."""
    made = []

    def make(*, ttl_seconds=60, url=""):
        made.append(
            Worker(
                request.param, url or site.url, key,
                ttl_seconds=ttl_seconds, folder=tmp_path, home=site.home,
            )
        )  # fmt: skip
        return made[-1]

    yield make
    for worker in made:
        worker.end()


@pytest.fixture
def name(request):
    """A key for the run of this test."""
    return f"{request.node.originalname.removeprefix('test_')[:60]}-{os.urandom(3).hex()}"


def record(boss, key):
    """The run as it is; None while nobody answers."""
    try:
        return boss.run(key).read()
    except AgentStateError:
        return None


def completes(boss, worker, key, *, steps):
    """Wait until the run is completed; each step was finished once, and everything adds up."""
    worker.eventually(lambda: (found := record(boss, key)) and found.status == "completed")
    found = boss.run(key).read()
    assert found.result == list(range(steps)), worker.log.read_text()
    finished = Counter(e.id for e in boss.run(key).events() if e.type == "step.finished")
    assert finished == {f"step:step-{number}": 1 for number in range(steps)}
    return found


def is_sound(site, key, run_key):
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.get(f"{site.url}/api/v1/runs/{run_key}/verify", headers=headers, timeout=60)
    return answer.json()["sound"]


def test_web_is_restarted(site, key, boss, working, name):
    worker = working()
    boss.create(task="8 x 0.3", key=name)
    worker.begins(name, 2)
    site.kill("web")
    completes(boss, worker, name, steps=8)
    assert is_sound(site, key, name)


def test_the_database_is_restarted(site, key, boss, working, name):
    worker = working()
    boss.create(task="8 x 0.3", key=name)
    worker.begins(name, 2)
    site.kill_database()
    completes(boss, worker, name, steps=8)
    assert is_sound(site, key, name)


def test_one_503(site, key, boss, working, name):
    """The real one: somebody else has the run's row for longer than a write waits for it."""
    worker = working()
    boss.create(task="3 x 0.5", key=name)
    worker.begins(name, 1)
    socket = EmbeddedPostgres(site.home / "postgres").socket
    with psycopg.connect(host=str(socket), user="agentstate", dbname="agentstate") as other:
        other.execute("SELECT FROM agentstate_run WHERE key = %s FOR UPDATE", [name])
        worker.says("attempt 1: ")
    found = completes(boss, worker, name, steps=3)
    assert found.attempt == 1
    assert is_sound(site, key, name)


def test_twenty_seconds_of_silence(site, key, boss, working, name):
    between = Proxy(port=urlsplit(site.url).port)
    try:
        worker = working(url=between.url)
        boss.create(task="4 x 0.5", key=name)
        worker.begins(name, 1)
        between.silent.set()
        silence = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
        silence.wait(60)
        between.silent.clear()
        completes(boss, worker, name, steps=4)
        assert is_sound(site, key, name)
    finally:
        between.close()


def test_frozen_past_its_lease_and_overtaken(site, key, boss, working, name):
    worker = working(ttl_seconds=2)
    boss.create(task="3 x 1", key=name)
    worker.begins(name, 1)
    worker.send(signal.SIGSTOP)
    claimed = eventually(
        lambda: [run for run in boss.claim(limit=10, ttl_seconds=60) if run.key == name],
        within_seconds=PATIENCE_SECONDS,
    )
    (other,) = claimed
    assert other.step("step-0").run(lambda: "again") == 0
    worker.send(signal.SIGCONT)
    worker.says(f"run:{name} (token")  # … is lost
    assert "step-1" not in other.history.steps
    other.release()
    found = completes(boss, worker, name, steps=3)
    assert found.attempt >= 3
    assert is_sound(site, key, name)


def test_reclaimed_by_an_operator(site, key, boss, working, name):
    worker = working()
    boss.create(task="3 x 1", key=name)
    worker.begins(name, 1)
    held = boss.run(name).read()
    answer = httpx.post(
        f"{site.url}/api/v1/leases/run:{name}/reclaim",
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
        json={
            "expected_token": held.token,
            "expected_owner": held.owner,
            "reason": "looks frozen",
            "force": True,
        },
    )
    assert answer.status_code == 200, answer.text
    found = completes(boss, worker, name, steps=3)
    assert found.attempt == 2
    assert is_sound(site, key, name)


def test_everything_of_it_is_blocked_for_longer_than_its_lease(site, key, boss, working, name):
    worker = working(ttl_seconds=3)
    boss.create(task="2 x 7", key=name)
    found = completes(boss, worker, name, steps=2)
    assert found.attempt == 1
    assert is_sound(site, key, name)


def test_told_to_end_in_the_middle_of_a_step(site, key, boss, working, name):
    worker = working()
    boss.create(task="4 x 1.5", key=name)
    worker.begins(name, 1)
    worker.send(signal.SIGTERM)
    assert worker.process.wait(60) == 0, worker.log.read_text()

    left = boss.run(name).read()
    assert (left.status, left.owner) == ("running", None)
    assert worker.lines()[-1] == f"{name} 1 ends"
    finished = [e.id for e in boss.run(name).events() if e.type == "step.finished"]
    assert finished == ["step:step-0", "step:step-1"]
    successor = working()
    completes(boss, successor, name, steps=4)
    assert successor.lines().count(f"{name} 1 begins") == 1
    assert is_sound(site, key, name)


ENDS_WITHIN_SECONDS = 15


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_at_sigterm_it_ends_in_time_whatever_it_does_and_its_leases_are_free(
    site, key, boss, flavour, name
):
    keys = [f"{name}-{number}" for number in range(4)]
    for one in keys:
        boss.create(task=stubborn.TASK, key=one)
    command = [sys.executable, "-m", "tests.client.stubborn", flavour, site.url, key]
    worker = subprocess.Popen(
        command, cwd=ROOT, env=environment(site.home), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert {worker.stdout.readline().strip() for _ in keys} == set(keys)
        worker.send_signal(signal.SIGTERM)
        took = patiently(lambda: worker.poll() is not None, within_seconds=ENDS_WITHIN_SECONDS)
    finally:
        worker.kill()
        _, said = worker.communicate()
    assert took < ENDS_WITHIN_SECONDS
    assert worker.returncode == 0, said
    # At once, and not when an hour, or a lease, is over.
    assert [boss.run(one).read().owner for one in keys] == [None] * 4
    for one in keys:
        boss.run(one).acquire(ttl_seconds=60).cancel()
