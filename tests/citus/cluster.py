"""A coordinator and two workers of Citus on loopback, in a folder of their own, for tests.

The binaries are those of AGENTSTATE_CITUS_BIN: a PostgreSQL whose libraries have `citus.so`. Root
cannot run PostgreSQL: it is then run as `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

HOST, USER = "127.0.0.1", "agentstate"
STARTS_WITHIN_SECONDS = 60
SETTINGS = {
    "shared_preload_libraries": "citus",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "300",
    "max_prepared_transactions": "300",
    "jit": "off",
    "timezone": "UTC",
    "autovacuum": "off",
    "citus.node_conninfo": "sslmode=disable",
    "citus.enable_statistics_collection": "off",  # it would tell its maker
    "citus.recover_2pc_interval": "-1",  # what was decided in two phases is counted by tests
}
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class NoCitus(Exception):
    """There is no server with Citus to test on; the text says what to do."""


def binaries() -> Path:
    """The folder of postgres and initdb. Raises NoCitus."""
    told = os.environ.get("AGENTSTATE_CITUS_BIN")
    how = "set AGENTSTATE_CITUS_BIN to the bin folder of a PostgreSQL that has the extension citus"
    if not told:
        raise NoCitus(f"no Citus server: {how}")
    folder = Path(told)
    missing = [name for name in ("postgres", "initdb", "pg_ctl") if not (folder / name).exists()]
    if missing:
        raise NoCitus(f"no {' and no '.join(missing)} in {folder}: {how}")
    return folder


@dataclass(slots=True)
class Node:
    """One server. port: on loopback."""

    folder: Path
    port: int
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/postgres"

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.url, dbname=dbname, autocommit=True, connect_timeout=60)

    def initialise(self) -> None:
        self.folder.mkdir(parents=True, mode=0o700)
        os.chown(self.folder, *_owner())
        data = str(self.folder / "data")
        _run("initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C",
             "--lc-ctype=C.UTF-8", "--no-sync", "--no-instructions")  # fmt: skip

    def start(self) -> None:
        conf = SETTINGS | {"port": str(self.port)} | self.settings
        options = [part for name, value in conf.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [binaries() / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=log,
                **_as_server(),
            )
        until = time.monotonic() + STARTS_WITHIN_SECONDS
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise NoCitus(f"a server does not start; see {self.folder / 'log'}") from None
                time.sleep(0.05)

    def stop(self, mode: str = "fast") -> None:
        """mode: fast, or immediate, which is a crash."""
        if self.process is None:
            return
        _run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", mode, "stop")
        self.process.wait(30)
        self.process = None

    def kill(self) -> None:
        """SIGKILL to its postmaster; the sessions' processes notice, and end by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)
        self.process = None

    def start_again(self) -> None:
        """After `kill`: it is refused until the last of the killed one's processes is gone."""
        until = time.monotonic() + STARTS_WITHIN_SECONDS
        while True:
            try:
                self.start()
                return
            except NoCitus:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def log_text(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@dataclass(slots=True)
class Cluster:
    """The first node is the coordinator."""

    nodes: list[Node]

    @property
    def coordinator(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> list[Node]:
        return self.nodes[1:]

    def make_database(self, name: str) -> None:
        """On every node, with the extension, known to the coordinator."""
        for node in self.nodes:
            with node.connect() as session:
                session.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        self.join(name)

    def join(self, name: str) -> None:
        """Make a set of the databases of this name, which are there."""
        for node in self.nodes:
            with node.connect(name) as session:
                session.execute("CREATE EXTENSION citus")
        with self.coordinator.connect(name) as session:
            session.execute("SELECT citus_set_coordinator_host(%s, %s)",
                            [HOST, self.coordinator.port])  # fmt: skip
            for node in self.workers:
                session.execute("SELECT citus_add_node(%s, %s)", [HOST, node.port])

    def spread(self, name: str) -> None:
        """Make databases of this name on the workers for the coordinator's, and a set of them."""
        for node in self.workers:
            with node.connect() as session:
                session.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        self.join(name)

    def drop_database(self, name: str) -> None:
        for node in self.nodes:
            with node.connect() as session:
                session.execute(
                    SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name))
                )


@contextmanager
def running(
    folder: Path, *, durable: bool = False, workers: int = 2, **settings: str
) -> Iterator[Cluster]:
    """Three new servers while the block lasts. durable: else what they have is not flushed.
    settings: more of PostgreSQL's, with `__` for a dot."""
    more = {name.replace("__", "."): value for name, value in settings.items()}
    more = more if durable else FORGETFUL | more
    cluster = Cluster(
        [Node(folder / f"node{n}", free_port(), dict(more)) for n in range(workers + 1)]
    )
    try:
        for node in cluster.nodes:
            node.initialise()
            node.start()
        yield cluster
    finally:
        for node in cluster.nodes:
            node.stop("immediate")


def given() -> Cluster | None:
    """The servers that `./run test-citus` runs the tests on; None without it."""
    ports = os.environ.get("AGENTSTATE_TEST_CITUS")
    if not ports:
        return None
    return Cluster([Node(Path(os.devnull), int(port)) for port in ports.split(",")])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _run(name: str, *arguments: str) -> None:
    done = subprocess.run(
        [binaries() / name, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **_as_server(),
    )
    if done.returncode:
        raise NoCitus(f"{name} failed: {done.stdout.strip()}")


def _owner() -> tuple[int, int]:
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return user.pw_uid, user.pw_gid
    raise NoCitus("root cannot run PostgreSQL, and there is no user postgres or nobody")


def _as_server() -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    how: dict[str, Any] = {
        "cwd": "/",
        "stdin": subprocess.DEVNULL,
        "env": kept | {"LC_ALL": "C"},
        "start_new_session": True,
    }
    if os.geteuid() == 0:
        uid, gid = _owner()
        how |= {"user": uid, "group": gid, "extra_groups": []}
    return how
