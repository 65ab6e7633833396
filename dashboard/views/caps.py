"""Changing a budget's cap: first what another one would mean, then the change, with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from agentstate.store.commands import ChangeCap
from dashboard import forecast, windows
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forecast import Forecast
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, page
from dashboard.queries import budgets as queries
from dashboard.queries import refused
from dashboard.queries.budgets import Line
from dashboard.queries.panels import read_panels
from dashboard.queries.refused import RefusedCharge
from dashboard.replay import Replayed, fitting
from dashboard.templatetags.console import number
from dashboard.views.budgets import (
    Budget,
    describe,
    read_budget,
    read_cap,
    read_what_if,
    wrong_cap,
)
from dashboard.windows import read_window

REFUSED_SHOWN = 10
LOST = "The form has lost what you saw. Send it again."


@require_http_methods(["GET", "HEAD", "POST"])
@page
def change_cap(request: ConsoleRequest, name: str, key: str | None = None) -> HttpResponseBase:
    """Ask for a cap, show what it means, then set it, if the budget is still what was seen."""
    found = read_budget(name, key)
    if request.method != "POST":
        typed = request.GET.get("cap")
        return ask(request, found, typed=typed or "", wrong=wrong_cap(typed) if typed else "")
    typed = request.POST.get("cap", "")
    reason, error = read_reason(request)
    version, cap = whole(request.POST.get("seen_version")), read_cap(typed)
    if cap is None or error or version is None:
        error = error or ("" if version else LOST)
        return ask(request, found, typed=typed, wrong=wrong_cap(typed), done=Done(error=error))
    done = carry_out(
        request,
        lambda: ChangeCap(run=key, budget=name, cap=cap, reason=reason, if_match=version),
    )
    if done.result is None:
        return ask(request, read_budget(name, key), typed=typed, done=done)
    told = f"The cap of {name} is {number(done.result.cap)} {done.result.unit}."
    messages.success(request, told, extra_tags="check-circle")
    return redirect(found.address)


def ask(
    request: ConsoleRequest,
    found: Budget,
    *,
    typed: str,
    wrong: str = "",
    done: Done[Any] | None = None,
) -> HttpResponseBase:
    cap = read_cap(typed)
    context = describe(request, found) | form_context(request, done)
    context |= {
        "typed": typed,
        "wrong": wrong,
        "cap": cap,
        "preview": read_preview(found, cap) if cap is not None else None,
        "seen_version": found.row.version,
    }
    if done and done.error:  # only its own fields are mended: what was seen stays what was seen
        context["seen_version"] = request.POST.get("seen_version", "")
    status = 422 if wrong else done.status if done else 200
    return render(request, "budgets/cap.html", context, status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a cap would mean. left: 0 at least; more: than now.

    dry_now, dry_then: with the cap as it is and as asked. narrower: levels above it that leave less
    than this cap would. refused: the charges of the last hour, oldest first, with whether each fits
    if they come again now. replayed: with this cap for a day, what would have been let through.
    What is None could not be read.
    """

    left: int
    more: int
    below_use: bool
    dry_now: Forecast | None
    dry_then: Forecast | None
    words_now: str
    words_then: str
    narrower: list[Line]
    refused: list[tuple[RefusedCharge, bool]] | None
    replayed: Replayed | None

    @property
    def less(self) -> int:
        return -self.more

    @property
    def fit(self) -> int:
        return sum(fits for _, fits in self.refused or ())

    @property
    def newest(self) -> list[tuple[RefusedCharge, bool]]:
        """The newest of the refused ones, which a table shows."""
        return (self.refused or [])[-REFUSED_SHOWN:][::-1]


def read_preview(found: Budget, cap: int) -> Preview:
    row, now = found.row, found.now
    left = cap - row.spent - row.reserved
    day = read_window({}, now=now, usual=windows.DAY)
    panels = read_panels(
        {
            "burn": partial(queries.read_burn, row.id, now=now),
            "parents": partial(queries.read_parents, found.view, now=now),
            "hour": partial(refused.read, row, since=now - windows.HOUR.span, until=day.until),
            "day": partial(refused.read, row, since=day.since, until=day.until),
        }
    )
    burn, hour = panels["burn"].found, panels["hour"].found
    if panels["day"].found is not None:
        turned_away = panels["day"].found
        panels |= read_panels({"replay": partial(read_what_if, row, cap, day, turned_away)})
    dry = [forecast.foresee(left=n, burn=burn, now=now) if burn else None for n in (row.left, left)]
    words = [forecast.in_words(one, now) if one else "" for one in dry]
    charges = hour.charges[::-1] if hour else []
    fits = fitting([charge.amount for charge in charges], left)
    replayed = (
        panels["replay"].found.replayed if "replay" in panels and panels["replay"].found else None
    )
    return Preview(
        left=max(0, left),
        more=cap - row.cap,
        below_use=left < 0,
        dry_now=dry[0],
        dry_then=dry[1],
        words_now=words[0],
        words_then=words[1],
        narrower=[one for one in panels["parents"].found or [] if one.budget.left < left],
        refused=list(zip(charges, fits, strict=True)) if hour else None,
        replayed=replayed,
    )
