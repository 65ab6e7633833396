"""Budgets: those near their cap first, the shared ones as a tree; one with its course."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.http import Http404, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from agentstate.store import reads
from agentstate.store.errors import NotFound, RunExpired
from agentstate.store.models import Run
from agentstate.store.reads import BudgetView
from agentstate.store.rows import BudgetRow
from agentstate.store.rules.names import AMOUNT_MAX
from dashboard import course_charts, cursors, forecast, stranded, windows
from dashboard.access import allowed_actions
from dashboard.axes import axis_of
from dashboard.forms import whole
from dashboard.moments import NotThen
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import budgets as queries
from dashboard.queries import happened, holds, ledgers, refused
from dashboard.queries import past_budgets as past_queries
from dashboard.queries.budgets import Line
from dashboard.queries.clock import database_now
from dashboard.queries.ledgers import Story
from dashboard.queries.panels import Panel, read_panel, read_panels
from dashboard.queries.past_budgets import PastBudget
from dashboard.queries.refused import Refused, RefusedCharge
from dashboard.replay import Replayed, replay
from dashboard.views import past
from dashboard.windows import Window, describe_window, read_window

# A younger budget is shown by its last hour, an older one by its last day.
YOUNG = timedelta(hours=2)


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The list: `after` a name among the shared ones."""
    now = database_now()
    after = request.GET.get("after", "").replace("\0", "")[:200]
    panels = read_panels(
        {
            "near": partial(queries.read_near, now=now),
            "shared": partial(queries.read_shared, now=now, after=after),
            "stranded": partial(holds.read_stranded, now=now),
            "refused": partial(refused.read_newest, since=now - windows.HOUR.span),
            "uncapped": queries.read_uncapped,
        }
    )
    stuck = panels["stranded"].found
    context = {
        "now": now,
        "after": after,
        "panels": panels,
        "percent": queries.NEAR_PERCENT,
        "near_most": queries.NEAR_SHOWN,
        "charges_most": refused.SHOWN,
        "stranded": stranded.shown(stuck.holds, now) if stuck else [],
        "refused": [(charge, "") for charge in panels["refused"].found or []],
    }
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
    def object(self) -> str:
        """What it is called where it is written down that somebody changed it."""
        return self.row.name if self.key is None else f"{self.key}/{self.row.name}"

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
    """One budget: `window`, or `from` and `to`, what its chart and its refusals are of; `cap` what
    another one would have let through; `after` the place in its ledger; all as it was at `asof`
    (moments.py), if set.
    """
    found = read_budget(name, key)
    if past.is_asked(request):
        return show_past(request, found)
    row, now = found.row, found.now
    window, after = read_part(request, found), request.GET.get("after", "")
    turned_away = read_panel(partial(refused.read, row, since=window.since, until=window.until))
    asked: dict[str, Callable[[], Any]] = {
        "burn": partial(queries.read_burn, row.id, now=now),
        "parents": partial(queries.read_parents, found.view, now=now),
        "chart": partial(_read_chart, found, window, turned_away.found or Refused(charges=[])),
        "held": partial(holds.read_held, row.id, now=now),
        "below": partial(queries.read_below, row.id),
        "ledger": partial(_read_ledger, row, now, after, window if window.is_part else None),
    }
    panels = read_panels(asked) | {"refused": turned_away}
    parts = is_partial(request, "budget")
    page_name = "budgets/parts.html" if parts else "budgets/budget.html"
    return render(request, page_name, tell(request, found, window, panels))


def show_past(request: ConsoleRequest, found: Budget) -> HttpResponseBase:
    """The same page as of a moment, by its ledger; nothing can be done to it."""
    run = Run.objects.filter(key=found.key).first() if found.key is not None else None
    page_now, after = found.address, request.GET.get("after", "")
    read = partial(past_queries.read_budget, found.view, run, page=page_now, now=found.now)
    try:
        then = past.as_of(request, read)
    except NotThen as wrong:
        return past.not_then(request, wrong, name=found.row.name, page=page_now)
    shown = Budget(view=then.view, key=found.key, now=then.at)
    row, window = shown.row, windows.ending_by(read_part(request, shown), then.at)
    turned_away = read_panel(partial(refused.read, row, since=window.since, until=window.until))
    asked: dict[str, Callable[[], Any]] = {
        "burn": partial(past_queries.read_burn, then),
        "parents": partial(past_queries.read_parents, then),
        "chart": partial(_read_chart, shown, window, turned_away.found or Refused(charges=[])),
        "held": partial(past_queries.read_held, then),
        "below": partial(past_queries.read_below, then),
        "ledger": partial(_read_past_ledger, then, after, window if window.is_part else None),
    }
    panels = read_panels(asked) | {"refused": turned_away}
    context = tell(request, shown, window, panels) | {"asof": then.as_of, "actions": {}}
    return render(request, "budgets/budget.html", context)


def read_part(request: ConsoleRequest, found: Budget) -> Window:
    """The part of the time that the chart and the refusals are of."""
    is_young = found.now - ledgers.read_opened(found.row.id) < YOUNG
    usual = windows.HOUR if is_young else windows.DAY
    return read_window(request.GET.dict(), now=found.now, usual=usual, slots=windows.BY_SECONDS)


def tell(
    request: ConsoleRequest, found: Budget, window: Window, panels: dict[str, Panel[Any]]
) -> dict[str, Any]:
    """What the page of one budget is made of, now or then."""
    query, now = request.GET.dict(), found.now
    held = panels["held"].found
    return (
        describe(request, found)
        | describe_window(window, query, now=now)
        | {"panels": panels, "after": query.get("after", "")}
        | _foresee(panels, found.row, now)
        | {"held": stranded.shown(held.holds, now) if held else []}
        | what_if(query.get("cap"), found, window, panels["refused"])
    )


def _foresee(panels: dict[str, Panel[Any]], row: BudgetRow, now: datetime) -> dict[str, Any]:
    """When it is dry, and which level above it is dry before it."""
    burn = panels["burn"].found
    own = forecast.foresee(left=row.left, burn=burn, now=now) if burn else None
    above: list[Line] = panels["parents"].found or []
    levels = [
        (line.forecast.dry_at, line) for line in above if line.forecast and line.forecast.dry_at
    ]
    at, first = min(levels, key=lambda level: level[0], default=(None, None))
    is_before = at and not (own and (own.is_dry or (own.dry_at and own.dry_at <= at)))
    return {
        "forecast": own,
        "forecast_words": forecast.in_words(own, now) if own else "",
        "dry_soon": bool(own and own.dry_at and own.dry_at - now < forecast.SOON),
        "dry_before": first if is_before else None,
    }


def _read_chart(found: Budget, window: Window, turned_away: Refused) -> dict[str, Any]:
    course = ledgers.read_course(
        found.row, found.key, window=window, now=found.now, refused=turned_away
    )
    marks = happened.read_marks(
        since=window.since, until=window.until, objects=[found.object], run=found.row.run_id
    )
    axis = axis_of(window.since, window.until, marks, left=course_charts.LEFT)
    return {"course": course, "drawing": course_charts.draw(course, axis)}


def _read_ledger(row: BudgetRow, now: datetime, after: str, part: Window | None) -> ledgers.Ledger:
    try:
        return ledgers.read_ledger(row.id, now=now, after=after, part=part)
    except cursors.BadCursor:
        return replace(ledgers.read_ledger(row.id, now=now, part=part), damaged=True)


def _read_past_ledger(then: PastBudget, after: str, part: Window | None) -> ledgers.Ledger:
    try:
        return past_queries.read_ledger(then, after=after, part=part)
    except cursors.BadCursor:
        return replace(past_queries.read_ledger(then, part=part), damaged=True)


# --- another cap ---------------------------------------------------------------------------------


def read_cap(typed: str) -> int | None:
    """The cap that was typed, however its digits are grouped."""
    cap = whole("".join(typed.split()).replace(",", "").replace("_", ""))
    return cap if cap is not None and cap <= AMOUNT_MAX else None


def wrong_cap(typed: str | None) -> str:
    return "" if read_cap(typed or "") is not None else f"A whole number from 0 to {AMOUNT_MAX}."


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What another cap would have done to the requests of a part of the time.

    story: None where too much has happened since. verdicts: of the refused charges, by number.
    """

    replayed: Replayed | None
    story: Story | None
    verdicts: dict[int, str]

    def verdict(self, charge: RefusedCharge) -> str:
        """`through`, `again` (an earlier try was let through), `refused`, `unknown` or nothing."""
        return self.verdicts.get(charge.number, "")


def read_what_if(row: BudgetRow, cap: int, window: Window, turned_away: Refused) -> WhatIf:
    story = ledgers.read_story(row.id, since=window.since, until=window.until, refused=turned_away)
    if story is None:
        return WhatIf(replayed=None, story=None, verdicts={})
    replayed = replay(story.requests, cap)
    words = dict.fromkeys(replayed.let_through, "through") | dict.fromkeys(
        replayed.repeats, "again"
    )
    return WhatIf(
        replayed=replayed,
        story=story,
        verdicts={
            charge.number: "unknown" if charge.amount is None else words.get(place, "refused")
            for place, charge in story.charges.items()
        },
    )


def what_if(
    typed: str | None, found: Budget, window: Window, turned_away: Panel[Refused]
) -> dict[str, Any]:
    """The refused charges, and what another cap would have done to each, if one was asked for."""
    charges = (turned_away.found.charges if turned_away.found else [])[: refused.SHOWN]
    shown = [(charge, "") for charge in charges]
    context: dict[str, Any] = {
        "typed": typed or "",
        "wrong": "",
        "charges": shown,
        "charges_most": refused.SHOWN,
    }
    cap = read_cap(typed or "")
    if not (typed or "").strip():
        return context
    if cap is None:
        return context | {"wrong": wrong_cap(typed)}
    if turned_away.found is None:
        return context
    panel = read_panel(partial(read_what_if, found.row, cap, window, turned_away.found))
    if panel.found is not None:
        context["charges"] = [(charge, panel.found.verdict(charge)) for charge in charges]
    return context | {"what_if": panel, "cap": cap}
