"""Who asks: an API key, a person at the console, or a part of agentstate itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from agentstate.store.errors import NotAllowed

# None implies another (api.md, "Who is calling").
SCOPES = ("read", "payloads", "write", "propose", "operate", "override", "admin")
# Of people, from the least to the most; each has what the one before it has.
ROLES: dict[str, frozenset[str]] = {
    "viewer": frozenset({"read", "payloads"}),
    "operator": frozenset({"read", "payloads", "operate"}),
    "senior": frozenset({"read", "payloads", "operate", "override"}),
    "admin": frozenset({"read", "payloads", "operate", "override", "admin"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One who may ask, and what for. Names of keys and people are unique for good."""

    kind: Literal["key", "person", "system"]
    name: str
    scopes: frozenset[str] = field(default_factory=frozenset)

    @property
    def principal(self) -> str:
        """What is written beside every effect: `key:fleet`, `person:ana`, `system:sweep`."""
        return f"{self.kind}:{self.name}"

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    def need(self, *scopes: str) -> None:
        """Raises NotAllowed unless the caller has at least one of `scopes`."""
        if not any(scope in self.scopes for scope in scopes):
            raise NotAllowed(f"needs the scope {' or '.join(scopes)}", scope=scopes[0])


SYSTEM = Caller(kind="system", name="agentstate", scopes=frozenset(SCOPES))
SWEEP = Caller(kind="system", name="sweep", scopes=frozenset(SCOPES))
# Whoever can run `./run` can write to the database, and so may all of it. Nobody knows their name.
COMMAND_LINE = Caller(kind="system", name="command line", scopes=frozenset(SCOPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """How a command came: what the transport knows and the rules do not need.

    idempotency_key and fingerprint: together or not at all; the fingerprint covers method, path
    and canonical body.
    attempt: 1 for the first try, counted by the client. attempts_max: how many it makes in all,
    if it says so: a conflict at that one is a change that was given up.
    begin_by: by time.monotonic() of this process; what has not begun by then is not begun.
    """

    request_id: str | None = None
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    attempt: int = 1
    attempts_max: int | None = None
    begin_by: float | None = None

    def wait_seconds(self, at_most: float) -> float:
        """How long it may still wait to begin, 0 when its time is over."""
        if self.begin_by is None:
            return at_most
        return max(0.0, min(at_most, self.begin_by - time.monotonic()))

    @property
    def is_last_attempt(self) -> bool:
        return self.attempts_max is not None and self.attempt >= self.attempts_max


PLAIN = Circumstances()
