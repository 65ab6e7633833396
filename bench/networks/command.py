"""`./run networks`: the clients of `./run torture` on a site whose parts are on hosts of their own.

Database, web processes, Celery and agents are in a network namespace each. While the agents work
what is between two of them is cut, in both directions or in one, delayed or made to lose packets.
At the end all that the agents wrote down is held against all that is stored, as a trial does.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from agentstate.cli.output import event, progress, result
from agentstate.cli.site import INTERRUPTED, background_children, listen, web_child
from agentstate.embedded import DURABLE, PORT, USER, EmbeddedPostgres
from agentstate.supervisor import Child, Supervisor
from agentstate.where import BASE as ROOT
from bench.networks.hosts import CLEAR, NETWORK, Hosts, Way, check_what_is_needed
from bench.torture import verdict
from bench.torture.calls import Calls
from bench.torture.faults import Fault, Ground
from bench.torture.final import Final, write_final
from bench.torture.history import History, read_history
from bench.torture.trial import (
    CLIENT_STOP_SECONDS,
    FINAL,
    Record,
    client_child,
    follow_to_the_end,
    harness_calls,
    judge,
    keep,
    make_keys,
    move_in,
    new_folder,
    read_whole_feed,
    scratch,
    set_up,
    stored,
    wait_until_served,
)

DATABASE, WEB, WORKER, AGENTS = "database", "web", "worker", "agents"
PAIRS = ((AGENTS, WEB), (WEB, DATABASE), (WORKER, DATABASE))
CLIENTS, WEBS = 2, 2
START_SECONDS, PAUSE_SECONDS, SETTLE_SECONDS = 120, 1.0, 8.0
PROGRESS_SECONDS = 10.0
JOBS_SECONDS = 60.0
CUT, DELAYED = Way(cut=True), Way(delay_seconds=0.15, spread_seconds=0.1)
LOSSY = Way(lost=0.2)
# How long each; a cut is longer than TCP holds on to what is not answered (postgres.TCP).
KINDS: dict[str, tuple[Way, Way, float]] = {
    "cut": (CUT, CUT, 10.0),
    "cut, there": (CUT, CLEAR, 5.0),
    "cut, back": (CLEAR, CUT, 5.0),
    "delayed 150 ± 100 ms": (DELAYED, DELAYED, 5.0),
    "20 % lost": (LOSSY, LOSSY, 5.0),
}
JOB_BEGAN = """
SELECT count(*) FROM agentstate_heartbeat
WHERE name = 'note lapsed leases' AND ended_at > %s AND failed IS NULL
"""


@dataclass(slots=True)
class Course:
    """The faults, and after each on the way of the jobs the seconds until they ran again."""

    record: Record = field(default_factory=Record)
    jobs: list[tuple[str, float | None]] = field(default_factory=list)


def networks(options: argparse.Namespace) -> int:
    """0 when every promise was kept, 1 when not, 130 when interrupted."""
    check_what_is_needed()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    folder = new_folder(seed, kind="networks")
    move_in(folder)
    progress(f"seed {seed}; everything of this trial is in {folder}")
    began, course = time.monotonic(), Course()
    with scratch(folder), Hosts((DATABASE, WEB, WORKER, AGENTS), seed=str(seed)) as hosts:
        history, final, differences, interrupted = play(hosts, seed, folder, course)
        counts = hosts.counts
    seconds = time.monotonic() - began
    write_final(final, folder / FINAL)
    progress("checking …")
    course.record.trouble += late_jobs(course, options.within_seconds)
    given = judge(seed, seconds, options.within_seconds, history, final, differences, course.record)
    for line in (*verdict.lines(given), *stops(given), *jobs(course)):
        result(line)
    result(
        f"  {counts.passed:,} packets passed, {counts.kept_back:,} lost or cut off, "
        f"{counts.delayed:,} delayed"
    )
    if interrupted:
        progress("interrupted: what is above is about the part that was done")
        return INTERRUPTED
    if given.passed:
        result("\nEvery promise was kept.")
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    keep(given, folder)
    result(f"\nPROMISES WERE BROKEN. Histories, logs and findings are in {folder}")
    return 1


def stops(given: verdict.Verdict) -> Iterator[str]:
    yield ""
    yield "  Seconds from the end of each fault until every hot run was served again"
    for fault, stop in given.stops:
        yield f"    {fault.name:<44}{'never' if stop is None else f'{stop:.1f}':>7}"


def jobs(course: Course) -> Iterator[str]:
    yield "  and until the periodic jobs ran again (one comes every 5 s)"
    for name, seconds in course.jobs:
        yield f"    {name:<44}{'never' if seconds is None else f'{seconds:.1f}':>7}"


def late_jobs(course: Course, within_seconds: float) -> list[str]:
    return [
        f"after {name} the jobs ran again " + ("never" if s is None else f"only after {s:.1f} s")
        for name, s in course.jobs
        if s is None or s > within_seconds
    ]


# --- the site -------------------------------------------------------------------------------------


def play(
    hosts: Hosts, seed: int, folder: Path, course: Course
) -> tuple[History, Final, list[str], bool]:
    """Work and faults; what was written down, what is stored, what the audit says."""
    from django.conf import settings

    from agentstate import postgres
    from agentstate.prepare import prepare

    server = EmbeddedPostgres(
        folder / "home" / "postgres",
        settings=DURABLE | {"listen_addresses": hosts.address(DATABASE)},
    )
    with ExitStack() as stack:
        with hosts.inside(DATABASE):
            stack.enter_context(server.held())
        let_hosts_in(server)
        prepare(report=progress)
        supervisor = stack.enter_context(Supervisor(folder=ROOT, report=event))
        webs, ports = start_webs(hosts, supervisor, stack)
        celery = start_celery(hosts, supervisor)
        os.environ["AGENTSTATE_TORTURE_HOST"] = hosts.address(WEB)
        use_host(hosts.address(WEB))
        keys = make_keys()
        with hosts.inside(AGENTS):
            wait_for(supervisor, ports)
            set_up(ports, keys, folder)
            clients = [
                supervisor.add(client_child(n, ports, seed, folder, keys)) for n in range(CLIENTS)
            ]
        ground = Ground(
            webs=webs, celery=celery, clients=clients, database=server, proxies=(),
            conninfo=postgres.conninfo(settings.DATABASE_PARTS), stop=threading.Event(),
        )  # fmt: skip
        prober, writer = harness_calls("probe", ports, keys["AGENTSTATE_KEY"], folder, seed)
        interrupted = torment(hosts, supervisor, ground, prober, seed, course)
        writer.close()
        supervisor.stop(clients, within_seconds=CLIENT_STOP_SECONDS)
        if not interrupted:
            with hosts.inside(AGENTS):
                read_whole_feed(supervisor, ports, keys, folder, seed)
                if not follow_to_the_end(ports, keys, folder, seed):
                    course.record.trouble.append("no stream of a hot run came to its end")
        progress("stopping the site, reading what is stored …")
        supervisor.stop([*webs, *celery])
        final, differences = stored(ground)
    return read_history(sorted((folder / "history").iterdir())), final, differences, interrupted


def let_hosts_in(server: EmbeddedPostgres) -> None:
    """Whoever is on one of the hosts may connect; they are ours, and nobody else reaches them."""
    rules = server.data / "pg_hba.conf"
    rules.write_text(f"{rules.read_text()}host all all {NETWORK}.0/24 trust\n")
    how = f"host={server.socket} port={PORT} user={USER} dbname=postgres"
    with psycopg.connect(how, autocommit=True) as session:
        session.execute("SELECT pg_reload_conf()")


def start_webs(
    hosts: Hosts, supervisor: Supervisor, stack: ExitStack
) -> tuple[tuple[Child, ...], list[int]]:
    webs, ports = [], []
    for number in range(1, WEBS + 1):
        with hosts.inside(WEB):
            listener = stack.enter_context(listen(hosts.address(WEB), 0))
            child = web_child(listener)
            # Nobody is killed here, so nobody stands by.
            child.command = [part for part in child.command if part != "--when-told"]
            child.stands_by = False
            child.name = f"web-{number}"
            child.log = child.log.with_name(f"web-{number}.log")
            child.environment = {**child.environment, **reaching(hosts)}
            webs.append(supervisor.add(child))
        ports.append(int(listener.getsockname()[1]))
    return tuple(webs), ports


def start_celery(hosts: Hosts, supervisor: Supervisor) -> tuple[Child, ...]:
    started = []
    for child in background_children():
        child.environment = {**child.environment, **reaching(hosts)}
        with hosts.inside(WORKER):
            started.append(supervisor.add(child))
    return tuple(started)


def reaching(hosts: Hosts) -> dict[str, str]:
    url = f"postgresql://{USER}@{hosts.address(DATABASE)}:5432/agentstate"
    return {"DATABASE_URL": url}


def use_host(address: str) -> None:
    """For the calls of this process itself."""
    from bench.torture import wire

    wire.HOST = address


def wait_for(supervisor: Supervisor, ports: Sequence[int]) -> None:
    from bench.torture.wire import Silent, Wire

    deadline = time.monotonic() + START_SECONDS
    for port in ports:
        wire = Wire(ports=[port], key="", timeout_seconds=5)
        while True:
            try:
                if wire.ask("GET", "/health/ready").status == 200:
                    break
            except Silent:
                pass
            if supervisor.signals or time.monotonic() > deadline:
                raise KeyboardInterrupt
            time.sleep(0.1)
        wire.close()


# --- faults ---------------------------------------------------------------------------------------


def torment(
    hosts: Hosts,
    supervisor: Supervisor,
    ground: Ground,
    calls: Calls,
    seed: int,
    course: Course,
) -> bool:
    """Let the supervisor turn, and a thread do harm; True when a signal ended it early."""
    harming = threading.Thread(target=harm, args=(hosts, ground, calls, seed, course))
    harming.start()
    ends_at: float | None = None
    told_at, interrupted = time.monotonic(), True
    for _ in supervisor.turns():
        now = time.monotonic()
        if now - told_at >= PROGRESS_SECONDS:
            told_at = now
            done = len(course.record.faults)
            progress(f"{done} of {len(PAIRS) * len(KINDS)} faults · {course.record.now}")
        if not harming.is_alive() and ends_at is None:
            ends_at = now + SETTLE_SECONDS
        if ends_at is not None and now >= ends_at:
            interrupted = False
            break
    ground.stop.set()
    harming.join()
    return interrupted


def harm(hosts: Hosts, ground: Ground, calls: Calls, seed: int, course: Course) -> None:
    """Each kind between each pair, in an order that the seed draws; each when the site has got up
    again from the one before."""
    chance = random.Random(f"{seed} networks")
    deck = [(pair, kind) for pair in PAIRS for kind in KINDS]
    chance.shuffle(deck)
    with hosts.inside(AGENTS):
        for (one, other), kind in deck:
            wait_until_served(ground, calls)
            ground.wait(PAUSE_SECONDS)
            if ground.stop.is_set():
                return
            there, back, seconds = KINDS[kind]
            course.record.now = name = f"{one} - {other}: {kind}"
            began = time.monotonic()
            try:
                hosts.between(one, other, there, back)
                ground.wait(seconds)
            finally:
                hosts.between(one, other, CLEAR)
            course.record.faults.append(Fault(name, f"{seconds:g} s", began, time.monotonic()))
            if WORKER in (one, other):
                course.jobs.append((name, wait_for_jobs(ground)))


def wait_for_jobs(ground: Ground) -> float | None:
    """Seconds until a periodic job has run that ended after now; None: none did."""
    began = time.monotonic()
    with ground.connection() as session:
        since = session.execute("SELECT agentstate_now()").fetchone()
        while time.monotonic() - began < JOBS_SECONDS and not ground.stop.is_set():
            found = session.execute(JOB_BEGAN, since).fetchone()
            if found is not None and found[0]:
                return time.monotonic() - began
            ground.wait(0.1)
    return None
