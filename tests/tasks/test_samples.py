"""What the fleet plays back: our own runs always, trajectories where a folder of them is."""

import json

import pytest

from tasks.samples import read_samples
from tasks.simulate import __main__ as command

STEP = {"action": "ls", "observation": "clock.py"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTSTATE_SAMPLES", str(tmp_path))
    return tmp_path


def read():
    warnings = []
    return {draft.key for draft in read_samples(warn=warnings.append)}, warnings


def test_our_own_runs_are_there_without_any_folder(folder):
    keys, warnings = read()

    assert keys == {"invoice-rounding", "failed-uploads", "dependency-upgrade"}
    assert warnings == []


def test_trajectories_of_the_named_folder_come_besides(folder):
    (folder / "clock.traj").write_text(json.dumps({"trajectory": [STEP]}))

    keys, _ = read()
    assert "clock" in keys


def test_one_that_cannot_be_read_is_told_of_and_the_others_are_taken(folder):
    (folder / "a.traj").write_text("{")
    (folder / "b.traj").write_bytes(b"\xff")
    (folder / "c.traj").write_text(json.dumps({"trajectory": [STEP]}))

    keys, warnings = read()
    assert "c" in keys
    assert [w.split(" left out: ")[0] for w in warnings] == ["sample a.traj", "sample b.traj"]


def test_a_named_folder_that_is_not_there_ends_the_fleet_with_its_name(monkeypatch, capsys):
    monkeypatch.setenv("AGENTSTATE_SAMPLES", "/nowhere/at/all")
    monkeypatch.setenv("AGENTSTATE_KEY", "as_x")

    assert command.main(["--url", "http://127.0.0.1:1"]) == 2
    assert "AGENTSTATE_SAMPLES=/nowhere/at/all: there is no such folder" in capsys.readouterr().err
