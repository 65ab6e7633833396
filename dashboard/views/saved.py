"""Lists under a name: one's own and the team's; saved, replaced, deleted, opened with."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from agentstate.store.errors import Invalid
from agentstate.store.rules import names
from dashboard import listing
from dashboard.forms import one_line, whole
from dashboard.listing import Listing
from dashboard.models import NAME_CHARS, SavedView
from dashboard.pages import ConsoleRequest, circumstances, page, refuse
from dashboard.queries import views as queries
from dashboard.queries.clock import database_now

TAKEN = "There is one of this name. Choose another, or replace that one below."
NO_NAME = (
    f"A name of 1 to {NAME_CHARS} characters in one line, which can be seen and read as it is."
)
# Whatever stands behind them in a list would be read from the other end.
TURNS = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
NEEDS_OPERATOR = "needs the role operator"
MANY = f"There are {queries.VIEWS_MAX}, which is as many as the menu can show. Delete one first."


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """All of them, and a form that keeps the list of the address under a name."""
    shown = told(request)
    if request.method != "POST":
        return answer(request, shown)
    # Two that look the same are one: a keyboard makes é of one character, a file's name of two.
    name = unicodedata.normalize("NFC", one_line(request.POST.get("name", "")))
    team = request.POST.get("team") == "yes"
    problem = wrong(name, shown)
    if not problem and team and not request.access.may("operate"):
        refuse(request, "operate", f"A view for the team {NEEDS_OPERATOR}.")
    if not problem:
        try:
            view = queries.save(
                name=name,
                shown=shown,
                owner=None if team else request.user.pk,
                by=request.access.caller,
                under=circumstances(request),
                now=database_now(),
            )
        except queries.NameTaken:
            problem = TAKEN
        except queries.TooMany:
            problem = MANY
    if problem:
        return answer(request, shown, problem=problem, name=name, team=team, status=422)
    if request.POST.get("default") == "yes":
        queries.open_with(request.user, view)
    messages.success(request, f"Kept as {name}.", extra_tags="check-circle")
    return redirect(f"{reverse('runs')}?{shown.query}")


def told(request: ConsoleRequest) -> Listing:
    """The list that is to be kept; its filter is one that is understood, or nothing is kept."""
    given = request.POST if request.method == "POST" else request.GET
    return listing.read(given.dict(), payloads=request.access.may_see_payloads)


def wrong(name: str, shown: Listing) -> str:
    if shown.wanted.problems:
        return "The filter is not understood, so it is not kept. Mend it first."
    try:
        names.check_line("name", name, at_least=1, at_most=NAME_CHARS)
    except Invalid:
        return NO_NAME
    return NO_NAME if TURNS.search(name) else ""


def answer(
    request: ConsoleRequest,
    shown: Listing,
    *,
    problem: str = "",
    name: str = "",
    team: bool = False,
    status: int = 200,
) -> HttpResponseBase:
    default = queries.default_of(request.user)
    context: dict[str, Any] = {
        "listing": shown,
        "saved": [
            {"view": view, "may": may_change(request, view), "is_default": view == default}
            for view in queries.visible_to(request.user)
        ],
        "default": default,
        "may_share": request.access.may("operate"),
        "problem": problem,
        "name": name,
        "team": team,
    }
    return render(request, "runs/views.html", context, status=status)


def may_change(request: ConsoleRequest, view: SavedView) -> bool:
    return view.owner_id == request.user.pk if view.owner_id else request.access.may("operate")


@require_POST
@page
def act(request: ConsoleRequest, number: int, action: str) -> HttpResponseBase:
    """Replace a view by the list of the form, delete it, or open Runs with it (or no longer)."""
    view = next((v for v in queries.visible_to(request.user) if v.pk == number), None)
    if view is None or action not in DONE:
        raise Http404
    if action in ("replace", "delete") and not may_change(request, view):
        refuse(request, "operate", f"A view of the team {NEEDS_OPERATOR}.")
    shown = told(request)
    back = f"{reverse('runs-views')}?{shown.query}"
    if action == "replace" and shown.wanted.problems:
        return answer(request, shown, problem=wrong(view.name, shown), status=422)
    try:
        carry_out(request, view, action, shown)
    except queries.Moved:
        messages.warning(request, f"{view.name} was changed meanwhile, so nothing was done.")
        return redirect(back)
    messages.success(request, DONE[action].format(name=view.name), extra_tags="check-circle")
    return redirect(back)


def carry_out(request: ConsoleRequest, view: SavedView, action: str, shown: Listing) -> None:
    """Raises Moved when the view is no longer what the form was made from."""
    seen = whole(request.POST.get("version")) or 0
    by, under = request.access.caller, circumstances(request)
    match action:
        case "replace":
            queries.replace(view, shown=shown, seen=seen, by=by, under=under, now=database_now())
        case "delete":
            queries.delete(view, seen=seen, by=by, under=under)
        case "default":
            queries.open_with(request.user, view)
        case _:
            queries.open_with(request.user, None)


DONE = {
    "replace": "{name} is this list now.",
    "delete": "{name} is deleted.",
    "default": "Runs opens with {name} now.",
    "no-default": "Runs opens with all runs again.",
}
