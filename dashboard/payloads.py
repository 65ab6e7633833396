"""Payloads as people read them. Every digit stays: nothing is decoded to a number and back.

The text is cut into tokens and each is shown as it was sent; only white space between them is
ours. A preview may end in the middle of a piece, which the cutting allows for. Characters that
would change how the text around them looks are shown by a sign, and never obeyed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

# Above this a payload is shown by its head, and offered whole as a file.
SHOWN_OCTETS_MAX = 256 * 1024
HEAD_CHARS = 16 * 1024
PREVIEW_CHARS = 200
LONG_TEXT_CHARS = 72
# More tokens than this are shown as they are, and not laid out: nobody folds twenty thousand lines.
TOKENS_MAX = 20_000
FOLDS_DEEP = 40
# From so many members on a part below the first levels begins folded.
FOLDED_FROM = 60
READ_DEEP = 6
COMPARED_CHARS_MAX, COMPARED_LINES_MAX = 60_000, 2_000
CONTEXT_LINES = 3
EXCERPTS_MAX, EXCERPT_CHARS = 20, 160

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\\Z)?|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_FILE = re.compile(
    r"^(diff |index [0-9a-f]|--- |\+\+\+ |new file mode|deleted file mode|rename |sim)"
)
# What agents' editing tools call the text before and after.
_PAIRS = (("old_str", "new_str"), ("old_string", "new_string"), ("old_text", "new_text"))
# Controls but tab and line break, what turns the direction of the text after it, half a character,
# and what has no width: an agent reads it, and a person would not know. Not what joins letters and
# emoji. The tags of a flag (that of Wales is one) are its name.
_UNSEEN = re.compile(
    "\U0001f3f4[\U000e0020-\U000e007e]{1,6}\U000e007f"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u2028\u2029\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of an object or a list: a text to be read, more members, or what is `shown`.

    said: what was done to it, for who compares it with the JSON.
    """

    name: str
    text: SafeString | None = None
    shown: SafeString | None = None
    members: list[Member] | None = None
    said: str = ""


def tokens(text: str) -> Iterator[str]:
    """The tokens of a JSON text, as they were written."""
    return (found[0] for found in _TOKEN.finditer(text))


def visible(text: str) -> str:
    """The text with a sign for every character that has no look of its own."""
    return _UNSEEN.sub(lambda found: _sign(found[0]), text.replace("\r\n", "\n"))


def _sign(char: str) -> str:
    if len(char) > 1:
        return char
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else f"\u27e8U+{code:04X}\u27e9"


def marked(text: str, find: str = "") -> str:
    """The text as HTML, what was looked for marked in it."""
    if not find:
        return escape(visible(text))
    parts = re.split(f"({re.escape(find)})", text, flags=re.IGNORECASE)
    return "".join(
        f"<mark>{escape(visible(part))}</mark>" if at % 2 else escape(visible(part))
        for at, part in enumerate(parts)
        if part
    )


def preview(text: str, find: str = "") -> SafeString:
    """One line of a payload: names in grey, texts without their quotes."""
    pieces: list[str] = []
    length = 0
    found = list(tokens(text))
    for at, piece in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else ""
        if piece in ("[", "{") and following in ("]", "}") and at:
            pieces.append('<span class="p-name">\u2013</span>')  # an empty list or object
        if piece in "{}[],:":
            continue
        if length > PREVIEW_CHARS:
            break
        is_name = following == ":"
        text = _unquoted(piece[: 2 * PREVIEW_CHARS])
        plain = " ".join(text.split())[: PREVIEW_CHARS - length + 1]
        length += len(plain) + 2
        kind, ending = ("p-name", ":") if is_name else ("p-value", "")
        pieces.append(f'<span class="{kind}">{marked(plain, find)}{ending}</span>')
    return mark_safe(" ".join(pieces))  # noqa: S308  each piece was escaped


def excerpt(text: str, find: str) -> SafeString:
    """A piece out of the middle of a payload, as it was sent."""
    plain = " ".join(text.split())[: 2 * PREVIEW_CHARS]
    said = f'<span class="p-value">\u2026{marked(plain, find)}</span>'
    return mark_safe(said)  # noqa: S308  it was escaped


def excerpts(text: str, find: str) -> list[SafeString]:
    """Where a text stands in a payload that is too large to be laid out: the first places."""
    found: list[SafeString] = []
    for place in re.finditer(re.escape(find), text, flags=re.IGNORECASE) if find else ():
        start, end = max(0, place.start() - EXCERPT_CHARS), place.end() + EXCERPT_CHARS
        found.append(mark_safe(marked(text[start:end], find)))  # noqa: S308  it was escaped
        if len(found) == EXCERPTS_MAX:
            break
    return found


class Cut:
    """A JSON text in tokens, and for each bracket where it is closed."""

    def __init__(self, text: str) -> None:
        self.tokens = list(tokens(text))
        self.closes: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        opened: list[int] = []
        for at, piece in enumerate(self.tokens):
            if piece in ("{", "["):
                opened.append(at)
                self.sizes[at] = 0 if self.at(at + 1) in ("}", "]", "") else 1
            elif piece in ("}", "]") and opened:
                self.closes[opened.pop()] = at
            elif piece == "," and opened:
                self.sizes[opened[-1]] += 1

    def at(self, place: int) -> str:
        return self.tokens[place] if place < len(self.tokens) else ""

    def end(self, place: int) -> int:
        """Where the value that begins here ends."""
        return self.closes.get(place, place)

    def inside(self, place: int) -> Iterator[tuple[str, int]]:
        """Of an object or a list: each member's name, and where its value begins."""
        is_object = self.tokens[place] == "{"
        at, number = place + 1, 0
        while at < self.closes[place]:
            name = str(number)
            if is_object:
                name, at = _unquoted(self.tokens[at]), at + 2
            yield name, at
            at, number = self.end(at) + 2, number + 1


# --- as JSON -------------------------------------------------------------------------------------


def pretty(text: str, find: str = "") -> SafeString:
    """A JSON text laid out, to be folded part by part; every token as it was sent."""
    cut = Cut(text)
    if len(cut.tokens) > TOKENS_MAX or any(at not in cut.closes for at in cut.sizes):
        return mark_safe(f'<div class="j-line">{marked(text, find)}</div>')  # noqa: S308  escaped
    return _laid_out(cut, 0, len(cut.tokens), find)


def _laid_out(cut: Cut, first: int, end: int, find: str) -> SafeString:
    """Line by line. A part in brackets is a <details>, as long as that is not too deep."""
    out: list[str] = []
    line: list[str] = []
    folds: list[int] = []
    at = first

    def close_line() -> None:
        if line:
            out.append(f'<div class="j-line">{"".join(line)}</div>')
            line.clear()

    while at < end:
        piece, following = cut.at(at), cut.at(at + 1)
        if piece in ("{", "[") and cut.sizes[at] and len(folds) < FOLDS_DEEP:
            out.append(_opening(cut, at, "".join(line), deep=len(folds), find=find))
            line.clear()
            folds.append(cut.closes[at])
        elif folds and at == folds[-1]:
            close_line()
            folds.pop()
            out.append("</div></details>")
            line.append(piece)
        elif piece == ":":
            line.append(": ")
        elif piece in "{}[],":
            line.append(piece)
            if piece == "," and not _within_flat(cut, at, folds):
                close_line()
        else:
            line.append(f'<span class="{_kind(piece, following)}">{marked(piece, find)}</span>')
        at += 1
    close_line()
    return mark_safe("".join(out))  # noqa: S308  each piece was escaped or is punctuation


def in_lines(text: str) -> str:
    """A JSON text with a member a line, to be compared line by line; every token as it was."""
    out: list[str] = []
    level = 0
    found = list(tokens(text))
    for at, piece in enumerate(found):
        empty = at + 1 < len(found) and piece in ("{", "[") and found[at + 1] in ("}", "]")
        closes_empty = piece in ("}", "]") and at > 0 and found[at - 1] in ("{", "[")
        if piece in ("}", "]") and not closes_empty:
            level = max(0, level - 1)
            out.append("\n" + "  " * min(level, FOLDS_DEEP))
        out.append(": " if piece == ":" else piece)
        level += piece in ("{", "[") and not empty
        if piece == "," or (piece in ("{", "[") and not empty):
            out.append("\n" + "  " * min(level, FOLDS_DEEP))
    return "".join(out)


def _within_flat(cut: Cut, at: int, folds: list[int]) -> bool:
    """Whether a comma is inside of what is too deep to be folded."""
    return len(folds) >= FOLDS_DEEP and at < folds[-1] and cut.at(folds[-1]) in ("]", "}")


def _opening(cut: Cut, at: int, before: str, *, deep: int, find: str) -> str:
    size = cut.sizes[at]
    folded = deep > 1 and size >= FOLDED_FROM and not find
    shut = "}" if cut.tokens[at] == "{" else "]"
    return (
        f'<details class="j-fold"{"" if folded else " open"}><summary>{before}{cut.tokens[at]}'
        f'<span class="j-more"> {size} \u2026 {shut}</span></summary><div class="j-in">'
    )


def _kind(piece: str, following: str) -> str:
    if piece.startswith('"'):
        return "j-name" if following == ":" else "j-text"
    return "j-word" if piece in ("true", "false", "null") else "j-number"


# --- to be read ----------------------------------------------------------------------------------


def members(text: str, find: str = "") -> list[Member] | None:
    """The members of an object or a list with a text worth reading in it; None: show it as JSON."""
    cut = Cut(text)
    if cut.at(0) not in ("{", "[") or len(cut.tokens) > TOKENS_MAX:
        return None
    if any(at not in cut.closes for at in cut.sizes) or not _worth_reading(cut, 0):
        return None
    return _read(cut, 0, find, deep=0)


def marks_in(told: list[Member]) -> int:
    """How often what was looked for stands in what is read."""
    return sum(
        (one.text or "").count("<mark>")
        + (one.shown or "").count("<mark>")
        + marks_in(one.members or [])
        for one in told
    )


def _worth_reading(cut: Cut, place: int) -> bool:
    return any(
        _is_long(cut.tokens[at]) and cut.at(at + 1) != ":"
        for at in range(place, cut.end(place) + 1)
    )


def _is_long(piece: str) -> bool:
    return piece.startswith('"') and (len(piece) > LONG_TEXT_CHARS or "\\n" in piece)


def _read(cut: Cut, place: int, find: str, *, deep: int) -> list[Member]:
    found = dict(cut.inside(place))
    compared = _compared(cut, found) if cut.tokens[place] == "{" else None
    told = [
        _member(cut, name, at, find, deep=deep)
        for name, at in cut.inside(place)
        if compared is None or name not in compared[0]
    ]
    if compared is not None:
        (old, new), text = compared
        told.append(Member(name=f"{old} \u2192 {new}", text=text, said="what is different"))
    return told


def _member(cut: Cut, name: str, at: int, find: str, *, deep: int) -> Member:
    piece = cut.tokens[at]
    if _is_long(piece):
        text = _unquoted(piece)
        inner = Cut(text) if deep < READ_DEEP and _is_json(text) else None
        if inner is not None:
            told = _read(inner, 0, find, deep=deep + 1)
            return Member(name=name, members=told, said="JSON in a text")
        return Member(name=name, text=prose(text, find))
    if piece in ("{", "[") and deep < READ_DEEP and _worth_reading(cut, at):
        return Member(name=name, members=_read(cut, at, find, deep=deep + 1))
    return Member(name=name, shown=_laid_out(cut, at, cut.end(at) + 1, find))


def _is_json(text: str) -> bool:
    """An object or a list, written into a text: how tools are often called."""
    if text[:1] not in ("{", "[") or text[-1:] not in ("}", "]"):
        return False
    try:
        return bool(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _compared(cut: Cut, found: dict[str, int]) -> tuple[tuple[str, str], SafeString] | None:
    """An edit by its text before and after, as the difference of the two."""
    for pair in _PAIRS:
        if not all(name in found and cut.tokens[found[name]].startswith('"') for name in pair):
            continue
        old, new = (_unquoted(cut.tokens[found[name]]) for name in pair)
        if len(old) + len(new) <= COMPARED_CHARS_MAX:
            return pair, difference(old, new)
    return None


def difference(old: str, new: str) -> SafeString:
    """Two texts line by line: what went, what came, and a little of what stayed around it."""
    was, is_now = (_line_by_line(text) for text in (old, new))
    if max(len(was), len(is_now)) > COMPARED_LINES_MAX:
        return mark_safe("\n".join([_lines("-", was), _lines("+", is_now)]))  # noqa: S308  escaped
    told: list[str] = []
    for group in difflib.SequenceMatcher(a=was, b=is_now).get_grouped_opcodes(CONTEXT_LINES):
        if told:
            told.append('<span class="d-place">\u22ef</span>')
        for what, a0, a1, b0, b1 in group:
            if what == "equal":
                told.append(_lines(" ", was[a0:a1]))
                continue
            told += [_lines("-", was[a0:a1])] if a1 > a0 else []
            told += [_lines("+", is_now[b0:b1])] if b1 > b0 else []
    return mark_safe("\n".join(told))  # noqa: S308  each line was escaped


def _line_by_line(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n") if text else []


def _lines(sign: str, lines: list[str]) -> str:
    kind = {"+": "d-more", "-": "d-less"}.get(sign, "d-same")
    return "\n".join(f'<span class="{kind}">{sign} {marked(line)}</span>' for line in lines)


def prose(text: str, find: str = "") -> SafeString:
    """A long text with its own line breaks; of a diff in it the lines are coloured."""
    lines = text.replace("\r\n", "\n").split("\n")
    kinds = _diff_kinds(lines) if "@@ -" in text else [""] * len(lines)
    told = [
        f'<span class="{kind}">{marked(line, find)}</span>' if kind else marked(line, find)
        for line, kind in zip(lines, kinds, strict=True)
    ]
    return mark_safe("\n".join(told))  # noqa: S308  each line was escaped


def _diff_kinds(lines: list[str]) -> list[str]:
    """What each line is in a unified diff; "" outside of one. Hunks say how long they are."""
    kinds: list[str] = []
    old = new = 0
    for line in lines:
        hunk = _HUNK.match(line)
        if hunk:
            old, new = (int(n) if n is not None else 1 for n in hunk.groups())
            kinds.append("d-place")
        elif old > 0 or new > 0:
            old -= line[:1] != "+"
            new -= line[:1] != "-"
            kinds.append({"+": "d-more", "-": "d-less"}.get(line[:1], "d-same"))
        else:
            kinds.append("d-file" if _FILE.match(line) else "")
    return kinds


def _unquoted(piece: str) -> str:
    """A string piece as the text it means; half a piece (a preview's end) as it is."""
    if not piece.startswith('"'):
        return piece
    try:
        return str(json.loads(piece, strict=False))
    except ValueError:
        # Cut off, perhaps in the middle of an escape, which is six characters at most.
        for cut in range(min(6, len(piece))):
            try:
                return str(json.loads(f'{piece[: len(piece) - cut]}"', strict=False))
            except ValueError:
                continue
    return piece[1:]
