"""One's own account: how one signs in, where one is signed in, and out everywhere at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.views import PasswordChangeView
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentstate import store
from agentstate.store.people import EndSessions
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import form_circumstances
from dashboard.pages import ConsoleRequest, own, page, to_login
from dashboard.queries import people
from dashboard.sign_in import PasswordChange


def guarded(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A page of allauth's about the own account: for whoever is logged in, and never cached."""

    @wraps(view)
    def answered(request: ConsoleRequest, *args: Any, **named: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            response: HttpResponseBase = to_login(request)
        else:
            response = view(request, *args, **named)
        add_never_cache_headers(response)
        return response

    return answered


@require_safe
@own
def show(request: ConsoleRequest) -> HttpResponseBase:
    """Ways to sign in, and the sessions that there are."""
    context = people.read_account(request) | {"provider": settings.OIDC_NAME}
    return render(request, "session/account.html", context)


class Password(PasswordChangeView):  # type: ignore[misc]  # untyped
    """Another password; it ends every other session."""

    form_class = PasswordChange
    success_url = reverse_lazy("account")

    def dispatch(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponseBase:
        if not request.user.has_usable_password():  # type: ignore[union-attr]  # logged in
            raise PermissionDenied("You sign in elsewhere, and have no password here.")
        answer: HttpResponseBase = super().dispatch(request, *args, **named)
        return answer

    def form_valid(self, form: Any) -> HttpResponseBase:
        answer: HttpResponseBase = super().form_valid(form)
        messages.success(self.request, "Your password is changed.", extra_tags="check-circle")
        return answer


@require_POST
@own
def sign_out_everywhere(request: ConsoleRequest) -> HttpResponseBase:
    """End all sessions of who asks, this one with them."""
    command = EndSessions(person=request.access.name, reason="signed out everywhere")
    store.execute(command, by=request.access.caller, under=form_circumstances(request))
    request.session.flush()
    return redirect("login")


@require_http_methods(["GET", "HEAD", "POST"])
@page
def sign_out(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """An admin ends all sessions of somebody: ask why, then do it."""
    if "\0" in name or not people.is_somebody(name):
        raise Http404
    if request.method != "POST":
        return ask(request, name)
    reason, error = read_reason(request)
    if error:
        return ask(request, name, done=Done(error=error))
    done = carry_out(request, lambda: EndSessions(person=name, reason=reason))
    if done.result is None:
        return ask(request, name, done=done)
    messages.success(request, f"{name} is signed out everywhere.", extra_tags="check-circle")
    return redirect("person-sign-out", name=name)


def ask(request: ConsoleRequest, name: str, *, done: Done[Any] | None = None) -> HttpResponseBase:
    context = form_context(request, done) | {
        "name": name,
        "sessions": people.count_sessions(name),
        "verdict": allowed_actions(request.access, {"kind": "person"})["sign-out"],
    }
    return render(request, "session/sign_out.html", context, status=done.status if done else 200)
