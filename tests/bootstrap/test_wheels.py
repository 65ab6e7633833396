"""Both wheels: what is in them, and that they work where there is no checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest
from agentstate_client.cli import server
from agentstate_client.cli.arguments import COMMANDS

from agentstate import where
from agentstate.cli import arguments
from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import ROOT, eventually

SECONDS = 300
# What somebody may have in the folder where they stand, and in their own project.
DECOY = "raise AssertionError('not the one that was meant')\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    """The client's and the server's, made of what is in the checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT / "client", ROOT):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
    return sorted(folder.glob("*.whl"), reverse=True)


# --- what is in them -----------------------------------------------------------------------------


def test_no_command_belongs_to_both(monkeypatch):
    """Both are called by the one word, and the client hands the server's commands over."""
    assert not set(COMMANDS) & arguments.names()
    monkeypatch.setattr(where, "IS_INSTALLED", True)
    assert arguments.names() == server.KNOWN


def test_where_state_is_kept(monkeypatch, tmp_path):
    assert where.state_folder() == ROOT / "var"
    monkeypatch.setattr(where, "IS_INSTALLED", True)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/no/path")
    assert where.state_folder() == tmp_path / ".local/state/agentstate"
    monkeypatch.setenv("XDG_STATE_HOME", "/srv/state")
    assert where.state_folder() == Path("/srv/state/agentstate")


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def of_checkout(folder: str) -> set[str]:
    """The files of a package that git knows, or would."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder]
    told = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {line for line in told.splitlines() if (ROOT / line).exists()}


@pytest.mark.long
@pytest.mark.many
def test_every_file_of_the_site_is_in_the_wheel_and_nothing_else(wheels):
    client, site = map(contents, wheels)
    expected = of_checkout("agentstate") - {"agentstate/install.py"}
    for folder in ("dashboard", "tasks", "templates"):
        expected |= {f"agentstate/parts/{name}" for name in of_checkout(folder)}
    expected.add("agentstate/parts/requirements.lock")
    assert {name for name in site if ".dist-info/" not in name} == expected
    prefix = "client/src/"
    own = {name.removeprefix(prefix) for name in of_checkout("client/src")}
    assert {name for name in client if ".dist-info/" not in name} == own
    assert {"agentstate/py.typed"} <= expected
    assert {"agentstate_client/py.typed"} <= own


@pytest.mark.long
@pytest.mark.many
def test_what_the_wheels_say_of_themselves(wheels):
    for wheel, name in zip(wheels, ("agentstate-client", "agentstate"), strict=True):
        with zipfile.ZipFile(wheel) as archive:
            (info,) = {n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n}
            told = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
            points = ConfigParser(delimiters="=")
            points.read_string(archive.read(f"{info}/entry_points.txt").decode())
            licences = {n.split("/")[-1] for n in archive.namelist() if "/licenses/" in n}
        assert (told["Name"], told["License-Expression"]) == (name, "Apache-2.0")
        assert licences == {"LICENSE", "NOTICE"}
        # One script in all: two packages that own one file overwrite each other.
        assert points.has_section("console_scripts") == (name == "agentstate-client")
    assert [r for r in told.get_all("Requires-Dist") if r.startswith("agentstate-client")]


# --- that they work ------------------------------------------------------------------------------


@dataclass
class Installed:
    """A venv with both wheels, and a person's terminal in it."""

    folder: Path
    environment: dict[str, str]

    @property
    def script(self) -> str:
        return str(self.folder / "venv" / "bin" / "agentstate")

    @property
    def state(self) -> Path:
        return self.folder / "home" / ".local" / "state" / "agentstate"

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words], cwd=self.folder / "project", env=self.environment | more, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    def files(self) -> set[str]:
        """Everything in the venv but what Python compiles."""
        found = (self.folder / "venv").rglob("*")
        return {str(path) for path in found if "__pycache__" not in path.parts}


def install(folder: Path, *words: str) -> Installed:
    """In a new venv, for somebody whose own project has modules of the same names."""
    made = Installed(folder, environment_of(folder))
    for name in ("home", "project"):
        (folder / name).mkdir(mode=0o755)
    for name in ("tasks", "dashboard", "agentstate_project"):
        (folder / "project" / f"{name}.py").write_text(DECOY)
    python = str(folder / "venv" / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *words],
    ):
        done = made.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    return made


def environment_of(folder: Path) -> dict[str, str]:
    ours = ("AGENTSTATE", "PYTHON", "PYTEST", "DJANGO", "DATABASE_URL", "CELERY", "XDG_")
    kept = {name: v for name, v in os.environ.items() if not name.startswith(ours)}
    kept.pop("VIRTUAL_ENV", None)
    return kept | {"HOME": str(folder / "home")}


@pytest.fixture(scope="module")
def installed(wheels) -> Iterator[Installed]:
    """The wheels alone, once for all tests; what they require is what the tests run with."""
    folder = Path(tempfile.mkdtemp(prefix="agentstate-test-", dir="/tmp"))
    folder.chmod(0o755)  # the database's user has to get in
    made = install(folder, "--no-index", "--no-deps", *map(str, wheels))
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "what-they-require.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield made
    EmbeddedPostgres(made.state / "postgres").stop()
    shutil.rmtree(folder, ignore_errors=True)


def look(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.long
@pytest.mark.many
def test_the_demo_runs_from_a_wheel(installed):
    before = installed.files()
    output = installed.folder / "output"
    with output.open("wb") as file:
        demo = subprocess.Popen(
            [installed.script, "demo", "--port", "0", "--seconds", "12"],
            cwd=installed.folder / "project", env=installed.environment,
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        told = r"Console +(http\S+)(?s:.*)Worker key +(as_\S+)"
        found = eventually(
            lambda: re.search(told, output.read_text()) or demo.poll() is not None,
            within_seconds=SECONDS,
        )
        assert isinstance(found, re.Match), output.read_text()
        url, key = found.groups()
        assert "agentstate" in look(f"{url}/login")  # a template
        assert "{" in look(f"{url}/static/dashboard/base.css")  # a file of the console's
        assert json.loads(look(f"{url}/api/v1/openapi.json"))["info"]["version"]
        # The client's own command, by the same word.
        listed = installed.run(
            installed.script, "runs", "--json", AGENTSTATE_URL=url, AGENTSTATE_API_KEY=key
        )
        assert listed.returncode == 0, listed.stderr
        assert demo.wait(SECONDS) == 0, output.read_text()
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)
    assert "holds   feed in every run's order" in output.read_text()
    assert (installed.state / "log" / "web.log").exists()
    assert installed.files() == before, "nothing is written where the code lies"


@pytest.mark.long
@pytest.mark.many
def test_what_a_wheel_has_not_is_not_offered(installed):
    mistaken = installed.run(installed.script, "demo", "--scenario", "no-such-scenario")
    assert "no-such-scenario" in mistaken.stderr  # looked for among those of the wheel
    assert mistaken.returncode == 2
    told = installed.run(installed.script, "demo", "--help")
    assert (told.returncode, told.stdout.split()[:3]) == (0, ["usage:", "agentstate", "demo"])
    python = str(installed.folder / "venv" / "bin" / "python")
    whole = installed.run(python, "-m", "agentstate", "--help").stdout
    assert "torture" not in whole
    assert str(installed.state) in whole
    wrong = installed.run(installed.script, "torture")
    assert wrong.returncode == 2
    assert "invalid choice" in wrong.stderr


@pytest.mark.long
@pytest.mark.many
def test_workers_are_tested_against_an_installed_server(installed):
    """agentstate_client.testing finds the server that pip installed, and leaves `tasks` alone."""
    script = (
        "from agentstate_client.testing import running_server\n"
        "import sys\n"
        "with running_server() as server:\n"
        "    with server.client() as client:\n"
        "        client.create(task='say hello', key='1')\n"
        "        print(client.run('1').read().status)\n"
        "assert not any(path.endswith('parts') for path in sys.path), sys.path\n"
    )
    python = str(installed.folder / "venv" / "bin" / "python")
    done = installed.run(python, "-c", script)
    assert (done.returncode, done.stdout) == (0, "pending\n"), done.stderr


@pytest.mark.long
@pytest.mark.many
def test_the_client_alone_says_whose_command_it_is(open_folder, wheels):
    made = install(open_folder, "--no-index", "--no-deps", str(wheels[0]))
    (site,) = (open_folder / "venv" / "lib").glob("python*/site-packages")
    (site / "what-it-requires.pth").write_text(sysconfig.get_path("purelib") + "\n")
    told = made.run(made.script, "demo")
    assert (told.returncode, told.stdout) == (2, "")
    assert "pip install agentstate" in told.stderr


@pytest.mark.long
@pytest.mark.deep
def test_the_wheels_bring_what_they_require(open_folder, wheels):
    """From the package index, as somebody installs them: within their own bounds of versions."""
    made = install(open_folder, *map(str, wheels))
    try:
        python = str(made.folder / "venv" / "bin" / "python")
        checked = made.run(python, "-m", "pip", "check")
        assert checked.returncode == 0, checked.stdout
        done = made.run(made.script, "demo", "--port", "0", "--seconds", "10")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        EmbeddedPostgres(made.state / "postgres").stop()
