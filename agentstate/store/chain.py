"""Lines of which each holds the hash of all before it: what was cut, moved or changed shows. Pure.

A line is a JSON object that begins with its number and ends with its hash:
`{"line":7,…,"chain":"<64 hex digits>"}`. The hash is SHA-256 over the hash of the line before (64
zeros before the first), a line feed, and the line's own octets without its `chain` member. The last
line counts the others and repeats the hash that they ended with.

It proves nothing about who wrote the file: whoever makes another one can make another chain. But
two who have the same last hash have the same file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentstate.store.payloads import line_of

START = "0" * 64
END = "end"

_SEALED = re.compile(rb'(\{"line":([1-9][0-9]{0,8}),.*),"chain":"([0-9a-f]{64})"\}', re.DOTALL)
_NUMBER = re.compile(rb'\{"line":([1-9][0-9]{0,8}),')
_END = re.compile(
    rb'\{"line":[0-9]+,"kind":"end","lines":([0-9]{1,9}),"hash":"([0-9a-f]{64})","chain":"[0-9a-f]+"\}'
)


def seal(lines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines with their numbers and hashes, each with its line end, and the last one.

    lines: members without `line` and `chain`; a RawJSON stands as it was sent.
    """
    before, number = START, 0
    for number, members in enumerate(lines, 1):
        text, before = _sealed(number, members, before)
        yield text
    ending = {"kind": END, "lines": number, "hash": before}
    yield _sealed(number + 1, ending, before)[0]


def _sealed(number: int, members: Mapping[str, Any], before: str) -> tuple[str, str]:
    body = line_of({"line": number, **members}).removesuffix("\n")
    found = hash_of(body.encode(), before)
    return f'{body[:-1]},"chain":"{found}"}}\n', found


def hash_of(body: bytes, before: str) -> str:
    """body: a line without its `chain` member. before: the hash of the line before."""
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()


class Chain(StrEnum):
    """How a file was found."""

    WHOLE = "whole"
    TRIMMED = "trimmed"  # lines are missing: at its end, or in between
    MOVED = "moved"  # a line stands in another's place
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """line: the first one that is not as it was. lines: how many before it hold.

    hash: that of the last line that holds; of a whole file what it is known by.
    """

    state: Chain
    line: int | None
    lines: int
    hash: str
    why: str = ""

    @property
    def whole(self) -> bool:
        return self.state is Chain.WHOLE


class Reader:
    """Follows a file line by line. `verdict` when nothing more comes."""

    def __init__(self) -> None:
        self.lines = 0
        self._hash = START
        self._fault: Verdict | None = None
        self._is_over = False
        # Of a line that comes too early: the number that it has, until it is known why.
        self._early: int | None = None
        self._seen = 0

    def take(self, raw: bytes, *, ended: bool = True) -> bool:
        """Whether a line holds, the last one included. raw: without its line end, which it had if
        it `ended`. After one that does not hold, none does."""
        self._seen += 1
        if self._fault is not None:
            self._look_back(raw)
            return False
        number = self.lines + 1
        if self._is_over:
            return self._fail(Chain.CHANGED, number, "something stands after the last line")
        sealed = _SEALED.fullmatch(raw)
        if sealed is None and not ended:
            return self._fail(Chain.TRIMMED, number, "the file ends within this line")
        if sealed is None or int(sealed[2]) != number:
            return self._misfit(raw, number)
        found = hash_of(sealed[1] + b"}", self._hash)
        if found != sealed[3].decode():
            return self._misfit(raw, number)
        if ending := _END.fullmatch(raw):
            if (int(ending[1]), ending[2].decode()) != (self.lines, self._hash):
                return self._fail(Chain.CHANGED, number, "the last line counts other lines")
            self._is_over = True
        self.lines, self._hash = number, found
        return True

    def verdict(self) -> Verdict:
        """What became of it."""
        if self._fault is None and not self._is_over:
            self._fail(Chain.TRIMMED, self.lines + 1, "the file ends before its last line")
        if self._fault is not None:
            return self._fault
        return Verdict(state=Chain.WHOLE, line=None, lines=self.lines, hash=self._hash)

    def _misfit(self, raw: bytes, number: int) -> bool:
        told = _NUMBER.match(raw)
        if told is None or int(told[1]) == number:
            return self._fail(Chain.CHANGED, number, "it is not what it was when it was written")
        if int(told[1]) < number:
            return self._fail(Chain.MOVED, number, f"line {int(told[1])} stands here")
        self._early = int(told[1])
        last = self._early - 1
        missing = f"line {number} is" if last == number else f"lines {number} to {last} are"
        return self._fail(Chain.TRIMMED, number, f"{missing} missing")

    def _look_back(self, raw: bytes) -> None:
        """A line after the first that did not fit: whether that one was only out of its place."""
        fault = self._fault
        if self._early is None or fault is None or fault.line is None:
            return
        told = _NUMBER.match(raw)
        number = int(told[1]) if told else 0
        if number == fault.line:
            self._fail(Chain.MOVED, fault.line, f"line {self._early} stands here")
            self._early = None
        elif number == fault.line + 1 and self._seen == fault.line + 1:
            # The others go on as if it were there: its number was changed, unless it comes later.
            self._fail(Chain.CHANGED, fault.line, "it is not what it was when it was written")

    def _fail(self, state: Chain, line: int, why: str) -> bool:
        self._fault = Verdict(state=state, line=line, lines=self.lines, hash=self._hash, why=why)
        return False
