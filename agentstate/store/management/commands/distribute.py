"""`./run manage distribute`: the log on the workers of Citus, all else on the coordinator."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from agentstate.store import distributing


class Command(BaseCommand):
    help = (
        "Distribute the store's log by run on Citus, and keep all else on the coordinator. Stop"
        " every process of the store first. It may be stopped and begun again; repeated, it does"
        " what is left. There is no way back but a copy. See docs/scale.md."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--plan",
            action="store_true",
            help="say what would become what, and why; change nothing",
        )
        parser.add_argument(
            "--shards",
            type=int,
            default=distributing.SHARDS,
            metavar="N",
            help=f"into how many pieces, for good: a few for each worker that there will ever be"
            f" (default {distributing.SHARDS})",
        )

    def handle(self, *, plan: bool, shards: int, **_: Any) -> None:
        if not 1 <= shards <= 4_096:
            raise CommandError("--shards: 1 to 4096")
        try:
            if plan:
                self._plan()
                return
            done = distributing.distribute(shards=shards, report=self.stdout.write)
        except distributing.NotReady as why:
            raise CommandError(str(why)) from None
        self.stdout.write(f"{done} steps were done." if done else "All of it was done already.")

    def _plan(self) -> None:
        for table in distributing.tables():
            self.stdout.write(f"{table.kind:12} {table.name}: {table.why}")
        with connection.cursor() as cursor:
            workers = distributing.check(cursor)
        self.stdout.write(f"Workers: {', '.join(workers)}")
        for step in distributing.undone():
            self.stdout.write(f"To do: {step.name}")
