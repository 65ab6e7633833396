"""What a person chooses for themselves: zone, theme, density, keys, and what opens first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import zones
from dashboard.forms import whole
from dashboard.models import SavedView
from dashboard.pages import ConsoleRequest, page
from dashboard.queries import preferences, views
from dashboard.queries.clock import database_now
from dashboard.queries.preferences import DENSITIES, OPENS, THEMES
from dashboard.views import quiet
from dashboard.views.session import back_from, keep_theme

LOST = "The form has lost what you saw. Send it again."
NO_ZONE = "There is no zone of this name. Choose one of the list, such as Europe/Berlin."
NO_VIEW = "That view is not there any more. Choose another."
NOT_OFFERED = "Choose one of what is offered."


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The form; sent, it is kept if nothing was changed elsewhere meanwhile. The same sent twice is
    kept once and told as kept.
    """
    if request.method != "POST":
        return answer(request, of_kept(request))
    typed = read(request)
    offered = views.visible_to(request.user)
    seen = whole(request.POST.get("seen_version"))
    errors = wrong(typed, offered) | ({"": LOST} if seen is None else {})
    if errors:
        return answer(request, typed, errors=errors, status=422)
    try:
        preferences.change(request.user, seen=seen, **_kept(typed))
    except preferences.Moved:
        if _kept(of_kept(request)) != _kept(typed):
            return answer(request, typed, moved=True, status=409)
    messages.success(request, "Kept. It counts in all your browsers.", extra_tags="check-circle")
    response = redirect("settings")
    keep_theme(response, str(typed["theme"]))
    return response


def read(request: ConsoleRequest) -> dict[str, Any]:
    post = request.POST
    return {
        "zone": post.get("zone", "").strip()[: zones.NAME_CHARS],
        "theme": post.get("theme", ""),
        "density": post.get("density", ""),
        "keys_off": post.get("keys") != "on",
        "opens": post.get("opens", ""),
        "view": post.get("view", ""),
    }


def of_kept(request: ConsoleRequest) -> dict[str, Any]:
    """What counts now, as the form has it; read anew, as it may have changed a moment ago."""
    kept = preferences.chosen_anew(request.user)
    cookie = request.COOKIES.get("agentstate_theme", "")
    return {
        "zone": kept.zone,
        "theme": kept.theme or (cookie if cookie in THEMES else THEMES[0]),
        "density": kept.density,
        "keys_off": kept.keys_off,
        "opens": kept.opens,
        "view": str(kept.default_view or ""),
    }


def wrong(typed: dict[str, Any], offered: list[SavedView]) -> dict[str, str]:
    """What is to be mended, by field."""
    found = {}
    if zones.find(typed["zone"]) is None:
        found["zone"] = NO_ZONE
    if typed["view"] and typed["view"] not in {str(view.pk) for view in offered}:
        found["view"] = NO_VIEW
    for field, choices in (("theme", THEMES), ("density", DENSITIES), ("opens", OPENS)):
        if typed[field] not in choices:
            found[field] = NOT_OFFERED
    return found


def _kept(typed: dict[str, Any]) -> dict[str, Any]:
    view = whole(typed["view"])
    same = {name: typed[name] for name in ("zone", "theme", "density", "keys_off", "opens")}
    return same | {"in_utc": False, "default_view_id": view}


def answer(
    request: ConsoleRequest,
    typed: dict[str, Any],
    *,
    errors: dict[str, str] | None = None,
    moved: bool = False,
    status: int = 200,
) -> HttpResponseBase:
    """The page. Refused because it was changed elsewhere, it keeps what was typed and says what
    stands there now; mended, it still has the version that was seen.
    """
    now, kept = database_now(), of_kept(request)
    version = preferences.chosen_anew(request.user).version
    offered = views.visible_to(request.user)
    labels = {str(view.pk): view.name for view in offered}
    differs = [
        (LABELS[name], _said(name, kept[name], labels), _said(name, typed[name], labels))
        for name in LABELS
        if moved and kept[name] != typed[name]
    ]
    context = {
        "now": now,
        "typed": typed,
        "errors": errors or {},
        "differs": differs,
        "moved": moved,
        "seen_version": request.POST.get("seen_version", "") if errors else version,
        "zones": zones.names(),
        "offsets": zones.offsets(zones.find(kept["zone"]), now, now + timedelta(days=400)),
        "opens": OPENS,
        "themes": THEMES,
        "densities": DENSITIES,
        "views": offered,
        "quiet_words": quiet.in_words(quiet.kept_of(f"person:{request.access.name}").quiet),
    }
    return render(request, "settings/page.html", context, status=status)


LABELS = {
    "zone": "Zone of times",
    "theme": "Theme",
    "density": "Density",
    "keys_off": "Keyboard shortcuts",
    "opens": "The console opens with",
    "view": "Runs opens with",
}


def _said(name: str, value: Any, views: dict[str, str]) -> str:
    if name == "keys_off":
        return "off" if value else "on"
    if name == "opens":
        return OPENS.get(str(value), str(value))
    return views.get(str(value), "all runs") if name == "view" else str(value)


@require_POST
@page
def choose_zone(request: ConsoleRequest) -> HttpResponseBase:
    """Look at UTC, or at one's own zone again, and stay on the page."""
    preferences.change(request.user, in_utc=request.POST.get("zone") == zones.UTC_NAME)
    return redirect(back_from(request))
