"""What a page shows, read as a person would: its text, its rows, its links."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if found.get("id"):
            self.ids.append(str(found["id"]))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


class Page:
    """An answer of the console."""

    def __init__(self, response: Any) -> None:
        self.status = response.status_code
        self.html = response.content.decode()
        reader = _Reader()
        reader.feed(self.html)
        self.text = " ".join(" ".join(reader.words).split())
        self.links, self.ids, self.tags = reader.links, reader.ids, reader.tags

    def rows(self, prefix: str = "run-") -> list[str]:
        """The ids of the table rows, without their prefix."""
        ids = [str(a["id"]) for t, a in self.tags if t == "tr" and a.get("id")]
        return [i.removeprefix(prefix) for i in ids if i.startswith(prefix)]

    def link(self, pattern: str) -> str:
        """The one link whose address matches."""
        found = [link for link in self.links if re.search(pattern, link)]
        assert found, f"no link like {pattern}"
        return found[0]

    def field(self, name: str) -> str:
        """What a form's field holds."""
        found = [a for t, a in self.tags if t == "input" and a.get("name") == name]
        assert found, f"no field {name}"
        return str(found[0].get("value") or "")

    @property
    def lines(self) -> list[list[str]]:
        """The rows of all its tables, as the texts of their cells; what is folded away too."""
        rows = re.findall(r"<tr\b.*?</tr>", self.html, re.DOTALL)
        return [
            [_text(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in rows
        ]

    def line(self, first: str) -> list[str]:
        """The one row whose first cell begins so."""
        found = [cells for cells in self.lines if cells and cells[0].startswith(first)]
        assert len(found) == 1, (first, found)
        return found[0]


def _text(markup: str) -> str:
    reader = _Reader()
    reader.feed(markup)
    return " ".join("".join(reader.words).split())
