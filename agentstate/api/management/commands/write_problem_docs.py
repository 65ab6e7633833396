"""`manage.py write_problem_docs`: docs/problems.md from the classes of the refusals."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from agentstate.api import explained
from agentstate.api.problems import kinds

PATH = settings.BASE_DIR / "docs" / "problems.md"

HEAD = """\
# Problems

What the API answers when it does not do what was asked (RFC 9457, `application/problem+json`).
`code` and `retry` decide what a caller does, never the text. `current` is what the store saw under
the lock that refused, so that no second request is needed. The same is at `/problems/<code>`.

This page is made from the code: `./run manage write_problem_docs`.

| status | code | retry |
|---|---|---|
"""


class Command(BaseCommand):
    help = "Write docs/problems.md from the classes of the refusals."

    def handle(self, *args: Any, **options: Any) -> None:
        PATH.write_text(document(), encoding="utf-8")
        self.stdout.write(f"wrote {PATH}")


def document() -> str:
    """The page as it should be."""
    found = kinds()
    rows = "".join(f"| {k.status} | [{k.code}](#{k.code}) | {k.retry} |\n" for k in found)
    return HEAD + rows + "".join(f"\n{explained.markdown(kind, level=2)}" for kind in found)
