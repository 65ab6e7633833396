"""From where a rule warns and alerts: its own bounds, or those that an operator gave it; and what
other bounds would have said of the last day.

What is judged, and how: alerting.py. A change comes through `execute` (`ChangeRule`). The preview
judges the worst figure of each minute as the evaluation would have, so that it knows of swings and
of the while for which something has to be good; a minute in which nobody judged has no figure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store import made_figures
from agentstate.store.alerting import (
    RULES,
    Foreseen,
    Rule,
    check_bounds,
    foresee,
    foresee_figures,
)
from agentstate.store.errors import NotFound
from agentstate.store.made import Definition, read_definition, rule_of

PREVIEW = timedelta(days=1)
PREVIEW_MADE = timedelta(hours=6)
_NAMES = ("rule", "warn", "alert", "version", "changed_at", "changed_by", "changed_why")
READ = f"SELECT {', '.join(_NAMES)}, definition::text FROM agentstate_alertrule"  # noqa: S608  columns of our own
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
    definition: Definition | None = None

    def applied(self, rule: Rule) -> Rule:
        """The rule, with these in place of its own."""
        return replace(rule, warn=self.warn, alert=self.alert) if self.version else rule

    @property
    def made(self) -> Rule | None:
        """The rule, if people made it."""
        if self.definition is None:
            return None
        advice = f"A rule of {_name(self.changed_by)}: “{self.changed_why}”"
        return rule_of(self.rule, self.definition, warn=self.warn, alert=self.alert, advice=advice)


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
    values: Mapping[datetime, float | None] = field(default_factory=dict)


def rules() -> dict[str, Rule]:
    """Every rule with the bounds that count now; those that people made last."""
    return {told.rule.name: told.rule for told in read()}


def rule(name: str) -> Rule:
    """One rule with the bounds that count now. Raises NotFound."""
    return find(name).rule


def read() -> list[Told]:
    """All rules, in their order; those that people made last, by name."""
    kept = _kept()
    own = [_told(name, kept.get(name)) for name in RULES]
    return own + [_told(name, kept[name]) for name in sorted(kept) if kept[name].definition]


def definitions() -> dict[str, Definition]:
    """What the rules that people made look at."""
    return {name: found.definition for name, found in _kept().items() if found.definition}


def find(name: str) -> Told:
    """One rule. Raises NotFound."""
    kept = _kept().get(name)
    if name not in RULES and (kept is None or kept.definition is None):
        raise NotFound(f"there is no rule {name[:100]}")
    return _told(name, kept)


def _told(name: str, kept: Bounds | None) -> Told:
    bounds = kept or Bounds(rule=name)
    if made := bounds.made:
        return Told(rule=made, own=made, bounds=bounds)
    own = RULES[name]
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
        values=values,
    )


def preview_made(asked: Rule, definition: Definition) -> Preview:
    """What a rule of this definition would have said of the last hours, from the minute table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        until = cursor.fetchone()[0].replace(second=0, microsecond=0)
    since = until - PREVIEW_MADE
    figures = made_figures.read_figures(definition, since=since, until=until)
    told = foresee_figures(asked, figures, since=since, until=until)
    values = {at: one.value for at, one in figures.items() if not one.missing}
    known = [value for value in values.values() if value is not None]
    return Preview(
        rule=asked,
        asked=asked,
        since=since,
        until=until,
        minutes=len(values),
        worst=(min if asked.falling else max)(known, default=None),
        now=told,
        then=told,
        values=values,
    )


def _kept() -> dict[str, Bounds]:
    with connection.cursor() as cursor:
        cursor.execute(READ)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return {row[0]: _bounds(row) for row in rows}


def _bounds(row: Sequence[Any]) -> Bounds:
    *values, text = row
    definition = read_definition(json.loads(text)) if text is not None else None
    return Bounds(**dict(zip(_NAMES, values, strict=True)), definition=definition)


def _name(principal: str | None) -> str:
    return (principal or "").removeprefix("person:")
