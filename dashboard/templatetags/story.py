"""What the page of a run writes beside the rest: previews with what was looked for, and links."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import template
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from dashboard import payloads
from dashboard.closeups import SHORTEST, Ways
from dashboard.queries.events import EventLine
from dashboard.timeline import Lane, PlacedDot

register = template.Library()


@register.filter
def said(line: EventLine, find: str) -> SafeString:
    """What an event says, in a line; from shortly before what was looked for."""
    text = line.preview or ""
    return payloads.excerpt(text, find) if line.excerpt else payloads.preview(text, find)


@register.filter
def raw(line: EventLine, find: str) -> SafeString:
    """A payload as it was sent, in as many lines as it takes; where it is cut, an ellipsis."""
    text = line.preview or ""
    before = "\u2026" if line.excerpt else ""
    after = "\u2026" if not line.excerpt and len(text.encode()) < line.octets else ""
    return mark_safe(before + payloads.marked(text, find) + after)  # noqa: S308  it was escaped


@register.filter
def compared(old: str, new: str) -> SafeString:
    """Two texts line by line."""
    return payloads.difference(old, new)


@register.filter
def visible(text: str) -> str:
    return payloads.visible(text)


@register.simple_tag
def dot_query(ways: Ways | None, dot: PlacedDot) -> str:
    """Several events in one mark lead to a closer look at them, one to itself: of a page that has
    no other parts, to its row."""
    if ways is None:
        return f"#event-{dot.seq}"
    if dot.count > 1 and dot.until - dot.at > 2 * SHORTEST:
        return ways.around(dot.at, dot.until)
    return f"?{urlencode(ways.kept | ways.window | {'event': str(dot.seq)})}"


@register.simple_tag
def lane_query(ways: Ways | None, lane: Lane) -> str:
    """A term alone."""
    if ways is None:
        return "#terms-title"
    return ways.around(lane.starts_at, lane.ends_at) if lane.starts_at and lane.ends_at else "?"


@register.simple_tag
def with_kept(kept: dict[str, str], **changes: Any) -> str:
    """A query of what the address keeps, some of it changed (empty: left out)."""
    query = kept | {name.rstrip("_"): str(value) for name, value in changes.items()}
    return f"?{urlencode({name: value for name, value in query.items() if value != ''})}"


@register.filter
def seconds(span: timedelta) -> str:
    """`0.4 s`, `12 s`: how long something took; nothing when it took no time."""
    took = span.total_seconds()
    if took < 0.05:
        return ""
    return f"{took:.1f} s" if took < 10 else f"{took:.0f} s"
