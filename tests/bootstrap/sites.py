"""A site started as a person starts it, and what can be seen of it from outside."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import ROOT, eventually


@dataclass
class Site:
    process: subprocess.Popen[bytes]
    home: Path
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    @property
    def url(self) -> str:
        found = re.search(r"Console(?: and API:)? +(http\S+)", self.said())
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

    def kill(self, name: str) -> int:
        """SIGKILL to a child; its process id, and it has been started again since."""
        first = eventually(lambda: self.child(name))
        os.kill(first, signal.SIGKILL)
        eventually(lambda: self.child(name) not in (0, first))
        return first

    def kill_database(self) -> int:
        database = EmbeddedPostgres(self.home / "postgres")
        first = database.postmaster_pid()
        assert first is not None
        before = self.said().count("PostgreSQL is back")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: self.said().count("PostgreSQL is back") > before)
        return first

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


# What would lead a site to the tests' own database or broker.
ELSEWHERE = ("DATABASE_URL", "DATABASE_SESSION_URL", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE")


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTSTATE")}
    for name in ELSEWHERE:
        kept.pop(name, None)
    # Nobody waits for the second web process; where it is the point, a test asks for it.
    kept["AGENTSTATE_STANDBY"] = "no"
    return kept | {"AGENTSTATE_HOME": str(home), "PYTHONPATH": f"{ROOT}:{ROOT}/client/src"} | more


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentstate", *arguments]


def run(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd="/", env=environment(home, **more), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False,
    )  # fmt: skip


def begin(home: Path, *arguments: str, **more: str) -> Site:
    output = home.parent / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(*arguments), cwd="/", env=environment(home, **more), stdin=subprocess.DEVNULL,
            stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    return Site(process=process, home=home, output=output)


def end(site: Site) -> None:
    if site.process.poll() is None:
        site.process.send_signal(signal.SIGINT)
        site.process.wait(30)
    EmbeddedPostgres(site.home / "postgres").stop()


def wait_for_start(site: Site) -> None:
    """Until it says that Ctrl-C stops it. Fails with its output when it ends instead."""
    # The first start makes a database; on a busy machine that takes a while.
    eventually(
        lambda: "Ctrl-C stops" in site.said() or site.process.poll() is not None,
        within_seconds=180,
    )
    assert site.process.poll() is None, site.said()
