"""Alerts: what fires and what to do next, what changed, every rule; and saying "I am at it"."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store.commands import AcknowledgeAlert
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import alerts as queries
from dashboard.queries.alerts import Line
from dashboard.queries.clock import database_now


@require_safe
@page
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
        error = error or "The form has lost what you saw. Send it again."
        return ask(request, line, done=Done(error=error))
    done = carry_out(request, lambda: AcknowledgeAlert(rule=rule, version=version, reason=reason))
    if done.result is None:
        return ask(request, queries.find(rule) or line, done=done)
    told = f"{line.rule.title}: acknowledged. It stays on this page until it is over."
    messages.success(request, told, extra_tags="check-circle")
    return redirect("alerts")


def ask(request: ConsoleRequest, line: Line, *, done: Done[Any] | None = None) -> HttpResponseBase:
    context = form_context(request, done) | {
        "now": database_now(),
        "line": line,
        "actions": _actions(request),
        "seen_version": line.standing.version if line.standing else "",
    }
    if done and done.error:  # only its own field is mended: what was seen stays what was seen
        context["seen_version"] = request.POST.get("seen_version", "")
    return render(request, "alerts/acknowledge.html", context, status=done.status if done else 200)


def _actions(request: ConsoleRequest) -> dict[str, Any]:
    return allowed_actions(request.access, {"kind": "alert"})
