"""Contention: what was refused, where, by whom, and one sentence that says what is going on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.families import BY_NAME, FAMILIES
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import contention as queries
from dashboard.queries.clock import database_now
from dashboard.queries.contention import Contention
from dashboard.templatetags.console import number

# Name in the address → (how it is said, how long, columns of the chart).
WINDOWS = {
    "1h": ("hour", timedelta(hours=1), 60),
    "24h": ("24 hours", timedelta(hours=24), 96),
}
CHART_HEIGHT = 120


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`window` is 1h or 24h."""
    window = request.GET.get("window", "1h")
    window = window if window in WINDOWS else "1h"
    said, span, slots = WINDOWS[window]
    found = queries.read(now=database_now(), window=span, slots=slots)
    context = {
        "now": found.now,
        "window": window,
        "windows": [(name, words) for name, (words, _, _) in WINDOWS.items()],
        "said": said,
        "found": found,
        "families": FAMILIES,
        "sentence": sentence(found, said),
        "cure": cure(found),
        "chart": chart(found),
        "share": share(found),
    }
    parts = is_partial(request, "parts")
    return render(request, "contention/parts.html" if parts else "contention/page.html", context)


def share(found: Contention) -> str:
    """Refused of all that was asked: `3.1 %`, or nothing when the writes were not all counted."""
    asked = found.total + found.writes
    if found.writes_capped or not asked:
        return ""
    return f"{100 * found.total / asked:.1f} %"


def sentence(found: Contention, said: str) -> str:
    """What is going on, in one sentence."""
    more = "more than " if found.writes_capped else ""
    if not found.total:
        written = f"{more}{number(found.writes)} changes were written"
        return f"Nothing was refused in the last {said}; {written}."
    name, count = max(found.families.items(), key=lambda item: item[1])
    family = BY_NAME[name]
    were = "command was" if found.total == 1 else "commands were"
    most = "all" if count == found.total else number(count)
    return (
        f"{number(found.total)} {were} refused in the last {said}, {most} of them"
        f" {family.label.lower()}: {family.meaning}."
        f"{_concentrated(found)}"
    )


def _concentrated(found: Contention) -> str:
    """Names the run and the worker that have half of all."""
    told = [
        f"{100 * rows[0].total // found.total} % {words} {rows[0].name}"
        for rows, words in ((found.runs, "concern"), (found.workers, "came from"))
        if rows and rows[0].total * 2 >= found.total
    ]
    return f" {'; '.join(told)}." if told else ""


def cure(found: Contention) -> str:
    if not found.total:
        return ""
    return BY_NAME[max(found.families.items(), key=lambda item: item[1])[0]].cure


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    y: float
    height: float
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    x: float
    width: float
    title: str
    pieces: list[Piece]
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Stacked columns in a box of 1000 by 120, and the scale beside them."""

    columns: list[Column]
    top: int
    labels: list[Column]


def chart(found: Contention) -> Chart:
    """A column per slot; the scale ends at a round number above the highest."""
    top = _round_up(max((slot.total for slot in found.slots), default=0))
    width = 1000 / len(found.slots)
    columns = []
    for at, slot in enumerate(found.slots):
        pieces, y = [], float(CHART_HEIGHT)
        for family in FAMILIES:
            height = CHART_HEIGHT * slot.families.get(family.name, 0) / top
            if height:
                y -= height
                pieces.append(Piece(y=round(y, 1), height=round(height, 1), family=family.name))
        time = slot.at.strftime("%H:%M")
        told = ", ".join(
            f"{count} {BY_NAME[name].label.lower()}" for name, count in slot.families.items()
        )
        columns.append(
            Column(
                x=round(at * width, 2),
                width=round(width * 0.78, 2),
                title=f"{time} UTC: {told or 'nothing refused'}",
                pieces=pieces,
                label=time,
            )
        )
    step = len(columns) // 6
    return Chart(columns=columns, top=top, labels=columns[step // 2 :: step])


def _round_up(value: int) -> int:
    """The next of 4, 10, 20, 50, 100, 200, …"""
    size = 10
    if value <= 4:
        return 4
    while True:
        for factor in (1, 2, 5):
            if value <= size * factor:
                return size * factor
        size *= 10
