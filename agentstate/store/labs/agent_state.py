"""The first text's lab: one table and one query, conditional append, leases that age out."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import AcquireLease, Append, CreateRun, NewBudget, NewEvent
from agentstate.store.errors import LeaseHeld, SeqConflict
from agentstate.store.execute import execute
from agentstate.store.settable_clock import Clock
from agentstate.store.story import items, story

FLEET = Caller(kind="key", name="lab", scopes=frozenset(SCOPES))


def play(clock: Clock) -> Iterator[str]:
    """The lines that the text prints, from what the store answers."""
    yield "--- one table, one query: the run's whole story ---"
    yield from _story()
    yield "--- conditional append: two workers race for seq 5 ---"
    yield from _race()
    yield "--- leases: acquire, refuse, reclaim after a crash ---"
    yield from _leases(clock)


def _story() -> Iterator[str]:
    budget = NewBudget(name="budget", cap=500_000)
    create = CreateRun(key="42", task="audit checkout", status="running", budgets=(budget,))
    execute(create, by=FLEET)
    for event_type in ("model.responded", "tool.returned", "run.completed"):
        # No type name means anything to the store: the run goes on running.
        execute(Append(run="42", events=(NewEvent(type=event_type),)), by=FLEET)
    shown = {"budget": ("cap", "spent"), "evt": ("type",), "meta": ("task", "status")}
    for item in story("42").items:
        row = json.loads(item.text)
        names = shown[row["sk"].split("#")[0]]
        yield f"  {row['pk']:<8} {row['sk']:<12} { {name: row[name] for name in names} }"


def _race() -> Iterator[str]:
    yield f"  worker A: append seq 5 -> {_append(expected_seq=4)}"
    refused = _append(expected_seq=4)
    last_seq = int(refused)
    yield (f"  worker B: append seq 5 -> ConditionalCheckFailed (retries at seq {last_seq + 1})")
    yield f"  worker B: append seq {last_seq + 1} -> {_append(expected_seq=last_seq)}"


def _append(*, expected_seq: int) -> str:
    """`ok`, or the last number that was found instead."""
    event = NewEvent(type="tool.called")
    try:
        execute(Append(run="42", events=(event,), expected_seq=expected_seq), by=FLEET)
    except SeqConflict as refused:
        return str(refused.facts["last_seq"])
    return "ok"


def _leases(clock: Clock) -> Iterator[str]:
    began = clock.now

    def at(seconds: int) -> None:
        clock.advance(seconds=seconds - (clock.now - began).total_seconds())

    yield f"  t=0   worker A acquires unit#7 : {_acquire('A')}"
    at(10)
    yield f"  t=10  worker B tries    unit#7 : {_acquire('B')}  (A's lease is live; B is refused)"
    yield "  ... worker A crashes; its lease keeps ticking toward expiry"
    at(70)
    yield f"  t=70  worker B reclaims unit#7 : {_acquire('B')}  (lease expired at t=60; B wins)"
    lease = json.loads(items("unit#7", sk_prefix="lease").items[0].text)
    until = 70 + lease["expires_in_ms"] // 1_000
    yield f"  unit#7 lease now held by {lease['owner']} until t={until}"


def _acquire(owner: str) -> bool:
    try:
        execute(AcquireLease(unit="7", owner=owner, ttl_seconds=60), by=FLEET)
    except LeaseHeld:
        return False
    return True
