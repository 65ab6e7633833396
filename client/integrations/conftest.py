"""Tests that run a framework for real, in an environment of their own: `./run test-integrations`.

The server is the project's own, in a process beside them (`agentstate_server`, a plugin's fixture).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).resolve().parent
# A machine may stand still for a while: no test but those of time-outs is about that.
LONG_TTL = 900


def until(what: Callable[[], Any], told: Callable[[], str], *, within_seconds: float = 120) -> Any:
    """The first true value of `what()`; what is `told` when there is none in time."""
    deadline = time.monotonic() + within_seconds
    while not (found := what()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
    return found


def only_run(server: Any) -> Any:
    """A handle on the one run that there is."""
    answer = httpx.get(
        f"{server.url}/api/v1/runs", headers={"Authorization": f"Bearer {server.key}"}
    )
    (found,) = answer.json()["items"]
    return server.client("looks").run(found["key"])


def operate(server: Any, path: str, document: dict[str, Any]) -> None:
    """What an operator asks for: POST /api/v1/<path>."""
    answer = httpx.post(
        f"{server.url}/api/v1/{path}",
        headers={"Authorization": f"Bearer {server.key}"},
        json=document,
    )
    assert answer.status_code < 300, answer.text


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """starting("graph_process.py", …): a program of this folder as a process of its own."""
    made: list[Program] = []

    def start(name: str, *arguments: object) -> Program:
        made.append(Program(name, arguments, tmp_path / f"log-{len(made)}"))
        return made[-1]

    yield start
    for program in made:
        program.end()


class Program:
    """A process, and the lines that it printed."""

    def __init__(self, name: str, arguments: tuple[object, ...], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(HERE / name), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def says(self, line: str, *, within_seconds: float = 120) -> None:
        """Wait until it has printed this line."""
        self.until(lambda: line in self.text.splitlines(), within_seconds=within_seconds)

    def until(self, what: Callable[[], Any], *, within_seconds: float = 120) -> None:
        deadline = time.monotonic() + within_seconds
        while not what():
            assert self.process.poll() is None or what(), self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis of its own for the tests of Celery, on loopback."""
    if shutil.which("redis-server") is None:
        pytest.fail(
            "no redis-server on the PATH: install it (Debian: apt-get install redis-server)"
        )
    folder = tmp_path_factory.mktemp("redis")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    told = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen(
            ["redis-server", *told], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        until(lambda: _answers(port), (folder / "log").read_text)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class CeleryWorker:
    """A worker of Celery's in processes of its own, for the queue of its name."""

    def __init__(
        self, app: str, name: str, environment: Mapping[str, str], folder: Path, *, processes: int
    ) -> None:
        self.name, self._log = name, folder / f"{name}.log"
        flags = ["--without-mingle", "--without-gossip", "--without-heartbeat", "-l", "INFO"]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", app, "worker", "-n", f"{name}@test",
                 "-Q", name.rstrip("0123456789"), "--concurrency", str(processes), *flags],
                env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self._log.read_text()

    def ready(self) -> CeleryWorker:
        until(lambda: "ready." in self.text or self.process.poll() is not None, lambda: self.text)
        assert self.process.poll() is None, self.text
        return self

    def kill(self) -> None:
        """SIGKILL to all of it, as when its machine fails."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture(scope="session")
def celery_environment(redis_url: str, _agentstate_running: Any) -> dict[str, str]:
    """What a worker, and whoever sends it something, finds in its environment."""
    return os.environ | {
        "BROKER_URL": redis_url,
        "AGENTSTATE_URL": _agentstate_running.url,
        "AGENTSTATE_KEY": _agentstate_running.key,
    }


@pytest.fixture(scope="session")
def celery_worker(
    celery_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CeleryWorker]:
    """One of two processes, for all tests that leave it alive; its queue is `all`."""
    folder = tmp_path_factory.mktemp("celery")
    worker = CeleryWorker("celery_app", "all", celery_environment, folder, processes=2)
    try:
        yield worker.ready()
    finally:
        worker.kill()


@pytest.fixture
def sending(
    celery_worker: CeleryWorker, celery_environment: dict[str, str], agentstate_server: Any,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """Sends tasks to `celery_worker`, which write in this test's folder."""
    monkeypatch.setenv("BROKER_URL", celery_environment["BROKER_URL"])
    from celery_sending import Sending

    return Sending(celery_worker, tmp_path, agentstate_server)
