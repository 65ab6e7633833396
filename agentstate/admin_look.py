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


def _to(name: str, more: str = "") -> Callable[[HttpRequest], str]:
    def address(request: HttpRequest) -> str:
        from django.urls import reverse

        return reverse(name) + more

    return address


def _entry(title: str, icon: str, name: str, more: str = "") -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": _to(name, more)}


def _table(title: str, icon: str, model: str) -> dict[str, Any]:
    return _entry(title, icon, f"admin:agentstate_{model}_changelist")


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
            {
                "title": "Who may come in",
                "items": [
                    _entry("People", "person", "admin:auth_user_changelist"),
                    _entry("Roles", "groups", "admin:auth_group_changelist"),
                    _entry("API keys", "key", "keys"),
                ],
            },
            {
                "title": "Set up at the console",
                "items": [
                    _entry("Notification targets", "notifications", "targets"),
                    _entry("Saved views", "bookmark", "admin:dashboard_savedview_changelist"),
                    _entry("Retention", "auto_delete", "retention"),
                    _entry("Audit", "assignment", "audit"),
                ],
            },
            {
                "title": "Only to read",
                "items": [
                    _table("Runs", "list", "run"),
                    _entry("Events, by run", "timeline", "runs"),
                    _table("Leases", "lock", "lease"),
                    _table("Terms of ownership", "history", "leaseterm"),
                    _table("Budgets", "account_balance_wallet", "budget"),
                    _table("Refusals", "block", "refusal"),
                    _table("Workers", "memory", "worker"),
                    _table("What was done", "task_alt", "operatoraction"),
                    _table("What was refused", "do_not_disturb_on", "refusedaction"),
                    _table("Keys as stored", "vpn_key", "apikey"),
                    _table("Targets as stored", "campaign", "alerttarget"),
                ],
            },
        ],
    },
}
