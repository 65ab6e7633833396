"""Audit: what operators did, to what, and why."""

from __future__ import annotations

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import actions as queries
from dashboard.queries.clock import database_now


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`text` is looked for in who, what, to what and why; `after`, `before` the place."""
    text = request.GET.get("text", "").strip().replace("\0", "")[:200]
    found = queries.read_page(
        text=text, after=whole(request.GET.get("after")), before=whole(request.GET.get("before"))
    )
    context = {
        "now": database_now(),
        "text": text,
        "found": found,
        "operator_actions": found.rows,
    }
    parts = is_partial(request, "parts")
    return render(request, "actions/page.html#parts" if parts else "actions/page.html", context)
