"""A command on its way into the store: who asks for it, in which circumstances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentstate.store.callers import PLAIN, Caller, Circumstances
from agentstate.store.commands import (
    AcquireLease,
    Append,
    ClaimRuns,
    Command,
    ReclaimLease,
    ReleaseLease,
    RenewLease,
    Result,
)
from agentstate.store.errors import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A command, who asks, and the circumstances in which it came."""

    command: Command[Any]
    by: Caller
    under: Circumstances = PLAIN


type Outcome = Result | Refusal | Exception

OF_LEASES = (AcquireLease, ClaimRuns, ReclaimLease, ReleaseLease, RenewLease)
LEAST_BYTES = 500


def weight(command: Command[Any]) -> int:
    """About how many bytes it writes."""
    if isinstance(command, Append):
        return LEAST_BYTES + sum(len(event.data.text) for event in command.events)
    return LEAST_BYTES
