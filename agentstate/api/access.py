"""Who calls: the API key of a request, and the scopes that a call needs.

Only the Authorization header counts, never a cookie or a parameter: so there is nothing that a page
elsewhere could make a browser send (no CSRF), and no key in an address or a log.
"""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from ninja.security.base import AuthBase

from agentstate import store
from agentstate.api import pacing
from agentstate.api.problems import request_id
from agentstate.store.callers import Caller, Circumstances
from agentstate.store.commands import NoteRefused
from agentstate.store.keys import Unauthenticated, find_caller, has_key_in
from agentstate.store.rules import names

_BEARER = re.compile(r"bearer +([!-~]+) *", re.IGNORECASE)


class WorkerRequest(HttpRequest):
    """A request to the API, as its endpoints see it; body_text: of those that have a body."""

    caller: Caller
    request_id: str
    body_text: str


class ApiKey(AuthBase):
    """ninja's `auth=`: puts the caller into `request.caller`.

    scopes: the caller needs at least one of them. operation: what it calls; a try without the
    scope is written down under this name. Raises Unauthenticated, NotAllowed.
    """

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, *scopes: str, operation: str = "") -> None:
        super().__init__()
        self.scopes, self.operation = scopes, operation

    def of(self, operation: str) -> ApiKey:
        """The same for one operation."""
        return ApiKey(*self.scopes, operation=operation)

    def __call__(self, request: Any) -> Caller:
        request.caller = find_caller(sent_key(request))
        pacing.pace(request, request.caller)
        need(request, *self.scopes, operation=self.operation)
        caller: Caller = request.caller
        return caller


def need(request: WorkerRequest, *scopes: str, operation: str) -> None:
    """Raises NotAllowed unless the caller has one of `scopes`, once the try is written down."""
    if any(request.caller.may(scope) for scope in scopes):
        return
    parts = request.resolver_match.kwargs if request.resolver_match else {}
    ask = NoteRefused(
        operation=operation,
        scopes=scopes,
        run=names.legal(names.check_run_key, parts.get("key")),
        unit=names.legal(names.check_unit, parts.get("unit")),
    )
    store.execute(ask, by=request.caller, under=Circumstances(request_id=request_id(request)))


READ = ApiKey("read")
WRITE = ApiKey("write")
WRITE_OR_OPERATE = ApiKey("write", "operate")
PROPOSE = ApiKey("propose")
OPERATE = ApiKey("operate")
OVERRIDE = ApiKey("override")
ADMIN = ApiKey("admin")


def sent_key(request: HttpRequest) -> str:
    sent = request.META.get("HTTP_AUTHORIZATION")
    if has_key_in(request.META.get("QUERY_STRING", "")):
        raise Unauthenticated(
            "a key in an address ends in logs and histories, so none is taken there: revoke this"
            " one, and send another as Authorization: Bearer <key>"
        )
    if sent is None:
        raise Unauthenticated("send an API key: Authorization: Bearer <key>")
    found = _BEARER.fullmatch(sent.strip())
    if found is None:
        raise Unauthenticated("the Authorization header is not: Bearer <key>")
    return found[1]
