"""The pages of docs/: what they link to is there, what they name exists, what is made is as made.

The site that `./run docs` builds of them is looked at in tests/browser/test_docs_site.py.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from agentstate.api.management.commands import write_api_docs
from agentstate.cli.arguments import parser
from docs.site import links, nav, pictures, stage
from docs.site.drawing import COLOURS
from tests.bootstrap.conftest import ROOT

DOCS = ROOT / "docs"
# number, question, where the answer is, which words stand there, what to search for
QUESTION = re.compile(r"^\| (\d+) \| (.+?) \| \[.+?\]\((.+?)\) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NAMED = re.compile(r"`((?:client/)?(?:tests|integrations)/[\w/]+\.py)` ([a-z0-9 ]*[a-z0-9])")
COVERED = re.compile(r"^\| ([AD]-\d\d) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: Path, anchor: str) -> str:
    """What stands under a heading, with the smaller headings below it; "" when it is not there."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, level, named = [], 0, iter(stage.anchors("\n".join(lines)))
    inside = False
    for line in lines:
        inside ^= line.startswith("```")
        heading = None if inside else stage.HEADING.match(line)
        if heading:
            here = next(named)[1]
            if level and len(heading[1]) <= level:
                break
            level = level or (here == anchor and len(heading[1]))
        if level:
            found.append(line)
    return "\n".join(found)


@cache
def sentences(path: str) -> set[str]:
    """The names of a file's tests, as a person says them."""
    text = (ROOT / path).read_text(encoding="utf-8")
    names = re.findall(r"^(?:async )?def test_(\w+)\(", text, re.MULTILINE)
    return {name.replace("_", " ") for name in names}


def missing_tests(text: str) -> list[tuple[str, str]]:
    return [
        (path, sentence)
        for path, sentence in NAMED.findall(text)
        if not (ROOT / path).exists() or sentence not in sentences(path)
    ]


# --- the thirty questions ------------------------------------------------------------------------


def test_there_are_thirty_questions_ten_of_each():
    found = [int(number) for number, *_ in QUESTION.findall(text_of("questions.md"))]
    assert found == list(range(1, 31))
    for part in text_of("questions.md").split("\n## ")[1:]:
        assert len(QUESTION.findall(part)) == 10


def test_each_question_leads_to_its_answer_and_its_words_stand_there():
    lost = []
    for number, _, target, words, _ in QUESTION.findall(text_of("questions.md")):
        page, _, anchor = target.partition("#")
        assert anchor, f"question {number} leads to a page and to no section of it"
        told = section(DOCS / page, anchor).lower().replace("`", "")
        lost += [
            (number, target, word)
            for word in words.replace("`", "").split(", ")
            if word.lower() not in told
        ]
    assert lost == []


def test_a_section_ends_where_the_next_of_its_size_begins():
    told = section(DOCS / "concepts" / "conflicts.md", "one-policy-per-field")
    assert told.startswith("## One policy per field")
    assert "lock_timeout" not in told
    assert "## Compare" not in told
    assert section(DOCS / "concepts" / "conflicts.md", "no-such") == ""


# --- what is named -------------------------------------------------------------------------------


def test_each_sentence_of_the_two_texts_is_covered_by_tests_that_exist():
    rows = COVERED.findall(text_of("coverage.md"))
    for letter, least in (("A", 35), ("D", 96)):
        numbers = [row[0] for row in rows if row[0].startswith(letter)]
        assert numbers == [f"{letter}-{n:02}" for n in range(1, len(numbers) + 1)]
        assert len(numbers) >= least
    assert missing_tests(text_of("coverage.md")) == []
    bare = [row[0] for row in rows if not NAMED.search(row[3])]
    assert bare == ["A-35"]  # what is not here at all: memory


@pytest.mark.parametrize("page", ["texts.md", "one-write.md", "compare.md", "what-it-is.md"])
def test_each_test_that_a_page_names_exists(page):
    assert missing_tests(text_of(page)) == []


def test_a_test_that_is_not_there_would_be_found():
    assert missing_tests("`tests/bootstrap/test_docs.py` nobody wrote this one") != []


def test_one_write_passes_through_files_that_are_there():
    told = text_of("one-write.md")
    paths = set(re.findall(r"\]\(\.\./([^)#]+)\)", told))
    assert len(paths) > 45
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    for named in re.findall(r"\[`([\w./]+/[\w.]+)`\]\(\.\./([^)#]+)\)", told):
        assert named[1].endswith(named[0]), named


def test_each_command_that_a_page_names_is_one():
    commands = set(parser().format_help().split()) | {"manage", "import", "export"}
    for page in ("evidence.md", "how-to/platform.md", "how-to/operator.md", "quickstart.md"):
        named = set(re.findall(r"\./run ([a-z][a-z0-9-]*)", text_of(page)))
        assert named - commands == set(), page


# --- links and the navigation --------------------------------------------------------------------


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> tuple[Path, stage.Site]:
    folder = tmp_path_factory.mktemp("docs")
    return folder, stage.stage(folder)


def test_each_link_of_each_page_leads_to_a_file_and_a_section(staged):
    _, site = staged
    pages = site.sources.values()
    known = {page: {anchor for _, anchor in stage.anchors(page.read_text())} for page in pages}
    lost = []
    for page in known:
        prose = stage.CODE.sub("", "\n".join(stage._outside_fences(page.read_text())))
        for _, _, target, anchor in stage.LINK.findall(prose):
            if "://" in target or not anchor:
                continue
            there = (page.parent / target).resolve() if target else page
            if there in known and anchor[1:] not in known[there]:
                lost.append(f"{page.name}: {target}{anchor}")
    assert lost == []


def test_every_page_is_in_the_navigation_or_under_more(staged):
    folder, site = staged
    told = (folder / "mkdocs.yml").read_text()
    assert {path for path in site.sources if f'"{path}"' not in told} == {"project.md", "bench.md"}


def test_a_new_integration_needs_no_line(tmp_path):
    for name, title in (("celery", "Celery"), ("atif", "Formats")):
        page = tmp_path / "integrations" / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {title}\n")
    (tmp_path / "decisions").mkdir()
    found = dict(nav.sections(tmp_path))
    assert found["Integrations"] == [
        ("Celery", "integrations/celery.md"), ("Formats", "integrations/atif.md"),
    ]  # fmt: skip


def test_a_link_that_leads_nowhere_stops_the_build():
    page = DOCS / "README.md"
    with pytest.raises(stage.Broken, match=r"nowhere\.md is not there"):
        stage._linked("[a](nowhere.md)", page, stage.pages())


def test_the_stage_keeps_code_and_leads_links_to_the_site():
    site, page = stage.pages(), DOCS / "how-to" / "worker.md"
    text = stage._linked(
        "[a](../../client/README.md#workers) `[b](../api.md)` [`c`](../../agentstate/wire.py)",
        page, site,
    )  # fmt: skip
    assert text == (
        "[a](../client-guide.md#workers) `[b](../api.md)` [`c`](../source/agentstate/wire.py.md)"
    )
    assert site.shown == {ROOT / "agentstate" / "wire.py"}


def test_markdown_that_is_no_page_is_shown_as_a_file():
    site = stage.pages()
    notes = stage._linked("[a](../bench/notes/how.md)", DOCS / "README.md", site)
    assert notes == "[a](source/bench/notes/how.md.md)"


def test_a_built_page_with_a_dead_link_or_something_from_elsewhere_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="a/#here">1</a><a href="a/#gone">2</a><a href="b/">3</a>'
        '<img src="https://elsewhere.example/x.png"><script src="gone.js"></script>'
        '<a href="https://elsewhere.example/">only a link</a>'
    )
    (tmp_path / "a" / "index.html").write_text('<p id="here"></p><a href="../#top">back</a>')
    assert sorted(links.findings(tmp_path)) == [
        "index.html: a/#gone has no such section",
        "index.html: b/ leads nowhere",
        "index.html: loads gone.js, which is not there",
        "index.html: loads https://elsewhere.example/x.png from elsewhere",
    ]


# --- what is made --------------------------------------------------------------------------------


def test_the_api_page_is_as_openapi_makes_it():
    assert text_of("api.md") == write_api_docs.document(), "run: ./run manage write_api_docs"


def test_the_pictures_are_as_they_are_drawn():
    drawn = {f"{name}.svg": sheet.svg() for name, sheet in pictures.drawn().items()}
    kept = {p.name: p.read_text(encoding="utf-8") for p in pictures.FOLDER.glob("*.svg")}
    assert kept == drawn, "run: PYTHONPATH=. .venv/bin/python docs/site/pictures.py"


def test_pictures_have_their_colours_in_files_and_on_the_site():
    css = (DOCS / "site" / "site.css").read_text()
    for name, (light, dark) in COLOURS.items():
        assert css.index(f"--p-{name}: {light}") < css.index(f"--p-{name}: {dark}")
    for sheet in pictures.drawn().values():
        assert "prefers-color-scheme:dark" in sheet.svg()
        assert "<style>" not in stage.inlined(pictures.FOLDER / f"{sheet.name}.svg")


# --- code on the pages ---------------------------------------------------------------------------

CODE_OF = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a name stands for in the code of these pages: its class in the client's reference.
STANDS_FOR = {
    "client": "Client", "run": "Run", "hold": "Hold", "effect": "Effect", "change": "Change",
}  # fmt: skip


def test_code_on_the_pages_calls_what_the_client_has():
    pages = [DOCS / "quickstart.md", *DOCS.glob("how-to/*.md"), *DOCS.glob("concepts/*.md")]
    blocks = [block for page in pages for block in CODE_OF.findall(page.read_text())]
    assert len(blocks) > 7
    used = {
        (STANDS_FOR[node.value.id], node.attr)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in STANDS_FOR
    }
    assert len(used) > 15
    told = {name: section(DOCS / "client.md", name.lower()) for name in STANDS_FOR.values()}
    assert [
        (name, attribute)
        for name, attribute in sorted(used)
        if not re.search(rf"\b{attribute}\b", told[name])
    ] == []
