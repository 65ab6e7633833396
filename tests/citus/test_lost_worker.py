"""A worker of Citus is killed under load, three times: only its runs wait, and nothing is lost.

A web process over HTTP, on three servers of its own that flush what they say is written.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.bootstrap import sites
from tests.bootstrap.conftest import eventually
from tests.citus.cluster import HOST, USER, Cluster, binaries, running

pytestmark = pytest.mark.citus

WRITERS, KILLS, MORE, WAITING = 8, 3, 20, 12
NAME = "agentstate"
WORKER_OF = """
SELECT r.key, p.nodeport FROM agentstate_run r JOIN pg_dist_shard_placement p
    ON p.shardid = get_shard_id_for_distribution_column('agentstate_event', r.id)
WHERE r.key = ANY(%s)
"""


@dataclass(slots=True)
class Ground:
    """The servers, and a web process on them. key: of the API, with every scope that is used."""

    cluster: Cluster
    home: Path
    web: str
    key: str

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.cluster.coordinator.port}/{NAME}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and document; 0 and the reason when there was no answer."""
        return Caller(self.web, self.key).call(method, path, body, **headers)

    def ask(self, *arguments: str) -> str:
        """What a command of ./run says."""
        done = sites.run(self.home, *arguments, DATABASE_URL=self.url)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, statement: str, *params: Any) -> list[Any]:
        with self.cluster.coordinator.connect(NAME) as session:
            return session.execute(statement.encode(), params or None).fetchall()


class Caller:
    """One connection, kept open."""

    def __init__(self, url: str, key: str) -> None:
        self.address, self.key = urlsplit(url).netloc, key
        self.open: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        told = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            if self.open is None:
                self.open = http.client.HTTPConnection(self.address, timeout=60)
            text = None if body is None else json.dumps(body)
            self.open.request(method, f"/api/v1{path}", text, told)
            answer = self.open.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException) as failed:
            self.open = None
            return 0, repr(failed)


@dataclass(slots=True)
class Writer:
    """Appends 0, 1, 2, … to a run of its own, each until it is acknowledged, under one id each.

    token: of the lease that it holds, if it does. told: how often it was told what.
    """

    ground: Ground
    run: str
    stop: threading.Event
    token: str = ""
    acknowledged: list[int] = field(default_factory=list)  # the number that each event got
    told: Counter[tuple[int, str]] = field(default_factory=Counter)
    slowest: float = 0.0

    def write(self) -> None:
        caller = Caller(self.ground.web, self.ground.key)
        fence = {"Agentstate_Fence": self.token} if self.token else {}
        while not self.stop.is_set():
            number = len(self.acknowledged)
            event = {"type": "counted", "data": {"number": number}, "id": f"n-{number}"}
            began = time.monotonic()
            status, said = caller.call(
                "POST", f"/runs/{self.run}/events", {"events": [event]}, **fence
            )
            if status in (200, 201):
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.acknowledged.append(said["first_seq"])
            else:
                self.told[status, said["code"] if isinstance(said, dict) else said] += 1
                self.stop.wait(0.05)


@pytest.fixture
def ground() -> Iterator[Ground]:
    binaries()
    settings = {"citus.recover_2pc_interval": "1s", "citus.node_connection_timeout": "3s",
                "autovacuum": "on"}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="agentstate-citus-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(folder, durable=True, **settings) as cluster:
            with cluster.coordinator.connect() as session:
                session.execute(f"CREATE DATABASE {NAME}".encode())
            made = Ground(cluster, folder / "home", "", "")
            made.ask("manage", "migrate", "-v0")
            cluster.spread(NAME)
            made.ask("manage", "distribute", "--shards", "8")
            made.key = made.ask("key", "--name", "w", "--scope", "write", "--scope", "read",
                                "--scope", "payloads").strip()  # fmt: skip
            with web_process(made):
                yield made


@contextmanager
def web_process(ground: Ground) -> Iterator[None]:
    listener = socket.create_server((HOST, 0))
    ground.web = f"http://{HOST}:{listener.getsockname()[1]}"
    with (ground.home / "web.log").open("wb") as log:
        web = subprocess.Popen(
            [sys.executable, "-m", "agentstate.web", str(listener.fileno())],
            env=sites.environment(ground.home, DATABASE_URL=ground.url),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(listener.fileno(),),
        )  # fmt: skip
    listener.close()
    try:
        yield
    finally:
        web.terminate()
        web.wait(30)


def begin_runs(ground: Ground, stop: threading.Event) -> list[Writer]:
    """Every second one under a lease."""
    writers = [Writer(ground, f"w-{n}", stop) for n in range(WRITERS)]
    for n, writer in enumerate(writers):
        status, said = ground.call("POST", "/runs", {"key": writer.run, "task": "count"})
        assert status == 201, said
        if n % 2:
            ask = {"owner": writer.run, "ttl_seconds": 3_600}
            status, said = ground.call("POST", f"/leases/run:{writer.run}/acquire", ask)
            assert status == 200, said
            writer.token = str(said["token"])
    return writers


def go_on(ground: Ground, writers: list[Writer], more: int = MORE) -> None:
    """Wait until each has been acknowledged so many more."""
    goals = {writer.run: len(writer.acknowledged) + more for writer in writers}
    try:
        eventually(
            lambda: all(len(w.acknowledged) >= goals[w.run] for w in writers), within_seconds=120
        )
    except AssertionError:
        late = {w.run: dict(w.told) for w in writers if len(w.acknowledged) < goals[w.run]}
        raise AssertionError(f"do not go on: {late}; {unfinished(ground)}") from None


def unfinished(ground: Ground) -> dict[int, Any]:
    """What each server that is up has prepared and not finished."""
    return {
        node.port: node.connect(NAME).execute("SELECT gid, prepared FROM pg_prepared_xacts")
        .fetchall()
        for node in ground.cluster.workers if node.process is not None
    }  # fmt: skip


def queue(ground: Ground, task: str) -> None:
    for n in range(WAITING):
        status, said = ground.call("POST", "/runs", {"key": f"{task}-{n}", "task": task})
        assert status == 201, said


def claim_all_that_can_be(ground: Ground, task: str, away: int) -> None:
    """Claims give the waiting runs of the worker that is there, and runs are made, meanwhile."""
    ports = dict(ground.rows(WORKER_OF, [f"{task}-{n}" for n in range(WAITING)]))
    wanted = {run for run, port in ports.items() if port != away}
    claimed: set[str] = set()

    def claim() -> bool:
        ask = {"owner": "claimer", "task": task, "limit": 2, "ttl_seconds": 60}
        status, said = ground.call("POST", "/leases/claim", ask)
        if status == 200:
            claimed.update(item["run"] for item in said["items"])
        else:
            assert said["code"] in {"unavailable", "overloaded"}, said
        return claimed >= wanted

    eventually(claim, within_seconds=60)
    assert claimed == wanted
    made = {"task": "made meanwhile"}
    eventually(lambda: ground.call("POST", "/runs", made)[0] == 201, within_seconds=60)


def test_a_killed_worker_takes_its_runs_along_and_no_other_and_loses_nothing(
    ground: Ground,
) -> None:
    stop = threading.Event()
    writers = begin_runs(ground, stop)
    ports = dict(ground.rows(WORKER_OF, [w.run for w in writers]))
    threads = [threading.Thread(target=writer.write) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        for n in range(KILLS):
            killed = ground.cluster.workers[n % 2]
            there = [w for w in writers if ports[w.run] == killed.port]
            others = [w for w in writers if ports[w.run] != killed.port]
            assert there
            assert others
            go_on(ground, writers)
            queue(ground, f"round-{n}")
            killed.kill()
            go_on(ground, others)
            stand = [len(w.acknowledged) for w in there]
            go_on(ground, others)
            assert [len(w.acknowledged) for w in there] == stand
            status, said = ground.call("GET", f"/runs/{there[0].run}/events")
            assert (status, said.get("code")) == (503, "unavailable")
            assert ground.call("GET", f"/runs/{there[0].run}")[0] == 200
            assert ground.call("GET", f"/runs/{others[0].run}/events")[0] == 200
            claim_all_that_can_be(ground, f"round-{n}", killed.port)
            killed.start_again()
            go_on(ground, writers)
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    report = {w.run: (len(w.acknowledged), f"{w.slowest:.1f} s", dict(w.told)) for w in writers}
    print(json.dumps({run: str(what) for run, what in report.items()}, indent=1))

    told = {what for writer in writers for what in writer.told}
    assert told <= {(503, "unavailable"), (503, "outcome-unknown"), (429, "overloaded")}
    for writer in writers:
        rows = ground.rows(
            "SELECT e.seq, e.data ->> 'number', e.type FROM agentstate_event e WHERE e.run_id ="
            " (SELECT id FROM agentstate_run WHERE key = %s) ORDER BY 1",
            writer.run,
        )
        assert [seq for seq, _, _ in rows] == list(range(1, len(rows) + 1))
        counted = {int(number): seq for seq, number, type_ in rows if type_ == "counted"}
        kept = dict(enumerate(writer.acknowledged))
        assert kept.items() <= counted.items()
        # The last one was perhaps written and not acknowledged, when everybody was told to stop.
        assert len(counted) - len(kept) in (0, 1)
        assert len(counted) == sum(type_ == "counted" for *_, type_ in rows)
    ground.ask("manage", "verify")
    for node in ground.cluster.workers:
        with node.connect(NAME) as session:
            assert session.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone() == (0,)
