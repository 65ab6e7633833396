"""What migrations will do and how long they keep calls waiting, told before they are run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sqlparse
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.migration import Migration
from django.db.migrations.state import ProjectState

from agentstate.store.schema.locks import Effect, Keeps, Transaction, Work, effects
from agentstate.store.schema.waiting import LOCKS_WITHIN_SECONDS

OURS = ("agentstate", "dashboard")
# A table that is read or written anew, beside everybody's work: half of what bench.upgrade found.
BYTES_PER_SECOND = 100_000_000
# Stands for Python code, of which nothing can be told: it has to say itself what it blocks.
UNWRITTEN = "python"
SIZES = """
SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint,
    coalesce(sum(pg_table_size(c.oid)), 0)::bigint
FROM pg_class c
WHERE c.relkind = 'r' AND (c.oid = to_regclass(%(name)s)
    OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass(%(name)s)))
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a table with its partitions, as PostgreSQL last counted it."""

    rows: int
    octets: int

    @property
    def seconds(self) -> float:
        return self.octets / BYTES_PER_SECOND

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {self.octets / 1e6:,.0f} MB"


def is_ours(migration: Migration) -> bool:
    return migration.app_label in OURS


def does(migration: Migration) -> str:
    """The first sentence of its docstring; of one of a package, what its operations say."""
    told = inspect.getdoc(sys.modules[type(migration).__module__]) or ""
    if told:
        return " ".join(told.partition("\n\n")[0].split())
    return "; ".join(operation.describe() for operation in migration.operations)


def blocks(migration: Migration) -> str:
    """What it says itself about waits that its statements do not show."""
    return getattr(migration, "blocks", "")


def all_effects(migration: Migration, state: ProjectState, *, back: bool = False) -> list[Effect]:
    """What it keeps others from, transaction by transaction. state: as before it."""
    return [one for part in transactions(migration, state, back=back) for one in effects(part)]


def transactions(
    migration: Migration, state: ProjectState, *, back: bool = False
) -> list[list[str]]:
    """Its statements, by the transactions that they are run in."""
    try:
        with connection.schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
            run = migration.unapply if back else migration.apply
            run(state.clone(), editor, collect_sql=True)
    except ValueError:  # Django looks for what an earlier one of the plan will have made
        return [[UNWRITTEN]]
    text = "\n".join(editor.collected_sql)
    if "THIS OPERATION CANNOT BE WRITTEN AS SQL" in text:
        return [[UNWRITTEN]]
    statements = [one for one in sqlparse.split(text) if one.strip()]
    return list(grouped(statements, whole=migration.atomic))


def grouped(statements: Sequence[str], *, whole: bool) -> Iterator[list[str]]:
    """All of them together, or each by itself but for those between BEGIN and COMMIT."""
    if whole:
        yield list(statements)
        return
    group: list[str] | None = None
    for statement in statements:
        word = sqlparse.format(statement, strip_comments=True).strip().rstrip(";").upper()
        if word == "BEGIN":
            group = []
        elif word == "COMMIT":
            yield group or []
            group = None
        elif group is not None:
            group.append(statement)
        else:
            yield [statement]


def kept_out_of(transaction: Transaction) -> set[str]:
    """The tables that a transaction keeps others out of. Of more than one each call that uses both
    may have the one and wait for the other: PostgreSQL ends it after a second (deadlock_timeout).
    """
    return {one.table for one in effects(transaction) if one.keeps is not Keeps.NOBODY}


def size_of(table: str) -> Size:
    with connection.cursor() as cursor:
        cursor.execute(SIZES, {"name": table})
        return Size(*cursor.fetchone())


PARENT = """
SELECT inhparent::regclass::text FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhrelid = to_regclass(%s) AND c.relkind = 'r'
"""


def on_parent(effect: Effect) -> Effect:
    """Of a partition: as of its table. There may be hundreds of them."""
    with connection.cursor() as cursor:
        cursor.execute(PARENT, [effect.table])
        found = cursor.fetchone()
    return replace(effect, table=found[0]) if found else effect


def is_there(table: str) -> bool:
    """Not what an earlier migration of the same plan makes: it will be empty."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
        return bool(cursor.fetchone()[0])


def lines(executor: MigrationExecutor, plan: Sequence[tuple[Migration, bool]]) -> Iterator[str]:
    """For a person: each migration, what it does, and what waits for it how long."""
    if not plan:
        yield "Nothing to do: the schema is of this release."
        return
    state = executor._create_project_state(with_applied_migrations=True)  # type: ignore[attr-defined]
    for migration, back in plan:
        before = executor.loader.project_state((migration.app_label, migration.name), at_end=False)
        found = all_effects(migration, before if back else state, back=back)
        yield f"{migration}{' backwards' if back else ''}"
        yield f"    {does(migration)}"
        there = [on_parent(one) for one in found if not one.table or is_there(one.table)]
        yield from (f"    {line}" for line in waits(there))
        if told := blocks(migration):
            yield f"    as it says: {told}"
        if not back:
            migration.mutate_state(state, preserve=False)
    yield (
        f"Each waits for the locks of a transaction {LOCKS_WITHIN_SECONDS:g} s at most, then lets"
        " everybody go first and tries again."
    )


def waits(found: Sequence[Effect]) -> Iterator[str]:
    """One line for each table and kind of wait; the worst first."""
    told: dict[tuple[str, Keeps, Work], None] = {}
    for one in sorted(found, key=lambda one: (-one.is_long, one.table, -one.keeps.value)):
        told.setdefault((one.table, one.keeps, one.work))
    briefly: dict[Keeps, list[str]] = {}
    for table, keeps, work in told:
        if work is Work.CATALOGUE:
            briefly.setdefault(keeps, []).append(table)
        else:
            yield longer(table, keeps, work)
    for keeps, tables in briefly.items():
        if keeps is not Keeps.NOBODY:
            who = "all calls" if keeps is Keeps.EVERYBODY else "writes"
            yield f"{who} to {', '.join(tables)} wait some milliseconds, for the catalogue alone"
    if not set(briefly) - {Keeps.NOBODY} and all(work is Work.CATALOGUE for *_, work in told):
        yield "no call waits"


def longer(table: str, keeps: Keeps, work: Work) -> str:
    if work is Work.UNKNOWN:
        return "what waits for it cannot be told from its statements"
    size = size_of(table)
    verb = "written anew" if work is Work.REWRITES else "read"
    if keeps is Keeps.NOBODY:
        return f"nobody waits while {table} ({size}) is {verb}: about {size.seconds:.0f} s"
    who = "all calls to it" if keeps is Keeps.EVERYBODY else "writes to it"
    return f"{who} WAIT while {table} ({size}) is {verb}: about {size.seconds:.1f} s"
