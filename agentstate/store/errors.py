"""The refusals: what the store says no with, and what the caller should do then.

A refusal is a decision, not an accident: it names the rule (`code`), what to do next (`retry`) and
the facts that were read under the same lock, so that no second request is needed. The table of
codes is `docs/problems.md`; how a code becomes an HTTP answer is `agentstate/api/problems.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar


class Retry(StrEnum):
    """What a caller does after a refusal; decided by this word, never by the text."""

    NEVER = "never"
    REREAD = "reread"  # look at `current`, decide, write again
    SAME_REQUEST = "same-request"  # send the very same request again, after Retry-After
    LATER = "later"


class Refusal(Exception):
    """A command that the store did not carry out. Nothing of it was written.

    facts: members of the answer that are special to the code (`allowed`, `cap`, …).
    current: the run, lease or budget as it was under the lock that refused.
    retry_after_ms: when `retry` is later or same-request.
    recorded: kept as a row in `refusal`; bad shapes and missing keys are not.
    kept: the answer to an Idempotency-Key stays this one for 24 h (api.md, "Every write").
    """

    code: ClassVar[str]
    title: ClassVar[str]
    retry: ClassVar[Retry] = Retry.NEVER
    recorded: ClassVar[bool] = True
    kept: ClassVar[bool] = False

    def __init__(
        self,
        detail: str = "",
        *,
        current: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
        replayed: bool = False,
        **facts: Any,
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.current = dict(current) if current is not None else None
        self.retry_after_ms = retry_after_ms
        self.facts = facts
        self.replayed = replayed


class Invalid(Refusal):
    """A value breaks a rule of its field; refused before the database saw it."""

    code, title, recorded = "invalid", "A value is not acceptable", False

    def __init__(self, field: str, rule: str, **more: Any) -> None:
        super().__init__(f"{field}: {rule}", field=field, rule=rule, **more)
        self.field, self.rule = field, rule


class UnstorableText(Invalid):
    """U+0000 or half a surrogate pair: PostgreSQL and UTF-8 cannot hold it."""

    code, title = "unstorable-text", "A text cannot be stored"


class TooLarge(Refusal):
    """More than the documented limit; `limit` and `actual` in bytes."""

    code, title, recorded = "payload-too-large", "Too large", False


class NotFound(Refusal):
    """There is no such thing."""

    code, title, recorded = "not-found", "Not found", False


class RunExpired(Refusal):
    """The run's retention is over; it is hidden, and its rows go with their week."""

    code, title, retry, recorded = "run-expired", "The run has expired", Retry.REREAD, False


class CursorExpired(Refusal):
    """What was asked for is no longer kept; `earliest` is the first position that is."""

    code, title, retry, recorded = "cursor-expired", "No longer kept", Retry.REREAD, False


class NotAllowed(Refusal):
    """The caller lacks the scope that this needs (`scope`)."""

    code, title = "not-allowed", "Not allowed"


class Exists(Refusal):
    """A run or budget of this name is there already."""

    code, title, kept = "exists", "Exists already", True


class VersionConflict(Refusal):
    """The run or budget has moved on since the caller read it."""

    code, title, retry = "version-conflict", "The version has moved", Retry.REREAD


class SeqConflict(Refusal):
    """The log has moved on: `last_seq` is not what the caller expected."""

    code, title, retry = "seq-conflict", "The sequence has moved", Retry.REREAD


class ExpectationFailed(Refusal):
    """At least one clause of `expect` does not hold; `failed` lists each, wanted and found."""

    code, title, retry = "expectation-failed", "An expectation does not hold", Retry.REREAD


class HolderChanged(Refusal):
    """Somebody else holds the unit than the operator saw."""

    code, title, retry = "holder-changed", "The holder has changed", Retry.REREAD


class IllegalTransition(Refusal):
    """No such move from this status; `allowed` lists the legal ones."""

    code, title, kept = "illegal-transition", "No such move from this status", True


class AlreadyTerminal(Refusal):
    """The run has ended; terminal states absorb."""

    code, title, kept = "already-terminal", "The run has ended", True


class Paused(Refusal):
    """A paused run is not given out."""

    code, title = "paused", "The run is paused"


class StaleFence(Refusal):
    """Another worker owns the run now, or nobody does; stop working on it."""

    code, title = "stale-fence", "Another worker owns this run"


class FenceRequired(Refusal):
    """A run that was ever leased takes this only under the holder's token."""

    code, title = "fence-required", "A fencing token is required"


class LeaseLost(Refusal):
    """The lease is over: `reason` is expired, taken, reclaimed, released, run-terminal, unknown."""

    code, title = "lease-lost", "The lease is lost"


class LeaseHeld(Refusal):
    """Somebody else holds the unit and their lease is live."""

    code, title, retry = "lease-held", "The unit is held", Retry.LATER


class AttemptsExhausted(Refusal):
    """The run was started `max_attempts` times; it has been failed."""

    code, title = "attempts-exhausted", "No attempts left"


class BudgetExhausted(Refusal):
    """The charge would pass the cap of `budget`; nothing was added anywhere."""

    code, title, kept = "budget-exhausted", "The budget does not allow it", True


class CapBelowUse(Refusal):
    """The new cap is below what is reserved and spent."""

    code, title = "cap-below-use", "The cap is below what is used"


class ReservationSettled(Refusal):
    """The reservation was committed or released before, with another outcome."""

    code, title, kept = "reservation-settled", "The reservation is settled", True


class PartialDuplicate(Refusal):
    """Some event ids of the batch are stored already and some are not (`known`)."""

    code, title, kept = "partial-duplicate", "Part of the batch is stored already", True


class EventIdReuse(Refusal):
    """An event id is stored already with other content."""

    code, title, kept = "event-id-reuse", "The event id was used with other content", True


class BatchRefused(Refusal):
    """Nothing of the batch was written; `operations` lists each one that fails, and why."""

    code, title = "batch-refused", "At least one operation of the batch is refused"


class RunHot(Refusal):
    """The run is written to faster than its limit, or than the brake that an operator put on it.

    Nothing was written. `current` has the limit (`per_second`, `braked`, and `until` of a brake).
    Renewals, releases and the move that ends the run are never held up.
    """

    code, title, retry = "run-hot", "Too many writes to this run", Retry.SAME_REQUEST


class RateLimited(Refusal):
    """This API key asks more often than it may; nothing was begun.

    Renewals, releases, commits and moves of a run's status are never held up by it. The answers to
    a key with a limit tell it and what is left of it in `RateLimit-Policy` and `RateLimit`.
    """

    code, title, retry, recorded = (
        "rate-limited",
        "Too many requests with this key",
        Retry.SAME_REQUEST,
        False,
    )


class IdempotencyInFlight(Refusal):
    """The first request with this key is still running."""

    code, title, retry = (
        "idempotency-in-flight",
        "The first request with this key is still running",
        Retry.SAME_REQUEST,
    )
    recorded = False


class IdempotencyKeyReuse(Refusal):
    """The key was used for another request."""

    code, title = "idempotency-key-reuse", "The key was used for another request"


class Unavailable(Refusal):
    """The database cannot be reached or is busy; nothing was decided."""

    code, title, retry, recorded = "unavailable", "Not available now", Retry.SAME_REQUEST, False


class Overloaded(Refusal):
    """More requests wait than can be answered in time; this one was not begun."""

    code, title, retry, recorded = (
        "overloaded",
        "Too many requests at once",
        Retry.SAME_REQUEST,
        False,
    )


class OutcomeUnknown(Refusal):
    """The connection died during COMMIT and the database cannot tell yet how it ended.

    Only with a key or with ids is repeating it safe.
    """

    code, title, retry, recorded = (
        "outcome-unknown",
        "It is not known whether this was written",
        Retry.SAME_REQUEST,
        False,
    )


# Somebody else was first: what contention is measured by (docs/rates.md). A wrong request that is
# wrong whoever else writes (an id used twice, no such move) is none.
CONFLICTS = frozenset(
    cls.code for cls in (VersionConflict, SeqConflict, ExpectationFailed, HolderChanged)
)
# From one that holds nothing, or no longer: what would be written by an overtaken worker.
FENCED = frozenset(cls.code for cls in (StaleFence, LeaseLost, FenceRequired))


def every_refusal() -> dict[str, type[Refusal]]:
    """All refusals by code; the source of the problem pages and of the client's exceptions."""
    found: dict[str, type[Refusal]] = {}
    todo: list[type[Refusal]] = [Refusal]
    while todo:
        for cls in todo.pop().__subclasses__():
            found[cls.code] = cls
            todo.append(cls)
    return found
