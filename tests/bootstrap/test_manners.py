"""What stands around the code: versions, changelog, licence, and where to change what."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
import yaml
from agentstate_client.version import VERSION

from agentstate import __version__
from agentstate.cli import arguments
from agentstate.cli.checks import CHECKS
from tests.bootstrap.conftest import ROOT

HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) · (\d{4}-\d\d-\d\d)")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_both_packages_and_the_changelog_have_one_number():
    assert __version__ == VERSION
    first, *released = HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    assert first == "Unreleased"
    found = [RELEASE.fullmatch(one) for one in released]
    assert all(found), released
    versions = [tuple(map(int, one.groups()[:3])) for one in found if one]
    assert versions == sorted(versions, reverse=True)
    assert not versions or numbers(__version__) >= versions[0]


def test_the_server_takes_the_client_of_its_own_number():
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    (bounds,) = (one for one in wanted if one.startswith("agentstate-client"))
    least, below = re.findall(r"[\d.]+", bounds)
    assert numbers(least) <= numbers(VERSION) < (*numbers(below), 0)


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_both_packages_are_under_one_licence(name):
    assert (ROOT / name).read_bytes() == (ROOT / "client" / name).read_bytes()
    assert name != "LICENSE" or "Version 2.0, January 2004" in (ROOT / name).read_text()


def test_every_path_of_where_do_i_change_x_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.split("## Where do I change X")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    named = [path for row in rows for path in re.findall(r"`([^`]+)`", row) if "./run" not in path]
    assert len(named) > 2 * len(rows) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_hooks_run_checks_that_there_are_and_fetch_nothing():
    told = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in told["repos"]] == ["local"]
    run = set()
    for hook in told["repos"][0]["hooks"]:
        program, *words = shlex.split(hook["entry"])
        assert (program, hook["language"]) == ("./run", "system")
        run |= set(arguments.parser().parse_args(words).only)
    assert run == set(CHECKS)


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")))
def test_an_issue_template_asks_for_something(path):
    told = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        return
    asked = [part for part in told["body"] if part["type"] != "markdown"]
    assert {"name", "description"} <= told.keys()
    assert any(part.get("validations", {}).get("required") for part in asked)
    assert all(part["attributes"]["label"] for part in asked)
