"""Appends beside what peers do for one event or step, on the same server, in turns.

    ./run bench peers [--quick] [--rounds N]

Ours with every guard; each peer by its public API at its defaults (`peer_work.py`), one event a
call, in an environment of its own (`apart.py`). The event is the same JSON object, and there are as
many callers, spread over two processes. No peer does all that ours does in one call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from bench.apart import versions
from bench.appends import MANY, TASKS_MANY, check
from bench.baseline import UNIT, make_baseline, make_runs, pgbench
from bench.beside import Beside, beside
from bench.budget_slots import scratch_server
from bench.crew import Crew
from bench.report import Goal, Options, Report, Table
from bench.turns import Turns, columns, seconds_of

ABOUT = "Appends beside peers from PyPI, each by its public API, on the same server"
CALLERS = (1, 16)
WAYS = (MANY, TASKS_MANY)
# Its package, and what one call of it guarantees.
PEERS = {
    "eventsourcing": (
        "eventsourcing", "version unique, total order by a table lock, NOTIFY"),
    "eventsourcing, database functions": (
        "eventsourcing", "the same in one function of the database"),
    "LangGraph PostgresSaver.put": (
        "langgraph-checkpoint-postgres", "upsert of a checkpoint; no fence, no version compared"),
    "Absurd step": (
        "absurd-sdk", "checkpoint by the holder of the claim, which is prolonged; 20 steps a task"),
    "DBOS step": ("dbos", "output of a step once, status of the workflow; 20 steps a workflow"),
    "procrastinate defer": ("procrastinate", "a job row, NOTIFY, an event row by trigger"),
    "pgmq send": ("pgmq", "a row; no condition"),
    "Django ORM lock + save + create": (
        "django", "a counter under a row lock, number unique in the run"),
}  # fmt: skip
OURS = "fence, event id once, version, number without a hole, counter, outbox; audited"
FASTER = ("eventsourcing", "eventsourcing, database functions")
# At 16 callers: ours has to be so many times as fast.
ASKED_16 = {"Absurd step": 5, "DBOS step": 10, "LangGraph PostgresSaver.put": 1}
ASKED_EVENTSOURCING_16 = 3
AT_1 = (*FASTER, *ASKED_16)


def report(options: Options) -> Report:
    turns, seconds = Turns(UNIT), seconds_of(options)
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"  # the limit of one run is not measured
    with scratch_server(flush_ms=0, max_connections=300) as home:
        script = make_baseline(home)
        held = Path(home) / "runs.json"
        held.write_text(json.dumps(make_runs()))
        with Crew("bench.appends", str(held)) as writing, beside(list(PEERS)) as others:
            turns.play(options, {
                str(callers): {
                    UNIT: lambda c=callers: pgbench(script, c, seconds),
                    **{kind: lambda k=kind, c=callers: writing.work(k, c, seconds)
                       for kind in WAYS},
                    **{peer: lambda p=peer, c=callers: others.work(p, c, seconds)
                       for peer in others.names},
                }
                for callers in CALLERS
            })  # fmt: skip
        check()
    return told(turns, others)


def told(turns: Turns, others: Beside) -> Report:
    rates = Table(
        title="Beside peers", columns=columns("callers", UNIT), rows=turns.rows(),
        note="Events, steps or jobs a second; ours by `execute` (threads) and `aexecute` (tasks).",
    )  # fmt: skip
    given = Table(
        title="What one call guarantees", columns=("what", "version", "guarantees"),
        rows=(("agentstate", "this one", OURS), *map(row, PEERS)), note=absent(others),
    )  # fmt: skip
    return Report(tables=(rates, given), goals=(*at_16(turns, others.missing), at_1(turns, others)))


def row(peer: str) -> tuple[str, str, str]:
    package, guarantees = PEERS[peer]
    return peer, f"{package} {versions()[package]}", guarantees


def absent(others: Beside) -> str:
    """Who could not be measured is named, with the cause."""
    told = [f"{peer} ({why})" for peer, why in others.missing.items()]
    return f"Could not be measured here: {'; '.join(told)}." if told else ""


def ours(turns: Turns, group: str, peer: str) -> float:
    """How many times as fast as the peer, by the better way of calling."""
    return max(turns.ratio(group, name, to=peer) for name in WAYS)


def at_16(turns: Turns, missing: Mapping[str, str]) -> list[Goal]:
    goals = []
    there = [peer for peer in FASTER if peer not in missing]
    slowest = min((ours(turns, "16", peer) for peer in there), default=None)
    goals.append(goal("eventsourcing's faster form", slowest, ASKED_EVENTSOURCING_16))
    for peer, times in ASKED_16.items():
        found = None if peer in missing else ours(turns, "16", peer)
        goals.append(goal(peer, found, times))
    return goals


def goal(peer: str, found: float | None, times: int) -> Goal:
    return Goal(
        what=f"appends at 16 callers beside {peer}",
        asked=f"≥ {times} times" if times > 1 else "above it",
        found="not measured here" if found is None else f"{found:.1f} times",
        reached=found is not None and (found >= times if times > 1 else found > 1),
    )


def at_1(turns: Turns, others: Beside) -> Goal:
    found = {peer: ours(turns, "1", peer) for peer in AT_1 if peer in others.names}
    ahead = {peer: times for peer, times in found.items() if times < 1}
    told = ", ".join(f"{peer} {1 / times:.1f} times ours" for peer, times in ahead.items())
    nearest = f"the nearest: ours is {min(found.values()):.1f} times as fast" if found else ""
    return Goal(
        what="appends at 1 caller beside eventsourcing, Absurd, DBOS and LangGraph",
        asked="behind none",
        found=f"behind: {told}" if ahead else nearest or "not measured here",
        reached=len(found) == len(AT_1) and not ahead,
    )  # fmt: skip
