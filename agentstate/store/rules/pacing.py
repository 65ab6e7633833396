"""How many writes a second a run takes: a brake that an operator put on it, else the site's limit.

The rule is GCRA with one column: `paced_at` is when the next write would be due if all came evenly.
A write may be ahead of that by the burst, so a run that was idle takes a burst at once, and in any
time t never more than burst + rate times t. Decided under the run's lock by the database's clock:
exact whichever process the writes come through. What is refused counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from agentstate.store.callers import Caller
from agentstate.store.commands import UNSEEN, Unseen
from agentstate.store.errors import ExpectationFailed, RunHot
from agentstate.store.rows import RunRow, replace

BURST_SECONDS = 2
BRAKE_BURST_SECONDS = 1
# No limit puts `paced_at` further ahead than this; a clock that was set back may have.
AHEAD_MAX = timedelta(seconds=BURST_SECONDS + 1)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """per_second: writes a second. burst: how many at once after a pause. until: of a brake."""

    per_second: int
    burst: int
    until: datetime | None = None

    @cached_property
    def gap(self) -> timedelta:
        """The time between two writes; rounded up, so that the rate is never passed."""
        return timedelta(microseconds=self.gap_us)

    @property
    def gap_us(self) -> int:
        """The same in microseconds."""
        return -(-1_000_000 // self.per_second)


def limit_of(run: RunRow, *, now: datetime, per_second: int) -> Limit | None:
    """The limit at `now`; per_second: the site's, 0 for none. A brake ends by itself."""
    if run.brake_until is not None and run.brake_per_second is not None and now < run.brake_until:
        return Limit(
            per_second=run.brake_per_second,
            burst=run.brake_per_second * BRAKE_BURST_SECONDS,
            until=run.brake_until,
        )
    return of_site(per_second)


@lru_cache(maxsize=8)
def of_site(per_second: int) -> Limit | None:
    """The site's limit; None for 0, which is none."""
    if not per_second:
        return None
    return Limit(per_second=per_second, burst=per_second * BURST_SECONDS)


def brake_of(run: RunRow, now: datetime) -> dict[str, Any] | None:
    """The brake that is on at `now`: `per_second` and `until`."""
    if run.brake_until is None or now >= run.brake_until:
        return None
    return {"per_second": run.brake_per_second, "until": run.brake_until}


def check_brake(run: RunRow, expected_until: datetime | Unseen | None, *, now: datetime) -> None:
    """Raises ExpectationFailed unless the brake at `now` is the one that the operator saw.

    A brake is known by when it ends, to the microsecond; None: no brake.
    """
    brake = brake_of(run, now)
    until = brake["until"] if brake else None
    if expected_until is UNSEEN or expected_until == until:
        return
    failed = {"field": "brake.until", "wanted": expected_until, "found": until}
    raise ExpectationFailed(
        "the brake is not the one that was seen",
        current=run.facts() | {"brake": brake},
        failed=[failed],
    )


def is_counted(by: Caller) -> bool:
    """Whether the caller's writes count: an operator and the system are never held up."""
    return by.kind == "key" and by.may("write")


def pace(run: RunRow, *, now: datetime, per_second: int) -> RunRow:
    """The run after one more write. Raises RunHot, with when the write would fit.

    One write alone fits after `retry_after_ms`; of several that wait, the first one.
    """
    limit = limit_of(run, now=now, per_second=per_second)
    if limit is None:
        return run
    due = run.paced_at
    # Further ahead than a write can bring it: the clock was set back. It counts from now on.
    if due is None or due <= now or due > now + AHEAD_MAX:
        return replace(run, paced_at=now + limit.gap)
    wait = due - now - (limit.burst - 1) * limit.gap
    if wait > timedelta(0):
        raise _hot(run, limit, wait)
    return replace(run, paced_at=due + limit.gap)


def _hot(run: RunRow, limit: Limit, wait: timedelta) -> RunHot:
    told = {
        "per_second": limit.per_second,
        "braked": limit.until is not None,
        "until": limit.until,
    }
    return RunHot(
        f"the run takes {limit.per_second} writes a second",
        current=run.facts() | told,
        retry_after_ms=-(-wait // timedelta(milliseconds=1)),
    )
