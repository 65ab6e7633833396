"""What may be typed next into a filter: the whole line, with its last part completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentstate.store import filters
from agentstate.store.states import Status

LAST_PART_CHARS_MAX = 200
SAID = {
    "status": "pending, running, …, live, ended",
    "task": "part of what it is to do",
    "key": "how its key begins",
    "worker": "how the name of its holder begins",
    "tag": "one of its tags",
    "lease": "live, lapsed, free",
    "since": "created within 30m, 2h, 7d",
    "budget": "a budget used above >80%",
    "conflicts": "more conflicts than >10",
    "overdue": "yes, no",
    "parent": "the run that it is part of",
}
FIXED = {
    "status": (*(str(status) for status in Status), *filters.GROUPS),
    "lease": filters.LEASE_STATES,
    "overdue": filters.YES_NO,
    "since": ("15m", "1h", "2h", "24h", "7d", "30d"),
    "budget": (">50%", ">80%", ">95%"),
    "conflicts": (">0", ">10", ">50"),
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """line: the whole filter as it would be; says: what that part means."""

    line: str
    says: str = ""


type Values = Callable[[str, str], list[str]]
type Attrs = Callable[[str, str | None], list[str]]


def suggest(text: str, *, values: Values, attrs: Attrs) -> list[Suggestion]:
    """For a filter that is being typed at its end.

    values(field, beginning), attrs(name, None) and attrs(name, beginning): what there is.
    """
    before, part = _last_part(text)
    if len(part) > LAST_PART_CHARS_MAX:
        return []
    sign, rest = ("-", part[1:]) if part.startswith("-") else ("", part)
    field, colon, value = rest.partition(":")
    if not colon:
        return [Suggestion(before + sign + name, says) for name, says in _fields(rest, attrs)]
    name = filters.field_of(field)
    chosen, comma, last = value.rpartition(",")
    found = _values(name, last.strip('"'), values, attrs)
    kept = f"{before}{sign}{field}:{chosen}{comma}"
    return [Suggestion(kept + filters.quoted(one)) for one in found if one not in chosen.split(",")]


def _last_part(text: str) -> tuple[str, str]:
    """What stands before the part at the end, and that part; a quoted one may hold spaces."""
    start = 0
    quoted = False
    for at, char in enumerate(text):
        quoted ^= char == '"'
        if char.isspace() and not quoted:
            start = at + 1
    return text[:start], text[start:]


def _fields(beginning: str, attrs: Attrs) -> list[tuple[str, str]]:
    typed = beginning.lower()
    known = [(f"{name}:", says) for name, says in SAID.items() if name.startswith(typed)]
    if typed.startswith(filters.ATTR):
        names = attrs(beginning[len(filters.ATTR) :], None)
        return [(f"{filters.ATTR}{name}:", "") for name in names if filters.is_attr(name)]
    return known + [(filters.ATTR, "a member of its attrs")] * filters.ATTR.startswith(typed)


def _values(field: str, beginning: str, values: Values, attrs: Attrs) -> list[str]:
    if field in FIXED:
        return [value for value in FIXED[field] if value.startswith(beginning)]
    if field.startswith(filters.ATTR):
        return attrs(field.removeprefix(filters.ATTR), beginning)
    return values(field, beginning) if field in filters.FIELDS else []
