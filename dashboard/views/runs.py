"""Runs: find one, and watch those that are not finished."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe

from agentstate.caching import copies
from agentstate.store.models import Lease, Run
from agentstate.store.states import Status
from dashboard import cursors, filters
from dashboard.filters import Filter
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import receipts
from dashboard.queries import runs as queries
from dashboard.queries.clock import TooSlow, database_now
from dashboard.queries.panels import read_panel

SPANS = (("15m", "15 minutes"), ("1h", "hour"), ("24h", "24 hours"), ("7d", "7 days"))


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The list: `q` the filter, `after` or `before` the place in it."""
    now = database_now()
    wanted = filters.parse(request.GET.get("q", ""))
    context = describe_filter(wanted, now) | read(request, wanted, now)
    template = "runs/list.html#results" if is_partial(request, "results") else "runs/list.html"
    return render(request, template, context)


def describe_filter(wanted: Filter, now: datetime) -> dict[str, Any]:
    """The filter as text, chips and choices."""
    chips = [
        {"clause": clause, "without": wanted.dropping(index).text}
        for index, clause in enumerate(wanted.clauses)
    ]
    return {
        "now": now,
        "wanted": wanted,
        "chips": chips,
        "leases": choices(wanted, "lease", [(s, s) for s in filters.LEASE_STATES]),
        "spans": choices(wanted, "since", SPANS),
    } | describe_counts(wanted, now)


def describe_counts(wanted: Filter, now: datetime) -> dict[str, Any]:
    """The cards above the list: all, each status, and what is overdue."""
    statuses = choose_statuses(wanted, now)
    is_overdue = wanted.values("overdue") == ("yes",)
    rest = wanted.without("overdue")
    return {
        "statuses": statuses,
        "all_count": queries.add_up([choice["count"] for choice in statuses]),
        "all_statuses": wanted.without("status").text,
        "any_status": not wanted.values("status"),
        "overdue": {
            "count": queries.Count(status="overdue", count=None)
            if wanted.problems
            else queries.count_overdue(wanted, now=now),
            "chosen": is_overdue,
            "text": (rest if is_overdue else rest.with_only("overdue", "yes")).text,
        },
    }


def choices(wanted: Filter, field: str, options: Any) -> list[dict[str, Any]]:
    """A control for a field: each option with the filter that choosing it (again: not) makes."""
    chosen = wanted.values(field)
    return [
        {
            "label": label,
            "chosen": chosen == (value,),
            "text": (
                wanted.without(field) if chosen == (value,) else wanted.with_only(field, value)
            ).text,
        }
        for value, label in options
    ]


def choose_statuses(wanted: Filter, now: datetime) -> list[dict[str, Any]]:
    counts = (
        [queries.Count(status=status, count=None) for status in Status]
        if wanted.problems
        else queries.count_statuses(wanted, now=now)
    )
    chosen = wanted.values("status")
    return [
        {
            "count": count,
            "chosen": count.status in chosen,
            "text": toggled(wanted, count.status).text,
        }
        for count in counts
    ]


def toggled(wanted: Filter, status: str) -> Filter:
    """The filter with one status more, or less if it was among them."""
    chosen = wanted.values("status")
    if status in chosen:
        return wanted.with_only("status", *(s for s in chosen if s != status))
    return wanted.with_only("status", *chosen, status)


def read(request: ConsoleRequest, wanted: Filter, now: datetime) -> dict[str, Any]:
    """The rows, or the one reason why there are none."""
    if wanted.problems:
        return {"page": None, "reason": "problems"}
    after, before = request.GET.get("after", ""), request.GET.get("before", "")
    try:
        found = queries.read_page(wanted, now=now, after=after, before=before)
    except TooSlow:
        return {"page": None, "reason": "slow"}
    except cursors.BadCursor:
        found = queries.read_page(wanted, now=now)
        return show_page(found) | {"reason": "cursor", "is_first": True}
    reason = "" if found.lines else why_empty(wanted)
    return show_page(found) | {"reason": reason, "is_first": not after and not found.newer}


def show_page(found: queries.Page) -> dict[str, Any]:
    return {"page": found, "summaries": summarise(found.lines)}


def summarise(lines: Iterable[queries.Line]) -> dict[UUID, SafeString]:
    """By run what its row says that only another version of it could change."""
    runs = {line.run.id: line.run for line in lines}
    found = copies.of_runs(
        "summary",
        [(run.id, run.version) for run in runs.values()],
        fill=lambda run: render_to_string("runs/summary.html", {"run": runs[run]}),
    )
    return {run: mark_safe(text) for run, text in found.items()}  # noqa: S308  our own template's


def why_empty(wanted: Filter) -> str:
    """Which of the three texts an empty list gets."""
    if not queries.any_run():
        return "none"
    return "window" if {c.field for c in wanted.clauses} == {"since"} else "filtered"


@require_safe
@page
def refresh(request: ConsoleRequest) -> HttpResponseBase:
    """What may have changed on an open list: its unfinished rows, the counts, how many are new."""
    now = database_now()
    wanted = filters.parse(request.GET.get("q", ""))
    if wanted.problems:
        return HttpResponse(status=204)
    newer = 0
    if first := request.GET.get("first", ""):
        try:
            newer = queries.count_newer(wanted, first=first, now=now)
        except cursors.BadCursor:
            newer = 0
    elif not request.GET.getlist("key") and request.GET.get("empty"):
        newer = len(queries.read_page(wanted, now=now).lines)
    lines = queries.read_lines(request.GET.getlist("key"), now=now)
    context = {
        "now": now,
        "wanted": wanted,
        "lines": lines,
        "summaries": summarise(lines),
        "newer": newer,
        "newer_capped": newer >= queries.NEW_MAX,
    } | describe_counts(wanted, now)
    return render(request, "runs/refresh.html", context)


@require_safe
@page
def jump(request: ConsoleRequest) -> HttpResponseBase:
    """Go to what was pasted: a run, a unit, the runs that match it, or else a request's receipt."""
    to = request.GET.get("to", "").strip()
    if "\0" in to:
        return redirect("runs")
    if Run.objects.filter(key=to).exists():
        return redirect("run", key=to)
    if to.startswith("run:") and Run.objects.filter(key=to.removeprefix("run:")).exists():
        return redirect("run", key=to.removeprefix("run:"))
    if Lease.objects.filter(unit=to).exists():
        return redirect("lease", unit=to)
    asked = filters.parse(to)
    if to and not any(clause.field for clause in asked.clauses) and is_receipt_alone(to):
        return redirect(reverse("receipts", query={"text": to}))
    found = (
        asked
        if any(clause.field for clause in asked.clauses)
        else Filter((filters.Clause("", (to,)),) if to else ())
    )
    return redirect(reverse("runs", query={"q": found.text} if found.text else None))


def is_receipt_alone(text: str) -> bool:
    """Whether a request is known by this text, and no run matches it."""
    if not read_panel(partial(receipts.by_either, text)).found:
        return False
    loose = Filter((filters.Clause("", (text,)),))
    matching = queries.matching(loose, now=database_now())
    return not read_panel(matching.exists).found
