"""A run as it stood after any of its events, told from its log and ledger alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from agentstate.store.effects import SIGN_BEGUN, SIGN_ENDED
from agentstate.store.models import Run
from agentstate.store.payloads import members, with_member
from agentstate.store.states import TERMINAL

# A panel's limit for each statement: counters of a very long run are added up from half of it.
STATE_MS = 1_500
CHANGES_MAX = 20_000
EFFECTS_MAX = 50


class TooMany(Exception):
    """More changes than are gone through for a page."""


@dataclass(slots=True, kw_only=True)
class State:
    """What held after the event `seq`. attrs and result: JSON texts, every digit as it was sent."""

    seq: int
    at: datetime
    version: int
    status: str = ""
    owner: str | None = None
    token: int | None = None
    lapsed: bool = False
    attempt: int = 0
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    attrs: str = "{}"
    result: str | None = None
    hold: bool = False
    retain_seconds: int | None = None
    brake: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    open_effects: list[str] = field(default_factory=list)


AT = "SELECT at, version FROM agentstate_event WHERE run_id = %s AND seq = %s"
CHANGES = """
SELECT type, data::text, token FROM agentstate_event
WHERE run_id = %s AND seq <= %s AND origin = 'store'
    AND (starts_with(type, 'run.') OR starts_with(type, 'lease.'))
ORDER BY seq LIMIT %s
"""
# From whichever end is nearer: what was added until then, or what was added since.
ADDED = """
SELECT name, sum(amount::bigint)::bigint
FROM agentstate_event CROSS JOIN LATERAL json_each_text(add) AS added (name, amount)
WHERE run_id = %s AND add IS NOT NULL AND seq > %s AND seq <= %s GROUP BY name
"""
# A charge commits together with its event, so it has that event's instant.
SPENT = """
SELECT b.name, coalesce(sum(e.spent), 0)::bigint, coalesce(sum(e.reserved), 0)::bigint
FROM agentstate_budget b
JOIN agentstate_budgetentry e ON e.budget_id = b.id AND e.at <= %s
WHERE b.run_id = %s GROUP BY b.name ORDER BY b.name
"""
OPEN = """
SELECT substr(b.event_id, 2) FROM agentstate_event b
WHERE b.run_id = %(run)s AND b.seq <= %(seq)s AND starts_with(b.event_id, %(begun)s)
    AND NOT EXISTS (SELECT FROM agentstate_event e WHERE e.run_id = b.run_id
        AND e.seq <= %(seq)s AND e.event_id = %(ended)s || substr(b.event_id, 2))
ORDER BY b.seq LIMIT %(most)s
"""


def read_state(run: Run, seq: int) -> State | None:
    """As it was after that event; None when there is none. Raises TooMany."""
    with connection.cursor() as cursor:
        cursor.execute(AT, [run.id, seq])
        found = cursor.fetchone()
        if found is None:
            return None
        state = State(seq=seq, at=found[0], version=found[1])
        cursor.execute(CHANGES, [run.id, seq, CHANGES_MAX + 1])
        changes = cursor.fetchall()
        if len(changes) > CHANGES_MAX:
            raise TooMany
        for type_, data, token in changes:
            _apply(state, type_, data, token)
        state.counters = _counters(cursor, run, seq)
        cursor.execute(SPENT, [state.at, run.id])
        state.budgets = {name: (spent, reserved) for name, spent, reserved in cursor.fetchall()}
        asked: dict[str, Any] = {"run": run.id, "seq": seq, "most": EFFECTS_MAX}
        cursor.execute(OPEN, asked | {"begun": SIGN_BEGUN, "ended": SIGN_ENDED})
        state.open_effects = [key for (key,) in cursor.fetchall()]
    return state


def _counters(cursor: Any, run: Run, seq: int) -> dict[str, int]:
    if seq * 2 <= run.last_seq:
        cursor.execute(ADDED, [run.id, 0, seq])
        return dict(cursor.fetchall())
    cursor.execute(ADDED, [run.id, seq, run.last_seq])
    since = dict(cursor.fetchall())
    names = dict.fromkeys([*run.counters, *since])
    before = {name: run.counters.get(name, 0) - since.get(name, 0) for name in names}
    return {name: amount for name, amount in before.items() if amount or name not in since}


def _apply(state: State, type_: str, data: str, token: int | None) -> None:
    """One change of the store's own, as its event says it."""
    said = members(data)
    match type_:
        case "run.created":
            state.status = _plain(said, "status") or ""
            state.tags = sorted(_plain(said, "tags") or [])
            state.attrs = said.get("attrs", "{}")
            state.retain_seconds = _plain(said, "retain_seconds")
        case "run.changed":
            _change(state, said)
        case "lease.acquired":
            state.owner, state.token, state.lapsed = _plain(said, "owner"), token, False
            state.attempt = _plain(said, "attempt") or state.attempt + 1
        case "lease.lapsed":
            state.lapsed = True
        case "lease.released" | "lease.reclaimed":
            state.owner, state.token, state.lapsed = None, None, False
        case _ if type_.startswith("run."):
            state.status = type_.removeprefix("run.")
            state.result = said.get("result", state.result)
            if state.status in TERMINAL:
                state.owner, state.token, state.lapsed = None, None, False


def _change(state: State, said: dict[str, str]) -> None:
    for name in ("notes", "hold", "retain_seconds"):
        if name in said:
            setattr(state, name, _plain(said, name))
    tags = (set(state.tags) | set(_plain(said, "tags_add") or [])) - set(
        _plain(said, "tags_remove") or []
    )
    state.tags = sorted(tags)
    state.attrs = said.get("replace", state.attrs)
    for path, value in members(said.get("attrs", "{}")).items():
        state.attrs = with_member(state.attrs, path.split("."), value)
    if "brake" in said:
        state.brake = (_plain(said, "brake") or {}).get("per_second")


def _plain(said: dict[str, str], name: str) -> Any:
    return json.loads(said[name]) if name in said else None


# --- difference ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line of a state; before None: it is not compared. long: a text to be read line by line."""

    name: str
    now: str
    before: str | None = None
    long: bool = False

    @property
    def changed(self) -> bool:
        return self.before is not None and self.before != self.now


def facts(state: State, *, payloads: bool) -> list[Fact]:
    """A state line by line, in a fixed order."""
    return [
        Fact(name=name, now=text, long=name in LONG)
        for name, text in _told(state, payloads)
        if text or name in ALWAYS
    ]


def differences(before: State, now: State, *, payloads: bool) -> list[Fact]:
    """Every line of either, with what it was and what it is."""
    was, is_now = dict(_told(before, payloads)), dict(_told(now, payloads))
    names = [*is_now, *(name for name in was if name not in is_now)]
    return [
        Fact(name=name, now=is_now.get(name, ""), before=was.get(name, ""), long=name in LONG)
        for name in names
        if is_now.get(name) or was.get(name) or name in ALWAYS
    ]


LONG = ("notes", "attrs", "result")
# Told also when there is none.
ALWAYS = ("holder",)


def _told(state: State, payloads: bool) -> list[tuple[str, str]]:
    holder = f"{state.owner} #{state.token}" if state.token else ""
    said = [
        ("status", state.status),
        ("version", f"v{state.version}"),
        ("holder", f"{holder}, lapsed" if holder and state.lapsed else holder),
        ("attempt", str(state.attempt)),
        *((f"counters.{name}", _number(n)) for name, n in sorted(state.counters.items())),
    ]
    for name, (spent, reserved) in state.budgets.items():
        said.append((f"budget {name}, spent", _number(spent)))
        if reserved:
            said.append((f"budget {name}, reserved", _number(reserved)))
    said += [
        ("tags", ", ".join(state.tags)),
        ("effects begun and not ended", ", ".join(state.open_effects)),
        ("brake, writes a second", _number(state.brake)),
        ("held", "yes" if state.hold else ""),
        ("kept, seconds after its end", _number(state.retain_seconds)),
        ("notes", state.notes),
    ]
    if payloads:
        said += [("attrs", "" if state.attrs == "{}" else state.attrs)]
        said += [("result", state.result or "")]
    return said


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
