"""A run that is still to be written: what it is for, its steps with all their texts, how it ends.

Every reader of another format, and that of our own drafts, gives one of these; the importer
writes it into the store as a run with a history, and the simulated fleet plays it back through the
API. Pure: no Django, no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agentstate.store.commands import EMPTY_OBJECT, Charge, NewBudget, NewEvent
from agentstate.store.errors import Invalid
from agentstate.store.payloads import RawJSON
from agentstate.store.rules import names

ENDINGS = ("pending", "completed", "failed", "cancelled")
# A cap with some air above what a run used, rounded up to whole thousands.
CAP_PER_SPENT = 1.5
CAP_STEP = 1_000
# Of the steps that one write can take (`split`); an event has a megabyte at most, a write four.
EVENTS_PER_STEP = 500
BYTES_PER_STEP = 3 * 1024 * 1024
# What moves a terminal's cursor, or turns the direction of reading.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class UnreadableFile(Exception):
    """A file that cannot be taken; nothing of it was.

    name: the file as the caller called it. place: a line ("line 3") or a JSON path
    ("$.trajectory[2].action"). reason: the rule that it breaks. As a text it is one line: what the
    file says in it is `printable`.
    """

    def __init__(self, *, name: str, place: str, reason: str) -> None:
        super().__init__(printable(f"{name}: {place}: {reason}"))
        self.name, self.place, self.reason = name, place, reason


def printable(text: str) -> str:
    """The text for a terminal: what could move its cursor or turn its text is its escape."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One piece of work that is finished in one write: its events, its counters and its charge."""

    events: tuple[NewEvent, ...]
    add: dict[str, int] = field(default_factory=dict)
    spend: Charge | None = None

    def __post_init__(self) -> None:
        names.check_counters("add", self.add)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDraft:
    """A whole run. `opening` is written together with it, then each step by itself.

    status: how it ends (completed, failed, cancelled), or pending: then it has no steps yet.
    left_out: what of the file it was read from is not in it, and how often.
    Raises Invalid (and its kin) for a value that the store would not take.
    """

    key: str
    task: str
    tags: tuple[str, ...] = ()
    attrs: RawJSON = EMPTY_OBJECT
    budgets: tuple[NewBudget, ...] = ()
    opening: tuple[NewEvent, ...] = ()
    steps: tuple[Step, ...] = ()
    status: str = "completed"
    result: RawJSON | None = None
    left_out: dict[str, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        names.check_run_key("key", self.key)
        names.check_line("task", self.task, at_least=1, at_most=names.TASK_CHARS)
        names.check_tags("tags", self.tags)
        if not isinstance(self.attrs.value(), dict):
            raise Invalid("attrs", "a JSON object")
        if self.status not in ENDINGS:
            raise Invalid("status", f"one of {', '.join(ENDINGS)}")
        if self.steps and not self.ended:
            raise Invalid("status", "pending only without steps: they are what has happened")
        if len({budget.name for budget in self.budgets}) != len(self.budgets):
            raise Invalid("budgets", "each name once")
        ids = [event.id for event in self._events() if event.id is not None]
        if twice := next((id for id in ids if ids.count(id) > 1), None):
            raise Invalid("events[].id", f"each id once in a run ({twice})")

    @property
    def ended(self) -> bool:
        """Whether its last status is terminal."""
        return self.status != "pending"

    @property
    def event_count(self) -> int:
        """Events that the draft itself holds, the opening ones included."""
        return sum(1 for _ in self._events())

    def spent(self, budget: str) -> int:
        """What all steps together charge to `budget`."""
        return sum(charge.amount for charge in self._charges() if charge.budget == budget)

    def _events(self) -> Iterator[NewEvent]:
        yield from self.opening
        for step in self.steps:
            yield from step.events

    def _charges(self) -> Iterator[Charge]:
        return (step.spend for step in self.steps if step.spend is not None)


def split(
    events: Sequence[NewEvent], *, add: dict[str, int] | None = None, spend: Charge | None = None
) -> tuple[Step, ...]:
    """The events in as few writes as they fit in; counters and charge ride on the last one."""
    steps: list[Step] = []
    part: list[NewEvent] = []
    size = 0
    for event in events:
        length = len(event.data.text)
        if part and (len(part) == EVENTS_PER_STEP or size + length > BYTES_PER_STEP):
            steps.append(Step(events=tuple(part)))
            part, size = [], 0
        part.append(event)
        size += length
    return (*steps, Step(events=tuple(part), add=add or {}, spend=spend)) if part else ()


def cap_above(spent: int) -> int:
    """A cap for a run that used so much."""
    return -(-int(spent * CAP_PER_SPENT) // CAP_STEP) * CAP_STEP


def key_from_name(name: str) -> str:
    """A run key made of a file's name: `runs/Fix 7.traj` gives `Fix-7`.

    Raises ValueError when nothing of the name can be in a key.
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    key = re.sub(r"[^A-Za-z0-9._:@~-]+", "-", last.rsplit(".", 1)[0] or last)
    key = re.sub(r"^[^A-Za-z0-9]+", "", key)[: names.RUN_KEY_CHARS]
    key = re.sub(r"[^A-Za-z0-9]+$", "", key)
    if not key:
        raise ValueError(f"no run key can be made of the name {last!r}: {names.NAME_RULE}")
    return key


def task_line(text: str) -> str:
    """The text as the one line that a run has as its task; cut at a word, with an ellipsis.

    Nothing where nothing of it can be seen: no run can have that as its task.
    """
    line = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())
    if not names.has_ink(line):
        return ""
    if len(line) <= names.TASK_CHARS:
        return line
    head = line[: names.TASK_CHARS - 1]
    return (head.rsplit(" ", 1)[0] or head) + "…"
