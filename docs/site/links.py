"""Looks at the built site: every link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself.
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src"}
LOADED_RELATIONS = {"stylesheet", "preload", "modulepreload", "icon", "manifest", "preconnect"}


@dataclass
class Page(HTMLParser):
    """ids: what can be linked to. links: what is linked. loaded: what a browser fetches."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if "id" in told:
            self.ids.add(told["id"])
        if tag == "a" and "name" in told:
            self.ids.add(told["name"])
        if tag == "a" and told.get("href"):
            self.links.append(told["href"])
        if told.get(LOADED.get(tag, "")):
            self.loaded.append(told[LOADED[tag]])
        if tag == "link" and LOADED_RELATIONS & set(told.get("rel", "").split()):
            self.loaded.append(told.get("href", ""))


def read(folder: Path) -> dict[Path, Page]:
    found: dict[Path, Page] = {}
    for path in sorted(folder.rglob("*.html")):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        found[path] = page
    return found


def findings(folder: Path) -> list[str]:
    """What is wrong, a line each; nothing when all is well."""
    pages = read(folder)
    if not pages:
        return [f"no page in {folder}"]
    return [line for path, page in pages.items() for line in _of(path, page, pages, folder)]


def _of(path: Path, page: Page, pages: dict[Path, Page], folder: Path) -> Iterator[str]:
    name = path.relative_to(folder)
    for address in page.loaded:
        if urlsplit(address).netloc:
            yield f"{name}: loads {address} from elsewhere"
        elif not address.startswith("data:") and not _file(path, address, folder).exists():
            yield f"{name}: loads {address}, which is not there"
    if path.name == "404.html":  # its links are absolute: it may be shown at any address
        return
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        there = _file(path, address, folder)
        if not there.exists():
            yield f"{name}: {address} leads nowhere"
        elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].ids:
            yield f"{name}: {address} has no such section"


def _file(path: Path, address: str, folder: Path) -> Path:
    """The file that an address on a page leads to."""
    told = unquote(urlsplit(address).path)
    if not told:
        return path
    base = folder if told.startswith("/") else path.parent
    there = Path(os.path.normpath(base / told.lstrip("/")))
    return there / "index.html" if there.is_dir() else there
