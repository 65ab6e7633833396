"""`./run manage write_store_docs`: docs/store.md from the tables in the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from agentstate.store.reference import store_docs


class Command(BaseCommand):
    help = "Write docs/store.md: legal moves, conflict policies and ages."

    def handle(self, **_: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "store.md"
        path.write_text(store_docs())
        self.stdout.write(f"{path.name} is written.")
