"""Audit: what people did, and were refused, to what, and why."""

from __future__ import annotations

from typing import Any

from django.http import (
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseBase,
    StreamingHttpResponse,
)
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard import audit_filter, cursors, sheets
from dashboard.audit_filter import AuditFilter
from dashboard.pages import ConsoleRequest, is_partial, page, shared, while_allowed
from dashboard.queries import actions as queries
from dashboard.queries.clock import TooSlow, database_now
from dashboard.views.exports import TYPES


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`actor`, `action`, `object`, `text`, `result`, `kind`, `from`, `to`: the filter; `after`,
    `before`: the place."""
    wanted = audit_filter.read(request.GET.dict())
    context = {"now": database_now(), "wanted": wanted} | choices(wanted) | read(request, wanted)
    parts = is_partial(request, "parts")
    return render(request, "actions/page.html#parts" if parts else "actions/page.html", context)


def choices(wanted: AuditFilter) -> dict[str, Any]:
    """What may be chosen in the form, and what is typed in it."""
    return {
        "texts": [
            {"name": name, "label": label, "value": wanted.typed.get(name, "")}
            for name, label in audit_filter.TEXTS.items()
        ],
        "outcomes": audit_filter.OUTCOMES.items(),
        "kinds": audit_filter.KINDS.items(),
        "typed_from": wanted.typed.get("from", ""),
        "typed_to": wanted.typed.get("to", ""),
    }


def read(request: ConsoleRequest, wanted: AuditFilter) -> dict[str, Any]:
    """The rows, or the one reason why there are none."""
    if wanted.problem:
        return {"found": None, "reason": "problem"}
    after, before = request.GET.get("after", ""), request.GET.get("before", "")
    try:
        found = queries.read_page(wanted, after=after, before=before)
    except TooSlow:
        return {"found": None, "reason": "slow"}
    except cursors.BadCursor:
        return {"found": queries.read_page(wanted), "reason": "cursor", "is_first": True}
    is_end = bool(after and not before and not found.rows)
    return {
        "found": found,
        "reason": "end" if is_end else "",
        "is_first": not after and not found.newer,
    }


@require_safe
@page
@shared
def count_new(request: ConsoleRequest) -> HttpResponseBase:
    """How many rows there are that an open page does not show; `first` is the place of its first
    one. None is put in: what one reads stays where it is."""
    wanted = audit_filter.read(request.GET.dict())
    try:
        newer = queries.count_newer(wanted, first=request.GET.get("first", ""))
    except (TooSlow, cursors.BadCursor):
        return HttpResponse(status=204)
    context = {
        "now": database_now(),
        "wanted": wanted,
        "newer": newer,
        "capped": newer >= queries.NEW_MAX,
    }
    return render(request, "actions/new.html", context)


@require_safe
@page
def export(request: ConsoleRequest) -> HttpResponseBase:
    """`format` csv or jsonl; the filter as on the page. A file that was cut off says so: JSON lines
    by their last line, CSV by a download that fails."""
    wanted, kind = audit_filter.read(request.GET.dict()), request.GET.get("format", "csv")
    if kind not in TYPES or wanted.problem:
        return HttpResponseBadRequest("A format (csv, jsonl) and a filter that is understood.")
    rows = (queries.facts(one) for one in queries.export(wanted))
    parts = (
        sheets.csv_lines(queries.COLUMNS, map(sheets.flat, rows))
        if kind == "csv"
        else sheets.json_lines(rows, kind="action")
    )
    name = f"audit-{database_now():%Y%m%d-%H%M%S}.{kind}"
    return StreamingHttpResponse(
        while_allowed(request, parts),
        content_type=TYPES[kind],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
