"""JSON, exactly: what is sent is what the caller meant, what comes back keeps its text.

Python's own json reads integers exactly. It also writes NaN, turns the name 1 into "1" and lets a
lone surrogate through; here those are refused before anything leaves.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentstate_client.errors import Unsendable

_SPACE = re.compile(r"[ \t\n\r]*")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class RawJSON:
    """A JSON value as text, sent as it stands: digits, order of names and white space included.

    Raises Unsendable when the text is not exactly one JSON value.
    """

    text: str

    def __post_init__(self) -> None:
        try:
            json.loads(self.text, parse_constant=_refuse_constant)
        except (ValueError, TypeError, RecursionError) as wrong:
            raise Unsendable(f"RawJSON: {_shortly(wrong)}") from None

    def value(self) -> Any:
        """The decoded value, a new one each time; integers exact, other numbers as floats."""
        return json.loads(self.text)


def encode(document: Any) -> bytes:
    """A request's body. Every RawJSON in it is written as its own text.

    Raises Unsendable, naming the place, for what JSON cannot say: NaN, Infinity, a name that is
    not a text, half a surrogate pair, an object of some other type.
    """
    raw: list[str] = []
    mark = secrets.token_hex(16)

    def stand_in(value: Any) -> str:
        if not isinstance(value, RawJSON):
            raise TypeError(f"{type(value).__name__} is not a JSON value")
        raw.append(value.text)
        return f"{mark}{len(raw) - 1}"

    try:
        _check(document, "")
        text = json.dumps(
            document, default=stand_in, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        if raw:
            text = re.sub(f'"{mark}([0-9]+)"', lambda found: raw[int(found[1])], text)
        return text.encode()
    except UnicodeEncodeError:
        place = next(_half_pairs(document, ""), "a text")
        raise Unsendable(f"{place}: half a surrogate pair, which UTF-8 cannot carry") from None
    except (TypeError, ValueError, RecursionError) as wrong:
        raise Unsendable(_shortly(wrong)) from None


def read_members(text: str, at: int = 0) -> Iterator[tuple[str, int, int]]:
    """The members of the JSON object at `at`: name, and where its value starts and ends."""
    at = _skip(text, _skip(text, at) + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield name, start, end
        at = _after_comma(text, end)


def read_items(text: str, at: int = 0) -> Iterator[tuple[int, int]]:
    """Where each value of the JSON array at `at` starts and ends."""
    at = _skip(text, _skip(text, at) + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _after_comma(text, end)


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _check(value: Any, path: str) -> None:
    """json.dumps would quietly write the name 1 as "1" and says not where a NaN is."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{path or 'data'}: the name {name!r} is not a text")
            _check(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path or 'data'}: {value!r} is not JSON")


def _half_pairs(value: Any, path: str) -> Iterator[str]:
    """The places of texts that cannot be encoded."""
    if isinstance(value, str) and _HALF_PAIR.search(value):
        yield path or "data"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _half_pairs(name, f"{path or 'data'} (the name {name!a})")
            yield from _half_pairs(inner, f"{path}.{name!s}" if path else name)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _half_pairs(inner, f"{path}[{index}]")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _shortly(wrong: Exception) -> str:
    return "nested too deeply" if isinstance(wrong, RecursionError) else str(wrong)
