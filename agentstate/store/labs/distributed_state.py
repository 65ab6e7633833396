"""The second text: lost update, retry, idempotency, last write wins, atomic add, fencing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import (
    AcquireLease,
    Changed,
    CreateRun,
    Patch,
    Transition,
)
from agentstate.store.errors import StaleFence, VersionConflict
from agentstate.store.execute import execute
from agentstate.store.payloads import RawJSON, dump
from agentstate.store.reads import run as read_run
from agentstate.store.settable_clock import Clock

FLEET = Caller(kind="key", name="lab", scopes=frozenset(SCOPES))
ATTEMPTS = 5

type State = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A run as the text shows it: its attrs are the value."""

    record_id: str
    value: State
    version: int


def play(clock: Clock) -> Iterator[str]:
    """The lines that the text prints, from what the store answers."""
    execute(CreateRun(key="run-1", task="lab", attrs=_attrs(steps_done=0)), by=FLEET)
    yield from _lost_update()
    yield from _retry()
    yield from _once()
    yield from _last_write_wins()
    yield from _atomic_add()
    yield from _one_writer(clock)


def _attrs(*, steps_done: int) -> RawJSON:
    return dump({"status": "running", "steps_done": steps_done})


def _get(key: str) -> Record:
    found = read_run(key).run
    return Record(key, json.loads(found.attrs), found.version)


def _cas(key: str, expected_version: int, value: State, *, change_id: str | None = None) -> Changed:
    ask = Patch(run=key, replace=dump(value), if_match=expected_version, id=change_id)
    return execute(ask, by=FLEET)


def _increment(state: State) -> State:
    return {**state, "steps_done": state["steps_done"] + 1}


def _lost_update() -> Iterator[str]:
    worker_a, worker_b = _get("run-1"), _get("run-1")
    _cas("run-1", worker_a.version, _increment(worker_a.value))
    yield f"after A: {_get('run-1')}"
    try:
        _cas("run-1", worker_b.version, _increment(worker_b.value))
    except VersionConflict as refused:
        yield f"B rejected: {refused.detail}"
    yield f"no lost update, steps_done: {_get('run-1').value['steps_done']}"


def _update_with_retry(
    key: str, mutate: Callable[[State], State], *, between: Callable[[Record], None] | None = None,
    change_id: str | None = None,
) -> tuple[Changed, int]:  # fmt: skip
    """Read, change, compare and set; again on a conflict, at most ATTEMPTS times."""
    for attempt in range(1, ATTEMPTS + 1):
        current = _get(key)
        value = mutate(current.value)
        if between is not None and attempt == 1:
            between(current)
        try:
            return _cas(key, current.version, value, change_id=change_id), attempt
        except VersionConflict as refused:
            last = refused
    raise last


def _retry() -> Iterator[str]:
    def rival(seen: Record) -> None:
        _cas("run-1", seen.version, {**seen.value, "status": "running"})

    _, attempts = _update_with_retry("run-1", _increment, between=rival)
    yield f"retry loop succeeded on attempt {attempts} -> {_get('run-1')}"


def _once() -> Iterator[str]:
    for _ in range(2):
        done, _ = _update_with_retry("run-1", _increment, change_id="req-1")
        yield f"{'duplicate ignored (v' if done.replayed else 'applied at v'}{done.version}" + (
            ")" if done.replayed else ""
        )
    yield f"final: {_get('run-1')}"


def _last_write_wins() -> Iterator[str]:
    execute(CreateRun(key="run-2", task="lab", attrs=_attrs(steps_done=0)), by=FLEET)
    for _worker in ("A", "B"):
        # Both read 0, and neither says what it has read.
        execute(Patch(run="run-2", replace=_attrs(steps_done=1)), by=FLEET)
    yield f"last-write-wins result: {_get('run-2').value} (A's increment was lost)"


def _atomic_add() -> Iterator[str]:
    for amount in (1, 1):
        execute(Patch(run="run-2", add={"steps_done": amount}), by=FLEET)
    for amount in (100, 250):
        execute(Patch(run="run-2", add={"tokens_spent": amount}), by=FLEET)
    counters = dict(read_run("run-2").run.counters)
    yield f"atomic add result: {counters} (no increment was lost)"


def _one_writer(clock: Clock) -> Iterator[str]:
    first = execute(AcquireLease(unit="run:run-1", owner="worker-A", ttl_seconds=60), by=FLEET)
    execute(Transition(run="run-1", to="running", fence=first.token), by=FLEET)
    clock.advance(seconds=60)
    second = execute(AcquireLease(unit="run:run-1", owner="worker-B", ttl_seconds=60), by=FLEET)
    try:
        execute(Transition(run="run-1", to="completed", fence=first.token), by=FLEET)
    except StaleFence:
        yield "late owner: rejected, its fencing token was superseded by a higher one"
    done = execute(
        Transition(run="run-1", to="completed", fence=second.token, if_match=second.version),
        by=FLEET,
    )
    yield f"new owner: {done.status}"
