"""docs/integrations/celery.md and durable.md, done as they stand."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import only_run, until

PAGES = Path(__file__).resolve().parents[2] / "docs" / "integrations"
BLOCK = re.compile(r"^```([a-z ]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    return BLOCK.findall((PAGES / page).read_text())


def shows(said: str, expected: str) -> bool:
    """Whether lines have these in them, in this order; … is anything."""
    lines = iter(said.splitlines())
    patterns = (".*".join(re.escape(part) for part in e.split("…")) for e in expected.splitlines())
    return all(any(re.search(pattern, line) for line in lines) for pattern in patterns)


def wait_for(expected: str, looked: Callable[[], str]) -> None:
    until(lambda: shows(looked(), expected), looked)


class Terminals:
    """Two of them, in one folder: the one of the worker, and another."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment = folder, environment
        self._started: list[subprocess.Popen[bytes]] = []
        self.worker_log = folder / "none"

    def worker(self, command: str) -> None:
        self.worker_log = self.folder / f"worker-{len(self._started)}.log"
        with self.worker_log.open("wb") as out:
            self._worker = self._start(command, out)
        until(lambda: "ready." in self.worker_said(), self.worker_said)

    def kill_worker(self, command: str) -> None:
        self.run(command)
        self._worker.wait(30)

    def run(self, command: str) -> str:
        with (self.folder / "out").open("wb") as out:
            assert self._start(command, out).wait(60) == 0, self.said()
        return self.said()

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def worker_said(self) -> str:
        return self.worker_log.read_text()

    def _start(self, command: str, out: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def end(self) -> None:
        """Also what was started in the background."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@pytest.fixture
def terminals(tmp_path, celery_environment, redis_url):
    found = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    own_redis = redis_url.removesuffix("/0") + "/1"
    environment = celery_environment | {"PATH": found, "BROKER_URL": own_redis}
    terminals = Terminals(tmp_path, environment)
    yield terminals
    terminals.end()


def test_the_page_on_celery_is_true_from_top_to_bottom(terminals, agentstate_server):
    found = blocks("celery.md")
    assert {kind for kind, _ in found} == {"python", "sh", "sh variables", "sh worker", "sh kill",
                                           "text"}  # fmt: skip
    looked, first = terminals.worker_said, ""
    for kind, text in found:
        if kind == "python":
            (terminals.folder / text.split()[1]).write_text(text)
        elif kind == "sh worker":
            terminals.worker(text)
            looked = terminals.worker_said
        elif kind == "sh kill":
            wait_for("fetching page 3", terminals.worker_said)
            terminals.kill_worker(text)
            first = terminals.worker_said()
        elif kind == "sh":
            terminals.run(text)
            looked = partial(terminals.run, text)
        elif kind == "text":
            wait_for(text, looked)
    second = terminals.worker_said()
    assert not [page for page in (1, 2) if f"fetching page {page}" in second], second
    assert "fetching page 4" not in first
    run = only_run(agentstate_server).read()
    assert (run.status, run.attempt, run.budgets[0]["spent"]) == ("completed", 2, 300)


def test_the_page_on_durable_functions_is_true(agentstate_server):
    fetched = []

    def download(day):
        fetched.append(day)
        return ["one", "two", "three"]

    names = {"url": agentstate_server.url, "key": agentstate_server.key, "download": download}
    ((_, text),) = blocks("durable.md")
    exec(compile(text, "durable.md", "exec"), names)
    with names["client"] as client:
        assert names["report"]("2026-03-02") == {"pages": 3}
        record = client.run(names["report"].key("2026-03-02")).read()
    assert (record.status, record.budgets[0]["spent"]) == ("completed", 1_200)
    assert fetched == ["2026-03-02"]
