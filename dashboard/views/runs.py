"""Runs: find one, and watch those that are not finished."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe

from agentstate.caching import copies
from agentstate.store import filters
from agentstate.store.filters import Filter
from agentstate.store.models import Run
from agentstate.store.states import Status
from dashboard import cursors, listing
from dashboard.listing import COLUMNS, Listing
from dashboard.pages import ConsoleRequest, asking, is_partial, page, read_along, shared
from dashboard.queries import facets, views
from dashboard.queries import runs as queries
from dashboard.queries.clock import TooSlow, database_now
from dashboard.queries.together import Read
from dashboard.suggestions import suggest

SPANS = (("15m", "15 minutes"), ("1h", "hour"), ("24h", "24 hours"), ("7d", "7 days"))
# What each of the two statements for the numbers above the list may take of the page, which is to
# be there in 50 ms; what needs longer is asked for afterwards. Of a refresh it may take more.
COUNTS_AT_ONCE_MS = 10
COUNTS_ALONG_MS = 60
# Stands in a row's link for the list that it is in: the same copy of a row serves every list.
LIST_MARK = "?list=~"


def listing_of(request: ConsoleRequest) -> Listing:
    """The list that the address asks for, as far as this person may ask."""
    asked = request.GET.dict() | {"columns": ",".join(request.GET.getlist("columns"))}
    return listing.read(asked, payloads=request.access.may_see_payloads)


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The list: `q` the filter, `columns`, `after` or `before` the place in it.

    Without any of them the view that this person opens Runs with.
    """
    if not request.GET and (view := views.default_of(request.user)):
        return redirect(f"{reverse('runs')}?{view.listing.query}")
    shown = listing_of(request)
    if len(request.GET.getlist("columns")) > 1:  # a form with a box for each
        return redirect(f"{reverse('runs')}?{shown.query}")
    now = database_now()
    context = describe_filter(request, shown, now) | read(request, shown, now)
    template = "runs/list.html#results" if is_partial(request, "results") else "runs/list.html"
    return render(request, template, context)


def describe_filter(request: ConsoleRequest, shown: Listing, now: datetime) -> dict[str, Any]:
    """The filter as text, chips and choices; the columns; the views under a name."""
    wanted = shown.wanted
    chips = [
        {"clause": clause, "without": shown.to(wanted.dropping(index))}
        for index, clause in enumerate(wanted.clauses)
    ]
    saved = views.visible_to(request.user)
    return {
        "now": now,
        "wanted": wanted,
        "listing": shown,
        "columns": shown.columns,
        "column_choices": [(name, label, name in shown.columns) for name, label in COLUMNS.items()],
        "chips": chips,
        "views": saved,
        "view": next((view for view in saved if view.listing == shown), None),
        "leases": choices(shown, "lease", [(s, s) for s in filters.LEASE_STATES]),
        "spans": choices(shown, "since", SPANS),
    } | describe_counts(shown, now, milliseconds=COUNTS_AT_ONCE_MS)


def describe_counts(
    shown: Listing,
    now: datetime,
    *,
    milliseconds: int | None = None,
    tally: queries.Tally | None = None,
) -> dict[str, Any]:
    """The cards above the list: all, each status, and what is overdue.

    tally: the numbers, if they are known. counts_wait: not all were known within the time.
    """
    wanted = shown.wanted
    known = tally.statuses if tally else None
    statuses = choose_statuses(shown, now, milliseconds=milliseconds, counts=known)
    is_overdue = wanted.values("overdue") == ("yes",)
    rest = wanted.without("overdue")
    late = queries.Count(status="overdue", count=None)
    if tally:
        late = tally.overdue
    elif not wanted.problems:
        late = queries.count_overdue(wanted, now=now, milliseconds=milliseconds)
    unknown = any(count.count is None for count in (late, *(one["count"] for one in statuses)))
    return {
        "statuses": statuses,
        "all_count": queries.add_up([choice["count"] for choice in statuses]),
        "all_statuses": shown.to(wanted.without("status")),
        "any_status": not any(clause.field == "status" for clause in wanted.clauses),
        "counts_wait": unknown and milliseconds is not None and not wanted.problems,
        "overdue": {
            "count": late,
            "chosen": is_overdue,
            "href": shown.to(rest if is_overdue else rest.with_only("overdue", "yes")),
        },
    }


def choices(shown: Listing, field: str, options: Any) -> list[dict[str, Any]]:
    """A control for a field: each option with the list that choosing it (again: not) makes."""
    wanted = shown.wanted
    chosen = wanted.values(field)
    return [
        {
            "label": label,
            "value": value,
            "chosen": chosen == (value,),
            "href": shown.to(
                wanted.with_only(field) if chosen == (value,) else wanted.with_only(field, value)
            ),
        }
        for value, label in options
    ]


def choose_statuses(
    shown: Listing,
    now: datetime,
    *,
    milliseconds: int | None,
    counts: list[queries.Count] | None = None,
) -> list[dict[str, Any]]:
    wanted = shown.wanted
    if counts is None:
        counts = (
            [queries.Count(status=status, count=None) for status in Status]
            if wanted.problems
            else queries.count_statuses(wanted, now=now, milliseconds=milliseconds)
        )
    chosen = wanted.values("status")
    return [
        {
            "count": count,
            "chosen": count.status in chosen,
            "href": shown.to(toggled(wanted, count.status)),
        }
        for count in counts
    ]


def toggled(wanted: Filter, status: str) -> Filter:
    """The filter with one status more, or less if it was among them."""
    chosen = wanted.values("status")
    if status in chosen:
        return wanted.with_only("status", *(s for s in chosen if s != status))
    return wanted.with_only("status", *chosen, status)


def read(request: ConsoleRequest, shown: Listing, now: datetime) -> dict[str, Any]:
    """The rows, or the one reason why there are none."""
    wanted = shown.wanted
    if wanted.problems:
        return {"page": None, "reason": "problems"}
    after, before = request.GET.get("after", ""), request.GET.get("before", "")
    try:
        found = queries.read_page(wanted, now=now, after=after, before=before)
    except TooSlow:
        return {"page": None, "reason": "slow"}
    except cursors.BadCursor:
        found = queries.read_page(wanted, now=now)
        return show_page(found, wanted) | {"reason": "cursor", "is_first": True}
    reason = "" if found.lines else why_empty(found, wanted, further=bool(after and not before))
    return show_page(found, wanted) | {
        "reason": reason,
        "is_first": not after and not found.newer,
        "wider": [(label, shown.to(wanted.with_only("since", span))) for span, label in SPANS[2:]],
    }


def show_page(found: queries.Page, wanted: Filter) -> dict[str, Any]:
    return {"page": found, "summaries": summarise(found.lines, wanted)}


def summarise(lines: Iterable[queries.Line], wanted: Filter) -> dict[UUID, SafeString]:
    """By run what its row says that only another version of it could change."""
    runs = {line.run.id: line.run for line in lines}
    found = copies.of_runs(
        "summary",
        [(run.id, run.version) for run in runs.values()],
        fill=lambda run: render_to_string(
            "runs/summary.html", {"run": runs[run], "list_mark": LIST_MARK}
        ),
    )
    listed = f"?list={quote(wanted.text, safe='')}" if wanted.clauses else ""
    return {
        run: mark_safe(text.replace(LIST_MARK, listed))  # noqa: S308  our own template's, and quoted
        for run, text in found.items()
    }


def why_empty(found: queries.Page, wanted: Filter, *, further: bool = False) -> str:
    """Which of the texts an empty list gets. further: it is a page after another."""
    if found.searched_to is not None:
        return "searched"
    if further:
        return "end"
    if not queries.any_run():
        return "none"
    return "window" if {c.field for c in wanted.clauses} == {"since"} else "filtered"


def refresh_reads(request: ConsoleRequest) -> dict[str, Read[Any]] | None:
    """The rows, and how many are new where nothing is filtered."""
    keys, first = request.GET.getlist("key"), request.GET.get("first", "")
    if any("\0" in key for key in keys):
        return None
    reads = queries.lines_reads(keys)
    if first or request.GET.get("empty"):
        with suppress(cursors.BadCursor):
            reads |= {} if request.GET.get("q", "").strip() else queries.newer_read(first)
    return reads


@require_safe
@page
@shared
@asking(refresh_reads)
def refresh(request: ConsoleRequest) -> HttpResponseBase:
    """What may have changed on an open list: its unfinished rows, the counts, how many are new."""
    shown = listing_of(request)
    wanted = shown.wanted
    if wanted.problems:
        return HttpResponse(status=204)
    found = read_along(request)
    now = database_now() if found is None else found["now"]
    first, keys = request.GET.get("first", ""), request.GET.getlist("key")
    tallied = partial(queries.read_tally, wanted, now=now, milliseconds=COUNTS_ALONG_MS)
    try:
        tally = tallied(first=first)
    except cursors.BadCursor:
        tally = tallied(first="")
    newer = tally.newer or 0
    if found is not None and "newer" in found and not wanted.clauses:
        newer = len(found["newer"])
    elif first and tally.newer is None:  # a filter of nothing but quotes or spaces
        with suppress(cursors.BadCursor):
            newer = queries.count_newer(wanted, first=first, now=now)
    elif not first and not keys and request.GET.get("empty"):
        newer = len(queries.read_page(wanted, now=now).lines)
    lines = queries.read_lines(keys, now=now) if found is None else queries.lines_of(found)
    context = {
        "now": now,
        "wanted": wanted,
        "listing": shown,
        "columns": shown.columns,
        "lines": lines,
        "summaries": summarise(lines, wanted),
        "newer": newer,
        "newer_capped": newer >= queries.NEW_MAX,
        "outdated": tally.outdated,
    } | describe_counts(shown, now, milliseconds=COUNTS_ALONG_MS, tally=tally)
    return render(request, "runs/refresh.html", context)


@require_safe
@page
def counts(request: ConsoleRequest) -> HttpResponseBase:
    """The numbers above the list, with the time that they need."""
    now = database_now()
    shown = listing_of(request)
    context = describe_counts(shown, now, milliseconds=queries.COUNTS_LATER_MS)
    return render(request, "runs/statuses.html", context | {"counts_wait": False})


@require_safe
@page
def show_facets(request: ConsoleRequest) -> HttpResponseBase:
    """Every field as a control, with what is there under the filter; `set.FIELD` changes it."""
    now = database_now()
    shown = listing_of(request)
    typed = {name: request.GET[f"set.{name}"] for name in CONTROLS if f"set.{name}" in request.GET}
    if typed:
        return redirect(reverse("runs") + shown.to(change(shown.wanted, typed)))
    try:
        found = None if shown.wanted.problems else facets.read_facets(shown.wanted, now=now)
    except TooSlow:
        found = None
    context = {
        "now": now,
        "listing": shown,
        "wanted": shown.wanted,
        "facets": found,
        "controls": [control(shown, name, label, found) for name, label in CONTROLS.items()],
    }
    part = is_partial(request, "facets")
    return render(request, f"runs/facets.html{'#controls' if part else ''}", context)


CONTROLS = {
    "status": "Status", "lease": "Lease", "worker": "Holder", "task": "Task", "tag": "Tag",
    "budget": "Budget used", "conflicts": "Conflicts", "since": "Created within",
    "key": "Key begins with", "parent": "Part of", "overdue": "Overdue",
}  # fmt: skip
FIXED_OPTIONS = {
    "status": tuple(str(status) for status in Status),
    "lease": filters.LEASE_STATES,
    "since": tuple(span for span, _ in SPANS),
    "overdue": filters.YES_NO,
}


def control(shown: Listing, name: str, label: str, found: facets.Facets | None) -> dict[str, Any]:
    """A field as a text and as links, each with its number as far as it is known."""
    numbers = found.counts.get(name, {}) if found else {}
    options = [*FIXED_OPTIONS.get(name, ()), *numbers]
    links = choices(shown, name, [(value, value) for value in dict.fromkeys(options)])
    return {
        "name": name,
        "label": label,
        "text": ",".join(filters.quoted(value) for value in shown.wanted.values(name)),
        "options": [link | {"count": numbers.get(link["value"])} for link in links],
    }


def change(wanted: Filter, typed: dict[str, str]) -> Filter:
    """The filter with what was typed into its controls. An empty one asks for nothing."""
    for name, text in typed.items():
        asked = filters.parse(f"{name}:{text}" if text.strip() else "")
        loose = [clause for clause in asked.clauses if clause.field != name]
        # A space where it needs quotes: what was typed is one value then, as it would be meant.
        values = (" ".join(text.split()),) if loose else asked.values(name)
        wanted = wanted.with_only(name, *values)
    return wanted


@require_safe
@page
def show_suggestions(request: ConsoleRequest) -> HttpResponseBase:
    """What may be typed next into the filter, as options of a list."""
    text = request.GET.get("q", "")[: filters.LENGTH_MAX]
    try:
        found = [] if "\0" in text else suggest(
            text,
            values=facets.known_values,
            attrs=facets.known_attrs if request.access.may_see_payloads else no_attrs,
        )  # fmt: skip
    except TooSlow:
        found = []
    return render(request, "runs/suggestions.html", {"suggestions": found})


def no_attrs(name: str, beginning: str | None) -> list[str]:
    return []


def describe_neighbours(request: ConsoleRequest, run: Run, now: datetime) -> dict[str, Any]:
    """For the page of a run: the list that it was opened from, and the runs beside it there."""
    text = request.GET.get("list", "")
    shown = listing.read({"q": text}, payloads=request.access.may_see_payloads)
    wanted = Filter() if shown.wanted.problems else shown.wanted
    newer, older = queries.neighbours(wanted, run, now=now)
    return {
        "list_text": wanted.text,
        "list_query": f"?list={quote(wanted.text, safe='')}" if wanted.clauses else "",
        "newer_run": newer,
        "older_run": older,
    }
