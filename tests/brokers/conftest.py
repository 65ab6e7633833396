"""A broker of each kind, the product's Celery workers on it, and the test's own database."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from agentstate import postgres
from agentstate.prepare import install_queues
from tasks.app import app
from tests.bootstrap.conftest import ROOT, open_folder
from tests.bootstrap.conftest import eventually as eventually_within
from tests.brokers.app import VISIBILITY_SECONDS
from tests.brokers.instances import KINDS, Broker

__all__ = ["open_folder"]

# Of a machine that is busy with other things; Redis looks for what was not acknowledged every 10 s.
PATIENCE_SECONDS = 240

# Between two looks, which may each be a connection to a database that three brokers' tests share.
PAUSE_SECONDS = 0.2

# What `./run` starts, but for the name.
FLAGS = ["--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "INFO"]


def eventually[T](what: Callable[[], T]) -> T:
    """The first true value of `what()`."""
    return eventually_within(what, within_seconds=PATIENCE_SECONDS, pause_seconds=PAUSE_SECONDS)


@pytest.fixture(scope="module", params=[
    pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in KINDS
])  # fmt: skip
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    broker = KINDS[request.param]()
    try:
        broker.begin()
        yield broker
    finally:
        broker.end()


def database_parts() -> dict[str, str]:
    """Of the test's database, in libpq's names."""
    return settings.DATABASE_PARTS | {"dbname": str(connection.settings_dict["NAME"])}


def database_url() -> str:
    parts = database_parts()
    return "postgresql:///?" + "&".join(f"{k}={quote(v, safe='')}" for k, v in parts.items())


@dataclass
class Celery:
    """Workers of the product on one broker; and whoever sends them something."""

    broker: Broker
    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def worker(self, *, queue: str = "default") -> subprocess.Popen[bytes]:
        """One with two processes that takes tasks when this returns."""
        log = self.folder / f"worker-{len(self.started)}.log"
        name = f"w{len(self.started)}@test"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.brokers.app", "worker", "-n", name,
                 "--concurrency", "2", "-Q", queue, *FLAGS],
                cwd=ROOT, env=self.environment(), stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        eventually(lambda: "ready." in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AGENTSTATE")}
        return kept | {
            "AGENTSTATE_HOME": str(settings.AGENTSTATE_HOME),
            "AGENTSTATE_PROCESS": "worker",
            "CELERY_BROKER_URL": self.broker.url,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "agentstate.settings",
            "PYTHONPATH": f"{ROOT}:{ROOT}/client/src",
            **self.more,
        }

    def send(self, task: str, *, queue: str = "default", **kwargs: object) -> None:
        options = {"visibility_timeout": VISIBILITY_SECONDS}
        if self.broker.name == "pgmq":
            options |= settings.CELERY_BROKER_TRANSPORT_OPTIONS | {
                "conn_string": postgres.broker_conninfo(database_parts())
            }
        with app.connection_for_write(self.broker.url, transport_options=options) as sender:
            app.send_task(task, kwargs=kwargs, queue=queue, connection=sender)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("worker-*.log")))

    def end(self) -> None:
        for process in self.started:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a worker and all its pool, if they are still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def celery(broker: Broker, open_folder: Path, transactional_db: None) -> Iterator[Celery]:
    if broker.name == "pgmq":
        with psycopg.connect(postgres.conninfo(database_parts()), autocommit=True) as session:
            install_queues(session)
    celery = Celery(broker=broker, folder=open_folder)
    try:
        yield celery
    finally:
        celery.end()
        print(celery.log())  # shown when the test failed
        empty_queues(celery)


def empty_queues(celery: Celery) -> None:
    """The next test shall not be given what this one left."""
    if celery.broker.name == "pgmq":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pgmq.drop_queue(queue_name) FROM pgmq.list_queues()")
        connection.close()
        return
    with app.connection_for_write(celery.broker.url) as sender:
        channel = sender.default_channel
        for queue in ("default", "fleet"):
            try:
                channel.queue_purge(queue)
            except sender.channel_errors:  # it was never made
                channel = sender.channel()
