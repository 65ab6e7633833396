"""JSON as text: a payload is kept exactly as it was sent, and decoded only to check it.

Digits, the order of names, escapes and white space of a payload survive because the text itself is
stored (column type `json`). Python's own parser serves here: orjson and friends turn long integers
into floats. Pure: no Django, no I/O.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json.encoder import encode_basestring
from typing import Any
from uuid import UUID

from agentstate.store.errors import Invalid, Refusal, TooLarge, UnstorableText

PAYLOAD_BYTES_MAX = 1024 * 1024
BODY_BYTES_MAX = 4 * 1024 * 1024
PROGRESS_BYTES_MAX = 16 * 1024
DEPTH_MAX = 64
DIGITS_MAX = 1_000
# Of a request body outside its payloads. More than any request that means something; what is
# looked at one by one costs time that others wait for.
VALUES_MAX = 200_000
NAMES_MAX = 1_000
ELEMENTS_MAX = 10_000

# A payload with a line break in it, which a line cannot hold, is written as a JSON string that
# holds its text, under its name with this ending.
TEXT_ENDING = "_text"

_SPACE = re.compile(r"[ \t\n\r]*")
# What nearly every body is made of, found without asking the decoder: names and texts without an
# escape, whole numbers, the three words, and what follows a value. The rest takes the longer way.
_NAME = re.compile(r'[ \t\n\r]*"([A-Za-z0-9_.-]*)"[ \t\n\r]*:[ \t\n\r]*')
_SIMPLE = re.compile(
    r'"([^"\\\x00-\x1f\ud800-\udfff]*)"|(-?(?:0|[1-9][0-9]{0,17}))(?![0-9.eE])|(null|true|false)'
)
_FOLLOWS = re.compile(r"[ \t\n\r]*([,}\]])[ \t\n\r]*")
_WORDS = {"null": None, "true": True, "false": False}
_BLANKS = frozenset(" \t\n\r")
_RISKY = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|[\x00\ud800-\udfff]")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


class Malformed(Refusal):
    """The request cannot be read; `position` is where a body ends to be JSON."""

    code, title, recorded = "malformed", "The request cannot be read", False


@dataclass(frozen=True, slots=True)
class RawJSON:
    """A JSON value as the text in which it was sent. checked: by `check` or `parse`, here."""

    text: str
    checked: bool = field(default=False, compare=False, repr=False)

    def value(self) -> Any:
        """The decoded value; integers exact, other numbers as floats."""
        return json.loads(self.text)


NULL = RawJSON("null")


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as its literal: 1.0, 1e0 and 1 stay three different texts."""

    literal: str


def dump(value: Any) -> RawJSON:
    """A Python value as a payload. Raises Invalid for NaN, Infinity and what is not JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as wrong:
        raise Invalid("data", f"JSON ({wrong})") from None
    return check(text)


def check(text: str, *, path: str = "data", bytes_max: int = PAYLOAD_BYTES_MAX) -> RawJSON:
    """One JSON value within the written limits, kept as its text.

    Raises Malformed, Invalid (NaN, a name twice, nesting, digits), UnstorableText (with the path)
    or TooLarge (limit and actual bytes).
    """
    _check_size(text, path, bytes_max)
    value, end = _decode(text, _skip(text, 0), path)
    if _skip(text, end) != len(text):
        raise Malformed("text after the JSON value", position=end)
    _check_value(text, value, path)
    return RawJSON(text, True)


def _check_size(text: str, path: str, bytes_max: int) -> None:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        raise TooLarge(
            f"{path} has {size} bytes, at most {bytes_max} are taken",
            field=path,
            limit=bytes_max,
            actual=size,
        )


def parse(text: str, *, raw: frozenset[str] = frozenset()) -> Any:
    """Decode a request body; the value of every member named in `raw` stays a RawJSON.

    Only members of the outer object, and of objects in its lists (events, operations), are
    looked at: what is inside a payload never changes how it is read. Same errors as `check`, and
    Invalid for more names, elements or values outside the payloads than anybody can mean.
    """
    value, end = _walk(text, _skip(text, 0), _Walk(raw), "", 0)
    if _skip(text, end) != len(text):
        raise Malformed("text after the JSON value", position=end)
    return value


def canonical(text: str) -> str:
    """The text with names sorted, no white space and one form of each string; numbers as written.

    Two bodies are the same request exactly when their canonical texts are equal.
    """
    return "".join(_canonical(_strict_decoder(keep_numbers=True).decode(text)))


def members(text: str) -> dict[str, str]:
    """The members of a checked JSON object, each value as its text. Raises Invalid for others."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise Invalid("attrs", "a JSON object")
    found: dict[str, str] = {}
    at = _skip(text, at + 1)
    done = text[at : at + 1] == "}"
    while not done:
        name, at = _scan_string(text, at + 1)
        at = _skip(text, _skip(text, at) + 1)
        _, end = _decode(text, at, name)
        found[name] = text[at:end]
        at, done = _next(text, end, "}")
    return found


def with_member(text: str, path: list[str], value: str) -> str:
    """The object with the member at `path` set to the JSON text `value`; all else to the letter.

    Objects on the way are made when they are missing. Raises Invalid when one of them is another
    kind of value.
    """
    found = members(text)
    name, *rest = path
    if rest:
        inner = found.get(name, "{}")
        if not inner.startswith("{"):
            raise Invalid(f"attrs.{name}", "an object, to set something inside it")
        value = with_member(inner, rest, value)
    found[name] = value
    return (
        "{" + ",".join(f"{json.dumps(n, ensure_ascii=False)}:{v}" for n, v in found.items()) + "}"
    )


class _Walk:
    """What is kept as text, and how many values may still come."""

    __slots__ = ("left", "raw")

    def __init__(self, raw: frozenset[str]) -> None:
        self.raw, self.left = raw, VALUES_MAX

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Invalid("body", f"at most {VALUES_MAX} values outside its payloads")


def _walk(text: str, at: int, walk: _Walk, path: str, level: int) -> tuple[Any, int]:
    walk.count()
    if simple := _SIMPLE.match(text, at):
        return _simple(simple), simple.end()
    opening = text[at : at + 1]
    if level <= 4 and opening == "{":
        return _walk_object(text, at, walk, path, level)
    if level <= 4 and opening == "[" and walk.raw:
        return _walk_list(text, at, walk, path, level)
    value, end = _decode(text, at, path)
    if isinstance(value, (dict, list, str)):
        _check_value(text[at:end], value, path)
    return value, end


def _simple(found: re.Match[str]) -> Any:
    word, whole = found[1], found[2]
    if word is not None:
        return word
    return int(whole) if whole is not None else _WORDS[found[3]]


def _walk_object(text: str, at: int, walk: _Walk, path: str, level: int) -> tuple[Any, int]:
    found: dict[str, Any] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if simple := _NAME.match(text, at):
            name, at = simple[1], simple.end()
            inner = f"{path}.{name}" if path else name
        else:
            name, inner, at = _walk_name(text, at, path)
        if name in found:
            raise Invalid(inner, "the same name twice in one object")
        if len(found) == NAMES_MAX and walk.raw:
            raise Invalid(path or "body", f"at most {NAMES_MAX} names in one object")
        if name in walk.raw:
            most = PROGRESS_BYTES_MAX if name == "progress" else PAYLOAD_BYTES_MAX
            found[name], at = _payload(text, at, inner, most)
        else:
            found[name], at = _walk(text, at, walk, inner, level + 1)
        at, done = _next(text, at, "}")
        if done:
            return found, at


def _walk_name(text: str, at: int, path: str) -> tuple[str, str, int]:
    """A name with its path, and where its value begins."""
    if text[at : at + 1] != '"':
        raise Malformed("a name in double quotes is missing", position=at)
    start = at
    name, at = _scan_string(text, at + 1)
    inner = f"{path}.{name}" if path else name
    _check_value(text[start:at], name, f"{inner} (a name)")
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        raise Malformed("':' is missing", position=at)
    return name, inner, _skip(text, at + 1)


def _walk_list(text: str, at: int, walk: _Walk, path: str, level: int) -> tuple[Any, int]:
    found: list[Any] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        if len(found) == ELEMENTS_MAX:
            raise Invalid(path or "body", f"at most {ELEMENTS_MAX} elements in one list")
        value, at = _walk(text, at, walk, f"{path}[{len(found)}]", level + 1)
        found.append(value)
        at, done = _next(text, at, "]")
        if done:
            return found, at


def _payload(text: str, at: int, path: str, bytes_max: int) -> tuple[RawJSON, int]:
    """What `check` does, for a value inside a text, whose end is found by decoding it."""
    value, end = _decode(text, at, path)
    kept = text[at:end]
    _check_size(kept, path, bytes_max)
    _check_value(kept, value, path)
    return RawJSON(kept, True), end


def _next(text: str, at: int, closing: str) -> tuple[int, bool]:
    found = _FOLLOWS.match(text, at)
    if found is not None:
        if found[1] == closing:
            return found.end(1), True
        if found[1] == ",":
            return found.end(), False
    raise Malformed(f"',' or '{closing}' is missing", position=_skip(text, at))


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] not in _BLANKS:
        return at
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _scan_string(text: str, at: int) -> tuple[str, int]:
    try:
        value, end = _STRICT.raw_decode(text, at - 1)
    except json.JSONDecodeError as wrong:
        raise Malformed(wrong.msg, position=wrong.pos) from None
    return str(value), end


def _decode(text: str, at: int, path: str) -> tuple[Any, int]:
    try:
        return _STRICT.raw_decode(text, at)
    except json.JSONDecodeError as wrong:
        raise Malformed(wrong.msg, position=wrong.pos) from None
    except RecursionError:
        raise Invalid(path or "body", f"nested deeper than {DEPTH_MAX}") from None
    except _Rule as broken:
        raise Invalid(path or "body", str(broken)) from None


class _Rule(ValueError):
    """A rule broken deep inside a value, on its way to the one who knows the path."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counted = Counter(name for name, _ in pairs).most_common(1)
        raise _Rule(f"the same name twice in one object ({counted[0][0]!r})")
    return found


def _no_constant(name: str) -> Any:
    raise _Rule(f"{name} is not JSON")


def _digits(literal: str) -> str:
    if len(literal) > DIGITS_MAX:
        raise _Rule(f"a number of more than {DIGITS_MAX} digits")
    return literal


def _whole(literal: str) -> int:
    return int(_digits(literal))


def _real(literal: str) -> float:
    number = float(_digits(literal))
    if number in (float("inf"), float("-inf")):
        raise _Rule(f"{literal} is too large for any reader")
    return number


def _strict_decoder(*, keep_numbers: bool = False) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_once,
        parse_constant=_no_constant,
        parse_int=_Number if keep_numbers else _whole,
        parse_float=_Number if keep_numbers else _real,
        strict=True,
    )


_STRICT = _strict_decoder()


def _check_value(text: str, value: Any, path: str) -> None:
    if not isinstance(value, (dict, list, str)):
        return
    _check_depth(text, value, path)
    if _may_be_unstorable(text):
        for where, part in _strings(value, path):
            if _UNSTORABLE.search(part):
                raise UnstorableText(where, "no U+0000 and no lone surrogate")


def _may_be_unstorable(text: str) -> bool:
    if "\\u" not in text and "\x00" not in text and text.isascii():
        return False
    return _RISKY.search(text) is not None


def _check_depth(text: str, value: Any, path: str) -> None:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    level, depth = [value], 0
    while level := [v for v in level if isinstance(v, (dict, list))]:
        depth += 1
        if depth > DEPTH_MAX:
            raise Invalid(path or "body", f"nested deeper than {DEPTH_MAX}")
        level = [
            inner
            for v in level
            for inner in (v.values() if isinstance(v, dict) else v)
            if isinstance(inner, (dict, list))
        ]


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"{path}.{name!a} (a name)", name
            yield from _strings(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{index}]")


def _canonical(value: Any) -> Iterator[str]:
    if isinstance(value, _Number):
        yield value.literal
    elif isinstance(value, dict):
        yield "{"
        for index, name in enumerate(sorted(value)):
            yield f"{',' if index else ''}{json.dumps(name)}:"
            yield from _canonical(value[name])
        yield "}"
    elif isinstance(value, list):
        yield "["
        for index, inner in enumerate(value):
            if index:
                yield ","
            yield from _canonical(inner)
        yield "]"
    else:
        yield json.dumps(value)


def write(value: Any) -> str:
    """One JSON text of plain values, in which each RawJSON stands as it was sent.

    Times become RFC 3339 in UTC with microseconds. Raises TypeError for other types.
    """
    pieces: list[str] = []
    _write(value, pieces.append)
    return "".join(pieces)


def line_of(members: Mapping[str, Any]) -> str:
    """A JSON object on a line of its own, with its line end; payloads as the store holds them."""
    return "{" + ",".join(_member(name, value) for name, value in members.items()) + "}\n"


def _member(name: str, value: Any) -> str:
    if isinstance(value, RawJSON) and ("\n" in value.text or "\r" in value.text):
        return f"{write(name + TEXT_ENDING)}:{write(value.text)}"
    return f"{write(name)}:{write(value)}"


def moment(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds: `2026-11-29T20:36:32.000001Z`."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    # Ten times as fast as strftime, and a year below 1000 keeps its zeros everywhere.
    return f"{at.isoformat(timespec='microseconds')[:26]}Z"


def _write(value: Any, put: Callable[[str], None]) -> None:
    # Pages of hundreds of events come through here: the plain types first, and no generators.
    kind = type(value)
    if kind is str:
        put(encode_basestring(value))
    elif value is None:
        put("null")
    elif kind is int:
        put(str(value))
    elif kind is RawJSON:
        put(value.text)
    elif isinstance(value, Mapping):
        _write_object(value, put)
    elif isinstance(value, (list, tuple)):
        _write_list(value, put)
    elif isinstance(value, datetime):
        put(f'"{moment(value)}"')
    elif isinstance(value, UUID):
        put(f'"{value}"')
    else:
        put(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _write_object(value: Mapping[str, Any], put: Callable[[str], None]) -> None:
    opening = "{"
    for name, inner in value.items():
        put(f"{opening}{encode_basestring(name)}:")
        _write(inner, put)
        opening = ","
    put("}" if value else "{}")


def _write_list(value: Sequence[Any], put: Callable[[str], None]) -> None:
    opening = "["
    for inner in value:
        put(opening)
        _write(inner, put)
        opening = ","
    put("]" if value else "[]")
