"""A store whose log is distributed on Citus: whether all of it is, and whether its workers will do.

The coordinator is asked, and asks each worker. One that does not answer is waited for as long as
`citus.node_connection_timeout` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db import connection

from agentstate.doctor.findings import Finding, problem, warning
from agentstate.store import distributing, distribution

ABOUT = "distribution"
RECOVER_SECONDS_MOST = 15.0
CONNECT_SECONDS_MOST = 6.0
UNFINISHED_MINUTES = 5

OF_COORDINATOR = """
SELECT (SELECT extversion FROM pg_extension WHERE extname = 'citus'),
    (SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'citus.recover_2pc_interval'),
    (SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'citus.node_connection_timeout'),
    current_setting('max_connections')::int,
    ARRAY(SELECT nodename || ':' || nodeport FROM pg_dist_node n
        WHERE groupid > 0 AND noderole = 'primary' AND NOT isactive
            AND EXISTS (SELECT FROM pg_dist_placement p WHERE p.groupid = n.groupid) ORDER BY 1),
    ARRAY(SELECT inhrelid::regclass::text FROM pg_inherits
        WHERE inhparent = to_regclass(%s)
            AND inhrelid NOT IN (SELECT logicalrelid::oid FROM pg_dist_partition) ORDER BY 1)
"""
# unfinished: for more than UNFINISHED_MINUTES.
OF_WORKERS = """
SELECT nodename || ':' || nodeport, success, result FROM run_command_on_workers($c$
    SELECT json_build_object(
        'citus', (SELECT extversion FROM pg_extension WHERE extname = 'citus'),
        'prepared_max', current_setting('max_prepared_transactions')::int,
        'off', ARRAY(SELECT name FROM pg_settings WHERE setting = 'off'
            AND name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum')
            ORDER BY 1),
        'unfinished', (SELECT count(*) FROM pg_prepared_xacts
            WHERE database = current_database() AND gid LIKE 'citus\\_%'
                AND prepared < clock_timestamp() - interval '5 min'))
$c$) ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a worker said. refused: why it did not; then nothing else is known."""

    name: str
    refused: str = ""
    citus: str = ""
    prepared_max: int = 0
    off: tuple[str, ...] = ()
    unfinished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """recover_seconds, connect_seconds: the coordinator's settings; recover_seconds is negative
    when nothing is ever finished. left: what `distribute` would still do. inactive: workers with
    shards that the coordinator no longer asks. local_weeks: partitions of the log that are not
    distributed. connections_max: the coordinator's."""

    citus: str
    recover_seconds: float
    connect_seconds: float
    connections_max: int
    inactive: tuple[str, ...]
    local_weeks: tuple[str, ...]
    left: tuple[str, ...]
    workers: tuple[Worker, ...]


def look() -> Iterator[Finding]:
    """Nothing, for a store that is not distributed."""
    with connection.cursor() as cursor:
        distributed, knows = distribution.look(cursor), distributing.has_functions(cursor)
    if distributed:
        yield from judge(ask())
    elif knows:
        yield problem(
            ABOUT,
            "appends and claims go to the workers of Citus, and the log is not there: they fail",
            "./run manage distribute, with every process stopped",
        )


def ask() -> Facts:
    """Of a distributed store."""
    with connection.cursor() as cursor:
        cursor.execute(OF_COORDINATOR, [distributing.LOG])
        citus, recover, connect, most, inactive, weeks = cursor.fetchone()
        cursor.execute(OF_WORKERS)
        workers = tuple(_worker(*row) for row in cursor.fetchall())
    return Facts(
        citus=citus,
        recover_seconds=recover,
        connect_seconds=connect,
        connections_max=most,
        inactive=tuple(inactive),
        local_weeks=tuple(weeks),
        left=tuple(step.name for step in distributing.undone()),
        workers=workers,
    )


def _worker(name: str, answered: bool, said: str) -> Worker:
    if not answered:
        return Worker(name=name, refused=" ".join(said.split()))
    facts = json.loads(said)
    facts["off"] = tuple(facts["off"])
    return Worker(name=name, **facts)


def judge(facts: Facts) -> Iterator[Finding]:
    """What is wrong with a distribution of which this is so."""
    yield from _whole(facts)
    yield from _finishing(facts)
    for worker in facts.workers:
        yield from _judge_worker(worker, facts)
    if facts.inactive:
        yield problem(
            ABOUT,
            f"{_names(facts.inactive)} has part of the log and is not active: its runs fail",
            "citus_activate_node, once it is up",
        )


def _whole(facts: Facts) -> Iterator[Finding]:
    away = any(worker.refused for worker in facts.workers)
    left = [name for name in facts.left if not (away and name == distributing.BOUNDED)]
    if distributing.KNOWN in left:
        left.remove(distributing.KNOWN)
        yield problem(
            ABOUT,
            "a migration put functions that know of no worker in the place of those that do:"
            " appends and claims are refused (503)",
            "stop every process, and ./run manage distribute",
        )
    if left:
        yield problem(
            ABOUT,
            f"it was begun and not finished; still to be true: {_names(left)}",
            "stop every process, and ./run manage distribute",
        )
    if facts.local_weeks:
        yield problem(
            ABOUT,
            f"{_names(facts.local_weeks)} of the log is on the coordinator alone",
            "detach it, and attach it again: Citus distributes what is attached",
        )


def _finishing(facts: Facts) -> Iterator[Finding]:
    how = "ALTER SYSTEM SET citus.recover_2pc_interval = '5s' on the coordinator, and reload"
    if facts.recover_seconds < 0:
        yield problem(
            ABOUT,
            "citus.recover_2pc_interval is -1: what a lost worker was told to commit is never"
            " finished, and its runs cannot be written again",
            how,
        )
    elif facts.recover_seconds > RECOVER_SECONDS_MOST:
        yield warning(
            ABOUT,
            f"citus.recover_2pc_interval is {facts.recover_seconds:.0f} s: for so long runs cannot"
            " be written after their worker was lost in a commit",
            how,
        )
    if facts.connect_seconds > CONNECT_SECONDS_MOST:
        yield warning(
            ABOUT,
            f"citus.node_connection_timeout is {facts.connect_seconds:.0f} s: for so long a call"
            " waits for a worker whose host is gone, and others wait with it",
            "ALTER SYSTEM SET citus.node_connection_timeout = '3s' on the coordinator, and reload",
        )


def _judge_worker(worker: Worker, facts: Facts) -> Iterator[Finding]:
    name = f"worker {worker.name}"
    if worker.refused:
        yield problem(
            ABOUT,
            f"{name} cannot be asked: {worker.refused}; what is written to its runs fails",
            "start it, or let its standby take its place and tell the coordinator of it"
            " (citus_update_node)",
        )
        return
    if worker.citus != facts.citus:
        yield problem(
            ABOUT,
            f"{name} has Citus {worker.citus or 'not at all'}, the coordinator {facts.citus}",
            "install one version everywhere, and ALTER EXTENSION citus UPDATE on each",
        )
    if worker.prepared_max < facts.connections_max:
        tell = warning if worker.prepared_max else problem
        yield tell(
            ABOUT,
            f"{name} can prepare {worker.prepared_max} transactions, and the coordinator has up to"
            f" {facts.connections_max} sessions: every write prepares one",
            "set max_prepared_transactions there to the coordinator's max_connections, and restart",
        )
    lasting = [name for name in worker.off if name != "autovacuum"]
    if lasting:
        yield problem(
            ABOUT,
            f"{_names(lasting)} is off on {name}: a crash may lose events of it",
            f"turn {_names(lasting)} on there",
        )
    if "autovacuum" in worker.off:
        yield problem(ABOUT, f"autovacuum is off on {name}", "turn it on there")
    if worker.unfinished:
        yield problem(
            ABOUT,
            f"{worker.unfinished} transactions on {name} are prepared for more than"
            f" {UNFINISHED_MINUTES} min: nobody finishes them",
            "SELECT recover_prepared_transactions() on the coordinator; if they stay, read its log",
        )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
