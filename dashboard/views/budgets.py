"""Budgets: those near their cap first, the shared ones as a tree, one with its ledger, its cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store import reads
from agentstate.store.commands import ChangeCap
from agentstate.store.errors import NotFound, RunExpired
from agentstate.store.models import Run
from agentstate.store.reads import BudgetView
from agentstate.store.rows import BudgetRow
from agentstate.store.rules.names import AMOUNT_MAX
from dashboard import cursors
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.moments import NotThen
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import budgets as queries
from dashboard.queries import past_budgets as past_queries
from dashboard.queries.budgets import RefusedCharge
from dashboard.queries.clock import database_now
from dashboard.queries.panels import Panel, read_panels
from dashboard.queries.past_budgets import PastBudget
from dashboard.templatetags.console import number
from dashboard.views import past


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The list: `after` a name among the shared ones."""
    now = database_now()
    after = request.GET.get("after", "").replace("\0", "")[:200]
    panels = read_panels(
        {
            "near": queries.read_near,
            "shared": partial(queries.read_shared, now=now, after=after),
            "refused": partial(queries.read_newest_refused, since=now - queries.BURN),
        }
    )
    context = {"now": now, "after": after, "panels": panels, "percent": queries.NEAR_PERCENT}
    parts = is_partial(request, "budgets")
    return render(request, "budgets/board.html" if parts else "budgets/list.html", context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget as its pages show it. key: of the run that has it, None for a shared one."""

    view: BudgetView
    key: str | None
    now: datetime

    @property
    def row(self) -> BudgetRow:
        return self.view.budget

    @property
    def address(self) -> str:
        return self._reverse("budget", "run-budget")

    @property
    def cap_address(self) -> str:
        return self._reverse("budget-cap", "run-budget-cap")

    def _reverse(self, shared: str, of_run: str) -> str:
        if self.key is None:
            return reverse(shared, args=[self.row.name])
        return reverse(of_run, args=[self.key, self.row.name])


def read_budget(name: str, key: str | None) -> Budget:
    """Raises Http404, for a run past its retention as well."""
    if "\0" in name or "\0" in (key or ""):
        raise Http404
    try:
        return Budget(view=reads.budget(run_key=key, name=name), key=key, now=database_now())
    except (NotFound, RunExpired):
        raise Http404 from None


def describe(request: ConsoleRequest, found: Budget) -> dict[str, Any]:
    return {
        "found": found,
        "budget": found.row,
        "view": found.view,
        "now": found.now,
        "actions": allowed_actions(request.access, {"kind": "budget"}),
    }


@require_safe
@page
@shared
def show_one(request: ConsoleRequest, name: str, key: str | None = None) -> HttpResponseBase:
    """One budget: `after` the place in its ledger; all as it was at `asof` (moments.py), if set."""
    found = read_budget(name, key)
    if past.is_asked(request):
        return show_past(request, found)
    row, now = found.row, found.now
    after = request.GET.get("after", "")
    asked: dict[str, Callable[[], Any]] = {
        "burn": partial(queries.read_burn, row.id, now=now),
        "parents": partial(queries.read_parents, found.view),
        "holds": partial(queries.read_holds, row.id, now=now),
        "refused": partial(queries.read_refused, row, since=now - queries.REFUSED_WITHIN),
        "children": partial(queries.read_children, row.id),
        "ledger": partial(_read_ledger, row, now, after),
    }
    panels = read_panels(asked)
    context = describe(request, found) | {"panels": panels, "after": after}
    burn = panels["burn"].found
    context["dry_in"] = queries.dry_in(row, burn.spent) if burn else None
    parts = is_partial(request, "budget")
    return render(request, "budgets/parts.html" if parts else "budgets/budget.html", context)


def show_past(request: ConsoleRequest, found: Budget) -> HttpResponseBase:
    """The same page as of a moment, by its ledger; nothing can be done to it."""
    run = Run.objects.filter(key=found.key).first() if found.key is not None else None
    page_now, after = found.address, request.GET.get("after", "")
    read = partial(past_queries.read_budget, found.view, run, page=page_now, now=found.now)
    try:
        then = past.as_of(request, read)
    except NotThen as wrong:
        return past.not_then(request, wrong, name=found.row.name, page=page_now)
    asked: dict[str, Callable[[], Any]] = {
        "burn": partial(past_queries.read_burn, then),
        "parents": partial(past_queries.read_parents, then),
        "holds": partial(past_queries.read_holds, then),
        "refused": partial(past_queries.read_refused, then),
        "children": partial(past_queries.read_children, then),
        "ledger": partial(_read_past_ledger, then, after),
    }
    panels = read_panels(asked)
    shown = Budget(view=then.view, key=found.key, now=then.at)
    burn = panels["burn"].found
    context = describe(request, shown) | {
        "panels": panels,
        "after": after,
        "asof": then.as_of,
        "actions": {},
        "dry_in": queries.dry_in(shown.row, burn.spent) if burn else None,
    }
    return render(request, "budgets/budget.html", context)


def _read_past_ledger(then: PastBudget, after: str) -> queries.Ledger:
    try:
        return past_queries.read_ledger(then, after=after)
    except cursors.BadCursor:
        return past_queries.read_ledger(then, after="")


def _read_ledger(row: BudgetRow, now: datetime, after: str) -> queries.Ledger:
    try:
        return queries.read_ledger(row.id, now=now, after=after)
    except cursors.BadCursor:
        return queries.read_ledger(row.id, now=now)


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
        error = error or ("" if version else "The form has lost what you saw. Send it again.")
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


def read_cap(typed: str) -> int | None:
    """The cap that was typed, however its digits are grouped."""
    cap = whole("".join(typed.split()).replace(",", "").replace("_", ""))
    return cap if cap is not None and cap <= AMOUNT_MAX else None


def wrong_cap(typed: str | None) -> str:
    return "" if read_cap(typed or "") is not None else f"A whole number from 0 to {AMOUNT_MAX}."


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
        "preview": preview(found, cap) if cap is not None else None,
        "seen_version": found.row.version,
    }
    if done and done.error:  # only its own fields are mended: what was seen stays what was seen
        context["seen_version"] = request.POST.get("seen_version", "")
    status = 422 if wrong else done.status if done else 200
    return render(request, "budgets/cap.html", context, status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a cap would mean. admitted: how many of the charges refused in the last hour, oldest
    first, would have fitted in what it leaves; None: that could not be read."""

    left: int
    more: int
    below_use: bool
    refused: int
    admitted: int | None

    @property
    def less(self) -> int:
        return -self.more


def preview(found: Budget, cap: int) -> Preview:
    row = found.row
    left = cap - row.spent - row.reserved
    since = found.now - queries.BURN
    panel: Panel[list[RefusedCharge]] = read_panels(
        {"refused": partial(queries.read_refused, row, since=since)}
    )["refused"]
    refused = panel.found or []
    return Preview(
        left=max(0, left),
        more=cap - row.cap,
        below_use=left < 0,
        refused=len(refused),
        admitted=fitting(refused[::-1], left) if panel.found is not None else None,
    )


def fitting(charges: list[RefusedCharge], room: int) -> int:
    """How many of these charges, one after the other, have room."""
    count = 0
    for charge in charges:
        if charge.amount is not None and charge.amount <= room:
            room -= charge.amount
            count += 1
    return count
