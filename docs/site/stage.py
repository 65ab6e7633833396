"""The pages as the site's builder wants them, made from those that the repository shows.

In the repository a link leads to a file, and a picture to a file. On the site the same text stands
with: links to pages of the site; a page of its own for each file of the code that is linked; the
headings' anchors as the repository's view makes them; our pictures within the page, so that they
follow its light and dark. Standard library alone: tests do this without the builder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from docs.site.nav import sections

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HERE = DOCS / "site"
# Pages that lie elsewhere in the repository, and what they are called on the site.
ELSEWHERE = {
    "README.md": "project.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "client/README.md": "client-guide.md",
    "bench/README.md": "bench.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]+)?\)")
HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^(?:[-*]|\d+\.) ")
MARKUP = re.compile(r'(<img )src="([^":]+)"')
CODE = re.compile(r"(`+)(?:(?!\1).)*?\1(?!`)", re.DOTALL)
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".yaml": "yaml", ".json": "json"}


# What is hidden beside a page: the first one leads everywhere by itself; wide tables need the room.
HIDDEN = {"index.md": "navigation", "questions.md": "toc", "coverage.md": "toc", "texts.md": "toc",
          "cases.md": "toc"}  # fmt: skip
# How high pages stand in the search, by the beginning of their paths; all else 1. Who searches
# wants to do something first, then to look something up, and seldom to read why it was decided.
BOOSTS = {
    "how-to/": 4, "quickstart": 4, "concepts/": 3, "compare": 3, "evidence": 3, "questions": 3,
    "client.md": 0.5, "proof": 0.5, "cases": 0.4,
    "decisions/": 0.2, "changelog": 0.2, "coverage": 0.2, "project": 0.2, "bench": 0.2,
}  # fmt: skip


class Broken(Exception):
    """A link or a page that leads nowhere: the text says which and where it stands."""


@dataclass
class Site:
    """sources: each page of the site by its path there, with the file that it is made from.
    shown: files of the code that are linked, and so have pages. assets: pictures and the like."""

    sources: dict[str, Path] = field(default_factory=dict)
    shown: set[Path] = field(default_factory=set)
    assets: set[Path] = field(default_factory=set)


def site_path(source: Path) -> str:
    """Where a page of the repository is on the site. source: below ROOT."""
    name = source.relative_to(ROOT).as_posix()
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    below = source.relative_to(DOCS).as_posix()
    return re.sub(r"(^|/)README\.md$", r"\1index.md", below)


def pages() -> Site:
    """Every page, named in the navigation or not."""
    found = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ELSEWHERE)]
    return Site(sources={site_path(page): page for page in found if page.exists()})


def anchor_of(heading: str) -> str:
    """As the repository's view names a heading."""
    told = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", told.lower()))


def anchors(text: str) -> list[tuple[str, str]]:
    """(heading, anchor) in their order; the second of one name has -1, and so on."""
    seen: Counter[str] = Counter()
    found = []
    for line in _outside_fences(text):
        if told := HEADING.match(line):
            base = anchor_of(told[2])
            found.append((told[2], f"{base}-{seen[base]}" if seen[base] else base))
            seen[base] += 1
    return found


def _outside_fences(text: str) -> list[str]:
    lines, inside = [], ""
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fence and (not inside or fence[1] == inside):
            inside = "" if inside else fence[1]
        elif not inside:
            lines.append(line)
    return lines


def staged(page: Path, site: Site) -> str:
    """The page's text for the builder. Notes in `site` which files it shows. Raises Broken."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```mermaid\n.*?^```$", _status_picture, text, flags=re.DOTALL | re.MULTILINE)
    named = iter(anchors(text))
    lines: list[str] = []
    inside, in_list = "", False
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fence and (not inside or fence[1] == inside):
            inside = "" if inside else fence[1]
        elif not inside:
            before = lines[-1] if lines else ""
            in_list = bool(ITEM.match(line)) or (in_list and bool(before.strip()))
            if _begins_a_block(line, before, lines):
                lines.append("")
            if HEADING.match(line):
                line = f"{line.rstrip()} {{#{next(named)[1]}}}"
        lines.append(line)
    return _linked("\n".join(lines) + "\n", page, site)


def _status_picture(_: re.Match[str]) -> str:
    """In the place of what is drawn from elsewhere: the same moves, from states.py as well."""
    return "![The legal moves between statuses](img/concepts/statuses.svg)"


def _begins_a_block(line: str, before: str, lines: list[str]) -> bool:
    """Whether the builder needs an empty line here that the repository's view does not."""
    if not before.strip():
        return False
    if line.startswith("|"):
        return not before.startswith("|")
    if not ITEM.match(line):
        return False
    for earlier in reversed(lines):  # up to the last empty line: is this a list already?
        if not earlier.strip():
            return True
        if ITEM.match(earlier):
            return False
    return True


def _linked(text: str, page: Path, site: Site) -> str:
    """The same with each link leading to a page of the site, code left as it stands."""
    parts = re.split(r"(^```.*?^```[ ]*$)", text, flags=re.DOTALL | re.MULTILINE)
    # The second word names a block for its test; the builder knows the first one alone.
    return "".join(
        re.sub(r"^(```\w+) .*", r"\1", part)
        if part.startswith("```")
        else _outside_code(part, page, site)
        for part in parts
    )


def _outside_code(text: str, page: Path, site: Site) -> str:
    # Links whose words are code stay links: what is within a link is taken as one piece first.
    kept: list[str] = []

    def put_away(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\x00{len(kept) - 1}\x00"

    text = CODE.sub(put_away, text)
    text = LINK.sub(lambda link: _led(link, page, site), text)
    text = MARKUP.sub(lambda image: _led_markup(image, page, site), text)
    return re.sub(r"\x00(\d+)\x00", lambda mark: kept[int(mark[1])], text)


def _led(link: re.Match[str], page: Path, site: Site) -> str:
    picture, words, target, anchor = link[1], link[2], link[3], link[4] or ""
    if "://" in target or target.startswith(("mailto:", "/")) or not target:
        return link[0]
    found = (page.parent / target).resolve()
    where = f"{page.relative_to(ROOT)}: {target}"
    if not found.exists() or not found.is_relative_to(ROOT):
        raise Broken(f"{where} is not there")
    if picture and found.parent.name == "concepts" and found.suffix == ".svg":
        return inlined(found)
    here = site_path(page)
    if found.is_dir() and (found / "README.md").exists():
        found = found / "README.md"
    is_page = found.is_relative_to(DOCS) or found.relative_to(ROOT).as_posix() in ELSEWHERE
    if found.suffix == ".md" and is_page:
        there = site_path(found)
    elif found.is_relative_to(DOCS) and found.is_file():
        site.assets.add(found)
        there = found.relative_to(DOCS).as_posix()
    else:
        site.shown.add(found)
        there = shown_path(found)
    way = os.path.relpath(there, os.path.dirname(here) or ".")
    return f"{picture}[{words}]({way}{anchor})"


def _led_markup(image: re.Match[str], page: Path, site: Site) -> str:
    """An <img> of its own: the builder leaves it as it is, a folder below where the page was."""
    found = (page.parent / image[2]).resolve()
    if not found.exists():
        raise Broken(f"{page.relative_to(ROOT)}: {image[2]} is not there")
    site.assets.add(found)
    here = site_path(page).removesuffix(".md").removesuffix("index")
    return f'{image[1]}src="{os.path.relpath(found.relative_to(DOCS), here or ".")}"'


def inlined(picture: Path) -> str:
    """The picture within the page; its colours are the page's (site.css)."""
    drawn = re.sub(r"<style>.*?</style>\n?", "", picture.read_text(encoding="utf-8"))
    return f'<figure class="as-figure">{drawn.replace(chr(10), "")}</figure>'


def shown_path(source: Path) -> str:
    return f"source/{source.relative_to(ROOT).as_posix()}.md"


def shown(source: Path) -> str:
    """A page that shows a file of the repository, or what is in a folder."""
    name = source.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if source.is_dir():
        names = sorted(entry.name + "/" * entry.is_dir() for entry in source.iterdir())
        return head + "".join(f"- `{one}`\n" for one in names if one != "__pycache__/")
    text = source.read_text(encoding="utf-8")
    ticks = "`" * max(3, 1 + max((len(t) for t in re.findall(r"`+", text)), default=0))
    return f"{head}{ticks}{LANGUAGES.get(source.suffix, 'text')}\n{text.rstrip()}\n{ticks}\n"


def configuration() -> dict[str, Any]:
    """The builder's configuration, with the navigation."""
    told: dict[str, Any] = json.loads((HERE / "site.json").read_text(encoding="utf-8"))
    nav: list[Any] = [{"Home": "index.md"}]
    for name, entries in sections(DOCS):
        listed = []
        for title, path in entries:
            source = (DOCS / path).resolve()
            if not source.exists():
                raise Broken(f"docs/site/nav.py names {path}, which is not there")
            listed.append({title: site_path(source)})
        nav.append({name: listed})
    return told | {"nav": nav}


def stage(folder: Path) -> Site:
    """Write everything that the builder reads into `folder`, anew. Raises Broken."""
    shutil.rmtree(folder, ignore_errors=True)
    site = pages()
    texts = {path: staged(source, site) for path, source in site.sources.items()}
    texts = {path: _head(path) + text for path, text in texts.items()}
    texts |= {shown_path(source): shown(source) for source in site.shown}
    for path, text in texts.items():
        _write(folder / "pages" / path, text)
    for asset in site.assets:
        there = folder / "pages" / asset.relative_to(DOCS)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(asset, there)
    shutil.copyfile(HERE / "site.css", folder / "pages" / "site.css")
    # JSON is YAML as well.
    _write(folder / "mkdocs.yml", json.dumps(configuration(), indent=1))
    return site


def _head(path: str) -> str:
    """What the builder is told of a page."""
    boost = next((boost for start, boost in BOOSTS.items() if path.startswith(start)), 1)
    hide = f"hide:\n  - {HIDDEN[path]}\n" if path in HIDDEN else ""
    # The search takes them for more than the title; nothing else of the site reads or shows them.
    tags = f"tags: {json.dumps(words()[path])}\n" if path in words() else ""
    return f"---\nsearch:\n  boost: {boost}\n{hide}{tags}---\n\n"


@cache
def words() -> dict[str, list[str]]:
    """By what else each page is found (words.toml). Raises Broken for a page that is not there."""
    told: dict[str, list[str]] = tomllib.loads((HERE / "words.toml").read_text(encoding="utf-8"))
    for path in told:
        if not (DOCS / path).exists():
            raise Broken(f"docs/site/words.toml names {path}, which is not there")
    return told


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
