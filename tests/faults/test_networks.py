"""`./run networks`: parts on hosts of their own, and what networks do between them."""

import os
import re

import pytest

from agentstate.cli.arguments import parser
from agentstate.cli.output import CommandFailure
from bench.networks import hosts
from bench.networks.command import KINDS, PAIRS
from tests.bootstrap.sites import run
from tests.faults.test_torture import left_behind


@pytest.mark.long
@pytest.mark.deep
def test_whatever_the_network_does_every_promise_is_kept(open_folder):
    home = open_folder / "home"
    done = run(home, "networks", "--seed", "7", "--within-seconds", "60")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    counts = dict(re.findall(r"^ +(\w[\w ]*?) {2,}([\d,]+)(?: |$)", done.stdout, re.MULTILINE))
    assert int(counts["faults"]) == len(PAIRS) * len(KINDS)
    assert int(counts["acknowledged"].replace(",", "")) > 500
    assert {counts[name] for name in ("lost", "doubled", "holes", "overlaps", "audit")} == {"0"}
    assert re.search(r" [1-9][\d,]* lost or cut off, [1-9][\d,]* delayed", done.stdout)
    assert list((home / "networks").iterdir()) == []
    assert left_behind(str(home).encode()) == []
    assert not [line for line in hosts.ip("netns", "list").splitlines() if "networks" in line]


def test_whoever_may_not_make_hosts_is_told_what_is_needed(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CommandFailure, match="root"):
        parser().parse_args(["networks"]).command(parser().parse_args(["networks"]))


def test_where_there_is_no_iproute2_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandFailure, match="apt-get install iproute2"):
        hosts.check_what_is_needed()
