"""Every part of a site, as deploy/ starts it, on one wire to a PostgreSQL of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg

from agentstate.cli.output import CommandFailure, progress
from agentstate.cli.site import listen
from agentstate.embedded import USER, EmbeddedPostgres
from agentstate.where import BASE as ROOT
from bench.outages.wire import Wire

START_SECONDS = 120
STOP_SECONDS = 12
PAUSE_SECONDS = 0.1
QUEUE = "outages"
MARKED = "bench.outages.app"


class Site:
    """Use it as a context manager; at the end nothing of it runs.

    ports: of `web` (granian), `streams` (uvicorn) and `whole` (what `./run serve` starts: uvicorn
    with all of it). processes: by name; nobody starts one again that ends.
    """

    def __init__(self, folder: Path, server: EmbeddedPostgres) -> None:
        self.folder, self.server = folder, server
        self.wire = Wire(server.socket / ".s.PGSQL.5432")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self.redis = ""
        self._held = ExitStack()

    def __enter__(self) -> Site:
        self._held.enter_context(self.wire)
        self._held.callback(self._stop)
        try:
            self._start_all()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def direct(self) -> str:
        """The database past the wire, for whoever does the harm and looks at it."""
        return f"host={self.server.socket} port=5432 user={USER} dbname=agentstate"

    def session(self) -> psycopg.Connection:
        return psycopg.connect(self.direct, autocommit=True, connect_timeout=3)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def dead(self) -> list[str]:
        """The processes that have ended, with their codes."""
        return [f"{name} ({p.returncode})" for name, p in self.processes.items() if p.poll()
                is not None]  # fmt: skip

    # --- start --------------------------------------------------------------------------------

    def _start_all(self) -> None:
        lines = (ROOT / "deploy" / "Procfile").read_text().splitlines()
        commands = dict(line.split(": ", 1) for line in lines)
        for name, variable in (("web", "PORT"), ("streams", "STREAMS_PORT")):
            self.ports[name] = free_port()
            self._start(name, commands[name], {variable: str(self.ports[name])})
        whole = listen("127.0.0.1", 0)
        self.ports["whole"] = whole.getsockname()[1]
        self._start("whole", f"python -m agentstate.web {whole.fileno()}", {}, (whole.fileno(),))
        whole.close()
        worker = commands["worker"].replace("tasks.app", MARKED)
        self._start("worker", f"{worker} -Q default,{QUEUE}", {"WORKER_NAME": "pgmq"})
        self._start("beat", commands["beat"], {})
        if found := shutil.which("redis-server"):
            port = free_port()
            self._start("redis", f"{found} --port {port} --bind 127.0.0.1 --save ''", {})
            self.redis = f"redis://127.0.0.1:{port}/0"
            self._start("worker-redis", f"{worker} -Q {QUEUE}",
                        {"WORKER_NAME": "redis", "CELERY_BROKER_URL": self.redis})  # fmt: skip
        else:
            progress("no redis-server here: the worker with Redis as its broker is left out")
        for name in ("web", "streams", "whole"):
            self._wait_until_ready(name)

    def _start(
        self, name: str, line: str, more: Mapping[str, str], descriptors: tuple[int, ...] = ()
    ) -> None:
        """A process whose output goes to a file of its name."""
        told = os.environ | {
            "AGENTSTATE_PROCESS": name.partition("-")[0].replace("whole", "web"),
            "DATABASE_URL": f"postgresql://{USER}@127.0.0.1:{self.wire.port}/agentstate",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["sh", "-c", f"exec {line}"], cwd=ROOT, env=told | dict(more), stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                pass_fds=descriptors,
            )  # fmt: skip

    def _wait_until_ready(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while status_of(f"{self.url(name)}/health/ready") != 200:
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                said = (self.folder / f"{name}.log").read_text(errors="replace")[-2_000:]
                raise CommandFailure(f"{name} does not start; the end of its log:\n{said}")
            time.sleep(PAUSE_SECONDS)

    def _stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            # Also what one that has ended left of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def status_of(url: str) -> int:
    """0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
