"""docs/cases.md lists the cases with their tests: all are there, and each test says its number."""

import ast
import re
from functools import cache

from tests.faults.test_proof import NAMED, ROOT

ROW = re.compile(r"^\| (O-\d\d) \| (.+) \| (.+) \|$", re.MULTILINE)
SCRIPT = re.compile(r"`python -m ([a-z._]+)")


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall((ROOT / "docs" / "cases.md").read_text())


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
