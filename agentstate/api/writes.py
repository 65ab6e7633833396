"""A write as data: what a call asks of the store, and how its result is told.

An endpoint that returns a `Write` touches neither the database nor an answer. `carried_out` makes
it one as ninja calls them; `shortcuts.py` does the same without ninja and Django, for calls that
come thousands of times a second. So both have one schema, one set of checks, one answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Any, get_type_hints

from django.http import HttpResponse

from agentstate import store
from agentstate.api.replies import DUPLICATE, MEDIA_TYPE, REPLAYED, told
from agentstate.store.callers import PLAIN, Circumstances
from agentstate.store.commands import Command, Result
from agentstate.store.payloads import write


@dataclass(frozen=True, slots=True)
class Write:
    """command and under: what is asked. status and etag: of the answer to its result; etag is "v"
    or "b", the letter before the result's version, or nothing."""

    command: Command[Any]
    under: Circumstances = PLAIN
    status: int = HTTPStatus.OK
    etag: str = ""

    def answer(self, result: Result) -> tuple[int, str, dict[str, str]]:
        """(status, body, headers), without those that every answer of the API has."""
        headers = {"Content-Type": MEDIA_TYPE}
        if result.replayed:
            headers[REPLAYED] = "true"
        if self.etag:
            headers["ETag"] = f'"{self.etag}{result.version}"'  # type: ignore[attr-defined]
        if getattr(result, "duplicate", False):
            headers[DUPLICATE] = "true"
        return self.status, write(told(result)), headers


def carried_out(view: Callable[..., Write]) -> Callable[..., HttpResponse]:
    """The endpoint that asks the store for what this one returns. `.writes`: this one."""

    @wraps(view)
    def endpoint(request: Any, *args: Any, **named: Any) -> HttpResponse:
        wanted = view(request, *args, **named)
        result = store.execute(wanted.command, by=request.caller, under=wanted.under)
        status, body, headers = wanted.answer(result)
        return HttpResponse(body, status=status, headers=headers)

    endpoint.writes = view  # type: ignore[attr-defined]
    # As types: ninja would look for their names in this module.
    hints = get_type_hints(view, include_extras=True)
    signature = inspect.signature(view)
    parameters = [p.replace(annotation=hints[n]) for n, p in signature.parameters.items()]
    endpoint.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return endpoint
