"""Signing in and out, and the theme."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth import views as auth
from django.http import HttpResponseBase
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from dashboard.pages import ConsoleRequest

# Where everybody comes by typing the site's address.
FIRST_PATHS = ("", "/", "/runs")
THEME_COOKIE = "agentstate_theme"
THEME_SECONDS = 365 * 86_400


class Login(auth.LoginView):
    """Name and password. Who is in already goes on to where they were going."""

    template_name = "session/login.html"
    redirect_authenticated_user = True

    def get_context_data(self, **named: Any) -> dict[str, Any]:
        """goes_on: somebody was at a page of their own when the session ended."""
        context = super().get_context_data(**named)
        path = urlsplit(context.get("next") or "").path
        return context | {"goes_on": path not in FIRST_PATHS}


@require_POST
def choose_theme(request: ConsoleRequest) -> HttpResponseBase:
    """Keep the theme in a cookie, so that the server sends the page in it: no flash."""
    # The page's own form names where it was loaded from; its address may be another by now.
    back = request.headers.get("Referer") or request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        back, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    response = redirect(back if safe else "home")
    theme = request.POST.get("theme")
    if theme in ("light", "dark"):
        response.set_cookie(THEME_COOKIE, theme, max_age=THEME_SECONDS, samesite="Lax")
    else:
        response.delete_cookie(THEME_COOKIE, samesite="Lax")
    return response
