"""Signing in and out, and the theme."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from allauth.account.views import LoginView
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import LogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from dashboard import first_run
from dashboard.pages import ConsoleRequest
from dashboard.queries import preferences
from dashboard.queries.preferences import THEMES
from dashboard.sign_in import SignIn

# Where everybody comes by typing the site's address.
FIRST_PATHS = ("", "/", "/runs")
THEME_COOKIE = "agentstate_theme"
THEME_SECONDS = 365 * 86_400


class Login(LoginView):  # type: ignore[misc]  # untyped
    """Name and password. Who is in already goes on to where they were going."""

    form_class = SignIn
    template_name = "session/login.html"
    success_url = settings.LOGIN_REDIRECT_URL

    def get_context_data(self, **named: Any) -> dict[str, Any]:
        """goes_on: somebody was at a page of their own when the session ended."""
        context: dict[str, Any] = super().get_context_data(**named)
        back = self.request.POST.get("next") or self.request.GET.get("next", "")
        try:
            path = urlsplit(back).path
        except ValueError:  # the address is whatever somebody sends
            path = ""
        provider = settings.OIDC_NAME if settings.OIDC_ISSUER else ""
        return context | {
            "next": back,
            "goes_on": path not in FIRST_PATHS,
            "provider": provider,
            "setup": first_run.is_open(),
        }

    def form_invalid(self, form: SignIn) -> HttpResponseBase:
        """429 to who is counted out, so that a program notices, too."""
        answer: HttpResponse = super().form_invalid(form)
        refusals = form.non_field_errors().as_data()
        if refusals and refusals[0].code == "too-many":
            answer.status_code = 429
            answer.headers["Retry-After"] = str(refusals[0].seconds)
        return answer


class Logout(LogoutView):
    """Ends this session, and says so on the page of the login."""

    def post(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        answer = super().post(request, *args, **named)
        messages.success(request, "You are signed out.", extra_tags="check-circle")
        return answer


@require_POST
def choose_theme(request: ConsoleRequest) -> HttpResponseBase:
    """Keep the theme with the person, and in a cookie: the server sends the page in it."""
    response = redirect(back_from(request))
    theme = request.POST.get("theme", "")
    theme = theme if theme in THEMES else THEMES[0]
    if request.user.is_authenticated:
        preferences.change(request.user, theme=theme)
    keep_theme(response, theme)
    return response


def back_from(request: HttpRequest) -> str:
    """Where a form of the frame was sent from, if that is a page of ours; else the first page.

    The form names where its page was loaded from; its address may be another by now.
    """
    back = request.headers.get("Referer") or request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        back, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return back if safe else reverse("home")


def keep_theme(response: HttpResponseBase, theme: str) -> None:
    """In a cookie as well, for the pages that know nobody."""
    if theme in ("light", "dark"):
        response.set_cookie(THEME_COOKIE, theme, max_age=THEME_SECONDS, samesite="Lax")
    else:
        response.delete_cookie(THEME_COOKIE, samesite="Lax")
