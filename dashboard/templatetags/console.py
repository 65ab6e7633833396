"""How the console writes instants, durations, amounts and sizes. Text is always escaped."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import template
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from agentstate import where
from agentstate.store import retention
from agentstate.store.errors import Refusal
from agentstate.store.states import TERMINAL, Status
from dashboard import moments, refused, zones
from dashboard.refused import Told

register = template.Library()

NOTHING = "\u2013"  # an en dash where there is no value

# Status → the icon beside its name. An unknown one (a newer release wrote it) gets the question.
STATUS_ICONS = {
    Status.PENDING: "clock",
    Status.RUNNING: "play-circle",
    Status.PAUSED: "pause-circle",
    Status.COMPLETED: "check-circle",
    Status.FAILED: "x-circle",
    Status.CANCELLED: "no-symbol",
}


@functools.cache
def _sprite() -> SafeString:
    return mark_safe(render_to_string("components/sprite.html"))  # noqa: S308  no outside text


@register.simple_tag
def sprite() -> SafeString:
    """All icons of the page, once; `icon` refers to them."""
    return _sprite()


@register.simple_tag
def command() -> str:
    """What a person types to run one of our commands, on this machine."""
    return where.COMMAND


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """An icon of the sprite. Without a label it is decoration beside text."""
    if label:
        return format_html(
            '<svg class="icon" role="img" aria-label="{}"><use href="#i-{}"></use></svg>',
            label,
            name,
        )
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"></use></svg>', name)


@register.simple_tag
def status(value: str) -> SafeString:
    """A run's status: icon and word."""
    known = value in set(Status)
    return format_html(
        '<span class="status status-{}">{}<span class="word">{}</span></span>',
        value if known else "unknown",
        icon(STATUS_ICONS[Status(value)] if known else "question-mark-circle"),
        value,
    )


@register.filter
def told(refusal: Refusal) -> Told:
    """What a refusal says to a person: its title and, where there is more, a text."""
    return refused.told(refusal)


@register.filter
def is_terminal(value: str) -> bool:
    return value in TERMINAL


@register.filter
def epoch_ms(at: datetime) -> int:
    """Milliseconds since 1970, for the page's script."""
    return int(at.timestamp() * 1000)


@register.filter
def iso(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds, as the API writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@register.filter
def stamp(at: datetime) -> str:
    """`2026-03-12 09:40:00 UTC`, and behind it the same in the zone of the page; the page's script
    adds how long ago that is."""
    return zones.in_both(at)


@register.filter
def local(at: datetime | None, form: str) -> str:
    """An instant in the zone of the page, as strftime writes it."""
    return zones.written(at, form) if at else ""


@register.filter
def typed_time(text: str) -> str:
    """What an address says, as it stands in a field: an instant in the zone of the page."""
    return zones.shown(text)


@register.simple_tag
def zone(at: datetime | None = None) -> str:
    """The zone of the page: behind an instant as it is called then, else by its name. Nothing
    behind one whose time came twice, which says it itself."""
    if at is None:
        return zones.word()
    return "" if zones.is_twice(at) else zones.abbreviation(at)


@register.simple_tag
def zone_name() -> str:
    """The zone of the page, in full."""
    return zones.name()


@register.simple_tag(takes_context=True)
def theme(context: template.Context) -> str:
    """What the person chose, else what this browser keeps."""
    request = context["request"]
    chosen = getattr(request, "chosen", None)
    kept: str = (chosen and chosen.theme) or request.COOKIES.get("agentstate_theme", "")
    return kept


@register.simple_tag
def zone_field() -> SafeString:
    """In a form with times: the zone that they are typed in."""
    if zones.name() == zones.UTC_NAME:
        return SafeString("")
    return format_html('<input type="hidden" name="{}" value="{}">', zones.FIELD, zones.name())


@register.simple_tag
def moment(at: datetime | None, now: datetime, style: str = "clock") -> SafeString:
    """An instant as a <time>: `clock` is time of day, `full` with the date, `ago` its age.

    The page's script lets ages run on, from the database's clock and never the browser's.
    """
    if at is None:
        return format_html('<span class="faint">{}</span>', NOTHING)
    if style == "ago":
        return format_html(
            '<time datetime="{}" title="{}" data-at="{}">{}</time>',
            iso(at),
            stamp(at),
            epoch_ms(at),
            duration(now - at),
        )
    text = zones.written(at) if style == "clock" else zones.full(at)
    return format_html(
        '<time datetime="{}" title="{}" data-zone="{}">{}</time>', iso(at), stamp(at), style, text
    )


@register.simple_tag
def countdown(until: datetime, now: datetime) -> SafeString:
    """What is left of a lease: runs down in the page, never below zero."""
    return format_html(
        '<time datetime="{}" title="until {}" data-until="{}">{}</time>',
        iso(until),
        stamp(until),
        epoch_ms(until),
        duration(max(until - now, timedelta())),
    )


@register.simple_tag
def kept_days(kind: str) -> int:
    """For how many days the rows of a kind are kept now."""
    return retention.find(kind).keep.days


@register.filter
def duration(span: timedelta | float | None) -> str:
    """The two largest units: `41s`, `3m 20s`, `2h 5m`, `4d 1h`. Never negative."""
    if span is None:
        return NOTHING
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return _two(whole // 60, "m", whole % 60, "s")
    if whole < 86_400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "m")
    return _two(whole // 86_400, "d", whole % 86_400 // 3600, "h")


@register.filter
def between(start: datetime, end: datetime) -> str:
    return duration(end - start)


@register.filter
def plain(value: float) -> str:
    """A coordinate: no grouping, at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _two(large: int, unit: str, small: int, part: str) -> str:
    return f"{large}{unit} {small}{part}" if small else f"{large}{unit}"


@register.filter
def number(value: int | str | None) -> str:
    """All digits, in groups of three by a thin space that does not break. Nothing, which is also
    what a template has of a panel that failed, is a dash."""
    return NOTHING if value is None or value == "" else f"{value:,}".replace(",", "\u202f")


@register.filter
def short(value: int | None) -> str:
    """`480`, `12.4 k`, `3.1 M`: for where the exact figure is in the title."""
    if value is None:
        return NOTHING
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(value) >= size:
            return f"{value / size:.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return str(value)


@register.filter
def size(octets: int) -> str:
    """`812 B`, `4.2 KiB`, `1 MiB`."""
    for unit, step in (("MiB", 2**20), ("KiB", 2**10)):
        if octets >= step:
            return f"{octets / step:.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{octets} B"


@register.filter
def percent(part: int, whole: int) -> int:
    """Whole percent, rounded down, so that 100 means all of it; a cap of 0 is used up."""
    return part * 100 // whole if whole else 100


@register.simple_tag(takes_context=True)
def address(context: template.Context, **changes: Any) -> str:
    """This page's query string with some parameters changed (None: left out), for links."""
    query = context["request"].GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = str(value)
    return f"?{query.urlencode()}"


@register.filter
def query_string(parameters: dict[str, str]) -> str:
    return urlencode(parameters)


@register.filter
def lookup(values: dict[str, Any], name: str) -> Any:
    return values.get(name, 0)


MIDDLE_TAIL = 9


@register.simple_tag
def middle(text: str) -> SafeString:
    """A name that, where it has no room, is cut in its middle: keys differ at their ends."""
    if len(text) <= MIDDLE_TAIL + 4:
        return format_html('<span class="mid">{}</span>', text)
    return format_html(
        '<span class="mid" title="{}"><span class="mid-head">{}</span><span>{}</span></span>',
        text,
        text[:-MIDDLE_TAIL],
        text[-MIDDLE_TAIL:],
    )


@register.filter
def get(values: dict[str, Any], name: str) -> Any:
    """A member whose name a template cannot write."""
    return values.get(name)


SPARK_HEIGHT = 24


@register.filter
def spark_height(part: int, most: int) -> str:
    """How high a column of a small chart is; something is never drawn as nothing."""
    return plain(max(SPARK_HEIGHT * part / most, 1.5) if part else 0)


@register.filter
def spark_y(part: int, most: int) -> str:
    return plain(SPARK_HEIGHT - float(spark_height(part, most)))


@register.filter
def skew(ms: int) -> str:
    """How far a clock is off: `+120 ms`, `-3.4 s`, `+2h 5m`."""
    sign = "+" if ms >= 0 else "-"
    if abs(ms) < 1_000:
        return f"{sign}{abs(ms)} ms"
    if abs(ms) < 60_000:
        return f"{sign}{abs(ms) / 1_000:.1f} s"
    return sign + duration(abs(ms) / 1_000)


@register.simple_tag
def then(at: datetime, page: str) -> SafeString:
    """When something happened, as a link to its page as of that moment; without a page the instant
    alone."""
    text = zones.full(at)
    told = format_html(
        '<time datetime="{}" title="{}" data-zone="full">{}</time>', iso(at), stamp(at), text
    )
    if not page:
        return told
    address = moments.address(page, moments.of_time(at))
    return format_html('<a class="link" title="As of then" href="{}">{}</a>', address, told)
