"""What a worker uses to speak with agentstate.

>>> from agentstate_client import Client, Event
>>> with Client("http://127.0.0.1:8000", key, worker="auditor") as client:
...     for run in client.claim(ttl_seconds=60):
...         with run:
...             run.append(Event("tool.returned", {"ok": True}), add={"steps_done": 1})
...             run.complete({"verdict": "clean"})

`AsyncClient` is the same with the same names, awaited.

Every write under a lease carries its fencing token; a worker that was overtaken can write
nothing. All errors: agentstate_client.errors. Log: the logger `agentstate_client`, silent by
default.
"""

import logging

from agentstate_client._async.budgets import AsyncBudget, AsyncHold
from agentstate_client._async.client import AsyncClient
from agentstate_client._async.effects import AsyncEffect
from agentstate_client._async.following import AsyncChange
from agentstate_client._async.leases import AsyncLease
from agentstate_client._async.runs import AsyncRun
from agentstate_client._async.steps import AsyncStep
from agentstate_client._sync.budgets import Budget, Hold
from agentstate_client._sync.client import Client
from agentstate_client._sync.effects import Effect
from agentstate_client._sync.following import Change
from agentstate_client._sync.leases import Lease
from agentstate_client._sync.runs import Run
from agentstate_client._sync.steps import Step
from agentstate_client.errors import (
    AgentStateError,
    AlreadyTerminal,
    AttemptsExhausted,
    BatchRefused,
    BudgetExhausted,
    CancelRequested,
    CapBelowUse,
    ClientClosed,
    CursorExpired,
    EventIdReuse,
    Exists,
    ExpectationFailed,
    FenceRequired,
    GaveUp,
    HolderChanged,
    IdempotencyInFlight,
    IdempotencyKeyReuse,
    IllegalTransition,
    Internal,
    Invalid,
    LeaseHeld,
    LeaseLost,
    Malformed,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PartialDuplicate,
    Paused,
    PayloadTooLarge,
    Problem,
    RateLimited,
    Refused,
    ReservationSettled,
    RunExpired,
    RunHot,
    SeqConflict,
    StaleFence,
    StopRequested,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    Unsendable,
    UnstorableText,
    VersionConflict,
)
from agentstate_client.payloads import RawJSON
from agentstate_client.records import (
    Appended,
    Applied,
    Changed,
    Charge,
    Charged,
    Duplicate,
    Event,
    Moved,
    NewBudget,
    Receipt,
    RecordedEvent,
    Reserved,
    RunRecord,
    Settled,
    Signal,
    Swapped,
)
from agentstate_client.retry import RetryPolicy
from agentstate_client.version import VERSION

__all__ = [
    "AgentStateError",
    "AlreadyTerminal",
    "Appended",
    "Applied",
    "AsyncBudget",
    "AsyncChange",
    "AsyncClient",
    "AsyncEffect",
    "AsyncHold",
    "AsyncLease",
    "AsyncRun",
    "AsyncStep",
    "AttemptsExhausted",
    "BatchRefused",
    "Budget",
    "BudgetExhausted",
    "CancelRequested",
    "CapBelowUse",
    "Change",
    "Changed",
    "Charge",
    "Charged",
    "Client",
    "ClientClosed",
    "CursorExpired",
    "Duplicate",
    "Effect",
    "Event",
    "EventIdReuse",
    "Exists",
    "ExpectationFailed",
    "FenceRequired",
    "GaveUp",
    "Hold",
    "HolderChanged",
    "IdempotencyInFlight",
    "IdempotencyKeyReuse",
    "IllegalTransition",
    "Internal",
    "Invalid",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Malformed",
    "Moved",
    "NewBudget",
    "NotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "PartialDuplicate",
    "Paused",
    "PayloadTooLarge",
    "Problem",
    "RateLimited",
    "RawJSON",
    "Receipt",
    "RecordedEvent",
    "Refused",
    "ReservationSettled",
    "Reserved",
    "RetryPolicy",
    "Run",
    "RunExpired",
    "RunHot",
    "RunRecord",
    "SeqConflict",
    "Settled",
    "Signal",
    "StaleFence",
    "Step",
    "StopRequested",
    "Swapped",
    "Unauthenticated",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "Unsendable",
    "UnstorableText",
    "VersionConflict",
    "__version__",
]

__version__ = VERSION

logging.getLogger("agentstate_client").addHandler(logging.NullHandler())
