"""How the admin looks: the console's name, icon, colours and theme, and where its pages are.

Read by `settings.UNFOLD`, so nothing of Django's is loaded here before it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

THEMES = ("light", "dark")


def _icon(request: HttpRequest) -> str:
    from django.templatetags.static import static

    return static("dashboard/icon.svg")


def _theme(request: HttpRequest) -> str | None:
    """As it was chosen at the console; else the admin has a switch of its own."""
    chosen = request.COOKIES.get("agentstate_theme")
    return chosen if chosen in THEMES else None


def _to(name: str) -> Callable[[HttpRequest], str]:
    def address(request: HttpRequest) -> str:
        from django.urls import reverse

        return reverse(name)

    return address


def _is_here(name: str) -> Callable[[HttpRequest], bool]:
    """Unfold tells this only of addresses that are texts."""

    def is_here(request: HttpRequest) -> bool:
        from django.urls import reverse

        return name.startswith("admin:") and request.path.startswith(reverse(name))

    return is_here


def _entry(title: str, icon: str, name: str, about: str = "") -> dict[str, Any]:
    """about: what the first page of the admin says of it."""
    look = {"title": title, "icon": icon, "about": about}
    return look | {"link": _to(name), "active": _is_here(name)}


def _table(title: str, icon: str, model: str, about: str) -> dict[str, Any]:
    return _entry(title, icon, f"admin:agentstate_{model}_changelist", about)


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "agentstate",
    "SITE_HEADER": "agentstate",
    "SITE_SUBHEADER": "Admin",
    "SITE_URL": "/",
    "SITE_ICON": _icon,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": _icon}],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "THEME": _theme,
    "BORDER_RADIUS": "6px",
    # The console's accent (tokens.css), in the steps that unfold asks for.
    "COLORS": {
        "primary": {
            "50": "#eceefe",
            "100": "#e0e2fd",
            "200": "#c9caff",
            "300": "#b3b2ff",
            "400": "#9d9cff",
            "500": "#6d69ee",
            "600": "#4a46d6",
            "700": "#3b37bd",
            "800": "#312e93",
            "900": "#272567",
            "950": "#1d2040",
        },
    },
    "SIDEBAR": {
        "show_search": False,
        "show_all_applications": False,
        "navigation": [
            {"title": "", "items": [_entry("Back to the console", "arrow_back", "home")]},
            {
                "title": "Who may come in",
                "items": [
                    _entry(
                        "People",
                        "person",
                        "admin:auth_user_changelist",
                        "who signs in, with which role",
                    ),
                    _entry(
                        "Roles", "groups", "admin:auth_group_changelist", "the four, who has each"
                    ),
                    _entry("API keys", "key", "keys", "what workers and scripts call with"),
                ],
            },
            {
                "title": "Set up",
                "items": [
                    _entry(
                        "Notification targets",
                        "notifications",
                        "targets",
                        "where alerts are told outside",
                    ),
                    _entry(
                        "Saved views",
                        "bookmark",
                        "admin:dashboard_savedview_changelist",
                        "of everybody",
                    ),
                    _entry("Retention", "auto_delete", "retention", "how long each kind is kept"),
                    _entry("Audit", "assignment", "audit", "who did what, and was refused"),
                ],
            },
            {
                "title": "Only to read",
                "items": [
                    _table("Runs", "list", "run", "without their payloads"),
                    _entry("Events, by run", "timeline", "runs", "on each run's own page"),
                    _table("Leases", "lock", "lease", "who holds which unit now"),
                    _table("Terms of ownership", "history", "leaseterm", "who held it before"),
                    _table("Budgets", "account_balance_wallet", "budget", "caps and what is spent"),
                    _table("Refusals", "block", "refusal", "writes that were turned away"),
                    _table("Workers", "memory", "worker", "as they announced themselves"),
                    _table("What was done", "task_alt", "operatoraction", "the audit's rows"),
                    _table(
                        "What was refused", "do_not_disturb_on", "refusedaction", "the other half"
                    ),
                    _table("Keys as stored", "vpn_key", "apikey", "never the keys themselves"),
                    _table("Targets as stored", "campaign", "alerttarget", "never their secrets"),
                ],
            },
        ],
    },
}
