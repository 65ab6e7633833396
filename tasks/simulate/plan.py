"""When what goes wrong: a plan made from a seed, so that a run of the fleet can be repeated.

Faults of a kind come at even distances with some jitter, the first one early: at 8 crashes a minute
there are at least 7 in any minute, by design and not by luck. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

JITTER = 0.2  # of the distance between two faults, to either side


class Fault(StrEnum):
    """CRASH: killed in mid-step. FREEZE: stopped past its lease. SLOW: stopped, but not past it.
    RACE: two writers, one number. STAMPEDE: a dozen of them. SPREE: spends until a cap is met.
    """

    CRASH = "crash"
    FREEZE = "freeze"
    SLOW = "slow"
    RACE = "race"
    STAMPEDE = "stampede"
    SPREE = "spree"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Due:
    """A fault, in seconds after the start. draw: from 0 to below 1, which busy worker it hits."""

    at_seconds: float
    fault: Fault
    draw: float


def faults(*, seed: int, per_minute: Mapping[Fault, float]) -> Iterator[Due]:
    """All faults in their order, without an end; none of a kind whose rate is 0."""
    kinds = (_of_kind(fault, rate, seed) for fault, rate in per_minute.items() if rate > 0)
    return heapq.merge(*kinds)


def _of_kind(fault: Fault, per_minute: float, seed: int) -> Iterator[Due]:
    random, distance = Random(f"{seed} {fault}"), 60 / per_minute  # noqa: S311  a simulation
    number = 0.5
    while True:
        at_seconds = (number + random.uniform(-JITTER, JITTER)) * distance
        yield Due(at_seconds=at_seconds, fault=fault, draw=random.random())
        number += 1
