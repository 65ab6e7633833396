"""`./run manage migrate`: Django's, but that it waits for locks without a queue behind it, and that
`--plan` says what each migration does and how long calls wait for it."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate as of_django
from django.db import connection

from agentstate.store.schema import plan
from agentstate.store.schema.executor import PatientExecutor
from agentstate.store.schema.waiting import NotFree

# Django's command makes one by this name, and has no other place to say which.
vars(of_django)["MigrationExecutor"] = PatientExecutor


class Command(of_django.Command):
    help = of_django.Command.help + " With --plan: what each one does and how long it blocks."

    def handle(self, *args: Any, **options: Any) -> None:
        if options["plan"]:
            self._tell_plan(options)
            return
        try:
            super().handle(*args, **options)
        except NotFree as failure:
            raise CommandError(str(failure)) from None

    def _tell_plan(self, options: dict[str, Any]) -> None:
        executor = PatientExecutor(connection)
        executor.loader.check_consistent_history(connection)
        chosen = executor.migration_plan(self._targets(executor, options))
        for line in plan.lines(executor, chosen):
            self.stdout.write(line)
        if chosen and options["check_unapplied"]:
            sys.exit(1)

    def _targets(self, executor: PatientExecutor, options: dict[str, Any]) -> list[Any]:
        app, name = options["app_label"], options["migration_name"]
        leaves: list[Any] = executor.loader.graph.leaf_nodes()
        if not app:
            return leaves
        if app not in executor.loader.migrated_apps:
            raise CommandError(f"there is no app {app!r} with migrations")
        if not name:
            return [leaf for leaf in leaves if leaf[0] == app]
        if name == "zero":
            return [(app, None)]
        try:
            return [(app, executor.loader.get_migration_by_prefix(app, name).name)]
        except Exception as unknown:  # KeyError, AmbiguityError
            raise CommandError(f"not one migration of {app} begins with {name!r}") from unknown
