"""What the store holds when everything is over: the other half of what the checker is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True, kw_only=True)
class EventLine:
    """A line of a run's log. mark: the id of the call that wrote it, with which it was sent.

    cas: what it set the register to, if it did. add: what it added to counters. status: what the
    run was from then on, if that is what the event is about.
    """

    seq: int
    version: int
    type: str
    origin: str = "worker"
    mark: str = ""
    token: int | None = None
    cas: str | None = None
    status: str | None = None
    add: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Head:
    """A run's row, beside its log."""

    version: int
    last_seq: int
    status: str
    token: int | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Term:
    """One term of ownership: seconds by the database's clock, half-open; ends_at None: still on."""

    token: int
    owner: str
    starts_at: float
    ends_at: float | None = None
    ended: str | None = None


@dataclass(slots=True, kw_only=True)
class Entry:
    """A line of a budget's ledger: what it added to spent and reserved, and the cap if it set one.

    mark: the id of the call, or of the reservation that it settles. at: seconds by the database's
    clock, the same for all that happened at once.
    """

    n: int
    kind: str
    spent: int = 0
    reserved: int = 0
    cap: int | None = None
    mark: str = ""
    overdrawn: bool = False
    token: int | None = None
    at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Budget:
    """A budget's row and its ledger. parent: the name of the one that is charged as well. slot_of:
    of a slot, the name of the split budget."""

    cap: int
    spent: int
    reserved: int
    version: int
    overdrawn: bool = False
    parent: str | None = None
    slot_of: str | None = None
    entries: list[Entry] = field(default_factory=list)
    holds: dict[str, str] = field(default_factory=dict)  # reservation → state


@dataclass(slots=True, kw_only=True)
class FeedRow:
    position: int
    run: str
    first_seq: int
    last_seq: int
    version: int


@dataclass(slots=True)
class Final:
    """Runs by key, terms by unit, budgets by `run/name` (shared: `/name`), the feed in order, and
    how far each of its consumers has come."""

    events: dict[str, list[EventLine]] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    terms: dict[str, list[Term]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    feed: list[FeedRow] = field(default_factory=list)
    consumers: dict[str, int] = field(default_factory=dict)


def write_final(final: Final, path: Path) -> None:
    """As JSON lines, so that a history can be checked again later."""
    with path.open("w") as file:
        for kind, name, row in _rows(final):
            file.write(json.dumps([kind, name, asdict(row)], separators=(",", ":")) + "\n")
        for name, position in final.consumers.items():
            file.write(json.dumps(["consumer", name, {"position": position}]) + "\n")


def _rows(final: Final) -> Iterator[tuple[str, str, Any]]:
    for key, head in final.heads.items():
        yield "head", key, head
    for key, events in final.events.items():
        for event in events:
            yield "event", key, event
    for unit, terms in final.terms.items():
        for term in terms:
            yield "term", unit, term
    for name, budget in final.budgets.items():
        yield "budget", name, budget
    for row in final.feed:
        yield "feed", "", row


def read_final(path: Path) -> Final:
    """What write_final wrote."""
    final = Final()
    with path.open() as file:
        for line in file:
            kind, name, row = json.loads(line)
            _put(final, kind, name, row)
    return final


def _put(final: Final, kind: str, name: str, row: dict[str, Any]) -> None:
    if kind == "head":
        final.heads[name] = Head(**row)
    elif kind == "event":
        final.events.setdefault(name, []).append(EventLine(**row))
    elif kind == "term":
        final.terms.setdefault(name, []).append(Term(**row))
    elif kind == "consumer":
        final.consumers[name] = row["position"]
    elif kind == "budget":
        entries = [Entry(**entry) for entry in row.pop("entries")]
        final.budgets[name] = Budget(**row, entries=entries)
    else:
        final.feed.append(FeedRow(**row))
