"""Who calls: the API key of a request, and the scopes that a call needs.

Only the Authorization header counts, never a cookie or a parameter: so there is nothing that a page
elsewhere could make a browser send (no CSRF), and no key in an address or a log.
"""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from ninja.security.base import AuthBase

from agentstate.store.callers import Caller
from agentstate.store.keys import Unauthenticated, find_caller

_BEARER = re.compile(r"bearer +([!-~]+) *", re.IGNORECASE)


class WorkerRequest(HttpRequest):
    """A request to the API, as its endpoints see it; body_text: of those that have a body."""

    caller: Caller
    request_id: str
    body_text: str


class ApiKey(AuthBase):
    """ninja's `auth=`: puts the caller into `request.caller`.

    scopes: the caller needs at least one of them. Raises Unauthenticated, NotAllowed.
    """

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, *scopes: str) -> None:
        super().__init__()
        self.scopes = scopes

    def __call__(self, request: Any) -> Caller:
        caller = find_caller(_sent_key(request))
        caller.need(*self.scopes)
        request.caller = caller
        return caller


READ = ApiKey("read")
READ_PAYLOADS = ApiKey("payloads")
WRITE = ApiKey("write")
WRITE_OR_OPERATE = ApiKey("write", "operate")
OPERATE = ApiKey("operate")


def _sent_key(request: HttpRequest) -> str:
    sent = request.META.get("HTTP_AUTHORIZATION")
    if sent is None:
        raise Unauthenticated("send an API key: Authorization: Bearer <key>")
    found = _BEARER.fullmatch(sent.strip())
    if found is None:
        raise Unauthenticated("the Authorization header is not: Bearer <key>")
    return found[1]
