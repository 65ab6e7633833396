"""docs/proof.md names tests, faults and mutations: each is there, and none is missing in it."""

import re
from itertools import takewhile

import pytest

from bench import mutations
from bench.mutations import MUTATIONS, ROOT
from bench.torture.faults import DECK

NAMED = re.compile(r"`((?:client/)?tests/[\w/]+\.py)` ([a-z0-9 ]*[a-z0-9]|\(any of the file\))")
ANY = "(any of the file)"
OUTCOMES = [f"T{n}" for n in range(1, 25)]


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "proof.md").read_text()


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of the first table under a title, without its head."""
    lines = page.split(f"\n## {title}\n", 1)[1].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    table = list(takewhile(lambda line: line.startswith("|"), lines[start:]))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def sentences(path: str) -> set[str]:
    """The names of a file's tests, as a person says them."""
    names = re.findall(r"^(?:async )?def test_(\w+)\(", (ROOT / path).read_text(), re.MULTILINE)
    return {name.replace("_", " ") for name in names}


def test_each_test_that_it_names_exists(page):
    in_tables = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    named = NAMED.findall(in_tables)
    missing = [
        (path, sentence)
        for path, sentence in named
        if not (ROOT / path).exists() or (sentence != ANY and sentence not in sentences(path))
    ]
    assert missing == []
    assert len(named) > 80


def test_each_outcome_is_there_with_a_test(page):
    found = rows(page, "Each outcome")
    assert [row[0] for row in found] == OUTCOMES
    assert [row[0] for row in found if not NAMED.search(row[2])] == []


def test_each_fault_that_a_trial_knows_is_told_and_none_that_it_does_not(page):
    done = {name for row in rows(page, "What is done to it") for name in row[0].split(", ")}
    assert done == set(DECK)
    shown = [row for row in rows(page, "Each fault") if not NAMED.search(row[1])]
    assert [row[1] for row in shown if row[1].removeprefix("trial: ") not in DECK] == []


def test_each_mutation_is_there_with_the_test_that_notices_it(page):
    told = {
        row[0]: NAMED.findall(row[1]) for row in rows(page, "What breaks when a rule is broken")
    }
    assert list(told) == [mutation.name for mutation in MUTATIONS]
    for mutation in MUTATIONS:
        path, _, name = mutation.test.split()[0].partition("::")
        sentence = name.removeprefix("test_").replace("_", " ") or ANY
        assert (path, sentence) in told[mutation.name], mutation.name
    assert f"{len(MUTATIONS)} were noticed" in page


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_each_mutation_still_fits_the_code(mutation):
    for path, old, new in ((mutation.path, mutation.old, mutation.new), *mutation.also):
        assert (mutations.ROOT / path).read_text().count(old) == 1
        assert old != new
