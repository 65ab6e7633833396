"""Who is told that something was written: copies that have to go, and nothing that decides.

A listener is called after COMMIT and before the answer, in the thread that wrote; so whoever reads
after a write that was answered does not find the copy from before it. It must be quick, and what it
raises is logged and changes nothing: copies have an age beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one transaction wrote.

    runs: keys of the runs that changed. types: of the events that it wrote. units: whose holder
    changed; also such that belong to no run, of which there is no event.
    """

    runs: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()


type Listener = Callable[[Written], None]

after_write: list[Listener] = []


def tell(written: Written) -> None:
    """Tell all listeners."""
    for listener in list(after_write):
        try:
            listener(written)
        except Exception:
            log.exception("a listener failed; what was written stands")
