"""Beat's scheduler, on a host whose clock is wrong for a while or is put right.

Celery plans by the host's wall clock: put back by an hour, it would start nothing for an hour. This
one notices that the wall clock went back while the monotonic one did not, and plans anew from now.
What is started decides by the database's clock whether there is anything to do (tasks/upkeep.py),
so starting too often is harmless. There is no calendar in our schedule, only periods in seconds:
no time zone and no change of the clock twice a year is anywhere in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.beat import PersistentScheduler
from celery.utils.time import maybe_make_aware

# Of a wall clock that is steered to be right, within one tick (at most 5 min).
DRIFT_SECONDS = 1.0


class SteadyScheduler(PersistentScheduler):
    """As Celery's own; a wall clock that goes back holds up nothing."""

    def __init__(
        self,
        *args: Any,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        **kwargs: Any,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Read what was kept; a start in the future was written under a clock that was wrong."""
        # Its folder is nobody's else where the secret key comes from the environment.
        kept = Path(self.schedule_filename)  # type: ignore[attr-defined]
        kept.absolute().parent.mkdir(parents=True, exist_ok=True)
        super().setup_schedule()
        self._forget_the_future()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        offset = self._wall() - self._steady()
        if offset < self._offset - DRIFT_SECONDS:
            self._forget_the_future()
        self._offset = offset
        seconds: float = super().tick(*args, **kwargs)
        return seconds

    def _forget_the_future(self) -> None:
        for entry in self.schedule.values():
            now = maybe_make_aware(entry.default_now())
            if entry.last_run_at is not None:
                entry.last_run_at = min(maybe_make_aware(entry.last_run_at), now)
        self._heap = None
