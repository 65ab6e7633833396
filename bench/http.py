"""Appends over HTTP, one event and twenty a call, against PostgreSQL's own bare INSERT by pgbench.

    ./run bench http [--quick] [--rounds N]

Two web processes, each started as `./run` starts one, each with half of the connections that stay
open. A body of about 300 octets an event, an id that is new, a fence, a counter, a thousand runs.
For one connection also an endpoint that does nothing, on the same server. At the end every event
that was acknowledged has to be stored, and the store's own audit derives everything again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from bench.appends import check
from bench.baseline import DATA, RUNS, UNIT, make_baseline, make_runs, pgbench
from bench.budget_slots import scratch_server
from bench.load import Asked, Found, load, name
from bench.report import Goal, Options, Report, Table
from bench.turns import Measured, Turns, columns, ms, seconds_of
from bench.webs import web_processes

ABOUT = "Appends over HTTP, one event and twenty a call, against PostgreSQL's own bare INSERT"
CONNECTIONS = (1, 16, 64)
SINGLE, MANY, EMPTY = "one event a call", "20 events a call", "GET /health/live"
EVENTS = {SINGLE: 1, MANY: 20}
WORDS = itertools.count(1)


class Calls:
    """What calls the web processes, and what became of all its calls."""

    def __init__(self, urls: Sequence[str], key: str, runs: Path, seconds: int) -> None:
        self.urls, self.key, self.runs, self.seconds = urls, key, runs, seconds
        self.acknowledged = self.refused = 0

    def append(self, connections: int, kind: str) -> Measured:
        """A turn; counted in events."""
        events = EVENTS[kind]
        asked = [
            Asked(self.runs, self.key, events, DATA, f"{next(WORDS)}-{os.getpid()}")
            for _ in self.urls
        ]
        found = self._note(load(self.urls, connections, self.seconds, asked))
        self.acknowledged += found.done * events
        own = found.measured
        return Measured(own.per_second * events, own.p50_ms, own.p99_ms)

    def get_nothing(self) -> Measured:
        urls = [f"{url}/health/live" for url in self.urls]
        return self._note(load(urls, 1, self.seconds)).measured

    def _note(self, found: Found) -> Found:
        self.refused += found.refused
        return found


def report(options: Options) -> Report:
    turns = Turns(UNIT)
    seconds = seconds_of(options)
    os.environ["AGENTSTATE_RUN_WRITES_PER_SECOND"] = "0"  # the limit of one run is not measured
    with scratch_server(flush_ms=0) as home:
        script, runs = make_baseline(home), Path(home) / "runs.txt"
        runs.write_text("".join(f"{key} {token}\n" for key, token in make_runs()))
        key = make_key()
        with web_processes(home) as webs:
            calls = Calls([web.url for web in webs], key, runs, seconds)
            turns.play(options, {
                str(connections): {
                    UNIT: lambda c=connections: pgbench(script, c, seconds),
                    **{kind: lambda k=kind, c=connections: calls.append(c, k) for kind in EVENTS},
                    **({EMPTY: calls.get_nothing} if connections == 1 else {}),
                }
                for connections in CONNECTIONS
            })  # fmt: skip
        stored = count_stored()
        if stored < calls.acknowledged:
            raise ValueError(f"{calls.acknowledged} events were acknowledged, {stored} are stored")
        check()
    return told(turns, calls, stored)


def make_key() -> str:
    """Of the caller that made the runs: their tokens count with its key alone."""
    from django.db import connections

    from agentstate.cli import people

    key = people.make_key(name="bench", scopes=("read", "payloads", "write"))
    connections.close_all()
    return key


def count_stored() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM agentstate_event WHERE type = 'step.done'")
        return int(cursor.fetchone()[0])


def told(turns: Turns, calls: Calls, stored: int) -> Report:
    note = (
        f"Two web processes, load by {name()} for each of them, {RUNS:,} runs; rates are events a"
        f" second. {calls.acknowledged:,} events were acknowledged, {stored:,} stored (the last"
        f" calls of a turn are cut off), {calls.refused:,} calls refused."
    )
    table = Table(
        title="Appends over HTTP", columns=columns("connections", UNIT), rows=turns.rows(),
        note=note,
    )  # fmt: skip
    return Report(tables=(table,), goals=goals(turns))


def goals(turns: Turns) -> tuple[Goal, ...]:
    single, many = turns.ratio("64", SINGLE), turns.ratio("64", MANY)
    own, empty = turns.p50_ms("1", SINGLE), turns.p50_ms("1", EMPTY)
    assert own is not None
    assert empty is not None
    return (
        Goal(what="append over HTTP, one event a call, 64 connections",
             asked="≥ 0.3 of a bare INSERT", found=f"{single:.2f}", reached=single >= 0.3),
        Goal(what="append over HTTP, 20 events a call, 64 connections, in events",
             asked="≥ 1.0 of a bare INSERT", found=f"{many:.2f}", reached=many >= 1.0),
        Goal(what="append over HTTP, one connection: p50",
             asked="under 3 times that of an endpoint that does nothing",
             found=f"{own / empty:.1f} times ({ms(own)} and {ms(empty)} ms)",
             reached=own < 3 * empty),
    )  # fmt: skip
