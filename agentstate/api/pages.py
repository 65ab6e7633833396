"""Pages for people: what each problem means, and the reference of the API. And OpenAPI itself."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET

from agentstate.api import reference
from agentstate.api.contract import WorkerAPI
from agentstate.api.problems import kinds
from agentstate.store.callers import SCOPES

CSP = "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'"
CACHE_SECONDS = 300


@require_GET
def openapi(request: HttpRequest, api: WorkerAPI) -> HttpResponse:
    """OpenAPI 3.1."""
    return _lasting(HttpResponse(_openapi_text(api), content_type="application/json"))


@require_GET
def docs(request: HttpRequest, api: WorkerAPI) -> HttpResponse:
    """The reference for people."""
    sections = reference.sections(json.loads(_openapi_text(api)))
    return _page("api/docs.html", {"sections": sections, "scopes": SCOPES, "api": api})


@require_GET
def problem_index(request: HttpRequest) -> HttpResponse:
    """Every code that a request can be refused with."""
    return _page("problems/index.html", {"kinds": kinds()})


@require_GET
def problem_page(request: HttpRequest, code: str) -> HttpResponse:
    """What one code means and what to do about it: the `type` of each problem leads here."""
    kind = next((kind for kind in kinds() if kind.code == code), None)
    if kind is None:
        raise Http404
    return _page("problems/page.html", {"kind": kind})


@lru_cache(maxsize=1)
def _openapi_text(api: WorkerAPI) -> str:
    return json.dumps(api.get_openapi_schema(path_prefix="/api/v1/"))


def _page(template: str, context: dict[str, Any]) -> HttpResponse:
    response = HttpResponse(render_to_string(template, context))
    response.headers["Content-Security-Policy"] = CSP
    return _lasting(response)


def _lasting(response: HttpResponse) -> HttpResponse:
    """The same until the next release."""
    response.headers["Cache-Control"] = f"max-age={CACHE_SECONDS}"
    return response
