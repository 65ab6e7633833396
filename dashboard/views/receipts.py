"""Receipts: was a request applied, how often was it repeated, or why was it refused."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.pages import ConsoleRequest, page
from dashboard.queries import receipts as queries
from dashboard.queries.clock import database_now
from dashboard.queries.panels import read_panel
from dashboard.queries.receipts import Found

LENGTH_MAX = 300
READ = {"key": queries.by_key, "request_id": queries.by_request, "text": queries.by_either}


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`key` of a request, its `request_id`, or `text` for either."""
    name = next((name for name in READ if request.GET.get(name)), "text")
    text = request.GET.get(name, "").strip().replace("\0", "")[:LENGTH_MAX]
    panel = read_panel(partial(READ[name], text)) if text else None
    found = (panel.found if panel else None) or []
    context = {
        "now": database_now(),
        "text": text,
        "panel": panel,
        "found": [(one, sentence(one)) for one in found],
    }
    return render(request, "receipts/page.html", context)


def sentence(found: Found) -> str:
    """What became of it, in one sentence."""
    receipt = found.receipt
    if receipt.state == "refused":
        told = next((kept for kept in receipt.kept if kept.code), None)
        code = told.code if told else receipt.refusals[-1].code
        return f"Refused as {code}{_often(found)}. Nothing of it was written."
    where = "".join(f", run {wrote.run} at version {wrote.version}" for wrote in receipt.writes[:1])
    more = len(receipt.writes) - 1
    also = f" and {more} more" if more > 0 else ""
    return f"Applied once{where}{also}{_often(found)}."


def _often(found: Found) -> str:
    times = found.replays
    if not times:
        return ""
    return f"; repeated {times} time{'s' if times > 1 else ''} and answered as before"
