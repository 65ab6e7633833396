"""API keys: which there are, making one (its secret is on the answer alone), ending one."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate import store
from agentstate.store import SCOPES, keys
from agentstate.store.errors import Invalid
from agentstate.store.keys import KeyView, NewKey
from dashboard.access import NEEDS_ADMIN
from dashboard.asking import Done, attempt, form_context, read_reason
from dashboard.forms import form_circumstances, whole
from dashboard.pages import ConsoleRequest, circumstances, page
from dashboard.queries.clock import database_now

DAYS_MAX = 3_650
SAID = {
    "read": "look at runs, leases, budgets and events, but for payloads",
    "payloads": "see payloads as well",
    "write": "what workers do: create runs, take leases, append, spend",
    "propose": "ask a person to reclaim a unit: what an assistant needs",
    "operate": "what operators do: reclaim lapsed leases, pause, cancel, acknowledge",
    "override": "what seniors do: take live leases, change caps",
    "admin": "make and end keys and targets",
}


def _check(request: ConsoleRequest, action: str = "", name: str = "") -> None:
    """Who has which key is for admins, too. action: what somebody tried with a form."""
    if request.access.may("admin"):
        return
    if request.method == "POST" and action:
        store.record_refused_action(
            by=request.access.caller, action=action, thing=name, under=circumstances(request)
        )
    raise PermissionDenied(f"This {NEEDS_ADMIN}.")


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """All keys that there are or were; the valid ones first."""
    _check(request)
    found = sorted(keys.every_key(), key=lambda key: (not key.valid, key.name))
    return render(request, "keys/list.html", {"now": database_now(), "keys": found})


@require_http_methods(["GET", "HEAD", "POST"])
@page
def make(request: ConsoleRequest) -> HttpResponseBase:
    """Ask for a name, scopes and how long it is valid; then make it."""
    _check(request, "key.created", request.POST.get("name", ""))
    if request.method != "POST":
        return ask_new(request)
    reason, error = read_reason(request)
    done: Done[NewKey] = Done(error=error) if error else attempt(lambda: _made(request, reason))
    if done.result is None:
        return ask_new(request, done=done)
    return render(request, "keys/made.html", {"now": database_now(), "made": done.result})


def _made(request: ConsoleRequest, reason: str) -> NewKey:
    typed = request.POST.get("days", "").strip()
    days = whole(typed)
    if typed and (days is None or not 1 <= days <= DAYS_MAX):
        raise Invalid("days", f"days: a whole number from 1 to {DAYS_MAX}, or nothing")
    return keys.create_key(
        name=request.POST.get("name", "").strip(),
        scopes=request.POST.getlist("scopes"),
        valid_seconds=days * 86_400 if days else None,
        reason=reason,
        by=request.access.caller,
        under=form_circumstances(request),
    )


def ask_new(request: ConsoleRequest, *, done: Done[Any] | None = None) -> HttpResponseBase:
    context = form_context(request, done) | {
        "now": database_now(),
        "scopes": [(scope, SAID[scope]) for scope in SCOPES],
        "chosen": request.POST.getlist("scopes"),
        "typed": {"name": request.POST.get("name", ""), "days": request.POST.get("days", "")},
        "days_max": DAYS_MAX,
    }
    return render(request, "keys/new.html", context, status=done.status if done else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def revoke(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Ask why, and for the key's name; then end it."""
    _check(request, "key.revoked", name)
    key = _find(name)
    if request.method != "POST" or key.revoked_at:
        return ask(request, key)
    reason, error = read_reason(request)
    if error:
        return ask(request, key, done=Done(error=error))
    if request.POST.get("typed", "").strip() != name:
        return ask(request, key, mistyped=True)
    under, by = form_circumstances(request), request.access.caller
    done = attempt(lambda: keys.revoke_key(name=name, reason=reason, by=by, under=under))
    if done.result is None:
        return ask(request, key, done=done)
    messages.success(request, f"{name} is over.", extra_tags="no-symbol")
    return redirect("keys")


def ask(
    request: ConsoleRequest,
    key: KeyView,
    *,
    done: Done[Any] | None = None,
    mistyped: bool = False,
) -> HttpResponseBase:
    context = form_context(request, done) | {
        "now": database_now(),
        "key": key,
        "mistyped": mistyped,
        "typed": request.POST.get("typed", ""),
    }
    status = 422 if mistyped else done.status if done else 200
    return render(request, "keys/revoke.html", context, status=status)


def _find(name: str) -> KeyView:
    found = next((key for key in keys.every_key() if key.name == name), None)
    if found is None:
        raise Http404
    return found
