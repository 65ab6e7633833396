"""`./run manage distribute` from a filled store: refused, planned, stopped, resumed, repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest

from agentstate.cli.checks import ROOT
from tests.citus.cluster import HOST, USER, Cluster

pytestmark = pytest.mark.citus

FILL = """
from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import Append, CreateRun, NewEvent
from agentstate.store.execute import execute
from agentstate.store.partitions import ensure_ahead
from agentstate.store.payloads import dump
ensure_ahead()
fleet = Caller(kind="key", name="fleet", scopes=frozenset(SCOPES))
for n in range(30):
    execute(CreateRun(key=f"run-{n}", task="t"), by=fleet)
    event = NewEvent(type="step.done", data=dump({"n": n}))
    execute(Append(run=f"run-{n}", events=(event,)), by=fleet)
"""
STOPPED = """
from agentstate.store import distributing
distributing.STEPS = distributing.STEPS[:2]
print(distributing.distribute(shards=4))
"""


class Site:
    """A database of the servers, and commands on it."""

    def __init__(self, servers: Cluster, name: str, user: str = USER) -> None:
        self.servers, self.name, self.user = servers, name, user
        self.port = servers.coordinator.port
        self.more: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}@{HOST}:{self.port}/{self.name}"

    def run(self, *arguments: str) -> tuple[int, str]:
        told = {"DATABASE_URL": self.url, "PYTHONPATH": f"{ROOT}:{ROOT}/client/src"} | self.more
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | told,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def manage(self, *arguments: str) -> tuple[int, str]:
        return self.run("manage.py", *arguments)

    def python(self, code: str) -> tuple[int, str]:
        begin = "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'agentstate.settings'\n"
        return self.run("-c", f"{begin}import django; django.setup()\n{code}")

    def count(self) -> int:
        with self.servers.coordinator.connect(self.name) as session:
            row = session.execute("SELECT count(*) FROM agentstate_event").fetchone()
            assert row is not None
            return int(row[0])


@pytest.fixture
def site(servers: Cluster) -> Iterator[Site]:
    name = f"site_{uuid4().hex[:8]}"
    with servers.coordinator.connect() as session:
        session.execute(f'CREATE DATABASE "{name}"'.encode())
    try:
        yield Site(servers, name)
    finally:
        servers.drop_database(name)


def test_a_filled_store_is_distributed_however_often_it_is_stopped(
    site: Site, servers: Cluster
) -> None:
    assert site.manage("migrate", "-v0")[0] == 0
    code, told = site.python(FILL)
    assert code == 0, told

    code, told = site.manage("distribute", "--plan")
    assert code == 1
    assert "CREATE EXTENSION citus" in told
    with servers.coordinator.connect(site.name) as session:
        session.execute("CREATE EXTENSION citus")
    code, told = site.manage("distribute")
    assert code == 1
    assert "citus_add_node" in told
    with servers.coordinator.connect(site.name) as session:
        session.execute("DROP EXTENSION citus")
    servers.spread(site.name)

    code, told = site.manage("distribute", "--plan")
    assert code == 0, told
    assert "distributed  agentstate_event: by run_id" in told
    assert "To do: the log is on the workers" in told
    with servers.coordinator.connect(site.name):
        code, told = site.manage("distribute", "--shards", "4")
        assert code == 1
        assert "others are connected" in told

    code, told = site.python(STOPPED)
    assert (code, told.strip()) == (0, "2"), told
    assert site.count() == 60
    code, told = site.manage("distribute", "--plan")
    assert "To do: the log is on the workers" not in told
    assert "To do: the log has left the coordinator" in told
    code, told = site.manage("distribute")
    assert code == 0, told
    assert "2 steps were done" in told
    code, told = site.manage("distribute")
    assert code == 0
    assert "All of it was done already." in told
    assert site.count() == 60
    code, told = site.manage("verify")
    assert code == 0, told
    code, told = site.run("-m", "agentstate", "backup", str(ROOT / "var"))
    assert code == 1
    assert "this store is distributed" in told
