"""Bounds of a rule in words and as they are typed; the last day with them as lines of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstate.store.alerting import Foreseen, Rule, told
from agentstate.store.bounds import Preview
from dashboard import alert_charts

NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
LABELS = {"warn": "Warns from", "alert": "Alerts from"}
# A share is typed in per cent, as it is shown.
UNITS = {
    "share": "%", "percent": "%", "ratio": "per success", "count": "", "seconds": "s", "ms": "ms",
    "hours": "hours",
}  # fmt: skip


def unit_of(rule: Rule) -> str:
    return UNITS[rule.unit]


def typed(rule: Rule, bound: float | None) -> str:
    """A bound as it stands in its field."""
    return "" if bound is None else f"{bound * (100 if rule.unit == 'share' else 1):.12g}"


def meant(rule: Rule, number: float) -> float:
    """What a number in the field is in the rule's unit."""
    return round(number / 100, 12) if rule.unit == "share" else number


def in_words(rule: Rule) -> str:
    """`warns from 80 %, alerts from 95 %`."""
    word = "at" if rule.falling else "from"
    parts = [
        f"{verb} {word} {told(rule.unit, bound)}"
        for verb, bound in (("warns", rule.warn), ("alerts", rule.alert))
        if bound is not None
    ]
    return ", ".join(parts) + (" or less" if rule.falling else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A line of the table: these bounds, in words, and the day with them."""

    title: str
    words: str
    day: Foreseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """minutes: with a figure, of those that a day has. worst: in words, nothing: none was bad."""

    days: list[Day]
    minutes: int
    minutes_of_day: int
    worst: str
    since: datetime
    until: datetime


def drawn(found: Preview, rule: Rule, foreseen: Foreseen) -> dict[str, Any]:
    """What alerts/preview.html shows: the figures, these bounds, when it would have fired."""
    return {
        "chart": alert_charts.draw(found, rule, foreseen),
        "foreseen": foreseen,
        "preview_minutes": found.minutes,
        "preview_span": found.until - found.since,
        "worst": "" if found.worst is None else told(rule.unit, found.worst),
    }


def read_preview(found: Preview) -> Seen:
    """The bounds that count now, and beside them those that are typed if they are others."""
    days = [Day(title="As it is", words=in_words(found.rule), day=found.now)]
    if (found.asked.warn, found.asked.alert) != (found.rule.warn, found.rule.alert):
        days.append(Day(title="As typed", words=in_words(found.asked), day=found.then))
    return Seen(
        days=days,
        minutes=found.minutes,
        minutes_of_day=int((found.until - found.since).total_seconds() // 60),
        worst="" if found.worst is None else told(found.rule.unit, found.worst),
        since=found.since,
        until=found.until,
    )
