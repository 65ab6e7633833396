"""Addresses of the API, of health checks, and of the pages that explain problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from django.http import Http404, HttpRequest
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.http import require_GET

from agentstate.api import (
    alerts,
    batches,
    budgets,
    contention,
    feed,
    health,
    leases,
    lookups,
    metrics,
    pages,
    proposals,
    rates,
    runs,
    targets,
    traces,
    workers,
)
from agentstate.api.contract import make_api
from agentstate.api.door import guard

api = make_api()
api.add_router("/runs", runs.router)
api.add_router("/runs", budgets.router)
api.add_router("/runs", traces.of_runs)
api.add_router("/traces", traces.router)
api.add_router("/budgets", budgets.shared)
api.add_router("/leases", leases.router)
api.add_router("/leases", proposals.of_unit)
api.add_router("/proposals", proposals.router)
api.add_router("/workers", workers.router)
api.add_router("/batch", batches.router)
api.add_router("/feed", feed.router)
api.add_router("/rates", rates.router)
api.add_router("/contention", contention.router)
api.add_router("/alerts", alerts.router)
api.add_router("/alert-targets", targets.router)
api.add_router("/deliveries", targets.log)
api.add_router("", lookups.router)
api.add_router("", health.router)


def nowhere(request: HttpRequest, **parts: str) -> NoReturn:
    """Whatever looks like an address of the API and is none."""
    raise Http404


_endpoints, _app, _namespace = api.urls


def guarded(endpoints: Iterable[URLPattern | URLResolver]) -> list[URLPattern | URLResolver]:
    """Each behind the door; spans are answered as their protocol wants it, whatever it says."""
    found = guard(endpoints)
    for pattern in found:
        if isinstance(pattern, URLPattern) and str(pattern.pattern) == "traces":
            pattern.callback = traces.in_its_encoding(pattern.callback)
    return found


urlpatterns: list[URLPattern | URLResolver] = [
    path("api/v1/", include((guarded(_endpoints), _app), namespace=_namespace)),
    *guard(
        [
            path("api/v1/openapi.json", pages.openapi, {"api": api}),
            path("api/v1/docs", pages.docs, {"api": api}),
            path("health/live", require_GET(health.is_live)),
            path("health/ready", require_GET(health.is_ready)),
            path("health/jobs", require_GET(health.are_jobs_on_time)),
            path("metrics", metrics.show),
            path("problems/", pages.problem_index),
            path("problems/<str:code>", pages.problem_page),
            re_path(r"^(?:api|health|problems)/", nowhere),
        ]
    ),
]
