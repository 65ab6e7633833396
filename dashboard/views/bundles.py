"""Incident bundles: made of a run as a download, and opened read only, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Any

from django.http import Http404, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store import bundle
from agentstate.store.bundle import Wanted
from agentstate.store.errors import Invalid, NotFound, RunExpired
from agentstate.store.opened import Opened, Unreadable, open_bundle, read_lines
from agentstate.store.payloads import BODY_BYTES_MAX
from dashboard import incidents, moments
from dashboard.pages import ConsoleRequest, page, while_allowed
from dashboard.views import story

# Whoever takes it gets pieces of so much, not line by line.
PART_CHARS = 64 * 1024
NOT_A_TIME = "Write a time in UTC, such as 2026-03-02T12:40:00Z, or leave it empty."


@require_safe
@page
def ask(request: ConsoleRequest, key: str, *, wrong: str = "") -> HttpResponseBase:
    """What is to be in the file: `from` and `to` of the run's time, `payloads` no."""
    head = story.read_head(key)
    if head is None:
        return story.not_there(request, key)
    context = {
        "run": head.run,
        "head": head,
        "now": head.now,
        "since": request.GET.get("from", "")[: moments.TEXT_CHARS_MAX],
        "until": request.GET.get("to", "")[: moments.TEXT_CHARS_MAX],
        "without": request.GET.get("payloads") == "no",
        "may_see_payloads": request.access.may("payloads"),
        "wrong": wrong,
    }
    status = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.OK
    return render(request, "bundles/ask.html", context, status=status)


@require_safe
@page
def make(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The file. Without the right to payloads, digests stand in their place."""
    if "\0" in key:
        raise Http404
    try:
        since, until = _time(request, "from"), _time(request, "to")
    except ValueError:
        return ask(request, key, wrong=NOT_A_TIME)
    wanted = Wanted(
        run=key,
        by=request.access.caller.principal,
        since=since,
        until=until,
        payloads=request.access.may("payloads") and request.GET.get("payloads") != "no",
    )
    try:
        lines = bundle.bundle(wanted)
    except (NotFound, RunExpired):
        raise Http404 from None
    except Invalid as refused:
        return ask(request, key, wrong=f"{refused.detail}.")
    disposition = content_disposition_header(True, f"incident-{key}.jsonl")
    return StreamingHttpResponse(
        while_allowed(request, _in_parts(lines)),
        content_type="application/jsonl; charset=utf-8",
        headers={"Content-Disposition": disposition or "attachment"},
    )


def _time(request: ConsoleRequest, name: str) -> datetime | None:
    """Raises ValueError."""
    text = request.GET.get(name, "").strip()
    return moments.read_time(text) if text else None


def _in_parts(lines: Iterable[str]) -> Iterator[str]:
    part: list[str] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= PART_CHARS:
            yield "".join(part)
            part, size = [], 0
    yield "".join(part)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """Open a file: it is read for this answer alone, and nothing of it is kept."""
    if request.method != "POST":
        return render(request, "bundles/open.html", {"most": BODY_BYTES_MAX})
    file = request.FILES.get("bundle")
    if file is None:
        return _refuse(request, "Choose a file first.")
    name = str(file.name or "")[:200]
    if (file.size or 0) > BODY_BYTES_MAX:
        return _refuse(request, "It is too large for a page.", name=name, status=413)
    try:
        found = open_bundle(read_lines(file.read()))
    except Unreadable as wrong:
        return _refuse(request, f"It is not opened: {wrong.told}.", name=name)
    return render(request, "bundles/open.html", describe(found) | {"name": name})


def _refuse(
    request: ConsoleRequest, wrong: str, *, name: str = "", status: int = 422
) -> HttpResponseBase:
    context = {"wrong": wrong, "name": name, "most": BODY_BYTES_MAX}
    return render(request, "bundles/open.html", context, status=status)


def describe(found: Opened) -> dict[str, Any]:
    actions = incidents.rows_of(found, "action")
    return {
        "most": BODY_BYTES_MAX,
        "found": found,
        "verdict": found.verdict,
        "title": incidents.verdict_title(found),
        "header": found.header,
        "run": incidents.run_of(found),
        "lease": found.one("lease"),
        "telemetry": found.one("telemetry"),
        "drawing": incidents.draw(found),
        "events": incidents.events_of(found),
        "terms": incidents.rows_of(found, "term"),
        "refusals": incidents.rows_of(found, "refusal"),
        "budgets": found.all("budget")[: incidents.ROWS_SHOWN],
        "entries": incidents.rows_of(found, "entry"),
        "actions": [(one, incidents.changes_of(one)) for one in actions.rows],
        "actions_told": actions,
        "changes": incidents.rows_of(found, "change"),
        "alerts": incidents.rows_of(found, "alert"),
        "workers": incidents.rows_of(found, "worker"),
        "settings": incidents.settings_of(found),
        "rules": incidents.rules_of(found),
        "now": found.header.get("made_at"),
    }
