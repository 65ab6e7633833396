"""`./run test-api-fuzz` itself: a short run finds nothing, and nothing of it is left."""

import re

import pytest

from tests.bootstrap.sites import run


@pytest.mark.long
@pytest.mark.deep
def test_input_made_from_openapi_finds_nothing(open_folder):
    home = open_folder / "home"
    done = run(home, "test-api-fuzz", "--seed", "7", "--examples", "1")

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = dict(re.findall(r"^(\w+) +(.*)$", done.stdout, re.MULTILINE))
    assert told["findings"] == "0"
    assert told["audit"] == "0 differences"
    assert int(told["cases"].split()[0].replace(",", "")) > 1_000
    assert list((home / "fuzz").iterdir()) == []
