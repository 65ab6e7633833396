"""A run as it stood after any of its events, told from its log and ledger alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection

from agentstate.store.effects import SIGN_BEGUN, SIGN_ENDED
from agentstate.store.errors import Invalid
from agentstate.store.models import Run
from agentstate.store.payloads import members, with_member
from agentstate.store.rows import LeaseRow
from agentstate.store.rules import leases
from agentstate.store.states import TERMINAL

# A panel's limit for each statement: counters of a very long run are added up from half of it.
STATE_MS = 1_500
CHANGES_MAX = 20_000
EFFECTS_MAX = 50


class TooMany(Exception):
    """More changes than are gone through for a page."""


class Strange(Exception):
    """An event of the store's own says what the store never writes: only an import has such."""


@dataclass(slots=True, kw_only=True)
class State:
    """What held after the event `seq`. attrs and result: JSON texts, every digit as it was sent.

    last_token: of the last acquire. granted_seconds: for how long that was, until it was renewed.
    signals: a JSON text, as a lease keeps them. hold_off: the worker that is kept off the unit, and
    until when.
    """

    seq: int
    at: datetime
    version: int
    status: str = ""
    owner: str | None = None
    token: int | None = None
    lapsed: bool = False
    last_token: int | None = None
    granted_seconds: int | None = None
    signals: str | None = None
    hold_off: tuple[str, datetime] | None = None
    attempt: int = 0
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    attrs: str = "{}"
    result: str | None = None
    ended_at: datetime | None = None
    hold: bool = False
    retain_seconds: int | None = None
    brake: int | None = None
    brake_until: datetime | None = None
    counters: dict[str, int] = field(default_factory=dict)
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    open_effects: list[str] = field(default_factory=list)


AT = "SELECT at, version FROM agentstate_event WHERE run_id = %s AND seq = %s"
CHANGES = """
SELECT type, data::text, token, at, actor FROM agentstate_event
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
SELECT substr(b.event_id, 2), b.seq FROM agentstate_event b
WHERE b.run_id = %(run)s AND b.seq <= %(seq)s AND starts_with(b.event_id, %(begun)s)
    AND NOT EXISTS (SELECT FROM agentstate_event e WHERE e.run_id = b.run_id
        AND e.seq <= %(seq)s AND e.event_id = %(ended)s || substr(b.event_id, 2))
ORDER BY b.seq LIMIT %(most)s
"""


class Change(NamedTuple):
    """What an event of the store's own says of its run. data: a JSON text."""

    type: str
    data: str
    token: int | None
    at: datetime
    actor: str


def read_state(run: Run, seq: int) -> State | None:
    """As it was after that event; None when there is none. Raises TooMany, Strange."""
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
        try:
            for change in changes:
                apply(state, Change(*change))
        except (Invalid, TypeError, ValueError, OverflowError) as strange:
            raise Strange from strange
        state.counters = _counters(cursor, run, seq)
        cursor.execute(SPENT, [state.at, run.id])
        state.budgets = {name: (spent, reserved) for name, spent, reserved in cursor.fetchall()}
        asked: dict[str, Any] = {"run": run.id, "seq": seq, "most": EFFECTS_MAX}
        cursor.execute(OPEN, asked | {"begun": SIGN_BEGUN, "ended": SIGN_ENDED})
        state.open_effects = [key for key, _ in cursor.fetchall()]
    return state


def read_open_effects(run: Run, seq: int, *, most: int) -> list[int]:
    """The numbers of the events that began what had not ended after that event, the first first."""
    asked: dict[str, Any] = {"run": run.id, "seq": seq, "most": most}
    with connection.cursor() as cursor:
        cursor.execute(OPEN, asked | {"begun": SIGN_BEGUN, "ended": SIGN_ENDED})
        return [number for _, number in cursor.fetchall()]


def _counters(cursor: Any, run: Run, seq: int) -> dict[str, int]:
    if seq * 2 <= run.last_seq:
        cursor.execute(ADDED, [run.id, 0, seq])
        return dict(cursor.fetchall())
    cursor.execute(ADDED, [run.id, seq, run.last_seq])
    since = dict(cursor.fetchall())
    names = dict.fromkeys([*run.counters, *since])
    before = {name: run.counters.get(name, 0) - since.get(name, 0) for name in names}
    return {name: amount for name, amount in before.items() if amount or name not in since}


def apply(state: State, change: Change) -> None:
    """One change of the store's own, as its event says it.

    Raises Invalid, TypeError, ValueError or OverflowError for one that the store does not write: an
    imported run says what its file says.
    """
    said = members(change.data)
    match change.type:
        case "run.created":
            state.status = _plain(said, "status", str) or ""
            state.tags = sorted(_texts(said, "tags"))
            state.attrs = said.get("attrs", "{}")
            state.retain_seconds = _plain(said, "retain_seconds", int)
        case "run.changed":
            _change(state, said)
            _signal(state, said, change)
        case "lease.acquired":
            state.owner, state.token, state.lapsed = _plain(said, "owner", str), change.token, False
            state.last_token = change.token
            state.attempt = _plain(said, "attempt", int) or state.attempt + 1
            state.granted_seconds = _plain(said, "ttl_seconds", int)
            state.signals, state.hold_off = leases.inherited_signals(_lease(state)), None
        case "lease.lapsed":
            state.lapsed = True
        case "lease.released":
            state.owner, state.token, state.lapsed = None, None, False
        case "lease.reclaimed":
            if seconds := _plain(said, "hold_off_seconds", int):
                until = change.at + timedelta(seconds=seconds)
                state.hold_off = (_plain(said, "owner", str) or "", until)
            state.owner, state.token, state.lapsed = None, None, False
        case type_ if type_.startswith("run."):
            state.status = type_.removeprefix("run.")
            state.result = said.get("result", state.result)
            if state.status in TERMINAL:
                state.owner, state.token, state.lapsed = None, None, False
                state.signals, state.hold_off, state.ended_at = None, None, change.at


def _lease(state: State) -> LeaseRow:
    """As much of the lease as the rules of signals look at."""
    return LeaseRow(unit="", signals=state.signals)


def _signal(state: State, said: dict[str, str], change: Change) -> None:
    if "signal" in said:
        told = {
            "signal": _plain(said, "signal", str),
            "reason": _plain(said, "reason", str) or "",
            "by": change.actor,
            "at": change.at,
        }
        state.signals = leases.with_signal(_lease(state), told).signals


def _change(state: State, said: dict[str, str]) -> None:
    if "notes" in said:
        state.notes = _plain(said, "notes", str) or ""
    if "hold" in said:
        state.hold = bool(_plain(said, "hold", bool))
    if "retain_seconds" in said:
        state.retain_seconds = _plain(said, "retain_seconds", int)
    tags = (set(state.tags) | set(_texts(said, "tags_add"))) - set(_texts(said, "tags_remove"))
    state.tags = sorted(tags)
    state.attrs = said.get("replace", state.attrs)
    for path, value in members(said.get("attrs", "{}")).items():
        state.attrs = with_member(state.attrs, path.split("."), value)
    if "brake" in said:
        _brake(state, _plain(said, "brake", dict))


def _brake(state: State, brake: dict[str, Any] | None) -> None:
    state.brake, state.brake_until = None, None
    if brake is not None:
        until = datetime.fromisoformat(brake.get("until"))  # type: ignore[arg-type]  # or it raises
        if until.tzinfo is None or type(brake.get("per_second")) is not int:
            raise TypeError("a brake has a rate and an end")
        state.brake, state.brake_until = brake["per_second"], until


def _plain[T](said: dict[str, str], name: str, kind: type[T]) -> T | None:
    """A member's value, None where there is none. Raises TypeError for one of another kind."""
    value = json.loads(said[name]) if name in said else None
    if value is not None and type(value) is not kind:
        raise TypeError(f"{name} is no {kind.__name__}")
    return value


def _texts(said: dict[str, str], name: str) -> list[str]:
    found: list[Any] = _plain(said, name, list) or []
    if not all(isinstance(one, str) for one in found):
        raise TypeError(f"{name} holds what is no text")
    return found


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
