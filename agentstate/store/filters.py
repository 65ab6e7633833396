"""The filter of the run list: one text in the address, read and written here alone.

`status:running,paused worker:w-3 -tag:nightly since:2h "audit checkout"`: clauses of different
fields must all hold, values of one clause are alternatives, `-` turns a clause round, loose words
are looked for in key, task and owner. `attr.customer:c-17` asks for a member of a run's attrs. What
is not understood is said, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from agentstate.store.states import TERMINAL, Status

LENGTH_MAX = 1_000
VALUES_MAX = 20
LEASE_STATES = ("live", "lapsed", "free")
LIVE = tuple(str(status) for status in Status if status not in TERMINAL)
ENDED = tuple(str(status) for status in Status if status in TERMINAL)
# What else may be said of a status, and which ones that are.
GROUPS = {"live": LIVE, "ended": ENDED, "done": ENDED}
UNITS = {"m": 60, "h": 3600, "d": 86_400}
ALIASES = {"owner": "worker", "run": "key"}
FIELDS = (
    "status", "task", "key", "worker", "tag", "lease", "since", "budget", "conflicts", "overdue",
    "parent",
)  # fmt: skip
ATTR = "attr."
YES_NO = ("yes", "no")

_PART = re.compile(
    r'(?P<sign>-?)(?P<field>(?i:attr)\.[^\s:"]+|[A-Za-z_.]+):(?P<value>"[^"]*"?|[^\s"]*)'
    r'|(?P<word>"[^"]*"?|[^\s"]+)'
)
_SINCE = re.compile(r"(\d{1,5})([mhd])", re.ASCII)
# As `frozen` writes it: exact to the microsecond, and always UTC.
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_BUDGET = re.compile(r">(\d{1,3})%?", re.ASCII)
_CONFLICTS = re.compile(r">(\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition. field "" is a loose word; problem says why it cannot be used, if so."""

    field: str
    values: tuple[str, ...]
    negated: bool = False
    problem: str = ""

    @property
    def text(self) -> str:
        """As it is typed."""
        value = ",".join(quoted(value) for value in self.values)
        return f"{'-' if self.negated else ''}{self.field + ':' if self.field else ''}{value}"

    @property
    def attr(self) -> str:
        """Which member of attrs is asked for; "" if it is another field."""
        return self.field.removeprefix(ATTR) if self.field.startswith(ATTR) else ""


@dataclass(frozen=True, slots=True)
class Filter:
    clauses: tuple[Clause, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(clause.text for clause in self.clauses)

    @property
    def problems(self) -> list[Clause]:
        return [clause for clause in self.clauses if clause.problem]

    def values(self, field: str) -> tuple[str, ...]:
        """What a field is asked to be, over all its clauses that are not turned round."""
        found = [c.values for c in self.clauses if c.field == field and not c.negated]
        return tuple(value for values in found for value in values)

    def without(self, *fields: str) -> Filter:
        return replace(self, clauses=tuple(c for c in self.clauses if c.field not in fields))

    def dropping(self, index: int) -> Filter:
        return replace(self, clauses=self.clauses[:index] + self.clauses[index + 1 :])

    def with_only(self, field: str, *values: str) -> Filter:
        """The same filter with this field asked to be just that (nothing: not asked at all).

        What the field is asked not to be stays.
        """
        rest = tuple(c for c in self.clauses if c.field != field or c.negated)
        return replace(self, clauses=(Clause(field, values), *rest) if values else rest)


def parse(text: str) -> Filter:
    """Read a filter. Never raises: a part that is not understood is a clause with a problem."""
    if len(text) > LENGTH_MAX:
        return Filter((Clause("", (text[:40] + "…",), problem=f"longer than {LENGTH_MAX}"),))
    return Filter(tuple(_clause(part) for part in _PART.finditer(text)))


def seconds(since: str) -> int:
    """The span of a `since` value that was found good."""
    found = _SINCE.fullmatch(since)
    assert found is not None
    return int(found[1]) * UNITS[found[2]]


def span(since: str) -> timedelta:
    return timedelta(seconds=seconds(since))


def moment_of(since: str, now: datetime) -> datetime:
    """From when on a `since` value that was found good asks, as of `now`."""
    return _instant(since) or now - span(since)


def _instant(value: str) -> datetime | None:
    """`2026-03-02T12:40:00Z`, with up to six digits of a second; None for whatever is none."""
    if not _INSTANT.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:  # such as the 30th of February
        return None


def frozen(wanted: Filter, now: datetime) -> Filter:
    """The same filter with its spans as the instants that they are now: asked later, it asks for
    the same time."""
    clauses = (
        replace(c, values=tuple(_as_instant(value, now) for value in c.values))
        if c.field == "since"
        else c
        for c in wanted.clauses
    )
    return Filter(tuple(clauses))


def _as_instant(since: str, now: datetime) -> str:
    at = moment_of(since, now).astimezone(UTC)
    # Not by strftime, which writes the year 999 with three digits.
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def budget_percent(value: str) -> int:
    return _more_than(_BUDGET, value)


def conflicts(value: str) -> int:
    return _more_than(_CONFLICTS, value)


def _more_than(pattern: re.Pattern[str], value: str) -> int:
    """The number of a value that was found good."""
    found = pattern.fullmatch(value)
    assert found is not None
    return int(found[1])


def _clause(part: re.Match[str]) -> Clause:
    if part["field"] is None:
        word = part["word"].strip('"')
        return Clause("", (word,), problem=_storable(word) or ("" if word else "an empty text"))
    raw = part["value"]
    values = (raw.strip('"'),) if raw.startswith('"') else tuple(v for v in raw.split(",") if v)
    field = field_of(part["field"])
    clause = Clause(field, values, negated=part["sign"] == "-")
    return replace(clause, problem=_problem(clause))


def field_of(typed: str) -> str:
    """As it is called here. The name of a member of attrs is the writer's own, case and all."""
    if typed.lower().startswith(ATTR):
        return ATTR + typed[len(ATTR) :]
    return ALIASES.get(typed.lower(), typed.lower())


def is_attr(name: str) -> bool:
    """Whether a member of attrs of this name can be asked for."""
    return bool(re.fullmatch(r'[^\s:"]+', name))


def _problem(clause: Clause) -> str:
    if clause.field not in FIELDS and not clause.attr:
        return f"no such field; there are {', '.join(FIELDS)} and {ATTR}name"
    if wrong := _storable(clause.field):
        return wrong
    if not clause.values or len(clause.values) > VALUES_MAX:
        return f"1 to {VALUES_MAX} values"
    return next((p for value in clause.values if (p := _wrong(clause.field, value))), "")


def _wrong(field: str, value: str) -> str:
    if field == "status" and value not in {*Status, *GROUPS}:
        return f"one of {', '.join(Status)}, {', '.join(GROUPS)}"
    if field == "lease" and value not in LEASE_STATES:
        return f"one of {', '.join(LEASE_STATES)}"
    if field == "overdue" and value not in YES_NO:
        return f"one of {', '.join(YES_NO)}"
    if field == "since" and not _is_since(value):
        return "a span such as 30m, 2h or 7d, or an instant such as 2026-03-02T12:40:00Z"
    if field == "budget" and not _BUDGET.fullmatch(value):
        return "a share such as >80%"
    if field == "conflicts" and not _CONFLICTS.fullmatch(value):
        return "a number such as >10, of at most three digits"
    return _storable(value)


def _is_since(value: str) -> bool:
    if _SINCE.fullmatch(value):
        return 0 < seconds(value) <= 3650 * 86_400
    return _instant(value) is not None


def _storable(value: str) -> str:
    return (
        "no U+0000 and no half of a surrogate pair" if re.search("[\0\ud800-\udfff]", value) else ""
    )


def quoted(value: str) -> str:
    """A value as it is typed."""
    plain = re.fullmatch(r'[^\s",]+', value) and not re.match(
        r"-?(attr\.[^:]*|[A-Za-z_.]+):", value
    )
    return value if plain else f'"{value}"'
