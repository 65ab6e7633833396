"""Peers beside ours: a database of its own for each on the same server, and its processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentstate.cli.output import CommandFailure, progress
from bench.apart import clean, peers_folder
from bench.budget_slots import ROOT
from bench.crew import Crew
from bench.turns import Measured

SET_UP_SECONDS = 300


@dataclass(slots=True)
class Beside:
    """Those that could be set up, and of the others why not."""

    crews: dict[str, Crew] = field(default_factory=dict)
    restless: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    python: Path = Path()

    @property
    def names(self) -> list[str]:
        return [*self.crews, *self.restless]

    def work(self, peer: str, callers: int, seconds: float) -> Measured:
        if peer in self.crews:
            return self.crews[peer].work(peer, callers, seconds)
        # It asks the database also while others have their turn: it is there for its own alone.
        with self._crew(self.restless[peer]) as crew:
            return crew.work(peer, callers, seconds)

    def _crew(self, argument: str) -> Crew:
        return Crew("bench.peer_work", argument, python=self.python, environment=clean())


@contextmanager
def beside(
    peers: Sequence[str], *, jobs: int = 0, restless: Sequence[str] = ("DBOS step",)
) -> Iterator[Beside]:
    """jobs: how many wait for those that take some. Ends what it started."""
    found = Beside()
    try:
        found.python = peers_folder() / "python"
    except CommandFailure as failed:
        found.missing = dict.fromkeys(peers, str(failed).splitlines()[-1])
        yield found
        return
    with ExitStack() as stack:
        for number, peer in enumerate(peers):
            progress(f"{peer} is set up …")
            argument = json.dumps({"peer": peer, "dsn": make_database(number), "jobs": jobs})
            if why := set_up(found.python, argument):
                progress(f"{peer} cannot be measured: {why}")
                found.missing[peer] = why
            elif peer in restless:
                found.restless[peer] = argument
            else:
                found.crews[peer] = stack.enter_context(found._crew(argument))
        yield found


def make_database(number: int) -> dict[str, str]:
    """libpq's parts of it."""
    from django.conf import settings
    from django.db import connection

    name = f"bench_peer_{number}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    parts = settings.DATABASE_PARTS
    return {part: str(parts[part]) for part in ("host", "port", "user")} | {"dbname": name}


def set_up(python: Path, argument: str) -> str:
    """What went wrong, in a line; nothing when it is there."""
    command = [str(python), "-m", "bench.peer_work", "--set-up", argument]
    try:
        done = subprocess.run(command, cwd=ROOT, env=clean(), capture_output=True, text=True,
                              timeout=SET_UP_SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"setting up took more than {SET_UP_SECONDS} s"
    if not done.returncode:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit code {done.returncode}"
