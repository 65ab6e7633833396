"""When a call is sent again: the one policy for all of them.

Repeated are answers whose `retry` is same-request, and calls that got no answer at all. Every
write carries an Idempotency-Key that is made once per call, so a repetition has no second effect.
Everything else is the caller's decision.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from agentstate_client.errors import SAME_REQUEST, AgentStateError, Refused, Unreachable


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long one call is tried.

    attempts: in all, the first one included. total_seconds: no attempt starts after this.
    first_delay_seconds: the most that is waited after the first attempt; doubled each time up to
    longest_delay_seconds. The wait is a random part of that (full jitter), after Retry-After.
    """

    attempts: int = 8
    total_seconds: float = 30.0
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.total_seconds <= 0:
            raise ValueError("attempts is at least 1, total_seconds more than 0")
        if not 0 <= self.first_delay_seconds <= self.longest_delay_seconds:
            raise ValueError("0 <= first_delay_seconds <= longest_delay_seconds")

    def within(self, seconds: float | None) -> RetryPolicy:
        """The same policy, with no more than so many seconds in all."""
        if seconds is None or seconds >= self.total_seconds:
            return self
        return replace(self, total_seconds=max(seconds, 0.001))

    def delay_seconds(self, attempt: int, failure: AgentStateError) -> float:
        """How long to wait after `attempt` (1 for the first) failed like this."""
        most = min(self.longest_delay_seconds, self.first_delay_seconds * 2 ** (attempt - 1))
        return retry_after_seconds(failure) + random.uniform(0, most)

    def next_delay_seconds(
        self, attempt: int, spent_seconds: float, failure: AgentStateError
    ) -> float | None:
        """The wait before the next attempt; None when there is none to come."""
        if attempt >= self.attempts or not is_repeatable(failure):
            return None
        delay = self.delay_seconds(attempt, failure)
        return delay if spent_seconds + delay < self.total_seconds else None


def is_repeatable(failure: AgentStateError) -> bool:
    """True when the same request may be sent again as it is."""
    if isinstance(failure, Refused):
        return failure.retry == SAME_REQUEST
    return isinstance(failure, Unreachable)


def retry_after_seconds(failure: AgentStateError) -> float:
    """What the answer asked for; 0 when it asked for nothing."""
    if isinstance(failure, (Refused, Unreachable)):
        return failure.retry_after_seconds or 0.0
    return 0.0
