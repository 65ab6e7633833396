"""One's own account: how one signs in, where one is signed in, and out everywhere at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.views import PasswordChangeView
from allauth.mfa.recovery_codes.views import GenerateRecoveryCodesView
from allauth.mfa.totp.views import ActivateTOTPView, DeactivateTOTPView
from allauth.mfa.webauthn.views import AddWebAuthnView, RemoveWebAuthnView
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentstate import store
from agentstate.store.callers import Caller
from agentstate.store.people import EndSessions
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import form_circumstances
from dashboard.pages import ConsoleRequest, circumstances, own, page, to_login
from dashboard.queries import people
from dashboard.sessions import end_sessions
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


class Audited:
    """A form of allauth's about how one signs in. What it changes and the audit's rows of that
    commit together or not at all.

    The rows are written of what is different, because of what it adds allauth tells only once the
    change is committed. Whoever changes their second step elsewhere at that moment waits.
    """

    request: HttpRequest

    def form_valid(self, form: Any) -> HttpResponseBase:
        with transaction.atomic():
            person = User.objects.select_for_update(no_key=True).get(
                username=self.request.user.get_username()
            )
            before = people.second_steps(person)
            answer: HttpResponseBase = super().form_valid(form)  # type: ignore[misc]
            self.note(person.get_username(), before, people.second_steps(person))
        return answer

    def note(self, name: str, before: dict[int, str], after: dict[int, str]) -> None:
        gone = {n: kind for n, kind in before.items() if n not in after}
        new = {n: kind for n, kind in after.items() if n not in before}
        for kind in gone.values():
            if kind not in new.values():
                self.write(name, "second-step-removed", kind)
        for kind in new.values():
            if kind in gone.values():  # nothing else is made anew in one go
                self.write(name, "recovery-codes")
            else:
                self.write(name, "second-step-added", kind)

    def write(self, name: str, what: str, kind: str = "") -> None:
        """What of it is secret is in no row."""
        store.record_action(
            by=Caller(kind="person", name=name),
            action=f"person.{what}",
            thing=name,
            after={"kind": kind} if kind else {},
            under=circumstances(self.request),  # type: ignore[arg-type]
        )


class AddApp(Audited, ActivateTOTPView):  # type: ignore[misc]  # untyped
    """An authenticator app, and recovery codes with the first second step."""


class RemoveApp(Audited, DeactivateTOTPView):  # type: ignore[misc]  # untyped
    """With the last second step the recovery codes go, too."""


class AddKey(Audited, AddWebAuthnView):  # type: ignore[misc]  # untyped
    """A security key, and recovery codes with the first second step."""


class RemoveKey(Audited, RemoveWebAuthnView):  # type: ignore[misc]  # untyped
    """With the last second step the recovery codes go, too."""


class NewCodes(Audited, GenerateRecoveryCodesView):  # type: ignore[misc]  # untyped
    """Recovery codes instead of those that there are."""


class Password(Audited, PasswordChangeView):  # type: ignore[misc]  # untyped
    """Another password; it ends every other session."""

    form_class = PasswordChange
    success_url = reverse_lazy("account")

    def dispatch(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponseBase:
        if not request.user.has_usable_password():  # type: ignore[union-attr]  # logged in
            raise PermissionDenied("You sign in elsewhere, and have no password here.")
        answer: HttpResponseBase = super().dispatch(request, *args, **named)
        return answer

    def note(self, name: str, before: dict[int, str], after: dict[int, str]) -> None:
        end_sessions(self.request.user, keep=self.request.session.session_key)  # type: ignore[arg-type]
        self.write(name, "password")

    def form_valid(self, form: Any) -> HttpResponseBase:
        answer = super().form_valid(form)
        messages.success(self.request, "Your password is changed.", extra_tags="check-circle")
        return answer


@require_POST
@own
def sign_out_everywhere(request: ConsoleRequest) -> HttpResponseBase:
    """End all sessions of who asks, this one with them."""
    command = EndSessions(person=request.access.name, reason="signed out everywhere")
    store.execute(command, by=request.access.caller, under=form_circumstances(request))
    request.session.flush()
    messages.success(request, "You are signed out everywhere.", extra_tags="check-circle")
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
