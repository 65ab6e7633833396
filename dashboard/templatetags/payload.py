"""How events, refusals and operator actions are written in tables."""

from __future__ import annotations

import json
from typing import Any

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agentstate.store.bulking import NAMED
from agentstate.store.models import OperatorAction
from agentstate.store.receipts import Acted
from dashboard import charts, past_pages, payloads
from dashboard.contention_charts import told_families
from dashboard.families import FAMILIES, family_of
from dashboard.queries.actions import Try
from dashboard.queries.contention import Row
from dashboard.templatetags.console import NOTHING
from dashboard.timeline import TERM_COLOURS

register = template.Library()
register.filter("preview", payloads.preview)
register.filter("family", family_of)
register.filter("cut", charts.cut_middle)


@register.simple_tag
def term_swatch(colours: dict[int, int], token: int | None) -> SafeString:
    """The colour of the term that an event was written under."""
    colour = "none" if token is None else str(colours.get(token, "none"))
    label = "no token" if token is None else f"token {token}"
    return format_html('<span class="swatch term-{}" title="{}"></span>', colour, label)


@register.filter
def term_colour(at: int) -> int:
    return at % TERM_COLOURS


@register.filter
def actor(principal: str | None) -> str:
    """`person:ana` is ana; a key and a part of the system keep their kind."""
    return (principal or NOTHING).removeprefix("person:")


# What an action tells of how it was, and that nothing after it is compared with.
UNCHANGING = frozenset({"live"})
NAMES = {"spent_token": "token spent", "retain_seconds": "kept, s", "hold": "held"}


@register.filter
def past_page(action: OperatorAction | Acted | Try) -> str:
    """The page that shows what it was done to as of then."""
    return past_pages.of_action(action.action, action.object)


@register.filter
def bulk_page(action: OperatorAction | Acted | Try) -> str:
    """The page of the bulk that was begun or stopped; "" of any other action."""
    if not action.action.startswith("bulk."):
        return ""
    return reverse("bulk", args=[action.object.removeprefix(NAMED)])


@register.filter
def changes(action: OperatorAction | Try) -> list[dict[str, str]]:
    """What an action changed, name by name."""
    names = [n for n in dict.fromkeys([*action.before, *action.after]) if n not in UNCHANGING]
    return [
        {
            "name": NAMES.get(name, name),
            "before": _said(action.before, name),
            "after": _said(action.after, name),
        }
        for name in names
        if action.before.get(name) != action.after.get(name)
    ]


@register.filter
def said(values: dict[str, Any]) -> list[dict[str, str]]:
    """What somebody expected, or was met with, name by name, whatever is in it."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, dict) else {name: value}
    names = [name for name in flat if name not in UNCHANGING]
    return [{"name": NAMES.get(name, name), "value": _said(flat, name)} for name in names]


def _said(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@register.filter
def pieces(row: Row, rows: list[Row]) -> list[dict[str, Any]]:
    """A row's bar in parts by family, as long as its share of the longest."""
    most = max(row.total for row in rows)
    found: list[dict[str, Any]] = []
    x = 0.0
    for family in FAMILIES:
        if count := row.families.get(family.name, 0):
            width = round(100 * count / most, 2)
            found.append({"family": family.name, "x": round(x, 2), "width": width})
            x += width
    return found


@register.filter
def families(row: Row) -> str:
    """The parts of a row's bar in words, for who cannot tell them by their colours."""
    return told_families(row.families)


@register.filter
def share(part: float | None) -> str:
    """A part of one as percent with one decimal: `3.1 %`; an en dash for none."""
    return NOTHING if part is None else f"{100 * part:.1f} %"
