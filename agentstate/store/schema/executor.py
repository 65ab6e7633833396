"""Django's executor, but that a migration waits for locks without a queue behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.migration import Migration
from django.db.migrations.state import ProjectState

from agentstate.store.schema.waiting import patiently, short_waits


class PatientExecutor(MigrationExecutor):
    """A migration that is one transaction is tried as a whole, as often as it takes, with short
    waits for its locks. What is not one transaction sees to that itself (operations.py)."""

    def apply_migration(
        self,
        state: ProjectState,
        migration: Migration,
        fake: bool = False,
        fake_initial: bool = False,
    ) -> ProjectState:
        if fake or fake_initial or not migration.atomic:
            return super().apply_migration(state, migration, fake=fake, fake_initial=fake_initial)
        self._tell("apply_start", migration)
        before = state.clone()

        def apply() -> ProjectState:
            with self.connection.schema_editor(atomic=True) as editor, short_waits():
                after = migration.apply(before.clone(), editor)
                # In here, and not at the end: what was done and its record are one.
                while editor.deferred_sql:
                    editor.execute(editor.deferred_sql.pop(0), None)
                self.record_migration(migration.app_label, migration.name)
            return after

        after = patiently(str(migration), apply)
        self._tell("apply_success", migration)
        return after

    def unapply_migration(
        self, state: ProjectState, migration: Migration, fake: bool = False
    ) -> ProjectState:
        whole = migration.atomic and not fake
        waits: Callable[[], Any] = short_waits if whole else nullcontext

        def unapply() -> ProjectState:
            with waits():
                return super(PatientExecutor, self).unapply_migration(state, migration, fake)

        return patiently(str(migration), unapply) if whole else unapply()

    def _tell(self, what: str, migration: Migration) -> None:
        if self.progress_callback:
            self.progress_callback(what, migration, False)
