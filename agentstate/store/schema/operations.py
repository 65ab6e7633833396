"""Changes of the schema that keep nobody from anything for long, and go on where they stopped.

For migrations with `atomic = False`: each of these is a transaction of its own, or several, and
looks first whether it was done already. Stopped in between, the migration is simply run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db import connection, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.operations.models import AddConstraint, AddIndex
from django.db.migrations.state import ProjectState

from agentstate.store.schema.waiting import patiently, short_waits

# The index itself, and whether each of its table's partitions has its part of it.
INDEX_STATE = """
SELECT i.indisvalid, c.relkind = 'I' FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE c.oid = to_regclass(%s)
"""
IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)"
# Also what was left half-made: an index that is not valid serves nobody.
PARTITIONS_WITHOUT = """
SELECT p.inhrelid::regclass::text FROM pg_inherits p
WHERE p.inhparent = to_regclass(%(table)s) AND NOT EXISTS (
    SELECT FROM pg_inherits i JOIN pg_index part ON part.indexrelid = i.inhrelid
    WHERE i.inhparent = to_regclass(%(index)s) AND part.indrelid = p.inhrelid)
ORDER BY 1
"""
CONSTRAINT_STATE = """
SELECT convalidated FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s
"""


def ask(question: str, *values: Any) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(question, values)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def in_turn(what: str, statement: str, editor: BaseDatabaseSchemaEditor) -> None:
    """A statement in a transaction of its own, with short waits for its locks."""
    if editor.collect_sql:
        editor.execute(statement, None)
        return

    def run() -> None:
        with transaction.atomic(), short_waits(), connection.cursor() as cursor:
            cursor.execute(statement)

    patiently(what, run)


def has_table(name: str) -> str:
    """For AtOnce(there=…)."""
    return f"to_regclass('{name}') IS NOT NULL"


def has_column(table: str, column: str) -> str:
    """For AtOnce(there=…)."""
    return (
        "EXISTS (SELECT FROM pg_attribute WHERE NOT attisdropped"
        f" AND attrelid = to_regclass('{table}') AND attname = '{column}')"
    )


def has_function(name: str) -> str:
    """For AtOnce(there=…): one of this name, whatever it takes."""
    return (
        f"EXISTS (SELECT FROM pg_proc WHERE proname = '{name}'"
        " AND pronamespace = current_schema()::regnamespace)"
    )


class AtOnce(Operation):
    """Some operations in one transaction, with short waits for their locks: on one table that is in
    use, since a call that uses two would have the one and wait for the other.

    there: an SQL expression that is true once they are done; they are done together, so one of
    them stands for all.
    """

    reduces_to_sql = True
    reversible = True
    atomic = False
    category = OperationCategory.MIXED

    def __init__(self, *operations: Operation, there: str) -> None:
        self.operations, self.there = operations, there

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        return type(self).__qualname__, list(self.operations), {"there": self.there}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        def forwards(editor: BaseDatabaseSchemaEditor) -> None:
            state = from_state.clone()
            for operation in self.operations:
                before = state.clone()
                operation.state_forwards(app_label, state)
                operation.database_forwards(app_label, editor, before, state)

        self._run(schema_editor, forwards, done=True)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        def backwards(editor: BaseDatabaseSchemaEditor) -> None:
            states = [to_state.clone()]
            for operation in self.operations:
                states.append(states[-1].clone())
                operation.state_forwards(app_label, states[-1])
            for at in reversed(range(len(self.operations))):
                self.operations[at].database_backwards(
                    app_label, editor, states[at + 1], states[at]
                )

        self._run(schema_editor, backwards, done=False)

    def _run(
        self,
        schema_editor: BaseDatabaseSchemaEditor,
        run: Callable[[BaseDatabaseSchemaEditor], None],
        *,
        done: bool,
    ) -> None:
        if schema_editor.collect_sql:
            with connection.schema_editor(collect_sql=True, atomic=False) as editor:
                run(editor)
            collected = ["BEGIN;", *editor.collected_sql, "COMMIT;"]
            schema_editor.collected_sql.extend(collected)
            return

        def attempt() -> None:
            with connection.schema_editor(atomic=True) as editor, short_waits():
                run(editor)
                while editor.deferred_sql:
                    editor.execute(editor.deferred_sql.pop(0), None)

        if ask(f"SELECT {self.there}") != (done,):
            patiently(self.describe(), attempt)

    def describe(self) -> str:
        return "; ".join(operation.describe() for operation in self.operations)


class IndexBeside(AddIndex):
    """An index that is made while everybody works on: CREATE INDEX CONCURRENTLY.

    Of a table in partitions it is made for one after the other and then put together, which
    PostgreSQL does not do by itself. What is there and whole is left as it is.
    """

    atomic = False
    reduces_to_sql = True

    def describe(self) -> str:
        return f"Create index {self.index.name} on {self.model_name}, beside its writers"

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if is_partitioned(model):
            self._make_in_parts(model, schema_editor)
        else:
            self._make(model, schema_editor)

    def _make(self, model: type[models.Model], editor: BaseDatabaseSchemaEditor) -> None:
        statement = str(self.index.create_sql(model, editor, concurrently=True))
        if editor.collect_sql:
            editor.execute(statement, None)
            return
        state = ask(INDEX_STATE, self.index.name)
        if state and state[0]:
            return
        if state:  # half-made
            editor.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{self.index.name}"', None)
        editor.execute(statement, None)

    def _make_in_parts(self, model: type[models.Model], editor: BaseDatabaseSchemaEditor) -> None:
        table, name = model._meta.db_table, self.index.name
        whole = str(self.index.create_sql(model, editor))
        alone = whole.replace(f' ON "{table}"', f' ON ONLY "{table}"', 1)
        if editor.collect_sql or ask(INDEX_STATE, name) is None:
            in_turn(self.describe(), alone, editor)
        with connection.cursor() as cursor:
            cursor.execute(PARTITIONS_WITHOUT, {"table": table, "index": name})
            missing = [part for (part,) in cursor.fetchall()]
        for part in missing:
            made = self._name_in(part)
            editor.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{made}"', None)
            beside = whole.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1)
            beside = beside.replace(f'"{name}"', f'"{made}"', 1)
            editor.execute(beside.replace(f' ON "{table}"', f' ON "{part}"', 1), None)
            attach = f'ALTER INDEX "{name}" ATTACH PARTITION "{made}"'
            in_turn(self.describe(), attach, editor)

    def _name_in(self, part: str) -> str:
        """As PostgreSQL calls them in partitions that are made later."""
        return f"{part}_{'_'.join(self.index.fields)}_idx"

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if is_partitioned(model):
            drop = f'DROP INDEX IF EXISTS "{self.index.name}"'
            in_turn(self.describe(), drop, schema_editor)
        else:
            schema_editor.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{self.index.name}"', None)


def is_partitioned(model: type[models.Model]) -> bool:
    return ask(IS_PARTITIONED, model._meta.db_table) == (True,)


class CheckBeside(AddConstraint):
    """A check of rows: at once for what is written from now on, and then for all that is there,
    which is read beside the writers (NOT VALID, then VALIDATE CONSTRAINT)."""

    atomic = False
    reduces_to_sql = True

    def describe(self) -> str:
        return f"Check {self.constraint.name} on {self.model_name}, old rows beside the writers"

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        table, name = model._meta.db_table, self.constraint.name
        begin = f"{self.constraint.create_sql(model, schema_editor)} NOT VALID"
        validate = f'ALTER TABLE "{table}" VALIDATE CONSTRAINT "{name}"'
        if schema_editor.collect_sql:
            schema_editor.execute(begin, None)
            schema_editor.execute(validate, None)
            return
        state = ask(CONSTRAINT_STATE, table, name)
        if state is None:
            in_turn(self.describe(), begin, schema_editor)
        if state != (True,):
            schema_editor.execute(validate, None)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        table = from_state.apps.get_model(app_label, self.model_name)._meta.db_table
        drop = f'ALTER TABLE "{table}" DROP CONSTRAINT IF EXISTS "{self.constraint.name}"'
        in_turn(self.describe(), drop, schema_editor)
