"""What is done to the database. Each returns the moment since when it can be used again."""

from __future__ import annotations

import os
import signal as signals
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from bench.outages import clock
from bench.outages.probes import until
from bench.outages.site import Site

BACK_SECONDS = 120
LOOK_SECONDS = 0.02
# So long in each state in which it answers, and writes nothing.
STARTING_SECONDS, READ_ONLY_SECONDS = 10, 12
MINE = "pid <> pg_backend_pid() AND datname = current_database()"
END_ALL = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {MINE}"
ENDINGS, BETWEEN_SECONDS = 3, 1.0


@dataclass(frozen=True, slots=True)
class Outage:
    """What was done, and the moment by the monotonic clock since when it is over."""

    name: str
    detail: str
    began_at: float
    over_at: float


type Harm = Callable[[Site, float], str]


def restart(site: Site, _seconds: float) -> str:
    site.server.stop()
    site.server.start()
    return "stopped (fast) and started"


def stay_away(site: Site, seconds: float) -> str:
    site.server.stop()
    time.sleep(seconds)
    site.server.start()
    return f"stopped for {seconds:g} s"


def crash(site: Site, _seconds: float) -> str:
    """As a machine that loses its power: it recovers from its log before it answers."""
    pid = site.server.postmaster_pid()
    assert pid is not None
    os.kill(pid, signals.SIGKILL)
    site.server.start()
    return "kill -9, and started"


def start_slowly(site: Site, _seconds: float) -> str:
    """It answers `the database system is starting up` while it looks for a log to go on with."""
    site.server.stop()
    with beside(site, "recovery.signal", f"sleep {STARTING_SECONDS / 2:g}; false"):
        began = clock.now()
        site.server.start()
        wait_until_writable(site)
        took = clock.now() - began
    return f"starting up, then read-only, for {took:.0f} s"


def recover(site: Site, _seconds: float) -> str:
    """A standby: it can be read, and refuses every write, until it is promoted."""
    site.server.stop()
    with beside(site, "standby.signal", "false"):
        site.server.start()
        time.sleep(READ_ONLY_SECONDS)
        with site.session() as session:
            session.execute("SELECT pg_promote(wait => true)")
        wait_until_writable(site)
    return f"a standby for {READ_ONLY_SECONDS} s, then promoted"


def end_connections(site: Site, _seconds: float) -> str:
    ended = 0
    with site.session() as session:
        for turn in range(ENDINGS):
            time.sleep(BETWEEN_SECONDS if turn else 0)
            ended += session.execute(END_ALL).fetchone()[0]  # type: ignore[index]
    return f"pg_terminate_backend on all of them, {ENDINGS} times, {ended} in all"


def silence(site: Site, _seconds: float) -> str:
    return f"{site.wire.silence()} connections stay open and say nothing any more"


HARMS: dict[str, Harm] = {
    "restarted": restart,
    "crashed": crash,
    "away": stay_away,
    "starting": start_slowly,
    "recovery": recover,
    "ended": end_connections,
    "silent": silence,
}


def carry_out(name: str, site: Site, seconds: float) -> Outage:
    began_at = clock.now()
    detail = HARMS[name](site, seconds)
    wait_until_writable(site)
    return Outage(name, detail, began_at, clock.now())


def wait_until_writable(site: Site) -> None:
    """Raises TimeoutError when it does not come back."""

    def writable() -> bool:
        try:
            with site.session() as session:
                row = session.execute("SELECT NOT pg_is_in_recovery()").fetchone()
                return bool(row and row[0])
        except psycopg.Error:
            return False

    if not until(writable, BACK_SECONDS):
        raise TimeoutError("the database did not come back")


@contextmanager
def beside(site: Site, signal: str, restore: str) -> Iterator[None]:
    """With a file beside its data that makes it recover, and a command that finds no log."""
    data = site.server.data
    owner = data.stat()
    kept = data / "postgresql.auto.conf"
    before = kept.read_text()
    (data / signal).touch()
    os.chown(data / signal, owner.st_uid, owner.st_gid)
    kept.write_text(f"{before}restore_command = '{restore}'\nhot_standby = on\n")
    try:
        yield
    finally:
        kept.write_text(before)
