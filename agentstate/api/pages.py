"""Pages for people: what each problem means, and the reference of the API. And OpenAPI itself."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET

from agentstate.api import examples, explained, reference
from agentstate.api.contract import WorkerAPI
from agentstate.api.problems import Kind, kinds
from agentstate.store.callers import SCOPES

CSP = "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'"
CACHE_SECONDS = 300
HTML, JSON, MARKDOWN = "text/html", "application/json", "text/markdown"


@require_GET
def openapi(request: HttpRequest, api: WorkerAPI) -> HttpResponse:
    """OpenAPI 3.1."""
    return _lasting(HttpResponse(openapi_text(api), content_type="application/json"))


@require_GET
def docs(request: HttpRequest, api: WorkerAPI) -> HttpResponse:
    """The reference for people."""
    sections = reference.sections(json.loads(openapi_text(api)))
    site = request.build_absolute_uri("/")
    return _page(
        "api/docs.html", {"sections": sections, "scopes": SCOPES, "api": api, "site": site}
    )


@require_GET
def problem_index(request: HttpRequest) -> HttpResponse:
    """Every code that a request can be refused with."""
    return _page("problems/index.html", {"kinds": kinds()})


@require_GET
def problem_page(request: HttpRequest, code: str) -> HttpResponse:
    """What one code means and what to do about it: the `type` of each problem leads here.

    As HTML, or what Accept prefers of JSON and Markdown.
    """
    kind = next((kind for kind in kinds() if kind.code == code), None)
    if kind is None:
        raise Http404
    wanted = request.get_preferred_type([HTML, JSON, MARKDOWN])
    if wanted == JSON:
        answer = HttpResponse(json.dumps(explained.members(kind)), content_type=JSON)
    elif wanted == MARKDOWN:
        answer = HttpResponse(explained.markdown(kind), content_type=f"{MARKDOWN}; charset=utf-8")
    else:
        answer = _page("problems/page.html", _problem(kind))
    answer.headers["Vary"] = "Accept"
    return _lasting(answer)


def _problem(kind: Kind) -> dict[str, Any]:
    example = examples.refused(kind.code)
    return {
        "kind": kind,
        "meaning": [reference.spans(text) for text in explained.meaning(kind)],
        "repeat": reference.spans(kind.repeat),
        "steps": [reference.spans(step) for step in kind.advice.do],
        "facts": [(name, reference.spans(what)) for name, what in kind.advice.facts.items()],
        "example": example,
        "request_text": example and explained.request_text(example),
        "answer_text": example and explained.answer_text(example),
    }


@lru_cache(maxsize=1)
def openapi_text(api: WorkerAPI) -> str:
    """OpenAPI 3.1 as JSON, made once."""
    return json.dumps(api.get_openapi_schema(path_prefix="/api/v1/"))


def _page(template: str, context: dict[str, Any]) -> HttpResponse:
    response = HttpResponse(render_to_string(template, context))
    response.headers["Content-Security-Policy"] = CSP
    return _lasting(response)


def _lasting(response: HttpResponse) -> HttpResponse:
    """The same until the next release."""
    response.headers["Cache-Control"] = f"max-age={CACHE_SECONDS}"
    return response
