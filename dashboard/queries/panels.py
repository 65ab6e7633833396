"""Panels that fail alone: each has its own time limit, and says so itself when it ran out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError
from psycopg import errors

from dashboard.queries.clock import TooSlow, at_most
from dashboard.timings import FAILED, TIMED_OUT, timed

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
    return read_panels({"": read}, milliseconds=milliseconds)[""]


def read_panels(
    reads: dict[str, Callable[[], Any]], *, milliseconds: int | None = None
) -> dict[str, Panel[Any]]:
    """Several panels by name, one after the other: in one transaction, until one of them fails."""
    panels: dict[str, Panel[Any]] = {}
    waiting = list(reads.items())
    while waiting:
        try:
            with at_most(PANEL_MS if milliseconds is None else milliseconds):
                while waiting:
                    name, read = waiting[0]
                    panels[name] = Panel(found=_timed(name, read))
                    del waiting[0]
        except (TooSlow, DatabaseError) as failed:
            if waiting:  # not at COMMIT: then everything was read
                panels[waiting.pop(0)[0]] = Panel(failed=_why(failed))
    return panels


def _timed[R](name: str, read: Callable[[], R]) -> R:
    """The read, with its time and end where System shows them."""
    with timed(name or "one part") as outcome:
        try:
            return read()
        except TooSlow:
            outcome.append(TIMED_OUT)
            raise
        except DatabaseError as failed:
            cut = isinstance(failed.__cause__, errors.QueryCanceled)
            outcome.append(TIMED_OUT if cut else FAILED)
            raise


def _why(failed: Exception) -> str:
    if isinstance(failed, TooSlow):
        return SLOW
    log.warning("a panel failed: %s", (str(failed).strip() or "?").splitlines()[0])
    return BROKEN
