"""Data of many rows, changed in small transactions that go on where they were stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState

from agentstate.store.schema.waiting import patiently, short_waits

# There as long as such an operation is under way; with the last one it goes.
PROGRESS = "agentstate_migration_progress"
MAKE_PROGRESS = f"""
CREATE TABLE IF NOT EXISTS {PROGRESS} (name text PRIMARY KEY, after text, rows bigint NOT NULL)
"""
BEGIN = f"INSERT INTO {PROGRESS} VALUES (%s, NULL, 0) ON CONFLICT DO NOTHING"
# FOR UPDATE: two that run the same migration take turns.
REACHED = f"SELECT after, rows FROM {PROGRESS} WHERE name = %s FOR UPDATE"
REACH = f"UPDATE {PROGRESS} SET after = %s, rows = rows + %s WHERE name = %s"
END = f"DELETE FROM {PROGRESS} WHERE name = %s"
IS_EMPTY = f"SELECT NOT EXISTS (SELECT FROM {PROGRESS})"


class Batches(Operation):
    """A statement over a whole table, so many rows at a time, in the order of its key.

    table, key: a column that is unique and never changes; compared as type.
    change: SQL for the rows with key > %(after)s (NULL: from the beginning) and key <= %(upto)s,
        as `{range}` in it says; what it does to a row twice must be as once.
    Each batch commits with how far it has come. After as long as it took, the next: others have
    the processor and the disk for at least half of the time.
    Backwards it does nothing: what is to be undone goes with the column.
    """

    reduces_to_sql = True
    reversible = True
    atomic = False
    category = OperationCategory.PYTHON

    def __init__(
        self, name: str, *, table: str, key: str, type: str, change: str, rows: int = 1_000
    ) -> None:
        self.name, self.table, self.key, self.type = name, table, key, type
        self.change, self.rows = change, rows

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        names = ("table", "key", "type", "change", "rows")
        return type(self).__qualname__, [self.name], {name: getattr(self, name) for name in names}

    def describe(self) -> str:
        return f"{self.name}: rows of {self.table}, {self.rows} at a time"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Data is no state."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.collect_sql:
            schema_editor.collected_sql.append(f"-- in batches: {self.change};")
            return
        with connection.cursor() as cursor:
            cursor.execute(MAKE_PROGRESS)
            cursor.execute(BEGIN, [self.name])
        while True:
            began = time.monotonic()
            if not patiently(self.describe(), self._batch):
                break
            time.sleep(time.monotonic() - began)
        self._end()

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """What was written goes with its column."""

    def _batch(self) -> bool:
        """Change the next rows, and keep how far that is, in one transaction. False: no more."""
        with transaction.atomic(), short_waits(), connection.cursor() as cursor:
            cursor.execute(REACHED, [self.name])
            after, _ = cursor.fetchone()
            given = {"after": after, "rows": self.rows}
            beyond = f"(%(after)s::{self.type} IS NULL OR {self.key} > %(after)s::{self.type})"
            cursor.execute(
                # By the column: a bare name would be the text of it that is selected.
                f"SELECT {self.key}::text FROM {self.table} WHERE {beyond}"
                f" ORDER BY {self.table}.{self.key} LIMIT %(rows)s",
                given,
            )
            found = cursor.fetchall()
            if not found:
                return False
            given["upto"] = found[-1][0]
            within = f"{beyond} AND {self.key} <= %(upto)s::{self.type}"
            cursor.execute(self.change.replace("{range}", within), given)
            cursor.execute(REACH, [given["upto"], len(found), self.name])
        return True

    def _end(self) -> None:
        def end() -> None:
            with transaction.atomic(), short_waits(), connection.cursor() as cursor:
                cursor.execute(END, [self.name])
                cursor.execute(IS_EMPTY)
                if cursor.fetchone() == (True,):
                    cursor.execute(f"DROP TABLE {PROGRESS}")

        patiently(self.describe(), end)
