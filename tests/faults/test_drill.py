"""`./run drill`: each incident is shown, told and resolved, and nothing is left of it."""

import re

import pytest

from agentstate.cli.arguments import INCIDENTS, parser
from bench.drill import incidents
from bench.drill.command import lines, seconds
from bench.drill.incidents import Course
from tests.bootstrap.sites import environment, run
from tests.faults.test_torture import left_behind

ROW = r"^  {name} +([\d.]+) s +(?:[\d.]+ s|before) +([\d.]+) s   \S"


@pytest.mark.long
@pytest.mark.deep
def test_each_incident_is_shown_told_and_resolved(open_folder):
    home = open_folder / "home"
    done = run(home, "drill")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for name in INCIDENTS:
        assert re.search(ROW.format(name=name), done.stdout, re.MULTILINE), done.stdout
    assert list((home / "drill").iterdir()) == []
    assert left_behind(str(home).encode()) == []


def test_what_can_be_asked_for_is_what_can_be_staged():
    assert tuple(incidents.INCIDENTS) == INCIDENTS
    assert parser().parse_args(["drill"]).incidents == []
    assert parser().parse_args(["drill", "hot-run"]).incidents == ["hot-run"]


def test_without_a_name_of_ones_own_no_given_site_is_harmed(tmp_path):
    done = run(tmp_path, "drill", "dead-holder", "--url", "http://127.0.0.1:1")

    assert done.returncode == 1
    assert "AGENTSTATE_KEY, AGENTSTATE_USER, AGENTSTATE_PASSWORD not set" in done.stderr
    assert "AGENTSTATE_KEY" not in environment(tmp_path)


def test_what_did_not_come_fails_the_drill_and_is_said():
    fine = Course("hot-run", "", 1.0, 2.0, 3.0, "the brake")
    before = Course("hot-run", "", 1.0, 0.1, 3.0, "the brake", before=True)
    late = Course("dry-budget", "", 1.0, None, 3.0, "the operator")
    odd = Course("hot-run", "", 1.0, 2.0, 3.0, "the brake", trouble=["it was odd"])

    assert [one.passed for one in (fine, before, late, odd)] == [True, True, False, False]
    told = list(lines([fine, before, late, odd]))
    assert told[2].split() == ["hot-run", "1.0", "s", "2.0", "s", "3.0", "s", "the", "brake"]
    assert "before" in told[3]
    assert "never" in told[4]
    assert told[-1] == "  hot-run: it was odd"
    assert list(lines([])) == []
    assert seconds(None) == "never"
