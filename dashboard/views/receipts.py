"""Receipts: was a request applied, how often was it repeated, or why was it refused."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from agentstate.store.receipts import Receipt
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
        return f"{_refused(found)}{_often(found)}. Nothing of it was written."
    return f"Applied once{_where(receipt)}{_often(found)}."


def _refused(found: Found) -> str:
    """With its reason: as the answer that is kept says it, else as the refusal does."""
    told = next((kept for kept in found.receipt.kept if kept.code), None)
    if told is not None:
        return f"Refused as {told.code}"
    why = found.whys[-1] if found.whys else ""
    return f"Refused as {found.receipt.refusals[-1].code}{': ' if why else ''}{why}"


def _where(receipt: Receipt) -> str:
    """In which run, at which version and with which events; or in which ledger."""
    if receipt.writes:
        wrote, more = receipt.writes[0], len(receipt.writes) - 1
        events = (
            f"event {wrote.first_seq}"
            if wrote.first_seq == wrote.last_seq
            else f"events {wrote.first_seq} to {wrote.last_seq}"
        )
        where = f", run {wrote.run} at version {wrote.version} with {events}"
        return where + (f", and {more} more" if more else "")
    if receipt.charges:
        charge = receipt.charges[0]
        of_run = f" of {charge.run}" if charge.run else ""
        return f", line {charge.n} of the budget {charge.budget}{of_run}"
    return ""


def _often(found: Found) -> str:
    times = found.replays
    if not times:
        return ""
    return f"; repeated {times} time{'s' if times > 1 else ''} and answered as before"
