"""Environments of their own, for what is no dependency of ours: made of a list with hashes, and
made anew when that list has changed."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from agentstate.cli.output import CommandFailure, progress

ROOT = Path(__file__).resolve().parent.parent.parent
LINES_TOLD = 12


def python_of(folder: Path, wanted: Path, what: str) -> Path:
    """The Python of the environment in `folder`, with what `wanted` lists. what: in a person's
    words. Raises CommandFailure with pip's words."""
    mark = hashlib.sha256(wanted.read_bytes()).hexdigest()
    made_of, python = folder / ".made-of", folder / "bin" / "python"
    if not made_of.exists() or made_of.read_text() != mark:
        progress(f"{what}: installed in {folder.relative_to(ROOT)} …")
        shutil.rmtree(folder, ignore_errors=True)
        _carry_out([sys.executable, "-m", "venv", str(folder)], what)
        quiet = ["-q", "--disable-pip-version-check", "--require-hashes"]
        _carry_out([str(python), "-m", "pip", "install", *quiet, "-r", str(wanted)], what)
        made_of.write_text(mark)
    return python


def _carry_out(command: list[str], what: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-LINES_TOLD:])
        raise CommandFailure(f"{what} cannot be installed:\n{told}")
