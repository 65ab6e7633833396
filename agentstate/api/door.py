"""The outermost layer of every address of the API: whatever happens behind it, the caller gets an
answer of the contract, and never a traceback or a page of HTML.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from functools import wraps
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import ninja.errors
from django.core.exceptions import SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, URLResolver

from agentstate import metrics
from agentstate.api import pacing
from agentstate.api.bodies import Unacceptable
from agentstate.api.problems import INTERNAL, fault, problem, request_id
from agentstate.api.schemas import OPERATIONS
from agentstate.store import outages
from agentstate.store.errors import Invalid, NotFound, Refusal, Unavailable, UnstorableText
from agentstate.store.payloads import Malformed

log = logging.getLogger(__name__)

type View = Callable[..., HttpResponseBase]

# Headers that decide what a request does.
_OURS = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"idempotency-key",
        b"if-match",
        b"transfer-encoding",
        b"agentstate-fence",
        b"agentstate-attempt",
        b"agentstate-attempts-max",
        b"agentstate-deadline",
    }
)
# Of the fields that break a rule; beyond these their number is told.
ERRORS_TOLD = 20
_ENCODED_SLASH = re.compile(r"%2f", re.IGNORECASE)

# What pydantic says, in our words; the rules of fields.py bring their own.
_RULES = {
    "missing": "required",
    "extra_forbidden": "there is no such field",
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "dict_type": "a JSON object",
    "list_type": "a list",
    "bool_type": "true or false",
    "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them",
    "union_tag_invalid": "op is one of {expected_tags}",
    "union_tag_not_found": "op is required",
}


def guard(patterns: Iterable[URLPattern | URLResolver]) -> list[URLPattern | URLResolver]:
    """The same addresses, each with this layer around its view."""
    guarded = list(patterns)
    for pattern in guarded:
        if isinstance(pattern, URLPattern):
            pattern.callback = guarded_view(pattern.callback)
    return guarded


def guarded_view(view: View) -> View:
    """The view, with HEAD, 404, 405 and faults of ours taken care of."""

    @wraps(view)
    def answer(request: HttpRequest, **parts: Any) -> HttpResponseBase:
        asked = request.method
        if asked == "HEAD":
            request.method = "GET"
        response = _answer(request, view, parts)
        if asked == "HEAD":
            _drop_content(response)
        response.headers.setdefault("Cache-Control", "no-store")
        pacing.tell(request, response)
        return response

    return answer


def _answer(request: HttpRequest, view: View, parts: dict[str, Any]) -> HttpResponseBase:
    try:
        _check_path(request)
        _check_headers(request)
        response = view(request, **parts)
    except Exception as raised:  # whatever it is, the answer is one of the contract
        return answer_to(request, raised)
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return _not_allowed(request, response)
    return response


def _check_path(request: HttpRequest) -> None:
    """A slash that was sent as %2F belongs to a name, which cannot have one. Once decoded it looks
    like one of ours and would lead to another address."""
    environ = getattr(request, "environ", {})
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
    scope = environ.get("asgi.scope") or {}
    path = (scope.get("raw_path") or raw.partition("?")[0].encode("latin-1")).decode("latin-1")
    if _ENCODED_SLASH.search(path):
        raise Invalid("path", "no name has a slash in it")


def _check_headers(request: HttpRequest) -> None:
    """Where the server still has the headers as they came (behind WSGI it may not): a name with an
    underscore would be taken for one of ours, and two keys for one."""
    environ = getattr(request, "environ", {})
    names = [name.lower() for name, _ in (environ.get("asgi.scope") or {}).get("headers", ())]
    folded = [n for n in names if b"_" in n and n.replace(b"_", b"-") in _OURS]
    if folded:
        raise Malformed(f"header {folded[0].decode('latin-1')}: its name has hyphens")
    if names.count(b"idempotency-key") > 1:
        raise Malformed("Idempotency-Key: once")


def _not_allowed(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    allowed = response.headers.get("Allow", "")
    if "GET" in allowed:
        allowed += ", HEAD"
    refusal = Malformed(f"{request.method} is not for this address; {allowed} is")
    answer = problem(request, refusal, status=HTTPStatus.METHOD_NOT_ALLOWED)
    answer.headers["Allow"] = allowed
    return answer


def _drop_content(response: HttpResponseBase) -> None:
    if hasattr(response, "content"):
        response.headers.setdefault("Content-Length", str(len(response.content)))
        response.content = b""
    elif isinstance(response, StreamingHttpResponse):
        response.streaming_content = ()  # what it would have read of the store is not read


def answer_to(request: HttpRequest, raised: Exception | type[Exception]) -> HttpResponse:
    """The answer to an exception; ninja's and our own views both end here."""
    if isinstance(raised, Unacceptable):
        metrics.note_problem(raised.refusal.code)
        return problem(request, raised.refusal, status=raised.status)
    refusal = _refusal_of(request, raised)
    if refusal is None:
        log.error("request %s failed", request_id(request), exc_info=raised)  # type: ignore[arg-type]
        metrics.note_problem(INTERNAL.code)
        return fault(request)
    metrics.note_problem(refusal.code)
    return problem(request, refusal)


def _refusal_of(request: HttpRequest, raised: Exception | type[Exception]) -> Refusal | None:
    """What the caller is told of it; None: it is a fault of ours."""
    if isinstance(raised, Refusal):
        return raised
    if isinstance(raised, ninja.errors.ValidationError):
        return _broken_rules(raised.errors)
    if isinstance(raised, SuspiciousOperation):
        return Malformed(str(raised))
    if isinstance(raised, Http404):
        return NotFound("there is no such address")
    if isinstance(raised, Exception) and outages.is_one(raised):
        # The text may name hosts and users: it goes to the log, not to the caller.
        log.warning("request %s: the database: %s", request_id(request), raised)
        outages.note(raised)
        return Unavailable(outages.in_words(raised))
    return None


def _broken_rules(errors: list[dict[str, Any]]) -> Refusal:
    """One refusal for all the fields that break a rule; it names the first, and lists several."""
    text = next((e for e in errors if e["type"] == UnstorableText.code), None)
    first = _broken(text or errors[0])
    refused = UnstorableText if text else Invalid
    more = {"errors_left_out": len(errors) - ERRORS_TOLD} if len(errors) > ERRORS_TOLD else {}
    told = [_broken(error) for error in errors[:ERRORS_TOLD]]
    return refused(first["field"], first["rule"], errors=told, **more)


def _broken(error: dict[str, Any]) -> dict[str, str]:
    return {"field": _field(error["loc"]), "rule": _rule(error)}


def _field(where: tuple[str | int, ...]) -> str:
    """`events[3].type` from ("body", "ask", "events", 3, "type"); `limit` from ("query", "limit").

    A parameter that is there several times is named without a number.
    """
    if where[0] != "body":
        return next(part for part in reversed(where) if isinstance(part, str))
    text = ""
    for before, part in pairwise(where[1:]):
        if isinstance(before, int) and part in OPERATIONS:
            continue  # which kind of operation it was taken for
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "body"


def _rule(error: dict[str, Any]) -> str:
    given = error.get("ctx") or {}
    if "rule" in given:
        return str(given["rule"])
    if error["type"] in _RULES:
        return _RULES[error["type"]].format(**given)
    return str(error["msg"])
