"""Now: what needs somebody, the most harmful first, each with its one next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import isinf
from typing import Any

from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from agentstate.store.minutes import LATENCY_MS
from agentstate.store.rates import Figures
from dashboard import cards, charts
from dashboard.axes import axis_of
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import happened, looks
from dashboard.queries import now as queries
from dashboard.queries.clock import database_now
from dashboard.queries.looks import News
from dashboard.queries.now import Hour
from dashboard.queries.panels import Panel, read_panel, read_panels
from dashboard.templatetags.console import number, short

MINUTE_SECONDS = 60
WAIT_PART = 0.95
NOTHING = "\u2013"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A figure of the last hour and how it went. lines: points of its small chart, and their name;
    told: what the chart shows, for whoever cannot see it.
    """

    name: str
    value: str
    more: str
    lines: list[tuple[str, str]]
    told: str
    is_zero: bool = False


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`table` is 1: the figures of the last hour, minute by minute. At the first address stands
    another page for whoever chose one.
    """
    opens = request.chosen.opens
    if opens and not request.htmx and request.path == reverse("home") and not request.GET:
        return redirect(opens)
    now = database_now()
    found = board(now, table=request.GET.get("table") == "1")
    if is_partial(request, "board"):
        return render(request, "now/board.html", found)
    return render(request, "now/page.html", found | {"news": news(request, now)})


def board(now: datetime, *, table: bool = False) -> dict[str, Any]:
    """The part that is refreshed: the same for everybody."""
    panels = read_panels(
        {
            "hour": partial(queries.read_hour, now=now),
            "marks": partial(
                happened.read_marks, since=now - queries.TILES_OF, until=now + queries.JUST_AFTER
            ),
            "actions": queries.read_actions,
        }
    )
    hour: Hour | None = panels["hour"].found
    context = {
        "now": now,
        "verdict": cards.judge(queries.read_checks(now=now)),
        "panels": panels,
        "tiles": tiles(hour) if hour else [],
    }
    if hour:
        marks = panels["marks"].found or []
        context["axis"] = axis_of(hour.since, hour.until, marks, width=charts.SPARK_WIDTH)
        context["rows"] = rows(hour) if table else None
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A minute of the table, as the tiles count it. wait: 95 % took at most so much."""

    at: datetime
    figures: Figures
    conflicts: str
    retries: str
    wait: str


def rows(hour: Hour) -> list[Row]:
    """The newest first; a minute without a write is left out."""
    found = [
        Row(
            at=hour.since + n * timedelta(seconds=MINUTE_SECONDS),
            figures=one,
            conflicts=_percent(one.conflict_ratio),
            retries=NOTHING
            if one.retries_per_success is None
            else f"{one.retries_per_success:.2f}",
            wait=_milliseconds(one),
        )
        for n, one in enumerate(hour.minutes)
        if one.writes
    ]
    return found[::-1]


def news(request: ConsoleRequest, now: datetime) -> Panel[News]:
    """What happened since this person last looked; nothing the first time."""
    assert request.user.pk is not None
    since = looks.note_look(request.user.pk, now=now)
    if since is None:
        return Panel()
    own = f"person:{request.access.name}"
    return read_panel(partial(looks.read_news, since=since, own=own))


def tiles(hour: Hour) -> list[Tile]:
    total, last = hour.total, hour.minutes[-1]
    return [
        Tile(
            name="Writes",
            value=f"{total.writes / (len(hour.minutes) * MINUTE_SECONDS):.1f}/s",
            more=f"{number(total.writes)} in the last hour",
            lines=_lines(hour, lambda one: one.writes / MINUTE_SECONDS),
            told=_told(hour, lambda one: one.writes, "writes"),
            is_zero=not total.writes,
        ),
        Tile(
            name="Conflicts",
            value=_percent(total.conflict_ratio),
            more=f"{number(total.conflicts)} met another writer first",
            lines=_lines(hour, lambda one: one.conflict_ratio or 0.0, top=1.0),
            told=_told(hour, lambda one: one.conflicts, "conflicts"),
            is_zero=not total.conflicts,
        ),
        Tile(
            name="Retries per success",
            value=NOTHING
            if total.retries_per_success is None
            else f"{total.retries_per_success:.2f}",
            more=f"{number(total.retries)} retries",
            lines=_lines(hour, lambda one: one.retries_per_success or 0.0),
            told=_told(hour, lambda one: one.retries, "retries"),
            is_zero=not total.retries,
        ),
        Tile(
            name="Fenced",
            value=f"{number(last.fenced)}/min",
            more=f"{number(total.fenced)} in the last hour",
            lines=_lines(hour, lambda one: one.fenced),
            told=_told(hour, lambda one: one.fenced, "fenced calls"),
            is_zero=not total.fenced,
        ),
        Tile(
            name="Wait, p95",
            value=_milliseconds(total),
            more="in the store, of all writes",
            lines=_lines(hour, _wait, top=float(LATENCY_MS[-1])),
            told=f"95 % of the last hour's writes took at most {_milliseconds(total)}",
            is_zero=not total.writes,
        ),
        Tile(
            name="Admitted, refused",
            value=f"{short(total.accepted)} / {short(total.refused)}",
            more="in the last hour",
            lines=_two_lines(hour),
            told=_told(hour, lambda one: one.refused, "refused commands"),
            is_zero=not total.writes,
        ),
    ]


def _percent(part: float | None) -> str:
    return NOTHING if part is None else f"{100 * part:.1f} %"


def _milliseconds(figures: Figures) -> str:
    bound = figures.percentile_ms(WAIT_PART)
    if bound is None:
        return NOTHING
    return f"> {LATENCY_MS[-1]} ms" if isinf(bound) else f"{bound:g} ms"


def _wait(figures: Figures) -> float:
    bound = figures.percentile_ms(WAIT_PART) or 0.0
    return float(LATENCY_MS[-1]) if isinf(bound) else float(bound)


type Of = Callable[[Figures], float]


def _lines(hour: Hour, of: Of, top: float | None = None) -> list[tuple[str, str]]:
    values = [of(one) for one in hour.minutes]
    return [("", charts.draw_spark(values, max(values) if top is None else top))]


def _two_lines(hour: Hour) -> list[tuple[str, str]]:
    """Refused on the same scale as admitted."""
    admitted: Sequence[float] = [one.accepted for one in hour.minutes]
    refused: Sequence[float] = [one.refused for one in hour.minutes]
    top = max(*admitted, *refused)
    return [("", charts.draw_spark(admitted, top)), ("bad", charts.draw_spark(refused, top))]


def _told(hour: Hour, of: Of, what: str) -> str:
    values = [of(one) for one in hour.minutes]
    most = max(values)
    return f"{what.capitalize()} a minute over the last hour: at most {most:g}, now {values[-1]:g}"
