"""Contention: how often writers meet, where, who, and one sentence that says what is going on."""

from __future__ import annotations

from datetime import timedelta

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard import charts, sentences
from dashboard.families import FAMILIES
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import contention as queries
from dashboard.queries.clock import TooSlow, at_most, database_now

# Name in the address → (how it is said, how long, how long a column of the chart is).
WINDOWS = {
    "1h": ("60 min", timedelta(hours=1), timedelta(minutes=1)),
    "24h": ("24 hours", timedelta(hours=24), timedelta(minutes=15)),
}
READ_MS = 3_000


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`window` is 1h or 24h."""
    window = request.GET.get("window", "1h")
    window = window if window in WINDOWS else "1h"
    said, span, slot = WINDOWS[window]
    now = database_now()
    context = {
        "now": now,
        "window": window,
        "windows": [(name, words) for name, (words, _, _) in WINDOWS.items()],
        "said": said,
        "families": FAMILIES,
    }
    try:
        with at_most(READ_MS):
            found = queries.read(now=now, window=span, slot=slot)
    except TooSlow:
        context["slow"] = True
    else:
        context |= {
            "found": found,
            "sentence": sentences.contention(found, said),
            "cure": sentences.cure_of_contention(found),
            "chart": charts.draw_columns(found.slots),
            "heat": charts.draw_heat(found),
            "tries": charts.draw_attempts(found.total.attempts),
        }
    parts = is_partial(request, "parts")
    return render(request, "contention/parts.html" if parts else "contention/page.html", context)
