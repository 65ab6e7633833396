"""How many calls a second one API key makes through this process.

The rule is that of a run's limit (store/rules/pacing.py), by this process's own clock: `due` is
when the next call would come if all came evenly, and a key may be ahead of that by its burst. It is
there for the process, which it keeps from being taken up by one caller: so it is not exact over
several processes, where a key gets as much from each, and what is refused is written nowhere.

What keeps or ends work is never held up, and counts for nothing: renewals, releases, commits, moves
of a run's status. docs/decisions/0017-backpressure.md.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from time import monotonic

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentstate.admission import Kind, kind_of
from agentstate.store.callers import Caller
from agentstate.store.errors import RateLimited

BURST_SECONDS = 2
KEYS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """A key's limit and what is left of it. wait_seconds: until a call fits; 0: this one did."""

    per_second: int
    left: int
    full_in_seconds: float
    wait_seconds: float = 0.0

    @property
    def burst(self) -> int:
        return self.per_second * BURST_SECONDS

    @property
    def headers(self) -> Mapping[str, str]:
        """As the HTTPAPI working group's draft on RateLimit fields has them."""
        return {
            "RateLimit-Policy": f'"key";q={self.burst};w={BURST_SECONDS}',
            "RateLimit": f'"key";r={self.left};t={ceil(self.full_in_seconds)}',
        }


def paced(due: float, now: float, per_second: int) -> tuple[float, Pace]:
    """One call more at `now`: when the next is due after it, and the pace. Seconds of one clock."""
    gap, burst = 1 / per_second, per_second * BURST_SECONDS
    # Further ahead than a call can bring it: the limit was changed. It counts from now on.
    ahead = due - now if now < due <= now + BURST_SECONDS + gap else 0.0
    wait = ahead - (burst - 1) * gap
    if wait > 1e-9:
        return now + ahead, Pace(per_second, 0, ahead, wait)
    ahead += gap
    left = int(burst - ahead / gap + 1e-9)
    return now + ahead, Pace(per_second, left, ahead)


class Paces:
    """When the next call of each key would be due. Losing it costs nothing but a burst."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}

    def note(self, name: str, *, per_second: int, now: float) -> Pace:
        with self._lock:
            if len(self._due) >= KEYS_MAX:
                self._due = {key: due for key, due in self._due.items() if due > now}
            self._due[name], pace = paced(self._due.get(name, now), now, per_second)
        return pace

    def forget(self) -> None:
        """For tests."""
        self._due = {}


PACES = Paces()


def pace(request: HttpRequest, caller: Caller) -> None:
    """Count the call of this caller. Raises RateLimited; `tell` says in the answer what is left."""
    per_second = settings.KEY_RATES.get(caller.name, settings.KEY_REQUESTS_PER_SECOND)
    if not per_second or _is_never_held_up(request):
        return
    found = PACES.note(caller.name, per_second=per_second, now=monotonic())
    request.pace = found  # type: ignore[attr-defined]
    if found.wait_seconds:
        raise RateLimited(
            f"this key may call {per_second} times a second",
            retry_after_ms=ceil(found.wait_seconds * 1_000),
            per_second=per_second,
        )


def tell(request: HttpRequest, response: HttpResponseBase) -> None:
    """Set the fields of the limit, if the caller has one."""
    found: Pace | None = getattr(request, "pace", None)
    if found is not None:
        for name, value in found.headers.items():
            response.headers[name] = value


def _is_never_held_up(request: HttpRequest) -> bool:
    method, path = request.method or "", request.path
    if method == "POST" and path.endswith("/transitions"):
        return True
    return kind_of(method, path, b"") in (Kind.LAST, Kind.VITAL)
