"""Workers: who is well, who was overtaken and still writes; drain one, or end its key."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store.commands import DrainWorker, RevokeKey
from dashboard.access import Verdict, allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import workers as queries
from dashboard.queries.clock import database_now
from dashboard.queries.panels import read_panels
from dashboard.queries.workers import Line

DRAINS = ("drain", "stop-draining")


@require_safe
@page
@shared
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
        "overtaken_most": queries.OVERTAKEN_SHOWN,
        "panels": panels,
        "verdicts": {draining: verdicts(request, draining=draining) for draining in (True, False)},
    }
    parts = is_partial(request, "workers")
    return render(request, "workers/board.html" if parts else "workers/list.html", context)


def verdicts(
    request: ConsoleRequest, *, draining: bool, key: str | None = None
) -> dict[str, Verdict]:
    thing = {"kind": "worker", "draining": draining, "key": key}
    return allowed_actions(request.access, thing)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def act(request: ConsoleRequest, name: str, action: str) -> HttpResponseBase:
    """Ask, then drain a worker or take that back."""
    worker = queries.read_one(name, now=database_now()) if "\0" not in name else None
    if worker is None or action not in DRAINS:
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
    verdict = verdicts(request, draining=action == "stop-draining", key=worker.key)
    context = form_context(request, done) | {
        "now": worker.now,
        "worker": worker,
        "action": action,
        "verdict": verdict[action],
        "revoke": verdict["revoke-key"],
        "base": worker.name.split("~")[0],
    }
    return render(request, "workers/drain.html", context, status=done.status if done else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def revoke_key(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Ask, with the key's name typed, then end the key that a worker announced itself with."""
    now = database_now()
    worker = queries.read_one(name, now=now) if "\0" not in name else None
    key = queries.read_key(worker.key, now=now) if worker and worker.key else None
    if worker is None or key is None:
        raise Http404
    if request.method != "POST":
        return ask_revoke(request, worker, key)
    reason, error = read_reason(request)
    if error:
        return ask_revoke(request, worker, key, done=Done(error=error))
    if request.POST.get("typed", "").strip() != key.name:
        return ask_revoke(request, worker, key, mistyped=True)
    done = carry_out(request, lambda: RevokeKey(name=key.name, reason=reason))
    if done.result is None:
        return ask_revoke(request, worker, key, done=done)
    messages.success(request, f"The key {key.name} is over.", extra_tags="check-circle")
    return redirect("workers")


def ask_revoke(
    request: ConsoleRequest,
    worker: Line,
    key: queries.Key,
    *,
    done: Done[Any] | None = None,
    mistyped: bool = False,
) -> HttpResponseBase:
    verdict = verdicts(request, draining=False, key=key.name)["revoke-key"]
    context = form_context(request, done) | {
        "now": worker.now,
        "worker": worker,
        "key": key,
        "verdict": verdict,
        "mistyped": mistyped,
        "typed": request.POST.get("typed", ""),
    }
    if mistyped:
        context["form_key"] = request.POST.get("form_key", "") or context["form_key"]
    status = 422 if mistyped else done.status if done else 200
    return render(request, "workers/revoke.html", context, status=status)
