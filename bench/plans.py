"""EXPLAIN of the hot paths: what PostgreSQL does for a batch of appends, of renewals, and a claim.

    ./run bench plans [--quick]

auto_explain tells the plan of each statement that a function of the store runs, as it ran; of each
call the one of most steps is shown. One connection, every plan already made, among ended runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.baseline import DATA, make_runs
from bench.budget_slots import scratch_server
from bench.claimable import Claimable
from bench.leases import AT_ONCE
from bench.report import Options, Report, Table

ABOUT = "EXPLAIN of the hot paths: a batch of appends, of renewals, a claim"
BATCH = 32
TIMES = 12  # a plan is made for good after five; the last one is looked at
ENDED, QUICK_ENDED, WAITING = 100_000, 2_000, 1_000
CALLS = ("Result", "Function Scan")
EXPLAINING = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_format": "json",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a plan. ms: in it and below it, all loops together; pages: hit or read."""

    depth: int
    what: str
    rows: float
    ms: float
    pages: int


def report(options: Options) -> Report:
    with scratch_server(flush_ms=0, settings=EXPLAINING):
        ended = QUICK_ENDED if options.quick else ENDED
        store = Claimable(ended)
        store.end_up_to(ended)
        runs = make_runs()
        store.wait(WAITING)
        return Report(tables=tuple(
            table(title, explained(call)) for title, call in calls(runs)
        ))  # fmt: skip


def calls(runs: Sequence[tuple[str, int]]) -> Iterator[tuple[str, Callable[[int], None]]]:
    from agentstate.store.commands import Append, ClaimRuns, NewEvent, RenewLease
    from agentstate.store.payloads import RawJSON

    def some(turn: int) -> Sequence[tuple[str, int]]:
        return [runs[(turn * BATCH + n) % len(runs)] for n in range(BATCH)]

    def append(turn: int) -> None:
        ask_all(
            Append(run=key, fence=token, add={"steps": 1},
                   events=(NewEvent(type="step.done", data=RawJSON(DATA), id=f"p-{turn}"),))
            for key, token in some(turn)
        )  # fmt: skip

    def renew(turn: int) -> None:
        ask_all(
            RenewLease(unit=f"run:{key}", token=token, ttl_seconds=3_600)
            for key, token in runs[:AT_ONCE]
        )

    def claim(turn: int) -> None:
        ask_all([ClaimRuns(owner="bench", limit=1, ttl_seconds=60)])

    yield f"{BATCH} appends to {BATCH} runs", append
    yield f"{AT_ONCE} renewals in one call", renew
    yield f"A claim of one among {WAITING:,} runs that wait", claim


def ask_all(commands: Any) -> None:
    """In one transaction, on this thread's connection. Raises what was refused."""
    from agentstate.store.asks import Ask
    from agentstate.store.callers import SCOPES, Caller
    from agentstate.store.execute import execute_all

    by = Caller(kind="key", name="bench", scopes=frozenset(SCOPES))
    for outcome in execute_all([Ask(command=one, by=by) for one in commands]):
        if isinstance(outcome, Exception):
            raise outcome


def explained(call: Callable[[int], None]) -> tuple[float, list[Step]]:
    """Of the last of some calls the statement of most steps: how long it took (ms), and these."""
    for turn in range(TIMES):
        with listening() as plans:
            call(turn)
    found = [(took, list(steps(plan))) for took, plan in plans]
    return max(found, key=lambda one: len(one[1]))


@contextmanager
def listening() -> Iterator[list[tuple[float, dict[str, Any]]]]:
    """The plan of each statement meanwhile but those that only call a function of ours, which tells
    its own; with its milliseconds."""
    from django.db import connection

    found: list[tuple[float, dict[str, Any]]] = []

    def hear(told: Any) -> None:
        head, _, plan = (told.message_primary or "").partition("plan:\n")
        tree = json.loads(plan)["Plan"] if plan else {}
        if tree and ("Plans" in tree or tree["Node Type"] not in CALLS):
            found.append((float(head.split()[1]), tree))

    connection.ensure_connection()
    raw = connection.connection
    raw.execute("SET client_min_messages = log")
    raw.add_notice_handler(hear)
    try:
        yield found
    finally:
        raw.remove_notice_handler(hear)
        raw.execute("SET client_min_messages = notice")


def steps(plan: dict[str, Any], depth: int = 0) -> Iterator[Step]:
    loops = plan["Actual Loops"]
    yield Step(
        depth=depth,
        what=named(plan),
        rows=plan["Actual Rows"] * loops,
        ms=plan.get("Actual Total Time", 0.0) * loops,
        pages=plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0),
    )
    for inner in plan.get("Plans", ()):
        if inner["Actual Loops"]:
            yield from steps(inner, depth + 1)


def named(plan: dict[str, Any]) -> str:
    """Such as `CTE logged: Insert on agentstate_event`, `Index Scan using run_key_is_unique`."""
    kind = plan["Operation"] if plan["Node Type"] == "ModifyTable" else plan["Node Type"]
    if "Index Name" in plan:
        kind += f" using {plan['Index Name']}"
    elif "Relation Name" in plan:
        kind += f" on {plan['Relation Name']}"
    elif "CTE Name" in plan:
        kind += f" on {plan['CTE Name']}"
    return f"{plan['Subplan Name']}: {kind}" if "Subplan Name" in plan else kind


def table(title: str, found: tuple[float, list[Step]]) -> Table:
    took, tree = found
    return Table(
        title=f"{title}: {took:.2f} ms",
        columns=("step", "rows", "ms", "pages"),
        rows=tuple(
            (f"{'· ' * step.depth}{step.what}", f"{step.rows:,.0f}", f"{step.ms:.3f}",
             f"{step.pages:,}")
            for step in tree
        ),
        note="Each step with what is below it; those that never ran are left out.",
    )  # fmt: skip
