"""Refusals as HTTP answers (RFC 9457): the one table of statuses, and the answer's members.

`code` and `retry` decide what a caller does; the status is for proxies and for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from inspect import cleandoc
from math import ceil
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.encoding import escape_uri_path

from agentstate.api.advice import ADVICE, Advice
from agentstate.phrases import phrase_of
from agentstate.store import errors
from agentstate.store.errors import Refusal, Retry, every_refusal
from agentstate.store.keys import Unauthenticated
from agentstate.store.payloads import Malformed, write

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1  # when a refusal that may be repeated does not say

STATUS: dict[type[Refusal], int] = {
    Malformed: 400,
    Unauthenticated: 401,
    errors.BudgetExhausted: 402,
    errors.NotAllowed: 403,
    errors.NotFound: 404,
    errors.AlreadyTerminal: 409,
    errors.AttemptsExhausted: 409,
    errors.BatchRefused: 409,
    errors.CapBelowUse: 409,
    errors.Exists: 409,
    errors.IdempotencyInFlight: 409,
    errors.IllegalTransition: 409,
    errors.LeaseLost: 409,
    errors.PartialDuplicate: 409,
    errors.Paused: 409,
    errors.ReservationSettled: 409,
    errors.StaleFence: 409,
    errors.CursorExpired: 410,
    errors.RunExpired: 410,
    errors.ExpectationFailed: 412,
    errors.HolderChanged: 412,
    errors.SeqConflict: 412,
    errors.VersionConflict: 412,
    errors.TooLarge: 413,
    errors.EventIdReuse: 422,
    errors.IdempotencyKeyReuse: 422,
    errors.Invalid: 422,
    errors.UnstorableText: 422,
    errors.LeaseHeld: 423,
    errors.FenceRequired: 428,
    errors.RateLimited: 429,
    errors.RunHot: 429,
    errors.OutcomeUnknown: 503,
    errors.Unavailable: 503,
    errors.Overloaded: 503,
}


# What may be sent again as it is, or later: their answers have Retry-After.
REPEATABLE = frozenset(cls.code for cls in STATUS if cls.retry in (Retry.LATER, Retry.SAME_REQUEST))
REPLAYED = "Idempotent-Replayed"

REPEAT = {
    Retry.NEVER: "Do not send it again as it is: the answer would be the same.",
    Retry.REREAD: "Look at `current` in the answer, decide anew, and write again.",
    Retry.SAME_REQUEST: "Send the very same request again, after Retry-After seconds.",
    Retry.LATER: "Come back after Retry-After seconds.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a code means, for the pages that explain it."""

    code: str
    title: str
    status: int
    retry: Retry
    meaning: str

    @property
    def repeat(self) -> str:
        """What `retry` says, in words."""
        return REPEAT[self.retry]

    @property
    def advice(self) -> Advice:
        return ADVICE[self.code]


# Not a refusal: nothing was decided, and nothing is known of what was written.
INTERNAL = Kind(
    code="internal",
    title="A fault in agentstate",
    status=500,
    retry=Retry.NEVER,
    meaning="A fault of ours, logged under the request id. Whether anything was written is not\n"
    "known, unless the request had an Idempotency-Key or ids: then look, or send it again.",
)


def kinds() -> list[Kind]:
    """Every code that the API can answer with, by status and code."""
    found = [
        Kind(
            code=code,
            title=cls.title,
            status=STATUS[cls],
            retry=cls.retry,
            meaning=cleandoc(cls.__doc__ or ""),
        )
        for code, cls in every_refusal().items()
    ]
    return sorted([*found, INTERNAL], key=lambda kind: (kind.status, kind.code))


def problem(request: HttpRequest, refusal: Refusal, *, status: int | None = None) -> HttpResponse:
    """The answer to a refused request. status: when HTTP knows better (405, 411, 415)."""
    members = problem_members(request, refusal, status=status)
    response = HttpResponse(write(members), content_type=MEDIA_TYPE, status=members["status"])
    if refusal.code in REPEATABLE:
        response.headers["Retry-After"] = str(_retry_after_seconds(refusal))
    if refusal.replayed:
        response.headers[REPLAYED] = "true"
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="agentstate"'
    return response


def problem_members(
    request: HttpRequest, refusal: Refusal, *, status: int | None = None
) -> dict[str, Any]:
    """The members of a problem: the same for each code, then `current`, then the code's own."""
    members = _members(
        request,
        code=refusal.code,
        title=phrase_of(status) if status else refusal.title,
        status=status or STATUS[type(refusal)],
        retry=refusal.retry,
        detail=refusal.detail,
    )
    if refusal.current is not None:
        members["current"] = refusal.current
    special = {name: v for name, v in refusal.facts.items() if name not in members}
    return members | special


def fault(request: HttpRequest) -> HttpResponse:
    """The answer when a bug of ours ended a request; the log has the rest."""
    members = fault_members(request)
    return HttpResponse(write(members), content_type=MEDIA_TYPE, status=INTERNAL.status)


def fault_members(request: HttpRequest) -> dict[str, Any]:
    """The members of that answer."""
    return _members(
        request,
        code=INTERNAL.code,
        title=INTERNAL.title,
        status=INTERNAL.status,
        retry=INTERNAL.retry,
        detail="this is a fault of ours; it was logged under this request id",
    )


def _members(
    request: HttpRequest, *, code: str, title: str, status: int, retry: Retry, detail: str
) -> dict[str, Any]:
    return {
        "type": f"/problems/{code}",
        "code": code,
        "title": title,
        "status": int(status),
        "retry": str(retry),
        "detail": detail,
        "instance": escape_uri_path(request.path),
        "request_id": request_id(request),
    }


def request_id(request: HttpRequest) -> str:
    """The id that agentstate.middleware.RequestMark gave the request."""
    return str(getattr(request, "request_id", ""))


def _retry_after_seconds(refusal: Refusal) -> int:
    if refusal.retry_after_ms is None:
        return RETRY_AFTER_SECONDS
    return max(1, ceil(refusal.retry_after_ms / 1000))
