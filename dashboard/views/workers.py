"""Workers: who is well, who was overtaken and still writes, and asking one to take no more."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store.commands import DrainWorker
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import workers as queries
from dashboard.queries.clock import database_now
from dashboard.queries.panels import read_panels
from dashboard.queries.workers import Line

ACTIONS = ("drain", "stop-draining")


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The list: `after` the name to go on from."""
    now = database_now()
    after = request.GET.get("after", "").replace("\0", "")[:200]
    panels = read_panels(
        {
            "workers": partial(queries.read_page, now=now, after=after),
            "overtaken": partial(queries.read_overtaken, now=now),
        }
    )
    context = {
        "now": now,
        "after": after,
        "panels": panels,
        "may_drain": request.access.may("operate"),
    }
    parts = is_partial(request, "workers")
    return render(request, "workers/board.html" if parts else "workers/list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def act(request: ConsoleRequest, name: str, action: str) -> HttpResponseBase:
    """Ask, then drain a worker or take that back."""
    worker = queries.read_one(name, now=database_now()) if "\0" not in name else None
    if worker is None or action not in ACTIONS:
        raise Http404
    if request.method != "POST":
        return ask(request, worker, action)
    reason, error = read_reason(request)
    if error:
        return ask(request, worker, action, done=Done(error=error))
    draining = action == "drain"
    done = carry_out(request, lambda: DrainWorker(worker=name, reason=reason, draining=draining))
    if done.result is None:
        return ask(request, worker, action, done=done)
    messages.success(request, TOLD[action].format(name=name), extra_tags="check-circle")
    return redirect("workers")


TOLD = {
    "drain": "{name} is asked to finish what it holds and to take nothing more.",
    "stop-draining": "{name} may take work again.",
}


def ask(
    request: ConsoleRequest, worker: Line, action: str, *, done: Done[Any] | None = None
) -> HttpResponseBase:
    thing = {"kind": "worker", "draining": action == "stop-draining"}
    context = form_context(request, done) | {
        "now": worker.now,
        "worker": worker,
        "action": action,
        "verdict": allowed_actions(request.access, thing)[action],
        "base": worker.name.split("~")[0],
    }
    return render(request, "workers/drain.html", context, status=done.status if done else 200)
