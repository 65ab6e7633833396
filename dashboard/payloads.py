"""Payloads as people read them. Every digit stays: nothing is decoded to a number and back.

The text is cut into tokens and each is shown as it was sent; only white space between them is
ours. A preview may end in the middle of a piece, which the cutting allows for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

# Above this a payload is shown by its head, and offered whole as a file.
SHOWN_OCTETS_MAX = 256 * 1024
HEAD_CHARS = 16 * 1024
PREVIEW_CHARS = 200
LONG_TEXT_CHARS = 72

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_DIFF = re.compile(r"^(diff --git |@@ -\d|--- a/|\+\+\+ b/)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the outer object: `text` when it is a text to be read, else `shown`."""

    name: str
    text: SafeString | None = None
    shown: SafeString | None = None


def tokens(text: str) -> Iterator[str]:
    """The tokens of a JSON text, as they were written."""
    return (found[0] for found in _TOKEN.finditer(text))


def preview(text: str) -> SafeString:
    """One line of a payload: names in grey, texts without their quotes."""
    pieces: list[str] = []
    length = 0
    found = list(tokens(text))
    for at, piece in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else ""
        if piece in ("[", "{") and following in ("]", "}") and at:
            pieces.append('<span class="p-name">\u2013</span>')  # an empty list or object
        if piece in "{}[],:" or length > PREVIEW_CHARS:
            continue
        is_name = following == ":"
        plain = " ".join(_unquoted(piece).split())[: PREVIEW_CHARS - length + 1]
        length += len(plain) + 2
        kind, ending = ("p-name", ":") if is_name else ("p-value", "")
        pieces.append(f'<span class="{kind}">{escape(plain)}{ending}</span>')
    return mark_safe(" ".join(pieces))  # noqa: S308  each piece was escaped


def pretty(text: str, *, indent: int = 0) -> SafeString:
    """A JSON text on several lines, coloured by kind, every token as it was sent."""
    out: list[str] = []
    level = indent
    found = list(tokens(text))
    for at, piece in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else ""
        if piece in ("{", "["):
            level += 1
            empty = following in ("}", "]")
            out.append(piece + ("" if empty else _line(level)))
        elif piece in ("}", "]"):
            level = max(0, level - 1)
            opened = at > 0 and found[at - 1] in ("{", "[")
            out.append(piece if opened else _line(level) + piece)
        elif piece == ",":
            out.append(piece + _line(level))
        elif piece == ":":
            out.append(": ")
        else:
            out.append(f'<span class="{_kind(piece, following)}">{escape(piece)}</span>')
    return mark_safe("".join(out))  # noqa: S308  each piece was escaped or is punctuation


def _line(level: int) -> str:
    return "\n" + "  " * level


def _kind(piece: str, following: str) -> str:
    if piece.startswith('"'):
        return "j-name" if following == ":" else "j-text"
    return "j-word" if piece in ("true", "false", "null") else "j-number"


def members(text: str) -> list[Member] | None:
    """The members of an object with a text worth reading in it; None: show it as JSON."""
    if not text.lstrip().startswith("{"):
        return None
    found = [_member(name, value) for name, value in _split(text)]
    return found if any(member.text is not None for member in found) else None


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Names and value texts of the outer object."""
    depth = 0
    name: str | None = None
    value: list[str] = []
    for piece in tokens(text):
        if piece in ("{", "["):
            depth += 1
            if depth == 1:
                continue
        elif piece in ("}", "]"):
            depth -= 1
        if depth == 1 and name is None and piece not in ",}":
            name = _unquoted(piece)
        elif depth == 0 or (depth == 1 and piece == ","):
            if name is not None:
                yield name, " ".join(value)
            name, value = None, []
        elif not (depth == 1 and piece == ":" and not value):
            value.append(piece)


def _member(name: str, value: str) -> Member:
    if value.startswith('"'):
        text = _unquoted(value)
        if "\n" in text or len(text) > LONG_TEXT_CHARS:
            return Member(name, text=prose(text))
    return Member(name, shown=pretty(value))


def prose(text: str) -> SafeString:
    """A long text with its own line breaks; a diff with its lines marked."""
    if not _DIFF.search(text):
        return format_html("{}", text)
    lines = [f'<span class="{_diff_kind(line)}">{escape(line)}</span>' for line in text.split("\n")]
    return mark_safe("\n".join(lines))  # noqa: S308  each line was escaped


def _diff_kind(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "d-file"
    if line.startswith("@@"):
        return "d-place"
    return {"+": "d-more", "-": "d-less"}.get(line[:1], "d-same")


def _unquoted(piece: str) -> str:
    """A string piece as the text it means; half a piece (a preview's end) as it is."""
    if not piece.startswith('"'):
        return piece
    try:
        return str(json.loads(piece, strict=False))
    except ValueError:
        return piece[1:].replace("\\n", " ").replace('\\"', '"')
