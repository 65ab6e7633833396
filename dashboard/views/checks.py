"""A run's invariants, derived again from its events and ledger; and the run as a file."""

from __future__ import annotations

from functools import partial

from django.http import Http404, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from agentstate.store import audit, export
from agentstate.store.errors import NotFound, RunExpired
from dashboard.pages import ConsoleRequest, is_partial, page, while_allowed
from dashboard.queries.panels import read_panel
from dashboard.views import story

# All of a run is read for it, so that it may take longer than a panel, and is asked for by itself.
CHECK_MS = 2_000


@require_safe
@page
def show(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The badge of the run page, or as a page every check and what it found."""
    head = story.read_head(key)
    if head is None:
        raise Http404
    panel = read_panel(partial(audit.differences, run=key), milliseconds=CHECK_MS)
    context = {
        "run": head.run,
        "now": head.now,
        "panel": panel,
        "differences": panel.found or [],
        "checks": [*audit.CHECKS, "status and counters from the events"],
    }
    badge = is_partial(request, "invariants")
    return render(request, "story/badge.html" if badge else "story/invariants.html", context)


@require_safe
@page
def export_run(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The run's whole history as JSON lines, as `./run import` reads it."""
    if "\0" in key:
        raise Http404
    try:
        lines = export.export(key)
    except (NotFound, RunExpired):
        raise Http404 from None
    disposition = content_disposition_header(True, f"{key}.jsonl")
    return StreamingHttpResponse(
        while_allowed(request, lines),
        content_type="application/jsonl; charset=utf-8",
        headers={"Content-Disposition": disposition or "attachment"},
    )
