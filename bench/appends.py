"""Appends in process, with every guard, against PostgreSQL's own bare INSERT by pgbench.

    ./run bench appends [--quick] [--rounds N]

One event of about 300 octets each, with fence, event id, version, outbox and a counter, to one of a
thousand runs or all to one. By `execute` in threads and by `aexecute` in tasks of an event loop, of
two processes, as of two web processes. With an idempotency key an append is decided by the rule in
Python; without, by one statement for all that come together (docs/decisions/0029-hot-path.md).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from bench import crew
from bench.baseline import DATA, RUNS, UNIT, make_baseline, make_runs, pgbench
from bench.budget_slots import ask, django_on, scratch_server
from bench.crew import Crew, Told
from bench.report import Goal, Options, Report, Table
from bench.turns import Turns, columns, ms, seconds_of

ABOUT = "Appends in process, with every guard, against PostgreSQL's own bare INSERT"
WRITERS = (1, 16, 64)
MANY, ONE, KEYED = "execute, many runs", "execute, one run", "execute, many runs, idempotency key"
TASKS_MANY, TASKS_ONE = "aexecute, many runs", "aexecute, one run"
KINDS = (MANY, ONE, KEYED, TASKS_MANY, TASKS_ONE)
# Of the unit, by writers: what issue 10 asks for, to many runs and to one.
ASKED_MANY, ASKED_ONE = {1: 0.3, 16: 0.5, 64: 0.7}, {64: 0.7}
TAIL = 10  # p99 is to stay below so many times p50
NAMES = itertools.count()


def report(options: Options) -> Report:
    turns = Turns(UNIT)
    seconds = seconds_of(options)
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"  # the limit of one run is not measured
    with scratch_server(flush_ms=0) as home:
        script = make_baseline(home)
        held = Path(home) / "runs.json"
        held.write_text(json.dumps(make_runs()))
        with Crew("bench.appends", str(held)) as writing:
            turns.play(options, {
                str(writers): {
                    UNIT: lambda w=writers: pgbench(script, w, seconds),
                    **{kind: lambda k=kind, w=writers: writing.work(k, w, seconds)
                       for kind in KINDS},
                }
                for writers in WRITERS
            })  # fmt: skip
        check()
    return told(turns)


def check() -> None:
    """Raises ValueError if the store does not add up after all that."""
    from agentstate.store import audit

    if found := audit.verify():
        raise ValueError(f"{len(found)} differences when everything is derived again: {found[0]}")


def told(turns: Turns) -> Report:
    note = (
        f"One event a call, about {len(DATA)} octets, {RUNS:,} runs or one; writers are threads"
        " (`execute`) or tasks (`aexecute`) of two processes on the cores of the server. At the end"
        " the store's own audit derived everything again and found no difference."
    )
    table = Table(title="Appends", columns=columns("writers", UNIT), rows=turns.rows(), note=note)
    return Report(tables=(table,), goals=(*rates(turns), *tails(turns)))


def rates(turns: Turns) -> list[Goal]:
    """The better way of calling counts, and is named."""
    found = []
    for asked, ways, where in (
        (ASKED_MANY, (MANY, TASKS_MANY), "many runs"),
        (ASKED_ONE, (ONE, TASKS_ONE), "one run"),
    ):
        for writers, least in asked.items():
            ratio, name = best(turns, str(writers), ways)
            found.append(Goal(
                what=f"append to {where}, {writers} writer{'s' * (writers > 1)}",
                asked=f"≥ {least} of a bare INSERT",
                found=f"{ratio:.2f} ({name.split(',')[0]})",
                reached=ratio >= least,
            ))  # fmt: skip
    return found


def best(turns: Turns, group: str, ways: tuple[str, ...]) -> tuple[float, str]:
    return max((turns.ratio(group, name), name) for name in ways if turns.has(group, name))


def tails(turns: Turns) -> list[Goal]:
    found = []
    for ways, where in (((MANY, TASKS_MANY), "many runs"), ((ONE, TASKS_ONE), "one run")):
        _, name = best(turns, "64", ways)
        p50, p99 = turns.p50_ms("64", name), turns.p99_ms("64", name)
        assert p50 is not None
        assert p99 is not None
        found.append(Goal(
            what=f"append to {where}, 64 writers: the slowest of a hundred",
            asked=f"p99 under {TAIL} times p50",
            found=f"{p99 / p50:.1f} times ({ms(p50)} and {ms(p99)} ms)",
            reached=p99 < TAIL * p50,
        ))  # fmt: skip
    return found


# --- a process that writes ------------------------------------------------------------------------


def serve(held: str) -> None:
    django_on(os.environ["AGENTSTATE_HOME"])
    runs = [tuple(run) for run in json.loads(Path(held).read_text())]

    def work(kind: str, writers: int, seconds: float) -> Told:
        some: Any = runs[:1] if "one run" in kind else runs
        if kind.startswith("aexecute"):
            return tasks(some, writers, seconds)
        return threads(some, writers, seconds, keyed=kind == KEYED)

    crew.serve(work)


def append_to(runs: list[tuple[str, int]]) -> Any:
    from agentstate.store.commands import Append, NewEvent
    from agentstate.store.payloads import RawJSON

    key, token = random.choice(runs)
    new = NewEvent(type="step.done", data=RawJSON(DATA), id=f"{os.getpid()}-{next(NAMES)}")
    return Append(run=key, events=(new,), fence=token, add={"steps": 1})


def threads(runs: list[tuple[str, int]], writers: int, seconds: float, *, keyed: bool) -> Told:
    from django.db import connections

    def call() -> int:
        if keyed:
            ask_keyed(append_to(runs))
        else:
            ask(append_to(runs))
        return 1

    return crew.in_threads(writers, seconds, call, at_end=connections.close_all)


def ask_keyed(command: Any) -> Any:
    """Each with a key that was never used: it is looked up and kept, and nothing is replayed."""
    from agentstate import store
    from agentstate.store.callers import SCOPES, Caller, Circumstances

    name = f"k-{os.getpid()}-{next(NAMES)}"
    under = Circumstances(idempotency_key=name, fingerprint=name.encode())
    by = Caller(kind="key", name="bench", scopes=frozenset(SCOPES))
    return store.execute(command, by=by, under=under)


def tasks(runs: list[tuple[str, int]], writers: int, seconds: float) -> Told:
    async def call() -> int:
        await aask(append_to(runs))
        return 1

    return crew.in_tasks(writers, seconds, call)


def aask(command: Any) -> Awaitable[Any]:
    """`ask` for a task."""
    from agentstate import store
    from agentstate.store.callers import SCOPES, Caller

    by = Caller(kind="key", name="bench", scopes=frozenset(SCOPES))
    done: Awaitable[Any] = store.aexecute(command, by=by)
    return done


if __name__ == "__main__":
    serve(sys.argv[sys.argv.index("--serve") + 1])
