"""docs/tutorial.md, done from top to bottom as it stands, from an empty virtual environment."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import ROOT, eventually
from tests.bootstrap.sites import environment

TUTORIAL = ROOT / "docs" / "tutorial.md"
# sh server: in the first terminal; sh: in the second; text: what that shows, … is anything.
BLOCK = re.compile(r"^```([a-z ]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "--- the end of a block ---"
START_SECONDS, SECONDS = 180, 1_200


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(TUTORIAL.read_text())


def shows(said: str, expected: str) -> bool:
    """Whether the lines that are expected stand in what was said, in their order."""
    lines = [line for line in expected.splitlines() if line != "…"]
    words = (".*".join(re.escape(part.strip()) for part in line.split("…")) for line in lines)
    return re.search(r"[^\n]*\n(?:[^\n]*\n)*?[^\n]*".join(words), said) is not None


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def terminal(open_folder: Path) -> dict[str, str]:
    """Like a new terminal's: with nothing of this test run's own environment."""
    found = environment(open_folder / "home", TMPDIR=str(open_folder))
    for name in [n for n in found if n.startswith(("PYTHON", "PYTEST")) or n == "VIRTUAL_ENV"]:
        del found[name]
    return found


@pytest.fixture
def server(open_folder: Path, terminal: dict[str, str], port: int) -> Iterator[None]:
    """The first terminal."""
    (command,) = (text.strip() for kind, text in blocks() if kind == "sh server")
    output = open_folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command.split(), "--port", str(port)], cwd=ROOT, env=terminal,
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        eventually(
            lambda: "Ctrl-C stops" in output.read_text() or process.poll() is not None,
            within_seconds=START_SECONDS,
        )
        assert process.poll() is None, output.read_text()
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        EmbeddedPostgres(open_folder / "home" / "postgres").stop()


def test_every_block_is_one_that_the_test_knows():
    assert {kind for kind, _ in blocks()} == {"sh", "sh server", "text"}


@pytest.mark.long
@pytest.mark.many
def test_the_tutorial_works_as_written(server, terminal, port):
    told = [(kind, text.replace(":8000", f":{port}")) for kind, text in blocks()[1:]]
    script = "".join(f"{text}\necho '{MARK}'\n" for kind, text in told if kind == "sh")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=terminal, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    said = iter(done.stdout.split(f"{MARK}\n"))
    shown = ""
    for kind, text in told:
        if kind == "sh":
            shown = next(said)
        else:
            assert shows(shown, text), f"not as written:\n{text}\nbut:\n{shown}"


def test_what_is_shown_is_compared_line_by_line():
    said = "one 1\ntwo\nthree 3 x\n"
    assert shows(said, "one …\nthree … x\n")
    assert shows(said, "…\n… 3 …\n")
    assert not shows(said, "three\none\n")
    assert not shows(said, "four\n")
