"""The long forms of cases that the suite has a short form of: docs/cases.md says which and how.

Each makes a site of its own in a folder that is gone afterwards, ends by itself, and says of each
case what it saw; exit code 1 when one does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentstate.cli.output import result
from bench import grounds
from bench.grounds import Ground
from bench.torture.trial import move_in


@contextmanager
def site(*, background: bool = False) -> Iterator[Ground]:
    """A new site while the block lasts. background: with Celery, which sweeps."""
    with grounds.folder(None) as folder:
        move_in(folder)
        with grounds.site(background=background) as ground:
            yield ground


class Verdict:
    """What was seen. `failed` once something did not hold."""

    def __init__(self) -> None:
        self.failed = False

    def say(self, case: str, what: str, holds: bool) -> None:
        self.failed |= not holds
        result(f"{'held  ' if holds else 'FAILED'}  {case}  {what}")
