"""`./run manage verify`: re-derive everything, and say what does not add up."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentstate.store import audit, recount, repair
from agentstate.store.errors import NotFound
from agentstate.store.payloads import moment

SHOWN = 20


class Command(BaseCommand):
    help = (
        "Re-derive heads, counters, budgets, terms and the feed from events and ledger, and report "
        "each difference. Exits with 1 when there is one."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--run", metavar="KEY", help="one run only")
        parser.add_argument(
            "--repair-projections",
            action="store_true",
            help="make copies again: heads, budgets, holders, minutes; never events or ledger",
        )

    def handle(self, *, run: str | None, repair_projections: bool, **_: Any) -> None:
        try:
            if repair_projections:
                mended = repair.repair_projections(run=run) + recount.rebuild(run=run)
                self.stdout.write(f"{mended} rows were made again.")
            found = audit.verify(run=run)
            miscounts = recount.difference(run=run)
        except NotFound as unknown:
            raise CommandError(unknown.detail) from None
        broken = {difference.check for difference in found}
        for check in _checks(run):
            self.stdout.write(f"  {'BROKEN' if check in broken else 'holds '}  {check}")
        for difference in found:
            self.stdout.write(
                f"{difference.check}: {difference.what}: expected {difference.expected},"
                f" found {difference.found}"
            )
        self._note(miscounts)
        if found:
            raise CommandError(f"{len(found)} differences.")

    def _note(self, miscounts: list[recount.Miscount]) -> None:
        """No failure: a process that was killed loses up to a second of counts, by design."""
        if not miscounts:
            return
        self.stdout.write(
            f"Note: {len(miscounts)} counts per minute differ from the events and refusals;"
            " a killed process loses up to a second of them, and --repair-projections counts again."
        )
        for wrong in miscounts[:SHOWN]:
            where = f"{moment(wrong.minute)[:16]} {wrong.run}".strip()
            self.stdout.write(f"  {where}: {wrong.what}: {wrong.counted} instead of {wrong.told}")


def _checks(run: str | None) -> list[str]:
    feed = list(audit.FEED_CHECKS) if run is None else []
    return [*audit.CHECKS, "status from the events", "counters from the events", *feed]
