"""`./run manage write_cache_docs`: docs/caches.md from the table in the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from agentstate.caching import CACHES_OF, STALE_SECONDS
from agentstate.presence import EXPIRES_SECONDS

HEAD = """# Copies that can be lost

Written from the code's own table by `./run manage write_cache_docs`; a test compares.
[Decision 0011](decisions/0011-caches-and-presence.md) says why it is like this.

The truth is in PostgreSQL. What is here may be emptied at any moment, and is made again by one
filler at a time. A cache that is down is one that is always empty: no page fails, and one line a
minute says so. What offers an action or answers a worker reads no copy.
"""
PRESENCE = f"""
## Who looks at a page

Kept in no table and in no cache: each process has a map of who has which page of a run or of a
reclaim open, and tells the others by NOTIFY, outside any transaction of a writer. Two maps are
merged in any order and any number of times with the same result (policy *merged*: of two signs of
one page the later one stands, by the database's clock; whoever gives no sign for
{EXPIRES_SECONDS} s is gone). Losing it is harmless: the next sign says it again, and nothing is
decided by it.
"""


def cache_docs() -> str:
    """The whole page, as Markdown."""
    return "\n".join([HEAD, *_table(), PRESENCE])


def _table() -> Iterator[str]:
    yield "| copy | key | kept | holds | made again from | ended by |"
    yield "|---|---|---|---|---|---|"
    for name, copy in CACHES_OF.items():
        yield (
            f"| {name} | `{copy.key}` | {copy.ttl_seconds} s | {copy.holds} | {copy.source}"
            f" | {copy.ends} |"
        )
    yield ""
    yield (
        "Of counts, a reader who finds a filler at work gets the one before,"
        f" at most {STALE_SECONDS} s old."
    )


class Command(BaseCommand):
    help = "Write docs/caches.md: what is copied, for how long, and what ends it."

    def handle(self, **_: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "caches.md"
        path.write_text(cache_docs())
        self.stdout.write(f"{path.name} is written.")
