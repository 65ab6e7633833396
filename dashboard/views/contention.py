"""Contention: how often writers meet, where, who, and one sentence that says what is going on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard import charts, contention_charts, diagnosis, windows
from dashboard.access import allowed_actions
from dashboard.axes import axis_of
from dashboard.families import FAMILIES
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import blockers, happened
from dashboard.queries import contention as queries
from dashboard.queries.clock import TooSlow, at_most, database_now
from dashboard.queries.contention import Contention
from dashboard.queries.panels import Panel, read_panel
from dashboard.templatetags.console import duration
from dashboard.windows import Window, describe_window, read_window

CHOICES = (windows.HOUR, windows.DAY)
LONGEST = timedelta(days=1)
# Columns begin where these do in their pictures; names of runs need more room than figures.
LEFT, HEAT_LEFT = 46.0, 200.0
READ_MS = 3_000
# How long a column is, in words.
SLOTS = {
    timedelta(minutes=1): "minute",
    timedelta(minutes=15): "quarter of an hour",
    timedelta(hours=1): "hour",
}
# PostgreSQL looks through all of its locks for it, so it is given little.
LOCKS_MS = 500
# Who may brake a run that goes on; whether it does is said run by run.
A_LIVE_RUN = {"kind": "run", "status": "running", "held": False, "live": False}


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`window` is 1h or 24h; or `from` and `to`, a day apart at most."""
    now = database_now()
    query = request.GET.dict()
    window = read_window(query, now=now, choices=CHOICES, longest=LONGEST)
    locks = read_panel(blockers.read, milliseconds=LOCKS_MS)
    context = describe_window(window, query, now=now, choices=CHOICES) | {
        "now": now,
        "slot": SLOTS.get(window.slot, duration(window.slot)),
        "families": FAMILIES,
        "locks": locks,
        "open_for": blockers.OPEN_FOR,
    }
    try:
        with at_most(READ_MS):
            found = queries.read(now=now, window=window.span, slot=window.slot, until=window.until)
    except TooSlow:
        context["slow"] = True
    else:
        context |= _shown(request, found, window, locks)
    parts = is_partial(request, "parts")
    return render(request, "contention/parts.html" if parts else "contention/page.html", context)


def _shown(
    request: ConsoleRequest, found: Contention, window: Window, locks: Panel[blockers.Waits]
) -> dict[str, Any]:
    marks = read_panel(lambda: happened.read_marks(since=window.since, until=window.until))
    axis = axis_of(window.since, window.until, marks.found or [], left=LEFT)
    # Who waits for whom is of now: it is no cause of what was then.
    waits = None if window.is_part else locks.found
    before = read_panel(lambda: queries.read_day_before(since=found.since, until=found.until))
    meetings = list(queries.meetings(found.clashes))
    return {
        "found": found,
        "axis": axis,
        "heat_axis": replace(axis, left=HEAT_LEFT),
        "verdict": diagnosis.judge(found, spoken(window), waits),
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


def spoken(window: Window) -> str:
    """The window within a sentence: `60 min`, or `20m from 2026-03-02 11:00`."""
    if window.is_part:
        return f"{duration(window.span)} from {windows.typed(window.since)}"
    return window.said.removeprefix("the last ")
