"""What is printed: tables for people, one JSON document a line for programs.

Names and payloads come from whoever wrote them. Whatever could move the cursor, change colours or
turn the direction of reading is shown as its escape, in tables and in JSON alike.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

HIDDEN = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp"))  # categories of Unicode
SAFE = re.compile(r"[ -~]*")
STYLES = {
    "running": "green",
    "completed": "dim",
    "failed": "red",
    "cancelled": "dim",
    "paused": "yellow",
    "live": "green",
    "lapsed": "red",
    "free": "dim",
    "store": "dim",
    "overdrawn": "red",
}
CODES = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}


def shown(text: str, *, most: int | None = None) -> str:
    """Text in one line in which nothing is hidden; most: cut to so many characters."""
    if not SAFE.fullmatch(text):
        text = "".join(map(_escaped, text))
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def json_line(text: str) -> str:
    """JSON text as one line, which says the same: line breaks stand only between its parts, and
    what is hidden is escaped inside its strings.
    """
    text = text.replace("\r", " ").replace("\n", " ").replace("\t", " ")
    return text if SAFE.fullmatch(text) else "".join(map(_json_escaped, text))


def _escaped(char: str) -> str:
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if unicodedata.category(char) not in HIDDEN:
        return char
    number = ord(char)
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else (f"\\U{number:08x}")
    )


def _json_escaped(char: str) -> str:
    if unicodedata.category(char) not in HIDDEN:
        return char
    pair = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pair[at]:02x}{pair[at + 1]:02x}" for at in range(0, len(pair), 2))


class Screen:
    """Standard output as it is: a terminal with or without colours, or a pipe."""

    def __init__(self, *, json: bool, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.json = json
        self.is_terminal = self.stream.isatty()
        self.has_colours = self.is_terminal and not json and _wants_colours()
        reconfigure = getattr(self.stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal that knows ASCII alone gets escapes, no traceback
            reconfigure(errors="backslashreplace")

    def line(self, text: str) -> None:
        """A line of its own, at once: somebody may be waiting for it."""
        self.stream.write(text + "\n")
        self.stream.flush()

    def document(self, text: str) -> None:
        self.line(json_line(text))

    def styled(self, text: str, word: str | None = None) -> str:
        """`text` in the colour of its word, where there are colours."""
        style = STYLES.get(word or text, "")
        return f"\x1b[{CODES[style]}m{text}\x1b[0m" if self.has_colours and style else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.has_colours else text

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Columns with a name; one that begins with `#` holds numbers. Values are escaped here."""
        cells = [[shown("" if v is None else str(v)) for v in row] for row in rows]
        if self.is_terminal and importlib.util.find_spec("rich") is not None:
            _rich_table(self, columns, cells)
        else:
            _plain_table(self, columns, cells)


def _wants_colours() -> bool:
    """https://no-color.org, and terminals that say that they have none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _plain_table(screen: Screen, columns: Sequence[str], cells: list[list[str]]) -> None:
    heads = [name.lstrip("#") for name in columns]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    pads: list[Callable[[str, int], str]] = [
        _right if name.startswith("#") else _left for name in columns
    ]

    def laid_out(row: Sequence[str]) -> str:
        padded = [pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)]
        return "  ".join(padded).rstrip()

    screen.line(screen.bold(laid_out(heads)))
    for row in cells:
        line = laid_out(row)
        word = next((cell for cell in row if cell in STYLES), None)
        screen.line(screen.styled(line, word) if word else line)


def _rich_table(screen: Screen, columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        number = name.startswith("#")
        table.add_column(name.lstrip("#"), justify="right" if number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    Console(file=screen.stream, no_color=not screen.has_colours, highlight=False).print(table)


def _width(text: str) -> int:
    """Columns of a terminal; letters of East Asia take two, combining ones none."""
    if SAFE.fullmatch(text):
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _left(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _right(text: str, width: int) -> str:
    return " " * (width - _width(text)) + text
