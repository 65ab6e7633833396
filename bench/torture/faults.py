"""What is done to the site, one after the other, in an order and with figures that the seed draws.

A deck of all faults is shuffled and dealt, then shuffled again: so each comes, whatever the seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from agentstate.embedded import EmbeddedPostgres
from agentstate.supervisor import Child
from bench.torture.load import FLEET, HELD_RUNS, OPEN_RUNS, SHORT_TTL_SECONDS, SPLIT, UNITS
from bench.torture.proxy import CUT, DELAY, HALVE, RESET, Mood, Proxy

HOUR_SECONDS = 3_600.0
DATABASE_SECONDS = 60.0  # for it to be there again


@dataclass(frozen=True, slots=True)
class Fault:
    """One that was done. began_at, ended_at: monotonic; after the end nothing is held up by us."""

    name: str
    detail: str
    began_at: float
    ended_at: float


@dataclass(slots=True, kw_only=True)
class Ground:
    """What there is to harm: the site's processes, its database, its network, its clock."""

    webs: Sequence[Child]
    celery: Sequence[Child]
    clients: Sequence[Child]
    database: EmbeddedPostgres
    conninfo: str
    proxies: Sequence[Proxy]  # one before each web process
    stop: threading.Event

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(
            self.conninfo, autocommit=True, application_name="torture", connect_timeout=5
        ) as found:
            yield found

    def wait(self, seconds: float) -> None:
        """So long, or until the trial ends: a fault then ends early and tidies up as always."""
        self.stop.wait(seconds)


type Harm = Callable[[Ground, random.Random], str]


def kill(child: Child) -> str:
    """SIGKILL to a process and its own children; the supervisor starts it again."""
    pid = child.pid
    if pid is None:
        return f"{child.name} was down"
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return f"{child.name}, process {pid}"


@contextmanager
def frozen(child: Child) -> Iterator[None]:
    """A process and its own children stand still, as in a long pause or a sleeping machine."""
    pid = child.pid
    if pid is None:
        yield
        return
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


# --- processes ------------------------------------------------------------------------------------


def kill_web(ground: Ground, chance: random.Random) -> str:
    """At any moment, also between a commit and its answer."""
    return kill(chance.choice(ground.webs))


def kill_every_web(ground: Ground, chance: random.Random) -> str:
    """Leaders of coalesced batches and movers of the feed among them."""
    return ", ".join(kill(web) for web in ground.webs)


def freeze_web(ground: Ground, chance: random.Random) -> str:
    """With whatever locks its transactions hold."""
    seconds = chance.uniform(0.5, 3)
    with frozen(chance.choice(ground.webs)):
        ground.wait(seconds)
    return f"{seconds:.1f} s"


def kill_client(ground: Ground, chance: random.Random) -> str:
    """A worker that is not heard of again; others take its runs when their leases are over."""
    return kill(chance.choice(ground.clients))


def freeze_client(ground: Ground, chance: random.Random) -> str:
    """A worker that sleeps through its leases and then writes on, as if nothing had happened."""
    seconds = SHORT_TTL_SECONDS + chance.uniform(0.3, 1.5)
    with frozen(chance.choice(ground.clients)):
        ground.wait(seconds)
    return f"{seconds:.1f} s"


def kill_celery(ground: Ground, chance: random.Random) -> str:
    """The sweeps and the feed's second mover, in the middle of whatever they do."""
    return kill(chance.choice(ground.celery))


def celery_away_for_an_hour(ground: Ground, chance: random.Random) -> str:
    """Celery stands still while an hour goes by on the database's clock; then the hour is taken
    back, so the clock goes wrong in both directions."""
    with ExitStack() as stack:
        for child in ground.celery:
            stack.enter_context(frozen(child))
        seconds = chance.uniform(2, 4)
        with stepped_clock(ground, HOUR_SECONDS):
            ground.wait(seconds)
    return f"{seconds:.1f} s"


# --- the database ---------------------------------------------------------------------------------


def kill_postgres(ground: Ground, chance: random.Random) -> str:
    """SIGKILL to the postmaster: every connection is gone, and it recovers from its log."""
    pid = ground.database.postmaster_pid()
    if pid is None:
        return "it was down"
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"process {pid}"


TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND application_name LIKE 'agentstate%%' AND query ILIKE %s
    ORDER BY random() LIMIT %s) AS chosen
"""


def end_connections(ground: Ground, chance: random.Random) -> str:
    """A few at a time for a second: while they wait, decide, write or commit."""
    ended, until = 0, time.monotonic() + chance.uniform(0.5, 1.5)
    with ground.connection() as connection:
        while time.monotonic() < until and not ground.stop.is_set():
            row = connection.execute(TERMINATE, ["%", chance.randint(1, 4)]).fetchone()
            ended += row[0] if row else 0
            ground.wait(0.1)
    return f"{ended} of them"


def end_commits(ground: Ground, chance: random.Random) -> str:
    """Those that are just committing, as often as one is met."""
    return _hunt(ground, chance, "COMMIT%")


def end_movers(ground: Ground, chance: random.Random) -> str:
    """Those that move the feed or sweep, in the middle of it."""
    return _hunt(ground, chance, "%DELETE FROM agentstate_outbox%")


def _hunt(ground: Ground, chance: random.Random, query: str) -> str:
    ended, until = 0, time.monotonic() + chance.uniform(0.5, 1.5)
    with ground.connection() as connection:
        while time.monotonic() < until and not ground.stop.is_set():
            row = connection.execute(
                TERMINATE.replace("query ILIKE", "state <> 'idle' AND query ILIKE"), [query, 1]
            ).fetchone()
            ended += row[0] if row else 0
            ground.wait(0.005)
    return f"{ended} of them"


def use_up_connections(ground: Ground, chance: random.Random) -> str:
    """Take every connection that the server has, and end those that the site has."""
    seconds = chance.uniform(1, 3)
    with ExitStack() as stack:
        control, taken = stack.enter_context(ground.connection()), 0
        for _ in range(20):
            control.execute(TERMINATE, ["%", 50])
            with suppress(psycopg.OperationalError):
                while not ground.stop.is_set():
                    stack.enter_context(ground.connection())
                    taken += 1
            ground.wait(0.05)
        ground.wait(seconds)
    return f"{taken} taken for {seconds:.1f} s"


LOCKS = {
    "runs": (
        "SELECT FROM agentstate_run WHERE key = ANY(%s) ORDER BY id FOR UPDATE",
        list(OPEN_RUNS + HELD_RUNS),
    ),
    "leases": (
        "SELECT FROM agentstate_lease WHERE unit = ANY(%s) ORDER BY unit FOR UPDATE",
        [*UNITS, *(f"run:{run}" for run in HELD_RUNS)],
    ),
    "budgets": (
        "SELECT FROM agentstate_budget WHERE name = ANY(%s) ORDER BY depth, id FOR UPDATE",
        [FLEET, f"{SPLIT}#0"],
    ),
}


def hold_locks(ground: Ground, chance: random.Random) -> str:
    """Somebody's long transaction on hot rows: shorter and longer than a call waits for locks."""
    name, seconds = chance.choice(sorted(LOCKS)), chance.choice((0.3, 1.0, 4.0))
    statement, names = LOCKS[name]
    with ground.connection() as connection, connection.transaction():
        connection.execute(statement, [names])
        ground.wait(seconds)
    return f"{name} for {seconds} s"


@contextmanager
def stepped_clock(ground: Ground, by_seconds: float) -> Iterator[None]:
    """Within the block the database's clock is off by so much, and runs on."""
    set_clock(ground, by_seconds)
    try:
        yield
    finally:
        set_clock_back(ground)


def set_clock(ground: Ground, by_seconds: float) -> None:
    """In this scratch database only, as the tests do it (agentstate/store/settable_clock.py)."""
    with ground.connection() as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION agentstate_now() RETURNS timestamptz LANGUAGE sql VOLATILE"
            f" AS $$ SELECT clock_timestamp() + interval '{by_seconds:.3f} seconds' $$"
        )


def set_clock_back(ground: Ground) -> None:
    """Whatever happens to the database meanwhile: the clock must not stay wrong."""
    deadline = time.monotonic() + DATABASE_SECONDS
    while True:
        try:
            set_clock(ground, 0)
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def step_clock(ground: Ground, chance: random.Random) -> str:
    """Forward leases are over early; back they last longer. In no case may two hold a unit."""
    by = chance.choice((-1, 1)) * chance.choice((0.5, 5, 60, HOUR_SECONDS))
    with stepped_clock(ground, by):
        ground.wait(chance.uniform(1, 3))
    return f"{by:+g} s"


# --- the network ----------------------------------------------------------------------------------


def harm_network(ground: Ground, mood: Mood, seconds: float) -> str:
    before = sum(proxy.harmed for proxy in ground.proxies)
    try:
        for proxy in ground.proxies:
            proxy.mood = mood
        ground.wait(seconds)
    finally:
        for proxy in ground.proxies:
            proxy.mood = Mood()
    return f"{sum(proxy.harmed for proxy in ground.proxies) - before} chunks"


def delay_network(ground: Ground, chance: random.Random) -> str:
    """Half of everything comes late, some of it after the caller has given up."""
    mood = Mood(DELAY, 0.5, chance.choice((0.05, 0.5, 2.0)))
    return harm_network(ground, mood, chance.uniform(1, 3))


def halve_answers(ground: Ground, chance: random.Random) -> str:
    """Half an answer, or half a request, and then silence."""
    return harm_network(ground, Mood(HALVE, 0.2), chance.uniform(1, 2))


def reset_connections(ground: Ground, chance: random.Random) -> str:
    """RST, before or after the store had the request."""
    return harm_network(ground, Mood(RESET, 0.2), chance.uniform(1, 3))


def cut_answers(ground: Ground, chance: random.Random) -> str:
    """The store does what is asked, and the caller never hears of it."""
    return harm_network(ground, Mood(CUT, 0.4), chance.uniform(1, 3))


DECK: dict[str, Harm] = {
    "web killed": kill_web,
    "every web killed": kill_every_web,
    "web frozen": freeze_web,
    "worker killed": kill_client,
    "worker frozen past its leases": freeze_client,
    "celery killed": kill_celery,
    "celery away for an hour": celery_away_for_an_hour,
    "postgres killed": kill_postgres,
    "connections ended": end_connections,
    "commits ended": end_commits,
    "movers ended": end_movers,
    "connections used up": use_up_connections,
    "locks held": hold_locks,
    "database's clock stepped": step_clock,
    "network slow": delay_network,
    "answers halved": halve_answers,
    "connections reset": reset_connections,
    "answers cut": cut_answers,
}


def deal(seed: int) -> Iterator[tuple[str, random.Random]]:
    """Names of faults without end, each with the chance that draws its figures."""
    chance = random.Random(f"{seed} faults")
    while True:
        names = sorted(DECK)
        chance.shuffle(names)
        for number, name in enumerate(names):
            yield name, random.Random(f"{seed} {name} {number} {chance.random()}")
