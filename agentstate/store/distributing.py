"""Turn a store into one whose log is distributed on Citus: `./run manage distribute`.

Every step says whether it is done by looking at the database, and is a transaction of its own. So
it may be stopped anywhere and begun again, and repeating it does what is left: nothing, at last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor

from agentstate import where
from agentstate.store import distributed_sql, distribution

LOG = "agentstate_event"
OLDEST_CITUS = 12
SHARDS = 32
ADVISORY_LOCK = 7217
# A write waits on a worker only for one to the same run that is being finished. Bounded there, as
# the coordinator's own limit is not sent along.
LOCK_TIMEOUT_ON_WORKERS = "10s"
DISTRIBUTED, LOCAL = "distributed", "local"
# Steps that are asked for by name, too.
BOUNDED, KNOWN = "waiting is bounded on the workers", "appends and claims know it"

CITUS = "SELECT extversion FROM pg_extension WHERE extname = 'citus'"
WORKERS = """
SELECT nodename || ':' || nodeport FROM pg_dist_node
WHERE noderole = 'primary' AND isactive AND shouldhaveshards AND groupid > 0 ORDER BY 1
"""
OTHERS = """
SELECT count(*), min(coalesce(nullif(application_name, ''), 'pid ' || pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend' AND application_name NOT LIKE 'citus%%'
"""
PREPARED_MAX = """
SELECT nodename || ':' || nodeport FROM run_command_on_workers(
    $c$ SELECT current_setting('max_prepared_transactions') $c$) r
JOIN pg_dist_node n USING (nodename, nodeport)
WHERE NOT r.success OR r.result::int = 0 ORDER BY 1
"""
ROWS_LEFT = f"SELECT EXISTS (SELECT FROM {LOG})"
MARKED = """
SELECT count(*) FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND proname = ANY(%s)
    AND position(%s IN prosrc) > 0
"""


class NotReady(Exception):
    """It cannot be done as things are; the text says what to do first. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What becomes of a table, and why."""

    name: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done in one transaction. done: asks the database whether it has been."""

    name: str
    done: Callable[[Any], bool]
    do: Callable[[Any, int], None]


# Why each stays that is not distributed; of those without a word of their own, `_SMALL`.
_WHY_LOCAL = {
    "agentstate_run": "one row a run, locked by each write to it: several are locked in one "
    "statement, and its key is unique in the whole store",
    "agentstate_lease": "one row a unit; claims pass by what others have locked (SKIP LOCKED), "
    "which goes in one database alone",
    "agentstate_leaseterm": "terms of a unit never overlap, which the same transaction proves",
    "agentstate_outbox": "emptied by one mover within a second",
    "agentstate_feed": "one order of all changes, numbered by one row; rows go by their age",
    "agentstate_budget": "a charge may pass through budgets of several runs at once",
    "agentstate_budgetentry": "written with its budget; lines go by their age",
    "agentstate_reservation": "written with its budget",
    "agentstate_openeffect": "few, and read with the run before a worker is given it",
    "agentstate_idempotencyrecord": "found by principal and key before the run is known; for a day",
}
_SMALL = "small, or bounded by its age, and asked for together with others that are local"


def tables() -> list[Table]:
    """Every table of the store, the distributed first."""
    models = apps.get_app_config("agentstate").get_models(include_auto_created=True)
    names = sorted(model._meta.db_table for model in models)
    local = [
        Table(name=name, kind=LOCAL, why=_WHY_LOCAL.get(name, _SMALL))
        for name in names
        if name != LOG
    ]
    why = (
        "by run_id: where the bytes are. A run's events stand together, so what is asked of a run"
        " is asked of one worker; weeks are dropped whole as before"
    )
    return [Table(name=LOG, kind=DISTRIBUTED, why=why), *local]


# --- before --------------------------------------------------------------------------------------


def check(cursor: Any) -> list[str]:
    """The workers. Raises NotReady with the first thing that is in the way."""
    cursor.execute(CITUS)
    found = cursor.fetchone()
    if found is None:
        raise NotReady(
            "the extension citus is not in this database: install Citus on every server, and"
            " CREATE EXTENSION citus in a database of this name on each"
        )
    if int(found[0].split(".")[0].split("-")[0]) < OLDEST_CITUS:
        raise NotReady(f"Citus {found[0]} is too old: {OLDEST_CITUS} or newer will do")
    cursor.execute(WORKERS)
    workers = [name for (name,) in cursor.fetchall()]
    if not workers:
        raise NotReady(
            "the coordinator knows of no worker: citus_set_coordinator_host(…) and"
            " citus_add_node(…) on the database that DATABASE_URL names"
        )
    cursor.execute(PREPARED_MAX)
    if unable := [name for (name,) in cursor.fetchall()]:
        raise NotReady(
            f"no answer, or max_prepared_transactions is 0, on {', '.join(unable)}: events and"
            " their run are committed in two phases. Set it to max_connections, and restart"
        )
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise NotReady(f"there are migrations to run: {where.COMMAND} manage migrate")
    return workers


def check_alone(cursor: Any) -> None:
    """Nobody else may be connected: a process asks once whether the store is distributed."""
    cursor.execute(OTHERS)
    count, name = cursor.fetchone()
    if count:
        raise NotReady(
            f"{count} others are connected ({name}, …): stop web processes, workers and beat first"
        )


# --- steps ---------------------------------------------------------------------------------------


def _distribute_log(cursor: Any, shards: int) -> None:
    """All of its rows go along. Waits for nobody: who is connected was asked before."""
    cursor.execute(distribution.ALLOW_TRIGGERS)
    cursor.execute("SET LOCAL client_min_messages TO warning")
    cursor.execute(
        "SELECT create_distributed_table(%s, 'run_id', shard_count := %s, colocate_with := 'none')",
        [LOG, shards],
    )


def _has_no_copy(cursor: Any) -> bool:
    """Whether the coordinator has no rows left under the log's own name."""
    cursor.execute(
        "SELECT coalesce(sum(pg_relation_size(inhrelid)), 0) FROM pg_inherits"
        " WHERE inhparent = %s::regclass",
        [LOG],
    )
    return bool(cursor.fetchone()[0] == 0)


def _drop_copy(cursor: Any, _: int) -> None:
    cursor.execute("SET LOCAL client_min_messages TO warning")
    cursor.execute("SELECT truncate_local_data_after_distributing_table(%s::regclass)", [LOG])


def has_functions(cursor: Any) -> bool:
    """Whether appends and claims are those of a distributed log."""
    cursor.execute(MARKED, [list(distributed_sql.FUNCTIONS), distributed_sql.MARK])
    return bool(cursor.fetchone()[0] == len(distributed_sql.FUNCTIONS))


def put_functions(cursor: Any, _: int = 0) -> None:
    """A migration of a later release may have put its own in their place: then again."""
    for text in distributed_sql.FUNCTIONS.values():
        cursor.execute(text)


def _is_bounded(cursor: Any) -> bool:
    cursor.execute(
        "SELECT coalesce(bool_and(success AND result LIKE '%%lock_timeout%%'), false)"
        " FROM run_command_on_workers($c$ SELECT coalesce(string_agg(s.setconfig::text, ' '), '')"
        " FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase"
        " WHERE d.datname = current_database() AND s.setrole = 0 $c$)"
    )
    return bool(cursor.fetchone()[0])


# Said on each worker itself: Citus would say it on every node, the coordinator among them.
BOUND_WAITING = """
SELECT bool_and(success), min(result) FROM run_command_on_workers(format(
    $c$ DO $d$ BEGIN SET LOCAL citus.enable_ddl_propagation TO off;
        ALTER DATABASE %%I SET lock_timeout TO %%L; END $d$ $c$, current_database(), %s::text))
"""


def _bound_waiting(cursor: Any, _: int) -> None:
    cursor.execute(BOUND_WAITING, [LOCK_TIMEOUT_ON_WORKERS])
    fine, word = cursor.fetchone()
    if not fine:
        raise NotReady(f"a worker refused ALTER DATABASE … SET lock_timeout: {word}")


STEPS: Sequence[Step] = (
    # First: it changes nothing for a store that is not distributed yet.
    Step(name=BOUNDED, done=_is_bounded, do=_bound_waiting),
    Step(name="the log is on the workers", done=distribution.look, do=_distribute_log),
    Step(name="the log has left the coordinator", done=_has_no_copy, do=_drop_copy),
    Step(name=KNOWN, done=has_functions, do=put_functions),
)


def undone() -> list[Step]:
    """What is left to do, in its order."""
    with connection.cursor() as cursor:
        return [step for step in STEPS if not step.done(cursor)]


def distribute(*, shards: int = SHARDS, report: Callable[[str], None] = lambda _: None) -> int:
    """Do what is left; how many steps that was. Raises NotReady, after which all is as it was
    before that step.

    The store is not to be written meanwhile. While it is distributed the whole log is copied.
    """
    done = 0
    with connection.cursor() as cursor:
        check(cursor)
        for step in STEPS:
            with transaction.atomic():
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ADVISORY_LOCK])
                if not cursor.fetchone()[0]:
                    raise NotReady("another distribute is at work")
                if step.done(cursor):
                    continue
                check_alone(cursor)
                report(f"{step.name} …")
                step.do(cursor, shards)
                done += 1
    distribution.forget()
    return done
