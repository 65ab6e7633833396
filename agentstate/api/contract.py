"""django-ninja, bent to the contract: bodies and refusals our way, OpenAPI that tells the truth.

An endpoint is a function with `@router.post("…", **contract(…))`: its shape and bounds are in the
schema, it gives the store one command, and it catches nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import ninja.errors
from django.http import Http404, HttpRequest
from ninja import NinjaAPI
from ninja.params import ParamShortcut, models
from pydantic import BaseModel

from agentstate import __version__
from agentstate.api import openapi
from agentstate.api.access import ApiKey
from agentstate.api.bodies import PayloadParser
from agentstate.api.door import answer_to
from agentstate.api.headers import ATTEMPT_MAX, DEADLINE_MS_MAX
from agentstate.api.problems import INTERNAL, STATUS
from agentstate.store import errors
from agentstate.store.errors import Invalid, Refusal
from agentstate.store.keys import Unauthenticated
from agentstate.store.payloads import Malformed
from agentstate.store.rules import names

WAITS = "this address never waits; long polls and streams are under /live/v1"

# What any call may be refused for; those with a body, and those that write.
ALWAYS: tuple[type[Refusal], ...] = (
    Malformed,
    Invalid,
    errors.UnstorableText,
    errors.Unavailable,
    errors.Overloaded,
)
WITH_KEY: tuple[type[Refusal], ...] = (
    Unauthenticated,
    errors.NotAllowed,
    errors.RateLimited,
)
WITH_BODY: tuple[type[Refusal], ...] = (errors.TooLarge,)
WRITING: tuple[type[Refusal], ...] = (errors.OutcomeUnknown,)
# What HTTP refuses has statuses that no refusal of the store has: too much before the body, or too
# late; and of a body whose length or type is not told.
OF_HEADS = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_URI_TOO_LONG,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
)
OF_BODIES = (HTTPStatus.LENGTH_REQUIRED, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
KEYED: tuple[type[Refusal], ...] = (errors.IdempotencyInFlight, errors.IdempotencyKeyReuse)

FENCE = {
    "name": "Agentstate-Fence",
    "in": "header",
    "description": "the fencing token of the lease under which the caller writes",
    "schema": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
}
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "description": 'write only if the run has this version; as "v7", with the quotes',
    "schema": {"type": "string", "pattern": '^"v[1-9][0-9]{0,17}"$'},
}
IF_MATCH_BUDGET = {
    "name": "If-Match",
    "in": "header",
    "description": 'write only if the budget has this version; as "b3", with the quotes',
    "schema": {"type": "string", "pattern": '^"b[1-9][0-9]{0,17}"$'},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "the first answer to this key, by this API key, stays the answer for 24 hours",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": names.ID_CHARS,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
}
ATTEMPT = {
    "name": "Agentstate-Attempt",
    "in": "header",
    "description": "1 for the first try of a request, 2 for the next",
    "schema": {"type": "integer", "minimum": 1, "maximum": ATTEMPT_MAX},
}
ATTEMPTS_MAX = {
    "name": "Agentstate-Attempts-Max",
    "in": "header",
    "description": "the last attempt that is made: a conflict there is counted as given up",
    "schema": {"type": "integer", "minimum": 1, "maximum": ATTEMPT_MAX},
}
DEADLINE = {
    "name": "Agentstate-Deadline",
    "in": "header",
    "description": "milliseconds: what cannot begin within them is 503 with nothing written",
    "schema": {"type": "integer", "minimum": 1, "maximum": DEADLINE_MS_MAX},
}


class _BodyModel(models.BodyModel):
    """The body as the parser gives it. ninja's own reads it again, and hides why it refused."""

    @classmethod
    def get_request_data(cls, request: HttpRequest, api: Any, path_params: Any) -> dict[str, Any]:
        return {cls.__read_from_single_attr__: api.parser.parse_body(request)}


class Body(models.Body):  # type: ignore[misc]  # ninja takes the lower-case name as the source
    _model = _BodyModel


if TYPE_CHECKING:
    type Sent[T] = T
else:
    # `ask: Sent[AcquireAsked]`: the argument of an endpoint that is the request's body.
    Sent = ParamShortcut(partial(Body, ...))


class WorkerAPI(NinjaAPI):
    """The API of /api/v1. Its OpenAPI says what ninja's does not by itself: openapi.py."""

    def get_openapi_schema(self, **more: Any) -> Any:
        return openapi.completed(super().get_openapi_schema(**more))


def make_api() -> WorkerAPI:
    api = WorkerAPI(
        title="agentstate",
        version=__version__,
        description="The durable state of agent runs: what a worker, a script or another console"
        " may rely on. Every refusal is explained at /problems/.",
        parser=PayloadParser(),
        urls_namespace="agentstate.api",
        docs_url=None,
        openapi_url=None,
        servers=[{"url": "/", "description": "where this document came from"}],
        openapi_extra={"tags": openapi.TAGS},
    )
    for raised in (Exception, Http404, ninja.errors.HttpError, ninja.errors.ValidationError):
        api.add_exception_handler(raised, answer_to)
    api.add_decorator(known_parameters_only)
    return api


def known_parameters_only(view: Callable[..., Any]) -> Callable[..., Any]:
    """A parameter that an address does not know is refused: it would be ignored otherwise."""
    known: set[str] | None = None

    @wraps(view)
    def checked(request: HttpRequest, **values: Any) -> Any:
        nonlocal known
        if known is None:
            known = _query_parameters(view)
        for name in request.GET:
            if name not in known:
                raise Invalid(name, WAITS if name == "wait" else "there is no such parameter")
        return view(request, **values)

    return checked


def _query_parameters(view: Any) -> set[str]:
    operation = view._ninja_operation
    return {
        name
        for model in operation.models
        if model.__ninja_param_source__ == "query"
        for name in model.__ninja_flatten_map__
    }


def contract(
    operation_id: str,
    *,
    answers: type[BaseModel] | None,
    status: int = 200,
    access: ApiKey | None,
    refuses: Sequence[type[Refusal]] = (),
    takes_body: bool = False,
    headers: Sequence[dict[str, Any]] = (),
    lines: str = "",
    also: Sequence[HTTPStatus] = (),
) -> dict[str, Any]:
    """What a route says of itself, as keyword arguments of ninja's decorators.

    answers: None when it is no JSON (`lines`). access: who may call it; None: anybody.
    refuses: codes beside those that every call has. also: what HTTP itself refuses here.
    """
    keyed = IDEMPOTENCY_KEY in headers
    refused: list[type[Refusal]] = [*ALWAYS, *refuses]
    refused += WITH_KEY if access else ()
    refused += WITH_BODY if takes_body else ()
    refused += KEYED if keyed else ()
    refused += WRITING if takes_body else ()
    done = openapi.answer_headers(
        operation_id,
        etag=getattr(answers, "etag", ""),
        writes=takes_body,
        limited=access is not None,
    )
    done |= openapi.links_of(operation_id)
    if lines:
        done["content"] = {lines: {"schema": {"type": "string"}}}
    return {
        "operation_id": operation_id,
        "summary": operation_id.replace("_", " ").capitalize(),
        "response": {status: answers},
        "auth": access.of(operation_id) if access else None,
        "openapi_extra": {
            "parameters": [
                *headers,
                *([ATTEMPTS_MAX, DEADLINE] if ATTEMPT in headers else []),
            ],
            "responses": {int(status): done}
            | _problems(refused, also=[*also, *(OF_BODIES if takes_body else ())]),
            "x-scopes": list(access.scopes) if access else [],
        },
    }


def _problems(refused: Sequence[type[Refusal]], *, also: Sequence[HTTPStatus]) -> dict[int, Any]:
    codes: dict[int, set[str]] = defaultdict(set)
    for cls in refused:
        codes[STATUS[cls]].add(cls.code)
    for status in (*OF_HEADS, *also):
        codes[status.value].add(Malformed.code)
    codes[INTERNAL.status].add(INTERNAL.code)
    return {
        status: openapi.problem_answer(status, sorted(of_status))
        for status, of_status in sorted(codes.items())
    }
