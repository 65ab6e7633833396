"""Tests that run a framework for real, in an environment of their own: `./run test-integrations`.

The server is the project's own, in a process beside them (`agentstate_server`, a plugin's fixture).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
# A machine may stand still for a while: no test but those of time-outs is about that.
LONG_TTL = 900


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
