"""What the headers of a write say: the version it is for, the token it is under, the key that makes
repeating it safe. A header that cannot be read is refused; one that has no meaning here, too,
because ignoring a precondition would be worse than any answer.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from functools import cache

from agentstate.api.access import WorkerRequest
from agentstate.api.problems import request_id
from agentstate.store import payloads
from agentstate.store.callers import Circumstances
from agentstate.store.errors import Invalid
from agentstate.store.rules import names

ATTEMPT_MAX = 1_000_000
DEADLINE_MS_MAX = 86_400_000

_VERSION = re.compile(r'"([vb])([1-9][0-9]{0,17})"')
_VERSION_OF = {"v": 'one version of the run, as "v7"', "b": 'one version of the budget, as "b3"'}
_WHOLE = re.compile(r"[0-9]{1,19}")


def version_to_match(request: WorkerRequest, *, letter: str = "v") -> int | None:
    """The version of `If-Match: "v7"`; None without the header, and for `*`. Raises Invalid.

    letter: v for a run's version, b for a budget's.
    """
    sent = request.META.get("HTTP_IF_MATCH")
    if sent is None or sent.strip() == "*":
        return None
    found = _VERSION.fullmatch(sent.strip())
    if found is None or found[1] != letter:
        raise Invalid("If-Match", _VERSION_OF[letter])
    return int(found[2])


def fence(request: WorkerRequest) -> int | None:
    """The token of `Agentstate-Fence: 813`; None without the header. Raises Invalid."""
    return _whole(request, "Agentstate-Fence", lambda n: 1 <= n < 2**63, "a fencing token, as 813")


def circumstances(request: WorkerRequest, *, repeatable: bool = False) -> Circumstances:
    """What the transport knows of a write.

    repeatable: sending it twice does no harm by its nature, so an Idempotency-Key is ignored.
    Raises Invalid.
    """
    attempt = _attempts(request, "Agentstate-Attempt")
    key = None if repeatable else request.META.get("HTTP_IDEMPOTENCY_KEY")
    return Circumstances(
        request_id=request_id(request) or None,
        idempotency_key=None if key is None else names.check_id("Idempotency-Key", key),
        fingerprint=None if key is None else _fingerprint(request),
        attempt=attempt or 1,
        attempts_max=_attempts(request, "Agentstate-Attempts-Max"),
        begin_by=_begin_by(request),
    )


def _begin_by(request: WorkerRequest) -> float | None:
    """The time of `Agentstate-Deadline`, on this process's clock. Raises Invalid.

    It runs from when the request's head had come: the body and the queue for a thread count.
    """
    rule = f"milliseconds, a whole number from 1 to {DEADLINE_MS_MAX}"
    left_ms = _whole(request, "Agentstate-Deadline", lambda n: 1 <= n <= DEADLINE_MS_MAX, rule)
    if left_ms is None:
        return None
    came_at: float = request.META.get("agentstate.came_at") or time.monotonic()
    return came_at + left_ms / 1_000


def _attempts(request: WorkerRequest, name: str) -> int | None:
    rule = f"a whole number from 1 to {ATTEMPT_MAX}"
    return _whole(request, name, lambda n: 1 <= n <= ATTEMPT_MAX, rule)


def check_unused(request: WorkerRequest, *unused: str) -> None:
    """Raises Invalid when a header is there that has no meaning for this call."""
    for name in unused:
        if _meta(name) in request.META:
            raise Invalid(name, "not with this call")


def _fingerprint(request: WorkerRequest) -> bytes:
    """The same for two requests exactly when they ask for the same: method, path, body."""
    body = payloads.canonical(request.body_text)
    return hashlib.sha256(f"{request.method}\n{request.path}\n{body}".encode()).digest()


def _whole(
    request: WorkerRequest, name: str, is_legal: Callable[[int], bool], rule: str
) -> int | None:
    sent = request.META.get(_meta(name))
    if sent is None:
        return None
    if not _WHOLE.fullmatch(sent.strip()) or not is_legal(int(sent)):
        raise Invalid(name, rule)
    return int(sent)


@cache
def _meta(name: str) -> str:
    return f"HTTP_{name.upper().replace('-', '_')}"
