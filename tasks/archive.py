"""Runs as JSON lines, our own format: one run is a header, its parts, and an `end` line.

A header of kind `run` begins a full history, as `export_runs` writes it; one of kind `draft` begins
a run as people and programs write it by hand. Every payload stands in its line as the text that the
store holds, so that it comes back byte for byte. docs/formats.md has the members, with examples.
Pure: no Django, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import datetime
from typing import Any

from agentstate.store.commands import (
    Charge,
    ImportedBudget,
    ImportedEntry,
    ImportedEvent,
    ImportRun,
    NewBudget,
    NewEvent,
)
from agentstate.store.effects import Effect
from agentstate.store.errors import Refusal
from agentstate.store.export import FORMAT
from agentstate.store.payloads import TEXT_ENDING, Malformed, RawJSON, check, parse
from tasks.drafts import RunDraft, Step, UnreadableFile

# Members that are kept as their text, under their own name or with TEXT_ENDING behind it.
RAW = ("data", "attrs", "result", "add")
_RAW_NAMES = frozenset(RAW)
_MOMENTS = frozenset({"at", "deadline_at", "created_at", "ended_at"})
_TYPES: dict[str, tuple[type, str]] = {
    "overdrawn": (bool, "true or false"),
    "created_by": (str, "a text"),
    "tags": (list, "a list of texts"),
}


class _Wrong(Exception):
    """A rule broken in the line that is being read; `line` when it is another one."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


def read_archive(*, text: str, name: str) -> tuple[RunDraft | ImportRun, ...]:
    """All runs of a file, in its order.

    name: the file's name, for messages. Raises UnreadableFile with line and reason; a line that is
    missing, unknown, twice, or cut off is an error, never left out.
    """
    reader, number = _Reader(), 0
    try:
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            if line.strip():
                reader.take(_row(line), number)
        reader.finish()
    except _Wrong as wrong:
        place = f"line {wrong.line or number}"
        raise UnreadableFile(name=name, place=place, reason=wrong.reason) from None
    except Malformed as wrong:
        place = f"line {number}, column {wrong.facts['position'] + 1}"
        raise UnreadableFile(name=name, place=place, reason=wrong.detail) from None
    except Refusal as wrong:
        raise UnreadableFile(name=name, place=f"line {number}", reason=wrong.detail) from None
    return tuple(reader.runs)


class _Reader:
    """Takes line after line; `runs` are those whose `end` line has been read."""

    def __init__(self) -> None:
        self.runs: list[RunDraft | ImportRun] = []
        self._open: _History | _Draft | None = None
        self._begun_at = 0

    def take(self, row: dict[str, Any], number: int) -> None:
        if "agentstate" in row:
            self._begin(row, number)
        elif self._open is None:
            raise _Wrong('a header is missing: {"agentstate": 1, "kind": "run" or "draft", …}')
        elif (done := self._open.take(row)) is not None:
            self._close(done)

    def finish(self) -> None:
        if self._open is not None:
            raise _Wrong("the file ends before the run's end line: it was cut off")
        if not self.runs:
            raise _Wrong("there is no run in the file", line=1)

    def _begin(self, row: dict[str, Any], number: int) -> None:
        if self._open is not None:
            raise _Wrong(
                f"a new run begins before the end line of the one of line {self._begun_at}"
            )
        if row.pop("agentstate") != FORMAT:
            raise _Wrong(f"this release reads format {FORMAT} only")
        kinds: dict[Any, type[_History | _Draft]] = {"run": _History, "draft": _Draft}
        kind = row.pop("kind", None)
        if not isinstance(kind, str) or kind not in kinds:
            raise _Wrong('kind: "run" or "draft"')
        self._open, self._begun_at = kinds[kind](row), number

    def _close(self, run: RunDraft | ImportRun) -> None:
        if any(run.key == other.key for other in self.runs):
            raise _Wrong(f"the run {run.key} is twice in the file", line=self._begun_at)
        self.runs.append(run)
        self._open = None


class _History:
    """A run with everything that happened, as it was exported."""

    def __init__(self, header: dict[str, Any]) -> None:
        self._header = _values(ImportRun, header, without=("budgets", "events"))
        self._budgets: dict[str, dict[str, Any]] = {}
        self._entries: dict[str, list[ImportedEntry]] = {}
        self._events: list[ImportedEvent] = []
        self._ids: set[tuple[str, str]] = set()

    def take(self, row: dict[str, Any]) -> ImportRun | None:
        match row.pop("kind", None):
            case "budget":
                self._take_budget(row)
            case "entry":
                self._take_entry(row)
            case "event":
                self._take_event(row)
            case "end":
                return self._end(row)
            case other:
                raise _Wrong(f"kind: budget, entry, event or end, not {other!r}")
        return None

    def _take_budget(self, row: dict[str, Any]) -> None:
        values = _values(ImportedBudget, row, without=("entries",))
        budget = ImportedBudget(**values)
        if budget.name in self._budgets:
            raise _Wrong(f"the budget {budget.name} is there twice")
        self._budgets[budget.name], self._entries[budget.name] = values, []

    def _take_entry(self, row: dict[str, Any]) -> None:
        name = row.pop("budget", None)
        if not isinstance(name, str) or name not in self._budgets:
            raise _Wrong(f"budget: no line before this one is the budget {name!r}")
        if "entry" not in row:
            raise _Wrong("entry: is missing (spend, …)")
        row["kind"] = row.pop("entry")  # the line has a kind of its own
        entry = ImportedEntry(**_values(ImportedEntry, row))
        _check_next("n", entry.n, self._entries[name])
        if entry.kind == "spend":
            self._take_id(f"entries of {name}", entry.id)
        self._entries[name].append(entry)

    def _take_event(self, row: dict[str, Any]) -> None:
        event = ImportedEvent(**_values(ImportedEvent, row))
        _check_next("seq", event.seq, self._events)
        self._take_id("events", event.stored_id)
        self._events.append(event)

    def _take_id(self, among: str, id: str | None) -> None:
        if (among, id or "") in self._ids:
            raise _Wrong(f"id: {id} is there twice among the {among}")
        if id is not None:
            self._ids.add((among, id))

    def _end(self, row: dict[str, Any]) -> ImportRun:
        entries = sum(len(lines) for lines in self._entries.values())
        _check_counts(row, {"events": len(self._events), "entries": entries})
        budgets = (
            ImportedBudget(**values, entries=tuple(self._entries[name]))
            for name, values in self._budgets.items()
        )
        return ImportRun(**self._header, budgets=tuple(budgets), events=tuple(self._events))


class _Draft:
    """A run as it is written by hand: budgets, opening events, steps, and how it ends."""

    def __init__(self, header: dict[str, Any]) -> None:
        self._header = _values(RunDraft, header, only=("key", "task", "tags", "attrs"))
        self._budgets: list[NewBudget] = []
        self._opening: tuple[NewEvent, ...] = ()
        self._steps: list[Step] = []

    def take(self, row: dict[str, Any]) -> RunDraft | None:
        match row.pop("kind", None):
            case "budget":
                self._budgets.append(NewBudget(**_values(NewBudget, row, without=("parent",))))
            case "opening":
                self._opening = (*self._opening, *_events(row.pop("events", []), "opening"))
                _check_unknown(row, ())
            case "step":
                self._steps.append(_step(row))
            case "end":
                return self._end(row)
            case other:
                raise _Wrong(f"kind: budget, opening, step or end, not {other!r}")
        return None

    def _end(self, row: dict[str, Any]) -> RunDraft:
        ending = _values(RunDraft, row, only=("status", "result"))
        return RunDraft(
            **self._header,
            **ending,
            budgets=tuple(self._budgets),
            opening=self._opening,
            steps=tuple(self._steps),
        )


def _row(line: str) -> dict[str, Any]:
    row = parse(line, raw=_RAW_NAMES)
    if not isinstance(row, dict):
        raise _Wrong("each line is a JSON object")
    return _untexted(row)


def _untexted(row: dict[str, Any]) -> dict[str, Any]:
    """The row with `data_text` and the like put back as `data`; also in the events of a step."""
    for raw in RAW:
        name = raw + TEXT_ENDING
        if name in row:
            if raw in row or not isinstance(row[name], str):
                raise _Wrong(f"{name}: a text, in place of {raw}")
            row[raw] = check(row.pop(name), path=name)
    events = row.get("events")
    if isinstance(events, list):
        row["events"] = [_untexted(e) if isinstance(e, dict) else e for e in events]
    return row


def _step(row: dict[str, Any]) -> Step:
    events = _events(row.pop("events", []), "step")
    add = row.pop("add", RawJSON("{}")).value()
    spend = row.pop("spend", None)
    _check_unknown(row, ())
    if spend is not None and not isinstance(spend, dict):
        raise _Wrong("spend: an object of budget and amount")
    charge = Charge(**_values(Charge, spend, only=("budget", "amount"))) if spend else None
    return Step(events=events, add=add, spend=charge)


def _events(rows: Any, kind: str) -> tuple[NewEvent, ...]:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _Wrong(f"events: a list of the {kind}'s events, at least one")
    return tuple(NewEvent(**_values(NewEvent, row)) for row in rows)


def _values(
    cls: type, row: Mapping[str, Any], *, only: Sequence[str] = (), without: Sequence[str] = ()
) -> dict[str, Any]:
    """What `cls` is made with, of the members of a line; each known, of its type, none missing."""
    known = {
        f.name: f for f in fields(cls) if f.name not in without and f.name in (only or (f.name,))
    }
    _check_unknown(row, known)
    for name, field in known.items():
        if name not in row and _is_required(field):
            raise _Wrong(f"{name}: is missing")
    return {name: _value(name, value) for name, value in row.items()}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(name: str, value: Any) -> Any:
    if name in _MOMENTS and value is not None:
        return _moment(name, value)
    if name in _TYPES and not isinstance(value, _TYPES[name][0]):
        raise _Wrong(f"{name}: {_TYPES[name][1]}")
    if name == "effect" and value is not None:
        return _effect(value)
    return tuple(value) if name == "tags" else value


def _effect(value: Any) -> Effect:
    if not isinstance(value, dict):
        raise _Wrong("effect: an object of key and state")
    return Effect(**_values(Effect, value))


def _moment(name: str, value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _Wrong(f"{name}: an RFC 3339 time") from None
    if moment.tzinfo is None:
        raise _Wrong(f"{name}: an RFC 3339 time with its offset")
    return moment


def _check_unknown(row: Mapping[str, Any], known: Mapping[str, Any] | Sequence[str]) -> None:
    for name in row:
        if name not in known:
            raise _Wrong(f"{name}: no such member here")


def _check_next(name: str, number: int, before: Sequence[Any]) -> None:
    if number != len(before) + 1:
        raise _Wrong(f"{name}: {len(before) + 1} is next, not {number}: without a hole")


def _check_counts(row: dict[str, Any], counts: Mapping[str, int]) -> None:
    _check_unknown(row, counts)
    for name, count in counts.items():
        if row.get(name) != count:
            raise _Wrong(f"{name}: the end line says {row.get(name)!r}, the file has {count}")
