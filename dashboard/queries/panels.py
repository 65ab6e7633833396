"""Panels that fail alone: each has its own time limit, and says so itself when it ran out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError

from dashboard.queries.clock import TooSlow, at_most

PANEL_MS = 800
SLOW = "This part took too long and was left out. The rest of the page is not concerned."
BROKEN = "This part could not be read. The rest of the page is not concerned."

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel[R]:
    """What a panel shows: what was found, or why nothing is."""

    found: R | None = None
    failed: str = ""


def read_panel[R](read: Callable[[], R], *, milliseconds: int | None = None) -> Panel[R]:
    """Ask within the limit. A failure is the panel's own, and is logged."""
    try:
        with at_most(PANEL_MS if milliseconds is None else milliseconds):
            return Panel(found=read())
    except TooSlow:
        return Panel(failed=SLOW)
    except DatabaseError as broken:
        log.warning("a panel failed: %s", (str(broken).strip() or "?").splitlines()[0])
        return Panel(failed=BROKEN)


def read_panels(reads: dict[str, Callable[[], Any]]) -> dict[str, Panel[Any]]:
    """Several panels by name, one after the other."""
    return {name: read_panel(read) for name, read in reads.items()}
