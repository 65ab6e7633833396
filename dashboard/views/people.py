"""Passwords that nobody but their owner knows: a link for them, and the page behind it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import views as auth
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse, reverse_lazy
from django.utils.cache import add_never_cache_headers
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from django.views.decorators.http import require_http_methods

from agentstate import store
from agentstate.store import Caller
from dashboard.access import NEEDS_ADMIN
from dashboard.pages import ConsoleRequest, circumstances, page
from dashboard.sessions import end_sessions


@require_http_methods(["GET", "HEAD", "POST"])
@page
def make_link(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Ask; then show the link, once. It ends when it is used, when the person signs in or their
    password changes, and after settings.PASSWORD_RESET_TIMEOUT seconds."""
    if not request.access.may("admin"):
        raise PermissionDenied(f"This {NEEDS_ADMIN}.")
    person = User.objects.filter(username=name).first() if "\0" not in name else None
    if person is None:
        raise Http404
    context = {"person": person, "hours": settings.PASSWORD_RESET_TIMEOUT // 3_600, "link": ""}
    if request.method == "POST":
        with transaction.atomic():
            store.record_action(
                by=request.access.caller,
                action="person.link-made",
                thing=name,
                under=circumstances(request),
            )
        context["link"] = _link(request, person)
    return render(request, "session/link.html", context)


def _link(request: ConsoleRequest, person: User) -> str:
    uid = urlsafe_base64_encode(force_bytes(person.pk))
    token = default_token_generator.make_token(person)
    path = reverse("set-password", kwargs={"uidb64": uid, "token": token})
    return settings.CONSOLE_URL + path if settings.CONSOLE_URL else request.build_absolute_uri(path)


class SetPassword(auth.PasswordResetConfirmView):
    """Choose a password. The token leaves the address before the form is shown."""

    template_name = "session/set_password.html"
    success_url = reverse_lazy("login")
    title = "Set your password"

    def dispatch(self, *args: Any, **named: Any) -> HttpResponseBase:
        response: HttpResponseBase = super().dispatch(*args, **named)
        add_never_cache_headers(response)
        return response

    def form_valid(self, form: Any) -> Any:
        with transaction.atomic():
            answer = super().form_valid(form)
            end_sessions(form.user)
            store.record_action(
                by=Caller(kind="person", name=form.user.get_username()),
                action="person.password-set",
                thing=form.user.get_username(),
                under=circumstances(self.request),  # type: ignore[arg-type]
            )
        told = "Your password is set: sign in with it."
        messages.success(self.request, told, extra_tags="check-circle")
        return answer
