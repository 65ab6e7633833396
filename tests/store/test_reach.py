"""What a write asks of the database names its rows, however many others there are.

The plans are those that PostgreSQL carried out (auto_explain), with its statistics up to date: so a
statement that reads a whole table of budgets, entries or runs is seen here, and not by a fleet that
has grown. Nothing is timed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

import agentstate
from agentstate import store as door
from agentstate.store.callers import Caller, Circumstances
from agentstate.store.commands import (
    AcquireLease,
    AnnounceWorker,
    Append,
    CarryOutDeadlines,
    Charge,
    ClaimRuns,
    CreateBudget,
    CreateRun,
    DrainWorker,
    DropDeadHolds,
    NewBudget,
    NoteLapsed,
    Reserve,
    SplitBudget,
    Transition,
)
from agentstate.store.errors import Refusal
from tests.api.asking import BASE, Api, new_key
from tests.faults.scenes import COMMANDS, set_up
from tests.store.asking import ANA, FLEET, SENIOR, event

pytestmark = [pytest.mark.long, pytest.mark.many]

EXAMPLES = Path(agentstate.__file__).parent / "api" / "examples.json"
RUNS = 1_200
DAY = 86_400
# A statement reads a few rows, those of indexes and of retried lookups included.
READ_MAX = 200
# What looks for leases and holds that are over reads those that are held, at a claim and in sweeps.
READS_WHAT_IS_HELD = (
    "SELECT coalesce(bool_or(l.expires_at",
    "SELECT unit FROM agentstate_lease WHERE run_id IS NOT NULL",
    "SELECT h.budget_id, h.reservation_id, h.slot_id",
)
_EXPLAIN = """
LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_format = json; SET client_min_messages = log
"""

MORE: dict[str, Any] = {
    "claim": lambda s: (ClaimRuns(owner="w-9"), FLEET),
    "claim of a task": lambda s: (ClaimRuns(owner="w-9", task="wait"), FLEET),
    "note what has lapsed": lambda s: (NoteLapsed(), door.SWEEP),
    "drop dead holds": lambda s: (DropDeadHolds(), door.SWEEP),
    "carry out deadlines": lambda s: (CarryOutDeadlines(), door.SWEEP),
    "split a budget": lambda s: (SplitBudget(budget=s.fleet, slots=4, reason="hot"), SENIOR),
    "drain a worker": lambda s: (DrainWorker(worker="w-1", reason="old"), ANA),
    "announce a worker": lambda s: (AnnounceWorker(worker="w-1"), FLEET),
    "spend under an id": lambda s: (
        Append(
            run=s.key,
            events=(event(),),
            spend=(Charge(budget="budget", amount=1, id="again"),),
            fence=s.token,
        ),
        FLEET,
    ),
}


def ask_all(commands: list[Any]) -> list[Any]:
    done: list[Any] = []
    for first in range(0, len(commands), 200):
        some = commands[first : first + 200]
        done += door.execute_all([door.Ask(command=one, by=FLEET) for one in some])
    return done


def fill() -> None:
    """Held runs with an event, a charge and a hold each, budgets above, units, refusals, and runs
    that wait."""
    keys = [f"many-{n}" for n in range(RUNS)]
    ask_all([CreateBudget(run=None, budget=NewBudget(name=f"over-{k}", cap=1_000)) for k in keys])
    ask_all([
        CreateRun(key=k, task="many", budgets=(NewBudget(name="b", cap=100, parent=f"over-{k}"),))
        for k in keys
    ])  # fmt: skip
    units = [f"run:{k}" for k in keys]
    held = ask_all([AcquireLease(unit=u, owner=f"w:{u}", ttl_seconds=DAY) for u in units])
    tokens = dict(zip(keys, (lease.token for lease in held), strict=True))
    ask_all([Transition(run=k, to="running", fence=t) for k, t in tokens.items()])
    charge = Charge(budget="b", amount=1, id="c")
    ask_all([
        Append(run=k, events=(event(id="known"),), fence=t, spend=(charge,))
        for k, t in tokens.items()
    ])  # fmt: skip
    ask_all([
        Reserve(run=k, budget="b", amount=3, id="h", fence=t, ttl_seconds=DAY)
        for k, t in tokens.items()
    ])  # fmt: skip
    refused = ask_all([AcquireLease(unit=u, owner="late") for u in units])
    assert all(isinstance(one, Refusal) for one in refused)
    ask_all([CreateRun(key=f"wait-{k}", task="wait") for k in keys])
    with connection.cursor() as cursor:
        # Those of the last second are read when one more is refused.
        cursor.execute("UPDATE agentstate_refusal SET at = at - interval '1 minute'")
        cursor.execute("ANALYZE")


@contextmanager
def plans() -> Iterator[list[str]]:
    """What this connection is told of the statements it carries out."""
    told: list[str] = []
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute(_EXPLAIN)
    connection.connection.add_notice_handler(lambda notice: told.append(notice.message_primary))
    try:
        yield told
    finally:
        connection.close()


def rows_read(node: dict[str, Any]) -> float:
    """The most that one part of a plan read of a table, or compared in a join."""
    read = 0.0
    if "Relation Name" in node or "Join Filter" in node:
        left_out = (node[name] for name in node if name.startswith("Rows Removed by"))
        read = (node.get("Actual Rows", 0) + sum(left_out)) * node.get("Actual Loops", 1)
    return max([read, *map(rows_read, node.get("Plans", ()))])


def carried_out(told: list[str]) -> Iterator[tuple[str, float]]:
    for line in told:
        if line.startswith("duration"):
            plan = json.loads(line[line.index("{") :])
            yield " ".join(plan["Query Text"].split()), rows_read(plan["Plan"])


def test_no_command_reads_more_rows_than_it_names(store):
    fill()
    too_much: dict[str, set[str]] = {}
    asked = 0
    with plans() as told:
        for number, (name, make) in enumerate([*COMMANDS.items(), *MORE.items()] * 2):
            scene = set_up(f"scene-{number}")
            told.clear()
            command, by = make(scene)
            with suppress(Refusal):
                execute(command, by, number)
            for statement, read in carried_out(told):
                asked += 1
                if read > READ_MAX and not statement.startswith(READS_WHAT_IS_HELD):
                    too_much.setdefault(f"{statement[:300]} [{read:.0f} rows]", set()).add(name)
    assert asked > 500
    assert too_much == {}


def execute(command: Any, by: Caller, number: int) -> None:
    """The first half as short as they can be, the others under a key of their own."""
    keyed = number >= len(COMMANDS) + len(MORE) and by.kind == "key"
    under = Circumstances(
        idempotency_key=f"k-{number}" if keyed else None,
        fingerprint=b"same" if keyed else None,
        request_id="req-1",
    )
    door.execute(command, by=by, under=under)


# --- reads ----------------------------------------------------------------------------------------

# Of the example's run, unit and budgets those of a store that is full of them.
OURS = {"42": "many-7", "run:42": "run:many-7", "tokens": "b", "fleet": "over-many-7"}
# Counts read what they count. Held leases and shared budgets, of which there are few, are sorted.
# For runs by their status the index does not pay with so few: `./run bench reads` has a million.
COUNTS = {"are_jobs_on_time", "is_ready", "list_alerts", "list_alert_rules", "preview_alert_rule"}
LISTS = {"list_runs", "list_leases", "list_shared_budgets", "search_runs"}


def reads() -> list[tuple[str, str]]:
    """Each read of the API as its example has it: what it is called, and its address."""
    found = []
    for example in json.loads(EXAMPLES.read_text()):
        called = example["method"] == "GET" and example["status"] == 200
        if called and example["operation"] not in COUNTS | LISTS:
            path = example["path"].removeprefix(BASE)
            for was, now in OURS.items():
                path = re.sub(rf"(/|%23){was}(?=/|$|&|\?)", rf"\g<1>{now}", path)
            found.append((example["operation"], path))
    return found


def test_no_read_of_the_api_reads_more_rows_than_it_tells(transactional_db):
    """With sequential scans turned off: a table is small here, and read whole for that."""
    fill()
    api = Api(new_key("fleet"))
    too_much, told_of = {}, set()
    with plans() as told:
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
        for operation, path in reads():
            told.clear()
            answer = api.get(path)
            assert answer.status in (200, 404, 410), (path, answer.text)
            if answer.status == 200:
                told_of.add(operation)
            for statement, read in carried_out(told):
                if read > READ_MAX:
                    too_much[operation, statement] = read
    assert {"read_run", "list_events", "list_ledger", "list_terms", "read_story"} <= told_of
    assert too_much == {}
