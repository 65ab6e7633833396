"""A store with many runs that have ended, filled in SQL, and as many that wait as are asked for.

Those that ended by the statements of `bench/filled.py`: of each its row, five events, its term, its
budget; no ledger and no feed, which claiming does not look at. Those that wait as anybody makes
them, by the store, so that they are all that a claim expects.
"""

from __future__ import annotations

from typing import Any

from agentstate.cli.output import progress
from bench import filled
from bench.baseline import ASKED_AT_ONCE, ask_all
from bench.filled import CHUNK, Size

STATEMENTS = (filled._MADE, filled._RUNS, filled._EVENTS, filled._TERMS, filled._BUDGETS)
EVENTS, DAYS = 5, 30
TOKENS_FROM = 100_000_000  # the token of a run that ended is its number, and those are below
TOLD_EACH = 20_000


class Claimable:
    """What is in the store, and how more comes in. Before it there may be no run."""

    def __init__(self, ended: int) -> None:
        """ended: how many there will be in the end; their instants are spread over thirty days."""
        from django.db import connection

        self.ended, self.waiting, self.total = 0, 0, ended
        with connection.cursor() as cursor:
            cursor.execute("SELECT agentstate_now()")
            self.now = cursor.fetchone()[0]
            filled.make_weeks(cursor, self.now, Size(days=DAYS))
            cursor.execute(filled._SETTING_UP.replace("%%", "%"))
            cursor.execute("SELECT setval('agentstate_fence', %s)", [TOKENS_FROM])

    def end_up_to(self, count: int) -> None:
        """Have so many runs that ended, and their statistics."""
        from django.db import connection, transaction

        size = Size(runs=self.total, events=EVENTS, days=DAYS)
        told: dict[str, Any] = filled.values(self.now, size) | {"live": 0, "waiting": 0}
        for first in range(self.ended + 1, count + 1, CHUNK):
            self.ended = min(first + CHUNK - 1, count)
            with transaction.atomic(), connection.cursor() as cursor:
                for statement in STATEMENTS:
                    cursor.execute(statement, told | {"first": first, "last": self.ended})
            progress(f"{self.ended:,} of {count:,} runs that ended")
        analyze()

    def wait(self, count: int) -> None:
        """So many more that wait; younger than those that wait already."""
        from agentstate.store.commands import CreateRun

        last = self.waiting + count
        while self.waiting < last:
            some = min(ASKED_AT_ONCE, last - self.waiting)
            first = self.waiting
            ask_all([CreateRun(key=f"w-{first + n}", task="bench") for n in range(some)])
            self.waiting += some
            if self.waiting // TOLD_EACH > first // TOLD_EACH:
                progress(f"{self.waiting:,} runs were made that wait")
        if count >= TOLD_EACH // 2:
            analyze()


def analyze() -> None:
    """As autovacuum would have by then."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
