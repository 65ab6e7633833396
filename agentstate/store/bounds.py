"""From where a rule warns and alerts: its own bounds, or those that an operator gave it; and what
other bounds would have said of the last day.

What is judged, and how: alerting.py. A change comes through `execute` (`ChangeRule`). The preview
judges the worst figure of each minute as the evaluation would have, so that it knows of swings and
of the while for which something has to be good; a minute in which nobody judged has no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store.alerting import RULES, Foreseen, Rule, check_bounds, foresee
from agentstate.store.errors import NotFound

PREVIEW = timedelta(days=1)
_NAMES = ("rule", "warn", "alert", "version", "changed_at", "changed_by", "changed_why")
READ = f"SELECT {', '.join(_NAMES)} FROM agentstate_alertrule"  # noqa: S608  columns of our own
FIGURES = """
SELECT minute, value FROM agentstate_alertfigure
WHERE rule = %(rule)s AND minute >= %(since)s AND minute <= %(until)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a rule as they are kept. version 0: its own count, nobody changed them."""

    rule: str
    warn: float | None = None
    alert: float | None = None
    version: int = 0
    changed_at: datetime | None = None
    changed_by: str | None = None
    changed_why: str | None = None

    def applied(self, rule: Rule) -> Rule:
        """The rule, with these in place of its own."""
        return replace(rule, warn=self.warn, alert=self.alert) if self.version else rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A rule as it counts now, its own bounds beside it, and who changed them."""

    rule: Rule
    own: Rule
    bounds: Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a day would have been with the bounds as they are, and with those that were asked for.

    minutes: of the window, with a figure. worst: the worst value of the day, None: none was bad.
    """

    rule: Rule
    asked: Rule
    since: datetime
    until: datetime
    minutes: int
    worst: float | None
    now: Foreseen
    then: Foreseen


def rules() -> dict[str, Rule]:
    """Every rule with the bounds that count now."""
    kept = _kept()
    return {name: _told(name, kept.get(name)).rule for name in RULES}


def rule(name: str) -> Rule:
    """One rule with the bounds that count now. Raises NotFound."""
    return find(name).rule


def read() -> list[Told]:
    """All rules, in their order."""
    kept = _kept()
    return [_told(name, kept.get(name)) for name in RULES]


def find(name: str) -> Told:
    """One rule. Raises NotFound."""
    if name not in RULES:
        raise NotFound(f"there is no rule {name[:100]}")
    return _told(name, _kept().get(name))


def _told(name: str, kept: Bounds | None) -> Told:
    own, bounds = RULES[name], kept or Bounds(rule=name)
    return Told(rule=bounds.applied(own), own=own, bounds=bounds)


def preview(name: str, *, warn: float | None, alert: float | None) -> Preview:
    """What these bounds would have said of the last day. Raises NotFound, Invalid."""
    found = find(name).rule
    asked = replace(found, warn=warn, alert=alert)
    check_bounds(asked)
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        until = cursor.fetchone()[0].replace(second=0, microsecond=0)
        since = until - PREVIEW
        cursor.execute(FIGURES, {"rule": name, "since": since, "until": until})
        values: Mapping[datetime, float | None] = dict(cursor.fetchall())
    known = [value for value in values.values() if value is not None]
    return Preview(
        rule=found,
        asked=asked,
        since=since,
        until=until,
        minutes=len(values),
        worst=(min if found.falling else max)(known, default=None),
        now=foresee(found, values, since=since, until=until),
        then=foresee(asked, values, since=since, until=until),
    )


def _kept() -> dict[str, Bounds]:
    with connection.cursor() as cursor:
        cursor.execute(READ)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return {row[0]: Bounds(**dict(zip(_NAMES, row, strict=True))) for row in rows}
