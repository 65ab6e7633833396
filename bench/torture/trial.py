"""A trial: a site of its own, clients, faults; then everything is checked, and a verdict given.

All of it is in one folder that nobody else uses: the embedded PostgreSQL, the logs, the histories.
After a good trial it is removed, after a bad one it is kept. Nothing listens beyond loopback, and
nothing runs on: the supervisor ends its children, its janitor does when it is killed itself.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from agentstate.cli.database import load_settings
from agentstate.cli.output import CommandFailure, progress, result
from agentstate.cli.site import INTERRUPTED, Site, address, listen, running_site, web_child
from agentstate.embedded import EmbeddedPostgres
from agentstate.supervisor import Child, Supervisor
from agentstate.where import BASE as ROOT
from bench.torture import checker, verdict
from bench.torture.calls import RUN_SEEN, Calls
from bench.torture.dump import read_store
from bench.torture.faults import DECK, Fault, Ground, deal
from bench.torture.final import Final, read_final, write_final
from bench.torture.history import History, Writer, read_history
from bench.torture.load import (
    CAP,
    FLEET,
    HELD_RUNS,
    OPEN_RUNS,
    OWN,
    PARENTS,
    SLOTS,
    SMALL,
    SMALL_CAP,
    SPLIT,
    SPLIT_CAP,
    events_of,
    pick_appended,
    pick_feed,
    pick_run,
)
from bench.torture.proxy import Proxy
from bench.torture.streams import Streams
from bench.torture.verdict import Verdict
from bench.torture.wire import Wire

FINAL = "final.jsonl"
CLIENTS, THREADS = 3, 16
CLIENT_STOP_SECONDS = 25.0  # a call may be waited for, and sent again
SETTLE_SECONDS = 12.0  # of work after the last fault, so that its stop is seen
DRAIN_SECONDS = 30.0
FOLLOW_TRIES, FOLLOWED_EVENTS = 5, 500
PROGRESS_SECONDS = 10.0
PAUSE_SPREAD = (1 / 3, 5 / 3)  # of --pause-seconds, between two faults, once all is served again
BACK_SECONDS = 60.0  # then on with the next fault; the verdict says that it was not back in time
# Those of the place, the database and the keys are not for a scratch site.
KEPT_SETTINGS = ("AGENTSTATE_PG_BIN", "AGENTSTATE_RUN_WRITES_PER_SECOND")


@dataclass(frozen=True, slots=True)
class Length:
    """seconds: how long there are faults. pause_seconds: between two of them, on average."""

    seconds: float
    pause_seconds: float


@dataclass(slots=True)
class Record:
    """What was done to the site. trouble: what should not happen in the harness itself."""

    faults: list[Fault] = field(default_factory=list)
    now: str = ""
    trouble: list[str] = field(default_factory=list)


def torture(options: argparse.Namespace) -> int:
    """`./run torture`: 0 when every promise was kept, 1 when not, 130 when interrupted."""
    if options.check is not None:
        return check_again(options.check)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    folder = new_folder(seed)
    move_in(folder)
    progress(f"seed {seed}; everything of this trial is in {folder}")
    began = time.monotonic()
    record = Record()
    with scratch(folder):
        length = Length(options.minutes * 60, options.pause_seconds)
        history, final, differences, interrupted = play(length, seed, folder, record)
        seconds = time.monotonic() - began
        write_final(final, folder / FINAL)
        progress("checking …")
        given = judge(seed, seconds, options.stop_seconds, history, final, differences, record)
        for line in verdict.lines(given):
            result(line)
        if not given.passed:
            keep(given, folder)
    if interrupted:
        progress("interrupted: what is above is about the part that was done")
        return INTERRUPTED
    if given.passed:
        result("\nEvery promise was kept.")
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    result(
        f"\nPROMISES WERE BROKEN. Histories, logs and findings are in {folder}\n"
        f"The same faults again: ./run torture --seed {seed} --minutes {options.minutes:g}"
        f" --pause-seconds {options.pause_seconds:g}"
    )
    return 1


def check_again(folder: Path) -> int:
    """`./run torture --check FOLDER`: the histories of a trial that was kept, once more."""
    files = sorted((folder / "history").glob("*.jsonl"))
    if not files or not (folder / FINAL).exists():
        raise CommandFailure(f"{folder} is not the folder of a trial")
    found = checker.check(read_history(files), read_final(folder / FINAL))
    for finding in found:
        result(f"{finding.kind}: {finding.what}: {finding.text}")
    result(f"{len(found)} findings")
    return 1 if found else 0


# --- a place of its own ---------------------------------------------------------------------------


def new_folder(seed: int, *, kind: str = "torture") -> Path:
    """Below AGENTSTATE_HOME, as everything that this program writes."""
    home = os.environ.get("AGENTSTATE_HOME", "").strip()
    base = Path(home).expanduser().absolute() if home else ROOT / "var"
    folder = base / kind / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    (folder / "history").mkdir(parents=True)
    return folder


def move_in(folder: Path, **more: str) -> None:
    """The settings of this process and its children are for the scratch site alone: what is killed
    here is never a database or a broker of somebody's. more: of their environment."""
    for name in list(os.environ):
        if name.startswith("AGENTSTATE_") and name not in KEPT_SETTINGS:
            del os.environ[name]
    for name in ("DATABASE_URL", "DATABASE_SESSION_URL", "CELERY_BROKER_URL"):
        os.environ.pop(name, None)
    os.environ.update(more)
    os.environ["AGENTSTATE_HOME"] = str(folder / "home")
    os.environ["AGENTSTATE_PROCESS"] = "torture"
    load_settings()


@contextmanager
def scratch(folder: Path) -> Iterator[None]:
    """The database's files are removed in any case: they are large, and in `final.jsonl`."""
    server = EmbeddedPostgres(folder / "home" / "postgres")
    try:
        yield
    finally:
        server.stop()
        if server.log.exists():
            shutil.copyfile(server.log, folder / "postgres.log")
        shutil.rmtree(server.base, ignore_errors=True)


# --- the trial ------------------------------------------------------------------------------------


def play(
    length: Length, seed: int, folder: Path, record: Record
) -> tuple[History, Final, list[str], bool]:
    """Work and faults for so long; what was written down, what is stored, what the audit says."""
    host = argparse.Namespace(host="127.0.0.1", port=0)
    with ExitStack() as stack:
        site = stack.enter_context(running_site(host))
        second = stack.enter_context(listen("127.0.0.1", 0))
        other = web_child(second)
        other.name, other.log = "web-2", site.web.log.with_name("web-2.log")
        webs = (site.web, site.supervisor.add(other))
        ports = [port_of(site.url), port_of(address(second))]
        proxies = [
            stack.enter_context(Proxy(to_port=port, seed=f"{seed} proxy {n}"))
            for n, port in enumerate(ports)
        ]
        ways, keys = [proxy.port for proxy in proxies], make_keys()
        set_up(ports, keys, folder)
        clients = [
            site.supervisor.add(client_child(n, [*ports, *ways], seed, folder, keys))
            for n in range(CLIENTS)
        ]
        ground = ground_of(site, webs, clients, proxies)
        prober, writer = harness_calls("probe", ports, keys["AGENTSTATE_KEY"], folder, seed)
        interrupted = torment(site, ground, prober, length, seed, record)
        writer.close()
        site.supervisor.stop(clients, within_seconds=CLIENT_STOP_SECONDS)
        if not interrupted:
            read_whole_feed(site.supervisor, ports, keys, folder, seed)
            if not follow_to_the_end(ports, keys, folder, seed):
                record.trouble.append("no stream of a hot run came to its end")
        progress("stopping the site, reading what is stored …")
        site.supervisor.stop([*webs, *site.background])
        final, differences = stored(ground)
    return read_history(sorted((folder / "history").iterdir())), final, differences, interrupted


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def make_keys() -> dict[str, str]:
    """Keys of a worker and of an operator, as the environment of the clients."""
    from django.db import connections

    from agentstate.cli.people import make_key

    made = {
        "AGENTSTATE_KEY": make_key(name="worker", scopes=("read", "payloads", "write")),
        "AGENTSTATE_OPERATOR_KEY": make_key(
            name="operator", scopes=("read", "payloads", "write", "operate", "override")
        ),
    }
    connections.close_all()
    return made


def client_child(
    number: int, ports: list[int], seed: int, folder: Path, keys: dict[str, str]
) -> Child:
    name = f"load-{number}"
    command = [sys.executable, "-m", "bench.torture.load", "--name", name, "--seed", str(seed)]
    command += ["--ports", ",".join(map(str, ports)), "--folder", str(folder / "history")]
    command += ["--threads", str(THREADS)]
    log = folder / "home" / "log" / f"{name}.log"
    return Child(name=name, command=command, log=log, environment=keys, may_end=True)


def ground_of(
    site: Site, webs: tuple[Child, ...], clients: list[Child], proxies: list[Proxy]
) -> Ground:
    from django.conf import settings

    from agentstate import postgres

    database = site.supervisor.database
    assert database is not None
    return Ground(
        webs=webs,
        celery=site.background,
        clients=clients,
        database=database,
        conninfo=postgres.conninfo(settings.DATABASE_PARTS),
        proxies=proxies,
        stop=threading.Event(),
    )


def harness_calls(
    name: str, ports: list[int], key: str, folder: Path, seed: int
) -> tuple[Calls, Writer]:
    writer = Writer(folder / "history" / f"{name}.jsonl")
    wire = Wire(ports=ports, key=key, timeout_seconds=10)
    stop = threading.Event()
    return Calls(name=name, wire=wire, writer=writer, stop=stop, seed=f"{seed} {name}"), writer


def set_up(ports: list[int], keys: dict[str, str], folder: Path) -> None:
    """The hot runs and the shared budgets."""
    calls, writer = harness_calls("setup", ports[:1], keys["AGENTSTATE_KEY"], folder, 0)
    body: dict[str, Any]
    for name, cap, slots in ((FLEET, CAP, 1), (SMALL, SMALL_CAP, 1), (SPLIT, SPLIT_CAP, SLOTS)):
        body = {"name": name, "cap": cap, "slots": slots}
        calls.call("other", "other", "POST", "/budgets", body, keyed=True)
    for run in OPEN_RUNS + HELD_RUNS:
        id = calls.new_id()
        body = {"key": run, "task": "hot", "status": "running", "tags": [id]}
        body |= {"max_attempts": 1000}
        if run in OPEN_RUNS:
            body["budgets"] = [{"name": OWN, "cap": CAP, "parent": PARENTS[run]}]
        told = calls.call(
            "create", f"run:{run}", "POST", "/runs", body, id=id, keyed=True, pick=RUN_SEEN
        )
        assert told.ok, told
    writer.close()


# --- faults and progress --------------------------------------------------------------------------


def torment(
    site: Site, ground: Ground, calls: Calls, length: Length, seed: int, record: Record
) -> bool:
    """Let the supervisor turn, and a thread do harm; True when a signal ended it early."""
    began = time.monotonic()
    harming = threading.Thread(target=harm, args=(ground, calls, seed, began, length, record))
    harming.start()
    told_at = began
    ends_at: float | None = None
    interrupted = True
    for _ in site.supervisor.turns():
        now = time.monotonic()
        if now - told_at >= PROGRESS_SECONDS:
            told_at = now
            progress(told_now(now - began, length.seconds, record))
        if not harming.is_alive() and ends_at is None:
            ends_at = now + SETTLE_SECONDS
        if ends_at is not None and now >= ends_at:
            interrupted = False
            break
    ground.stop.set()
    # A fault that is on its way tidies up; the database may have to come back for that.
    while harming.is_alive():
        site.supervisor.look_after_database()
        harming.join(0.2)
    return interrupted


def told_now(passed: float, seconds: float, record: Record) -> str:
    return f"{passed:5.0f} of {seconds:.0f} s · {len(record.faults)} faults · {record.now}"


def harm(
    ground: Ground, calls: Calls, seed: int, began: float, length: Length, record: Record
) -> None:
    """One fault after the other, each when the site has got up again from the one before."""
    pauses, ends_at = random.Random(f"{seed} pauses"), began + length.seconds
    for name, chance in deal(seed):
        wait_until_served(ground, calls)
        ground.wait(length.pause_seconds * pauses.uniform(*PAUSE_SPREAD))
        if ground.stop.is_set() or time.monotonic() >= ends_at:
            return
        record.now = name
        began = time.monotonic()
        try:
            detail = DECK[name](ground, chance)
        except psycopg.OperationalError as error:
            detail = f"not all of it: {str(error).splitlines()[0]}"
        except Exception as error:
            record.trouble.append(f"the fault {name} failed: {error!r}")
            detail = "failed"
        record.faults.append(Fault(name, detail, began, time.monotonic()))


def wait_until_served(ground: Ground, calls: Calls) -> None:
    """Until a write to each hot run is acknowledged. These calls are in the history as well."""
    deadline = time.monotonic() + BACK_SECONDS
    for run in OPEN_RUNS:
        while not ground.stop.is_set() and time.monotonic() < deadline:
            id = calls.new_id()
            told = calls.call(
                "append",
                f"run:{run}",
                "POST",
                f"/runs/{run}/events",
                {"events": events_of(id, 1, True)},
                id=id,
                ask={"count": 1},
                pick=pick_appended,
            )
            if told.ok:
                break
            ground.wait(0.1)


# --- the end --------------------------------------------------------------------------------------


def read_whole_feed(
    supervisor: Supervisor, ports: list[int], keys: dict[str, str], folder: Path, seed: int
) -> None:
    """From the beginning to its end, by pages of different sizes, as a new consumer would."""
    calls, writer = harness_calls("reader", ports, keys["AGENTSTATE_KEY"], folder, seed)
    position, still, deadline = 0, 0, time.monotonic() + DRAIN_SECONDS
    while still < 5 and time.monotonic() < deadline:
        limit = calls.random.choice((50, 200))
        ask = {"after": position, "limit": limit}
        path = f"/feed?after={position}&limit={limit}"
        told = calls.call("feed", "feed", "GET", path, ask=ask, pick=pick_feed)
        if told.ok and told.answer["position"] > position:
            position, still = told.answer["position"], 0
        else:
            still += 1
            supervisor.wait(0.2)
    writer.close()


def follow_to_the_end(ports: list[int], keys: dict[str, str], folder: Path, seed: int) -> bool:
    """By stream, the last events of each hot run; whether they all came."""
    key = keys["AGENTSTATE_KEY"]
    calls, writer = harness_calls("follower", ports, key, folder, seed)
    streams = Streams(name="followers", ports=ports, key=key, writer=writer, seed=f"{seed}")
    missing = dict.fromkeys(OPEN_RUNS + HELD_RUNS, 0)
    for _ in range(FOLLOW_TRIES):
        for run in list(missing):
            told = calls.call("read", f"run:{run}", "GET", f"/runs/{run}", pick=pick_run)
            last = told.answer.get("last_seq", 1)
            streams.came_to.setdefault(run, max(0, last - FOLLOWED_EVENTS))
            streams.follow(run, calls.stop, to_end=last)
            if told.ok and streams.came_to[run] >= last:
                del missing[run]
    writer.close()
    return not missing


def stored(ground: Ground) -> tuple[Final, list[str]]:
    """Everything, when nobody writes any more; and what the store's own audit finds."""
    from django.db import connections

    from agentstate.store import audit, feed

    ground.database.start()
    while feed.move() is not None:
        pass
    differences = [
        f"{d.check}: {d.what}: expected {d.expected}, found {d.found}" for d in audit.verify()
    ]
    connections.close_all()
    return read_store(ground.conninfo), differences


def judge(
    seed: int,
    seconds: float,
    longest_allowed: float,
    history: History,
    final: Final,
    differences: list[str],
    record: Record,
) -> Verdict:
    tally = history.tally
    faults = [f"{count} answers were a fault (500)" for count in [tally.codes["internal"]] if count]
    return Verdict(
        seed=seed,
        seconds=seconds,
        longest_allowed=longest_allowed,
        calls=tally.calls,
        acknowledged=tally.acknowledged,
        refused=tally.refused,
        busy=tally.busy,
        unknown=tally.unknown,
        stops=tuple(verdict.stops_of(record.faults, history, [f"run:{run}" for run in OPEN_RUNS])),
        findings=tuple(checker.check(history, final)),
        differences=tuple(differences),
        unhappy=(*record.trouble, *faults),
        codes=dict(tally.codes),
        **verdict.sizes_of(final),
    )


def keep(given: Verdict, folder: Path) -> None:
    """What is needed to look at it again, beside what `check_again` reads."""
    verdict.write_findings(given, folder / "findings.jsonl")
    (folder / "verdict.txt").write_text("\n".join(verdict.lines(given)) + "\n")
    logs = folder / "home" / "log"
    if logs.exists():
        shutil.copytree(logs, folder / "log", dirs_exist_ok=True)
