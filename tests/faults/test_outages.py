"""`./run outages`: every part works again by itself, nothing is lost, and nothing is left of it."""

import re

import pytest

from agentstate.cli.arguments import OUTAGES, parser
from bench.outages import outages
from bench.outages.command import compare
from bench.outages.probes import Part
from tests.bootstrap.sites import run
from tests.faults.test_torture import left_behind

PARTS = (
    "web: read",
    "web: write",
    "one process: read",
    "one process: write",
    "a stream",
    "a stream, one process",
    "the Python client",
    "the feed",
    "beat",
    "worker",
)
# How soon depends on what else the machine does; that they are back does not.
PATIENTLY = ("--within-seconds", "60")


def came_back(folder, *chosen):
    home = folder / "home"
    done = run(home, "outages", *chosen, *PATIENTLY)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for part in PARTS:
        row = re.search(rf"^  {part}((?: +[\d.]+){{{len(chosen)}}})(?: |$)", done.stdout, re.M)
        assert row, f"{part}\n{done.stdout}"
    assert " 0 lost, 0 doubled, 0 refused and yet there" in done.stdout
    assert list((home / "outages").iterdir()) == []
    assert left_behind(str(home).encode()) == []
    return done.stdout


@pytest.mark.long
def test_after_a_restart_and_when_connections_fall_silent_all_is_back(open_folder):
    told = came_back(open_folder, "restarted", "silent")
    assert re.search(r" [1-9]\d* leases outlived an outage and were still held", told)


@pytest.mark.long
@pytest.mark.deep
def test_after_a_crash_a_minute_away_a_recovery_and_ended_connections_all_is_back(open_folder):
    told = came_back(open_folder, "crashed", "away", "starting", "recovery", "ended")
    assert re.search(r" [1-9]\d* leases outlived an outage and were still held, [1-9]", told)


def test_what_can_be_asked_for_is_what_can_be_done():
    assert tuple(outages.HARMS) == OUTAGES
    assert parser().parse_args(["outages"]).outages == []
    assert parser().parse_args(["outages", "away"]).away_seconds == 60


def test_what_is_lost_doubled_or_there_against_the_answer_is_found():
    assert compare([1, 2, 4], [1, 2, 4], [3]) == ([], [], [])
    assert compare([1, 2, 2, 3], [1, 2, 4], [3]) == ([4], [2], [3])


def test_a_part_is_back_with_the_first_answer_to_what_was_asked_since():
    part = Part("x", worked=[(1.0, 6.0), (5.0, 9.0), (5.5, 7.0)])
    assert part.again_after(5.0) == 2.0
    assert part.again_after(6.0) is None
