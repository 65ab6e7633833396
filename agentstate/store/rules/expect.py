"""Expectations: clauses over several fields of a run, all looked at, every failed one reported.

A clause is a value, which the field has to equal, or an object of comparisons:
`{"status": "running", "counters.steps_done": {"lt": 5}, "attrs.x": {"exists": false}}`.
A field that is not there equals null. Numbers are compared as numbers, `true` is not 1, and values
of two kinds are never less or greater than one another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from agentstate.store.errors import ExpectationFailed, Invalid
from agentstate.store.rows import RunRow

CLAUSES_MAX = 50
FIELDS = (
    "status", "owner", "token", "version", "last_seq", "attempt", "task", "notes", "tags",
    "hold", "retain_seconds",
)  # fmt: skip
FIELD_RULE = f"one of {', '.join(FIELDS)}, counters.<name>, attrs.<path>"
_MISSING = object()


def _kind(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    return Decimal if isinstance(value, (int, float, Decimal)) else type(value)


def _equal(found: Any, wanted: Any) -> bool:
    if _kind(found) is not _kind(wanted):
        return False
    if isinstance(found, dict):
        return found.keys() == wanted.keys() and all(_equal(found[k], wanted[k]) for k in found)
    if isinstance(found, list):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    return bool(found == wanted)


def _ordered(found: Any, wanted: Any) -> bool:
    return _kind(found) is _kind(wanted) and _kind(found) in (Decimal, str)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": _equal,
    "ne": lambda found, wanted: not _equal(found, wanted),
    "lt": lambda found, wanted: _ordered(found, wanted) and found < wanted,
    "le": lambda found, wanted: _ordered(found, wanted) and found <= wanted,
    "gt": lambda found, wanted: _ordered(found, wanted) and found > wanted,
    "ge": lambda found, wanted: _ordered(found, wanted) and found >= wanted,
    "in": lambda found, wanted: any(_equal(found, one) for one in wanted),
    "contains": lambda found, wanted: (
        isinstance(found, list) and any(_equal(one, wanted) for one in found)
    ),
}


def check_clauses(expect: Any) -> dict[str, Any]:
    """The clauses, if each has a known field and known comparisons. Raises Invalid."""
    if not isinstance(expect, Mapping):
        raise Invalid("expect", "an object of fields and what they have to be")
    if len(expect) > CLAUSES_MAX:
        raise Invalid("expect", f"at most {CLAUSES_MAX} clauses")
    for name, clause in expect.items():
        if name not in FIELDS and not _inner(name):
            raise Invalid(f"expect.{name}", FIELD_RULE)
        if isinstance(clause, Mapping):
            _check_comparisons(f"expect.{name}", clause)
    return dict(expect)


def _inner(name: str) -> bool:
    head, _, rest = name.partition(".")
    return head in ("counters", "attrs") and bool(rest) and "" not in rest.split(".")


def _check_comparisons(field: str, clause: Mapping[str, Any]) -> None:
    known = (*COMPARISONS, "exists")
    if not clause or not set(clause) <= set(known):
        raise Invalid(field, f"a value, or an object of {', '.join(known)}")
    if type(clause.get("exists", True)) is not bool:
        raise Invalid(f"{field}.exists", "true or false")
    if not isinstance(clause.get("in", []), list):
        raise Invalid(f"{field}.in", "a list")


def check_expect(run: RunRow, expect: Mapping[str, Any]) -> None:
    """Raises ExpectationFailed with every clause that does not hold: wanted and found."""
    failed = [
        {"field": name, "wanted": clause, "found": _shown(found)}
        for name, clause in expect.items()
        if not _holds(found := _field(run, name), clause)
    ]
    if failed:
        names = ", ".join(str(one["field"]) for one in failed)
        raise ExpectationFailed(f"not as expected: {names}", current=run.facts(), failed=failed)


def _holds(found: Any, clause: Any) -> bool:
    there = found is not _MISSING
    value = found if there else None
    if not isinstance(clause, Mapping):
        return _equal(value, clause)
    return all(
        there is wanted if name == "exists" else COMPARISONS[name](value, wanted)
        for name, wanted in clause.items()
    )


def _shown(found: Any) -> Any:
    return None if found is _MISSING else found


def _field(run: RunRow, name: str) -> Any:
    head, _, rest = name.partition(".")
    if head == "counters":
        return run.counters.get(rest, _MISSING)
    if head == "attrs":
        return _inside(json.loads(run.attrs), rest.split("."))
    value = getattr(run, name)
    return list(value) if isinstance(value, tuple) else value


def _inside(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value
