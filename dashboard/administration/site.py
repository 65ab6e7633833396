"""The admin's site: for the role admin alone, under a policy of its own, bounded like a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.csp import CSP
from django.views.decorators.csp import csp_override
from unfold.sites import UnfoldAdminSite

from agentstate import store
from dashboard.access import NEEDS_ADMIN, access_of
from dashboard.pages import circumstances, to_login, zone_of
from dashboard.queries.clock import TooSlow, at_most
from dashboard.queries.preferences import chosen_by
from dashboard.views import errors, session

# Each statement of a page of the admin may take so long.
PAGE_MS = 3_000
SLOW = "This took too long. Narrow the list, or look at the console's own pages."

# Unfold's pages are made by Alpine, which compiles its attributes (eval), and colour themselves in
# a style element of the page. No script of the page itself runs: that needs 'unsafe-inline'.
POLICY: dict[str, list[str]] = settings.SECURE_CSP | {
    "script-src": [CSP.SELF, CSP.UNSAFE_EVAL],
    "style-src": [CSP.SELF, CSP.UNSAFE_INLINE],
}


class ConsoleAdmin(UnfoldAdminSite):  # type: ignore[misc]  # it has no types
    """Who may enter is what the console says; `is_staff` of the person follows from that."""

    index_title = "Admin"
    index_template = "administration/index.html"
    site_title = "agentstate"
    enable_nav_sidebar = True

    def has_permission(self, request: HttpRequest) -> bool:
        return access_of(request.user).may("admin")

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Callable[..., Any]:
        """Guard a page as the console does: to the login, or the console's 403 and a line in the
        audit. `cacheable` is for scripts that are the same for all; none here is."""
        inner = super().admin_view(view, cacheable=True)

        @wraps(view)
        def guarded(request: Any, *args: Any, **named: Any) -> HttpResponseBase:
            if not request.user.is_authenticated:
                response = to_login(request)
                add_never_cache_headers(response)
                return response
            request.access = access_of(request.user)
            if not request.access.may("admin"):
                if request.method not in ("GET", "HEAD"):
                    store.record_refused_action(
                        by=request.access.caller,
                        action="admin",
                        thing=request.path,
                        under=circumstances(request),
                    )
                raise PermissionDenied(f"The admin {NEEDS_ADMIN}.")
            asked = (text for texts in request.GET.lists() for text in (texts[0], *texts[1]))
            if "\0" in request.path or any("\0" in text for text in asked):
                raise BadRequest
            # What unfold's templates ask, who know nothing of roles. Never saved from here.
            request.user.is_staff = True
            request.chosen = chosen_by(request.user)
            with timezone.override(zone_of(request)):
                response = _in_time(request, inner, *args, **named)
            add_never_cache_headers(response)
            return response

        return csp_override(POLICY)(guarded)

    def search(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        """Unfold's own search of tables is not offered: the console's jump finds by index."""
        return redirect("jump")

    def app_index(
        self, request: HttpRequest, app_label: str, extra_context: Any = None
    ) -> HttpResponse:
        """Which app of Django's a table is of is nothing to people: there is one index."""
        return redirect("admin:index")

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        """There is one login."""
        return redirect("login")

    def logout(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        """There is one way out as well; it is a form, as here."""
        if request.method == "POST":
            return session.Logout.as_view()(request)
        return redirect("home")

    def password_change(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        """There is one page for one's own password. Django's counts no tries of the old one and
        tells the audit nothing."""
        return redirect("account_change_password")

    def password_change_done(
        self, request: HttpRequest, extra_context: Any = None
    ) -> HttpResponseBase:
        return redirect("account")


def _in_time(
    request: HttpRequest, view: Callable[..., HttpResponseBase], *args: Any, **named: Any
) -> HttpResponseBase:
    """The answer, made within the limit: a list is read when it is rendered."""
    try:
        with at_most(PAGE_MS):
            response = view(request, *args, **named)
            if hasattr(response, "render"):
                response.render()
            return response
    except TooSlow:
        return errors.too_slow(request, SLOW)


site = ConsoleAdmin(name="admin")
