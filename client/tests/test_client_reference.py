"""docs/client.md says what the docstrings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1]


def test_the_reference_is_as_the_docstrings_make_it() -> None:
    done = subprocess.run(
        [sys.executable, CLIENT / "write_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
