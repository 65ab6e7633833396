"""Alerts: what fires and what to do next, what changed, every rule; and saying "I am at it"."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store.commands import AcknowledgeAlert, SnoozeAlert
from dashboard import zones
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import alerts as queries
from dashboard.queries.alerts import Line
from dashboard.queries.clock import database_now

LOST = "The form has lost what you saw. Send it again."


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The board. How old it is is said, also when nobody evaluates any more."""
    board = queries.read()
    context = {"now": board.now, "board": board, "actions": _actions(request)}
    parts = is_partial(request, "board")
    return render(request, "alerts/board.html" if parts else "alerts/list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def acknowledge(request: ConsoleRequest, rule: str) -> HttpResponseBase:
    """Ask why; then keep it, if the alert still stands as the operator saw it."""
    line = queries.find(rule)
    if line is None:
        raise Http404
    if request.method != "POST":
        return ask(request, line)
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    if error or version is None:
        error = error or LOST
        return ask(request, line, done=Done(error=error))
    done = carry_out(request, lambda: AcknowledgeAlert(rule=rule, version=version, reason=reason))
    if done.result is None:
        return ask(request, queries.find(rule) or line, done=done)
    told = f"{line.rule.title}: acknowledged. It stays on this page until it is over."
    messages.success(request, told, extra_tags="check-circle")
    return redirect("alerts")


@require_http_methods(["GET", "HEAD", "POST"])
@page
def snooze(request: ConsoleRequest, rule: str) -> HttpResponseBase:
    """Ask for how long and why; then keep it, if the alert still stands as it was seen."""
    line = queries.find(rule)
    if line is None:
        raise Http404
    if request.method != "POST":
        return ask_snooze(request, line)
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    wake = request.POST.get("wake") == "yes"
    minutes = whole(request.POST.get("minutes", "").strip())
    if not error and version is None:
        error = LOST
    if not error and not wake and not minutes:
        error = "Minutes are a whole number from 1 on."
    if error or version is None:
        return ask_snooze(request, line, done=Done(error=error))
    seconds = None if wake or minutes is None else minutes * 60
    done = carry_out(
        request, lambda: SnoozeAlert(rule=rule, version=version, seconds=seconds, reason=reason)
    )
    if done.result is None:
        return ask_snooze(request, queries.find(rule) or line, done=done)
    until = done.result.until
    told = (
        f"nobody is told before {zones.clock(until, '%Y-%m-%d %H:%M')}"
        if until
        else "it tells again"
    )
    messages.success(request, f"{line.rule.title}: {told}.", extra_tags="check-circle")
    return redirect("alerts")


def ask_snooze(
    request: ConsoleRequest, line: Line, *, done: Done[Any] | None = None
) -> HttpResponseBase:
    context = asked(request, line, done) | {
        "minutes": request.POST.get("minutes", "60"),
        "verdict": _actions(request)["snooze"],
    }
    return render(request, "alerts/snooze.html", context, status=done.status if done else 200)


def ask(request: ConsoleRequest, line: Line, *, done: Done[Any] | None = None) -> HttpResponseBase:
    context = asked(request, line, done)
    return render(request, "alerts/acknowledge.html", context, status=done.status if done else 200)


def asked(request: ConsoleRequest, line: Line, done: Done[Any] | None) -> dict[str, Any]:
    """What both forms show: the alert as it stands, and what the operator saw of it."""
    context = form_context(request, done) | {
        "now": database_now(),
        "line": line,
        "actions": _actions(request),
        "seen_version": line.standing.version if line.standing else "",
    }
    if done and done.error:  # only its own field is mended: what was seen stays what was seen
        context["seen_version"] = request.POST.get("seen_version", "")
    return context


def _actions(request: ConsoleRequest) -> dict[str, Any]:
    return allowed_actions(request.access, {"kind": "alert"})
