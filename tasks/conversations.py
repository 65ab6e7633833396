"""What a run's events say, for those who write it in a format of others.

Workers may write any events. These are understood by each writer, as the readers write them, and
the integrations: `task.given`, `message.given`, `model.responded`, `tool.called`, `tool.returned`
(docs/formats.md has their members). What else there is a format holds or not; then it is counted.
Pure: no Django, no I/O.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstate.store.commands import ImportRun

# Under which names a text is looked for, in this order; the first is what the readers write.
RESPONSE = ("response", "text", "content")
RESULT = ("observation", "output", "content", "result", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A run in another format. left_out: what of the run is not in it, and how often."""

    text: str
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An event that a worker wrote. data: an object; another value stands under `value`."""

    type: str
    data: Mapping[str, Any]
    seq: int
    at: datetime | None

    @property
    def step(self) -> Any:
        return self.data.get("step")

    def rest(self, *used: str) -> dict[str, Any]:
        """The members beside these and the step's number."""
        return {n: v for n, v in self.data.items() if n not in used and n != "step"}


def said(run: ImportRun) -> Iterator[Said]:
    """What workers wrote, in the store's order."""
    for event in run.events:
        if event.origin == "worker":
            value = event.data.value()
            data = value if isinstance(value, dict) else {"value": value}
            yield Said(type=event.type, data=data, seq=event.seq, at=event.at)


def left_of_store(run: ImportRun) -> Counter[str]:
    """What no format of others has a place for."""
    left = Counter(f"event {e.type} of the store" for e in run.events if e.origin != "worker")
    left["line of a budget's ledger"] = sum(len(b.entries) for b in run.budgets)
    left["addition to counters"] = sum(e.add is not None for e in run.events)
    left["actor, token and version of an event"] = len(run.events)
    left["notes"] = int(bool(run.notes))
    return +left


def text_of(value: Any) -> str:
    """A text as it is; anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)


def first_of(data: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str | None, Any]:
    """The first of these members that is there, with its name."""
    for name in names:
        if data.get(name) is not None:
            return name, data[name]
    return None, None
