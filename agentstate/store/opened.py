"""A bundle as it is read back: followed by its chain, taken apart within bounds, never trusted.

Only lines that the chain holds are read. Each is JSON within the limits of payloads, each member
that is known is what it has to be; lines of kinds that are not known are left out and counted.
Pure: nothing is asked of the store, and nothing written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agentstate.store.chain import END, Reader, Verdict
from agentstate.store.errors import Refusal
from agentstate.store.payloads import (
    PAYLOAD_BYTES_MAX,
    TEXT_ENDING,
    Malformed,
    RawJSON,
    check,
    parse,
)

FORMAT = 1
# As a JSON string a payload takes up to twice its octets.
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX + 256 * 1024
LINES_MAX = 100_000
TEXT_CHARS_MAX = 100_000
LIST_MAX = 1_000
WHOLE_MAX = 2**63 - 1
# Of times that can be drawn, a unit of time before and after them as well.
YEARS = (1970, 2200)
# Of a deadline, which may be as far as the API takes one.
DEADLINE_YEAR_MAX = 9998
GZIP = b"\x1f\x8b"

RAW = ("data", "add", "attrs", "result", "progress", "wanted", "found", "signals", "facts")
_RAW_NAMES = frozenset(RAW)


class Unreadable(Exception):
    """Why a file is not opened. line: which one, 0 for all of it."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line

    @property
    def told(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class _Wrong(Exception):
    """What is wrong with a member; its line is known by who reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What the lines that hold say, by their kinds, each in the order of the file.

    header: the first line, empty when that does not hold. unknown: how many lines are of kinds
    that this release does not know.
    """

    verdict: Verdict
    header: Mapping[str, Any]
    lines: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    unknown: int = 0

    def one(self, kind: str) -> dict[str, Any]:
        """The first line of a kind, empty where there is none."""
        found = self.lines.get(kind)
        return found[0] if found else {}

    def all(self, kind: str) -> list[dict[str, Any]]:
        return self.lines.get(kind, [])


# --- members -------------------------------------------------------------------------------------


def _text(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise _Wrong(f"a text of at most {TEXT_CHARS_MAX} characters")
    return value


def _whole(value: Any) -> Any:
    if type(value) is not int or not -WHOLE_MAX <= value <= WHOLE_MAX:
        raise _Wrong("a whole number within 64 bits")
    return value


def _count(value: Any) -> Any:
    if type(value) is not int or not 0 <= value <= WHOLE_MAX:
        raise _Wrong("a whole number from 0 on, within 63 bits")
    return value


def _number(value: Any) -> Any:
    if type(value) not in (int, float) or not -1e15 <= value <= 1e15:
        raise _Wrong("a number")
    return value


def _flag(value: Any) -> Any:
    if type(value) is not bool:
        raise _Wrong("true or false")
    return value


def _moment(value: Any, last_year: int = YEARS[1]) -> Any:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _Wrong("an RFC 3339 time") from None
    if at.tzinfo is None or not YEARS[0] <= at.year <= last_year:
        raise _Wrong(f"a time with its offset, of the years {YEARS[0]} to {last_year}")
    return at


def _deadline(value: Any) -> Any:
    return _moment(value, DEADLINE_YEAR_MAX)


def _raw(value: Any) -> Any:
    if not isinstance(value, RawJSON):
        raise _Wrong("JSON")
    return value.text


def _list_of(each: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > LIST_MAX:
            raise _Wrong(f"a list of at most {LIST_MAX}")
        return [each(one) for one in value]

    return read


def _object_of(each: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > LIST_MAX:
            raise _Wrong(f"an object of at most {LIST_MAX} members")
        return {_text(name): each(one) for name, one in value.items()}

    return read


def _plain(value: Any) -> Any:
    """What is only shown; how deep it goes was looked at when its line was read."""
    if isinstance(value, RawJSON):
        return value.value()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _effect(value: Any) -> Any:
    found = _object_of(_text)(value)
    if set(found) != {"key", "state"} or found["state"] not in ("begun", "ended"):
        raise _Wrong("an object of key and state, begun or ended")
    return found


_DIGEST = {"sha256": _text, "bytes": _count}


def _with_digests(*names: str) -> dict[str, Callable[[Any], Any]]:
    """A payload, or what stands in its place."""
    found: dict[str, Callable[[Any], Any]] = {}
    for name in names:
        found[name] = _raw
        found |= {f"{name}_{what}": read for what, read in _DIGEST.items()}
    return found


type Shape = dict[str, Callable[[Any], Any]]

_WHO: Shape = {"actor": _text, "request_id": _text, "at": _moment}
# Kind → its members; those of REQUIRED must be there.
SHAPES: dict[str, Shape] = {
    "bundle": {
        "agentstate_bundle": _count,
        "run": _text,
        "since": lambda value: None if value is None else _moment(value),
        "until": lambda value: None if value is None else _moment(value),
        "made_at": _moment,
        "made_by": _text,
        "console": lambda value: None if value is None else _text(value),
        "release": _text,
        "payloads": _flag,
    },
    "settings": {"rules": _plain, "kept_days": _plain, "default_budgets": _plain},
    "run": {
        "key": _text, "task": _text, "status": _text, "version": _count, "last_seq": _count,
        "counters": _object_of(_whole), "tags": _list_of(_text), "notes": _text, "owner": _text,
        "token": _count, "attempt": _count, "max_attempts": _count, "parent": _text,
        "deadline_at": _deadline, "deadline_policy": _text, "retain_seconds": _count, "hold": _flag,
        "brake_per_second": _count, "brake_until": _moment, "open_effects": _count,
        "created_by": _text, "created_at": _moment, "updated_at": _moment, "ended_at": _moment,
        **_with_digests("attrs", "result"),
    },
    "lease": {
        "owner": _text, "token": _count, "ttl_seconds": _count, "acquired_at": _moment,
        "renewed_at": _moment, "expires_at": _moment, "renewals": _count, "hold_off_owner": _text,
        "hold_off_until": _moment, "signals": _raw,
    },
    "telemetry": {
        "host": _text, "model": _text, "worker_time": _moment, "skew_ms": _whole, "token": _count,
        "at": _moment, **_with_digests("progress"),
    },
    "budget": {
        "name": _text, "shared": _flag, "unit": _text, "cap": _count, "spent": _count,
        "reserved": _count, "overdrawn": _flag, "version": _count, "parent": _text,
        "slots": _count,
    },
    "entry": {
        "budget": _text, "entry": _text, "n": _count, "amount": _whole, "spent": _whole,
        "reserved": _whole, "cap": _count, "id": _text, "token": _count, "note": _text,
        "overdrawn": _flag, **_WHO,
    },
    "term": {
        "token": _count, "owner": _text, "from": _moment, "to": _moment, "renewals": _count,
        "renewed_ms": _list_of(_count), "ttl_seconds": _count, "ended": _text, "ended_by": _text,
        "reason": _text,
    },
    "worker": {
        "name": _text, "version": _text, "host": _text, "slots": _count, "skew_ms": _whole,
        "seen_at": _moment, "drain_at": _moment,
    },
    "refusal": {
        "code": _text, "operation": _text, "unit": _text, "budget": _text, "worker": _text,
        "token_sent": _whole, "token_current": _whole, "attempt": _count, **_WHO,
        **_with_digests("wanted", "found"),
    },
    "action": {
        "action": _text, "object": _text, "reason": _text, "before": _plain, "after": _plain,
        "expected": _plain, **_WHO,
    },
    "change": {
        "rule": _text, "before": _text, "after": _text, "value": _number, "message": _text,
        "facts": _raw, "at": _moment,
    },
    "alert": {
        "rule": _text, "title": _text, "state": _text, "value": _number, "message": _text,
        "facts": _raw, "since": _moment, "acknowledged_at": _moment, "acknowledged_by": _text,
        "acknowledged_why": _text,
    },
    "event": {
        "seq": _count, "version": _count, "type": _text, "origin": _text, "id": _text,
        "effect": _effect, "token": _count, "add": _raw, **_WHO, **_with_digests("data"),
    },
}  # fmt: skip
REQUIRED: dict[str, tuple[str, ...]] = {
    "bundle": ("run", "made_at", "made_by", "release", "payloads"),
    "run": ("key", "task", "status", "version", "last_seq", "created_at"),
    "budget": ("name", "unit", "cap", "spent", "reserved"),
    "entry": ("budget", "entry", "n", "amount", "actor", "at"),
    "term": ("token", "owner", "from", "renewals"),
    "worker": ("name",),
    "refusal": ("at", "code", "operation", "actor"),
    "action": ("at", "actor", "action", "object"),
    "change": ("rule", "before", "after", "at"),
    "alert": ("rule", "title", "state", "since"),
    "event": ("seq", "version", "type", "origin", "actor", "at"),
}
# Of these there is one.
ALONE = frozenset({"bundle", "settings", "run", "lease", "telemetry"})


# --- the file ------------------------------------------------------------------------------------


def read_lines(raw: bytes) -> Iterable[tuple[bytes, bool]]:
    """The lines of a file that is in memory, each with whether it has a line end."""
    *whole, rest = raw.split(b"\n")
    yield from ((line, True) for line in whole)
    if rest:
        yield rest, False


def open_bundle(lines: Iterable[tuple[bytes, bool]]) -> Opened:
    """Follow and read a file. A chain that is broken is no error: it is what the verdict says.

    Raises Unreadable: not a bundle at all, or one that nobody has written in good faith.
    """
    reader, parts, number = Reader(), _Parts(), 0
    for number, (raw, ended) in enumerate(lines, 1):
        check_line(raw, number)
        if number > LINES_MAX:
            raise Unreadable(f"more than {LINES_MAX} lines")
        if reader.take(raw, ended=ended):
            parts.take(raw, number)
    if not number:
        raise Unreadable("it is empty")
    return Opened(
        verdict=reader.verdict(), header=parts.header, lines=parts.lines, unknown=parts.unknown
    )


def check_line(raw: bytes, number: int) -> None:
    """What is seen before anything is read. Raises Unreadable."""
    if len(raw) > LINE_BYTES_MAX:
        raise Unreadable(f"longer than {LINE_BYTES_MAX} bytes", number)
    if number == 1 and raw.startswith(GZIP):
        raise Unreadable("it is compressed: unpack it first, and open what comes out")
    if number == 1 and not raw.startswith(b'{"line":'):
        raise Unreadable("it does not begin as a bundle does")


def read_header(raw: bytes) -> dict[str, Any]:
    """What the first line says of the file, once the chain holds it. Raises Unreadable."""
    parts = _Parts()
    parts.take(raw, 1)
    return parts.header


class _Parts:
    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.unknown = 0

    def take(self, raw: bytes, number: int) -> None:
        """Raises Unreadable."""
        try:
            self._take(_members(raw), number)
        except UnicodeDecodeError:
            raise Unreadable("not UTF-8", number) from None
        except _Wrong as wrong:
            raise Unreadable(str(wrong), number) from None
        except Malformed as wrong:
            raise Unreadable(f"not JSON ({wrong.detail})", number) from None
        except Refusal as wrong:
            raise Unreadable(wrong.detail, number) from None

    def _take(self, row: dict[str, Any], number: int) -> None:
        kind = row.pop("kind", None)
        if number == 1:
            self._begin(kind, row)
        elif kind == END:
            return
        elif not isinstance(kind, str) or kind not in SHAPES:
            self.unknown += 1
        elif kind == "bundle" or (kind in ALONE and kind in self.lines):
            raise _Wrong(f"{kind}: there is one already")
        else:
            self.lines.setdefault(kind, []).append(_shaped(kind, row))

    def _begin(self, kind: Any, row: dict[str, Any]) -> None:
        if kind != "bundle" or type(row.get("agentstate_bundle")) is not int:
            raise _Wrong("the first line of a bundle is of the kind bundle")
        if row["agentstate_bundle"] != FORMAT:
            raise _Wrong(f"this release opens bundles of format {FORMAT} only")
        self.header = _shaped("bundle", row)


def _members(raw: bytes) -> dict[str, Any]:
    row = parse(raw.decode(), raw=_RAW_NAMES)
    if not isinstance(row, dict):
        raise _Wrong("each line is a JSON object")
    for name in RAW:
        text = name + TEXT_ENDING
        if text in row:
            if name in row or not isinstance(row[text], str):
                raise _Wrong(f"{text}: a text, in place of {name}")
            row[name] = check(row.pop(text), path=text)
    return row


def _shaped(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    shape = SHAPES[kind]
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name in shape:
            try:
                found[name] = shape[name](value)
            except _Wrong as wrong:
                raise _Wrong(f"{name}: {wrong}") from None
        elif kind == "settings" and name not in ("line", "chain"):
            found[name] = _plain(value)
    for name in REQUIRED.get(kind, ()):
        if name not in found:
            raise _Wrong(f"{name}: is missing")
    return found
