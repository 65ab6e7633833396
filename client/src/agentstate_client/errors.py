"""What can go wrong, by what the caller should do about it.

AgentStateError
├── Refused            the store said no; one class per `code`, with `current` and `retry`
│   └── LeaseLost      also raised here, without a request, when the client's own deadline passed
├── Unreachable        no answer: the network, a proxy, a restart; nobody said no
├── Unsendable         the value cannot be sent; nothing left the client
├── UnexpectedAnswer   something answered that does not speak this API
├── GaveUp             a guarded write met somebody else's each time
├── CancelRequested    the store asked this worker to stop (only `checkpoint` raises it)
├── StopRequested      its process was told to end (only `checkpoint` raises it)
└── ClientClosed       the client was closed, or belongs to the process before a fork

All of them can be pickled, and made anew from their args as JSON, which is how Celery keeps them.
None of them, nor any log line, ever holds the API key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")

SAME_REQUEST = "same-request"


class AgentStateError(Exception):
    """Anything that agentstate_client raises of its own accord.

    outcome_unknown: an attempt was sent and its answer never came, so the effect may be there.
    Sending the same call again by hand would be a new request: look at the run first.
    """

    outcome_unknown: bool = False


class Unsendable(AgentStateError, ValueError):
    """The value cannot be sent as it is; nothing left the client."""


class ClientClosed(AgentStateError):
    """This client sends nothing any more; make another one."""


class UnexpectedAnswer(AgentStateError):
    """An answer that is none of agentstate's: a wrong address, a proxy's page, a redirect."""

    def __init__(self, detail: str, status: int | None = None) -> None:
        super().__init__(detail, status)
        self.detail, self.status = detail, status

    def __str__(self) -> str:
        return self.detail


class Unreachable(AgentStateError):
    """The store gave no answer within the attempts and the time that the retry policy allows.

    Not a loss of the lease and not a refusal: whoever holds a lease still holds it until its
    deadline. request_id: under which the store knows the call, if it ever arrived.
    """

    def __init__(
        self,
        detail: str,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(detail, request_id, retry_after_seconds, outcome_unknown)
        self.detail, self.request_id = detail, request_id
        self.retry_after_seconds = retry_after_seconds
        self.outcome_unknown = outcome_unknown

    def __str__(self) -> str:
        return self.detail


class GaveUp(AgentStateError):
    """A guarded write found another version or number each time. Nothing of it was written.

    attempts: how often it was tried. last_conflict: the last refusal, VersionConflict or
    SeqConflict; its `current` has the version and the status that the store saw.
    """

    def __init__(self, attempts: int, last_conflict: Refused) -> None:
        super().__init__(attempts, last_conflict)
        self.attempts, self.last_conflict = attempts, last_conflict

    def __str__(self) -> str:
        return f"gave up after {self.attempts} attempts: {self.last_conflict}"


class CancelRequested(AgentStateError):
    """An operator asked this worker to stop: finish the step, or give up, then cancel the run."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"asked to cancel: {self.reason}" if self.reason else "asked to cancel"


class StopRequested(AgentStateError):
    """This process has been told to end: give the run back, so that another worker goes on."""

    def __str__(self) -> str:
        return "this worker has been told to stop"


@dataclass(frozen=True)
class Problem:
    """A refusal as it came (RFC 9457). status None: decided by the client, nothing was sent.

    document: the whole answer as JSON text. retry: never, reread, same-request or later.
    """

    code: str
    detail: str
    status: int | None = None
    retry: str = "never"
    title: str = ""
    request_id: str | None = None
    retry_after_seconds: float | None = None
    document: str = "{}"

    @classmethod
    def read(
        cls,
        members: Any,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> Problem | None:
        """The refusal in a decoded answer; None when it is none. The arguments fill in what the
        answer's members do not say.
        """
        if not isinstance(members, dict) or not isinstance(members.get("code"), str):
            return None
        return cls(
            code=members["code"],
            status=status if status is not None else members.get("status"),
            retry=str(members.get("retry", "never")),
            title=str(members.get("title", "")),
            detail=str(members.get("detail") or members.get("title") or ""),
            request_id=members.get("request_id") or request_id,
            retry_after_seconds=retry_after_seconds,
            document=json.dumps(members),
        )

    def members(self) -> dict[str, Any]:
        """The whole answer, decoded anew each time."""
        found: dict[str, Any] = json.loads(self.document)
        return found


class Fact(Generic[T]):
    """A member of the answer that is special to its code; None when the answer lacks it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, refused: Refused, owner: type) -> T | None:
        found: T | None = refused.fact(self._name)
        return found


class Refused(AgentStateError):
    """The store refused; nothing of the call was written.

    A code that this release of the client does not know comes as plain Refused.
    """

    code_of_class: ClassVar[str] = ""

    def __init__(self, problem: Problem | Mapping[str, Any]) -> None:
        found = problem if isinstance(problem, Problem) else Problem(**problem)
        # Plain values, so that its args say all of it as JSON, too.
        super().__init__(asdict(found))
        self.problem = found

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"

    @property
    def code(self) -> str:
        return self.problem.code

    @property
    def status(self) -> int | None:
        """The HTTP status; None when the client refused by itself and sent nothing."""
        return self.problem.status

    @property
    def retry(self) -> str:
        """never; reread (look at `current`, then decide); same-request; later."""
        return self.problem.retry

    @property
    def title(self) -> str:
        return self.problem.title

    @property
    def detail(self) -> str:
        return self.problem.detail

    @property
    def request_id(self) -> str | None:
        return self.problem.request_id

    @property
    def retry_after_seconds(self) -> float | None:
        return self.problem.retry_after_seconds

    @property
    def current(self) -> dict[str, Any]:
        """What the store saw under the lock that refused; a copy of the caller's own."""
        found: dict[str, Any] = self.problem.members().get("current") or {}
        return found

    def fact(self, name: str) -> Any:
        """A member that is special to the code (`cap`, `allowed`, …); None when it is not there."""
        return self.problem.members().get(name)


class Malformed(Refused):
    """The body is not JSON."""

    code_of_class = "malformed"


class Invalid(Refused):
    """A value breaks a rule of its field."""

    code_of_class = "invalid"

    field = Fact[str]()
    rule = Fact[str]()


class UnstorableText(Invalid):
    """A text holds U+0000 or a lone surrogate; `field` is its place."""

    code_of_class = "unstorable-text"


class PayloadTooLarge(Refused):
    """More than the documented limit; `limit` and `actual` in bytes."""

    code_of_class = "payload-too-large"

    limit = Fact[int]()
    actual = Fact[int]()


class IdempotencyKeyReuse(Refused):
    """The idempotency key was used for another request."""

    code_of_class = "idempotency-key-reuse"


class IdempotencyInFlight(Refused):
    """The first request with this key was still running, for as long as the policy allowed."""

    code_of_class = "idempotency-in-flight"


class EventIdReuse(Refused):
    """An event id is stored already with other content."""

    code_of_class = "event-id-reuse"


class PartialDuplicate(Refused):
    """Some event ids of the batch are stored already (`known`) and some are not."""

    code_of_class = "partial-duplicate"

    known = Fact[list[dict[str, Any]]]()


class Unauthenticated(Refused):
    """The key is unknown, expired or revoked."""

    code_of_class = "unauthenticated"


class NotAllowed(Refused):
    """The key lacks a scope (`scope`)."""

    code_of_class = "not-allowed"

    scope = Fact[str]()


class BudgetExhausted(Refused):
    """The charge would pass the cap of `budget`; nothing was added anywhere."""

    code_of_class = "budget-exhausted"

    budget = Fact[str]()
    cap = Fact[int]()
    spent = Fact[int]()
    reserved = Fact[int]()
    asked = Fact[int]()


class NotFound(Refused):
    """There is no such run, unit or budget."""

    code_of_class = "not-found"


class CursorExpired(Refused):
    """What comes after this cursor is no longer kept; `earliest` is."""

    code_of_class = "cursor-expired"

    earliest = Fact[int]()
    latest = Fact[int]()


class RunExpired(Refused):
    """The run is past its retention."""

    code_of_class = "run-expired"


class Exists(Refused):
    """A run with this key is there already."""

    code_of_class = "exists"


class IllegalTransition(Refused):
    """No such move from the run's status; `allowed` lists the legal ones."""

    code_of_class = "illegal-transition"

    allowed = Fact[list[str]]()


class AlreadyTerminal(Refused):
    """The run has ended."""

    code_of_class = "already-terminal"


class Paused(Refused):
    """A paused run is not given out."""

    code_of_class = "paused"


class StaleFence(Refused):
    """Another worker owns the run now, or nobody does: stop working on it."""

    code_of_class = "stale-fence"


class FenceRequired(Refused):
    """The run was leased before: write through a claimed or acquired handle."""

    code_of_class = "fence-required"


class LeaseLost(Refused):
    """The lease is over. Nothing was written, and nothing more may be under it.

    Raised for the store's answer, and by the client itself (`status` None) before a write would
    leave too late.
    """

    code_of_class = "lease-lost"

    @property
    def reason(self) -> str:
        """expired, taken, reclaimed, released, run-terminal, revoked: said by the store.

        Decided by the client: deadline (no renewal was confirmed in time, by its own clock),
        superseded (a write was refused for its token), released (it gave the unit back itself).
        """
        return str(self.fact("reason") or "unknown")


class LeaseHeld(Refused):
    """Somebody else holds the unit and their lease is live."""

    code_of_class = "lease-held"

    owner = Fact[str]()
    expires_in_ms = Fact[int]()


class AttemptsExhausted(Refused):
    """The run was started as often as it may be."""

    code_of_class = "attempts-exhausted"


class ReservationSettled(Refused):
    """The hold was committed or released already."""

    code_of_class = "reservation-settled"


class CapBelowUse(Refused):
    """The new cap is below what is used."""

    code_of_class = "cap-below-use"


class BatchRefused(Refused):
    """At least one operation of a batch was refused (`operations`); none was carried out."""

    code_of_class = "batch-refused"

    operations = Fact[list[dict[str, Any]]]()


class VersionConflict(Refused):
    """The run or budget has moved on since the version that the caller named."""

    code_of_class = "version-conflict"


class SeqConflict(Refused):
    """The log has moved on; `last_seq` is where it is now."""

    code_of_class = "seq-conflict"

    last_seq = Fact[int]()


class ExpectationFailed(Refused):
    """At least one clause of `expect` does not hold; `failed` lists each."""

    code_of_class = "expectation-failed"

    failed = Fact[list[dict[str, Any]]]()


class HolderChanged(Refused):
    """Somebody else holds the unit than the caller saw."""

    code_of_class = "holder-changed"


class RateLimited(Refused):
    """Too many requests with this key."""

    code_of_class = "rate-limited"


class RunHot(Refused):
    """Too many writers on one run."""

    code_of_class = "run-hot"


class Overloaded(Refused):
    """The store sheds load."""

    code_of_class = "overloaded"


class Unavailable(Refused):
    """The store's database cannot be reached or is busy; nothing was decided."""

    code_of_class = "unavailable"


class Internal(Refused):
    """A fault of the server's own; it is in its log under `request_id`. Not repeated by itself."""

    code_of_class = "internal"
    outcome_unknown = True


class OutcomeUnknown(Refused):
    """The store itself cannot tell yet whether this was written."""

    code_of_class = "outcome-unknown"
    outcome_unknown = True


def _by_code() -> dict[str, type[Refused]]:
    found: dict[str, type[Refused]] = {}
    todo: list[type[Refused]] = [Refused]
    while todo:
        for cls in todo.pop().__subclasses__():
            found[cls.code_of_class] = cls
            todo.append(cls)
    return found


# One class per code of the contract; a test compares this with the server's own list.
BY_CODE = _by_code()


def refusal(problem: Problem) -> Refused:
    """The exception for a problem; plain Refused for a code of a newer server."""
    return BY_CODE.get(problem.code, Refused)(problem)


def lost_here(reason: str, detail: str) -> LeaseLost:
    """A LeaseLost that the client decided by itself, without a request."""
    return LeaseLost(
        Problem(
            code="lease-lost",
            title="The lease is lost",
            detail=detail,
            document=json.dumps({"reason": reason}),
        )
    )
