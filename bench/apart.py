"""An environment apart from ours, for peers and tools that `./run bench` alone needs.

var/bench-peers, made of `peers.txt` by venv and pip the first time, and anew when that has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from agentstate.cli.output import CommandFailure, progress
from bench.budget_slots import ROOT

WANTED = ROOT / "bench" / "peers.txt"
FOLDER = ROOT / "var" / "bench-peers"
LINES_TOLD = 12


def peers_folder() -> Path:
    """Its bin folder. Raises CommandFailure with the end of what pip said."""
    tag, made_of = hashlib.sha256(WANTED.read_bytes()).hexdigest(), FOLDER / ".made-of"
    if not made_of.exists() or made_of.read_text() != tag:
        progress(f"peers are installed in {FOLDER.relative_to(ROOT)} …")
        shutil.rmtree(FOLDER, ignore_errors=True)
        carry_out([sys.executable, "-m", "venv", str(FOLDER)])
        carry_out([str(FOLDER / "bin" / "python"), "-m", "pip", "install", "-q",
                   "--disable-pip-version-check", "-r", str(WANTED)])  # fmt: skip
        made_of.write_text(tag)
    return FOLDER / "bin"


def versions() -> dict[str, str]:
    """Of each package that is asked for."""
    lines = [line for line in WANTED.read_text().splitlines() if "==" in line]
    pairs = (line.split("==") for line in lines)
    return {name.partition("[")[0]: version for name, version in pairs}


def carry_out(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=clean(), capture_output=True, text=True)
    if done.returncode:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-LINES_TOLD:])
        raise CommandFailure(f"peers cannot be installed:\n{told}")


def clean() -> dict[str, str]:
    """For processes of that environment: of ours they see the benchmarks, and no settings."""
    ours = ("AGENTSTATE_", "DJANGO_", "PYTHON", "VIRTUAL_ENV", "PG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONPATH": str(ROOT)}
