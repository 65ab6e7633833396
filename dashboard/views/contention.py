"""Contention: how often writers meet, where, who, and one sentence that says what is going on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard import charts, contention_charts, diagnosis
from dashboard.access import allowed_actions
from dashboard.families import FAMILIES
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import blockers
from dashboard.queries import contention as queries
from dashboard.queries.clock import TooSlow, at_most, database_now
from dashboard.queries.contention import Contention
from dashboard.queries.panels import Panel, read_panel

# Name in the address → (how it is said, how long, how long a column of the chart is).
WINDOWS = {
    "1h": ("60 min", timedelta(hours=1), timedelta(minutes=1)),
    "24h": ("24 hours", timedelta(hours=24), timedelta(minutes=15)),
}
READ_MS = 3_000
# PostgreSQL looks through all of its locks for it, so it is given little.
LOCKS_MS = 500
# Who may brake a run that goes on; whether it does is said run by run.
A_LIVE_RUN = {"kind": "run", "status": "running", "held": False, "live": False}


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`window` is 1h or 24h."""
    window = request.GET.get("window", "1h")
    window = window if window in WINDOWS else "1h"
    said, span, slot = WINDOWS[window]
    now = database_now()
    locks = read_panel(blockers.read, milliseconds=LOCKS_MS)
    context = {
        "now": now,
        "window": window,
        "windows": [(name, words) for name, (words, _, _) in WINDOWS.items()],
        "said": said,
        "families": FAMILIES,
        "locks": locks,
        "open_for": blockers.OPEN_FOR,
    }
    try:
        with at_most(READ_MS):
            found = queries.read(now=now, window=span, slot=slot)
    except TooSlow:
        context["slow"] = True
    else:
        context |= _shown(request, found, said, locks)
    parts = is_partial(request, "parts")
    return render(request, "contention/parts.html" if parts else "contention/page.html", context)


def _shown(
    request: ConsoleRequest, found: Contention, said: str, locks: Panel[blockers.Waits]
) -> dict[str, Any]:
    before = read_panel(lambda: queries.read_day_before(since=found.since, until=found.until))
    meetings = list(queries.meetings(found.clashes))
    return {
        "found": found,
        "verdict": diagnosis.judge(found, said, locks.found),
        "chart": charts.draw_columns(found.slots),
        "heat": charts.draw_heat(found),
        "matrix": contention_charts.draw_matrix(meetings),
        "latency": contention_charts.draw_latency(found.slots),
        "speeds": contention_charts.speeds(found),
        "tries": contention_charts.draw_tries(found),
        "before": before,
        "compared": contention_charts.compare(found.total, before.found),
        "may_brake": allowed_actions(request.access, A_LIVE_RUN)["brake"],
    }
