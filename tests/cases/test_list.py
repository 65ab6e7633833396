"""docs/cases.md lists the cases with their tests: all are there, and each test says its number."""

import ast
import re
from functools import cache

from bench.guards import guards
from tests.faults.test_proof import NAMED, ROOT
from tests.faults.test_proof import rows as rows_of
from tests.pooler import NOT_BEHIND_A_POOLER

ROW = re.compile(r"^\| (O-\d\d) \| (.+) \| (.+) \|$", re.MULTILINE)
SCRIPT = re.compile(r"`python -m ([a-z._]+)")


@cache
def page() -> str:
    return (ROOT / "docs" / "cases.md").read_text()


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall(page().partition("\n## Guards\n")[0])


@cache
def sentences_of(path: str) -> dict[str, str]:
    """Each test of a file, as a sentence, with its docstring and the file's."""
    tree = ast.parse((ROOT / path).read_text())
    module = ast.get_docstring(tree) or ""
    return {
        node.name.removeprefix("test_").replace("_", " "): f"{ast.get_docstring(node)} {module}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "test_" in node.name
    }


def test_each_case_is_there_once_with_a_test_that_says_its_number():
    assert [case for case, _, _ in rows()] == [f"O-{n:02}" for n in range(1, 49)]
    for case, _, tests in rows():
        named = NAMED.findall(tests)
        assert named, case
        for path, sentence in named:
            assert sentence in sentences_of(path), (case, path, sentence)
            assert case in sentences_of(path)[sentence], (case, path, sentence)


def test_each_test_of_a_case_is_in_the_list():
    listed = {name for _, _, tests in rows() for name in NAMED.findall(tests)}
    for file in (ROOT / "tests" / "cases").rglob("test_*.py"):
        path = str(file.relative_to(ROOT))
        for sentence, told in sentences_of(path).items():
            if re.search(r"O-\d\d", told):
                assert (path, sentence) in listed


def test_each_script_that_is_named_is_there():
    for _, what, _ in rows():
        for module in SCRIPT.findall(what):
            assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module


def test_what_is_not_asked_behind_a_pooler_is_still_there():
    """pytest passes over a name that it does not know without a word."""
    for name in NOT_BEHIND_A_POOLER:
        path, _, test = name.partition("::")
        sentence = test.removeprefix("test_").partition("[")[0].replace("_", " ")
        assert not sentence or sentence in sentences_of(path), name


def test_each_case_has_a_guard_that_still_fits_the_code_and_a_test_of_its_own_that_misses_it():
    """`python -m bench.guards` takes each out. Here: that it could, and that it is told."""
    of_case = {case: NAMED.findall(tests) for case, _, tests in rows()}
    told = [(case, gone, *NAMED.findall(test)) for case, gone, test in rows_of(page(), "Guards")]
    found = []
    for guard in guards():
        mutation = guard.mutation
        for path, old, new in ((mutation.path, mutation.old, mutation.new), *mutation.also):
            assert (ROOT / path).read_text().count(old) == 1, (mutation.name, path)
            assert old != new
        path, _, name = mutation.test.partition("::")
        named = (path, name.removeprefix("test_").replace("_", " "))
        assert named in of_case[guard.case], mutation.name
        found.append((guard.case, mutation.name.removeprefix(f"{guard.case} "), named))
    assert told == found
    assert {case for case, *_ in found} == set(of_case)


def test_what_our_own_sweeps_found_is_listed_with_tests_that_say_its_number():
    told = re.findall(
        r"^\| (S-\d{3}) \|.*\| (.+) \|$", (ROOT / "docs" / "sweeps.md").read_text(), re.MULTILINE
    )
    listed = {(number, *name) for number, tests in told for name in NAMED.findall(tests)}
    assert {number for number, *_ in listed} == {number for number, _ in told}
    assert all(number in sentences_of(path)[sentence] for number, path, sentence in listed)
    said = {
        (number, str(file.relative_to(ROOT)), sentence)
        for folder in ("tests", "client/tests")
        for file in (ROOT / folder).rglob("test_*.py")
        for sentence, text in sentences_of(str(file.relative_to(ROOT))).items()
        for number in re.findall(r"S-\d{3}", text)
    }
    assert said == listed
