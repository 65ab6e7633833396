"""How the console writes when a budget is dry and how fast it goes."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.forecast import SOON, Forecast, at_the_rate, when
from dashboard.templatetags.console import NOTHING, number, stamp

register = template.Library()


@register.simple_tag
def dry(forecast: Forecast | None, now: datetime) -> SafeString:
    """`04:12`, `now`, or a dash; why, or at which rate, is in the title and said to who cannot see
    it.
    """
    if forecast is None:
        return format_html('<span class="faint">{}</span>', NOTHING)
    if forecast.is_dry:
        return format_html('<span class="bad">{}</span>', "now")
    if forecast.dry_at is None:
        return format_html(
            '<span class="faint" title="{}">{}<span class="unseen"> {}</span></span>',
            forecast.why,
            NOTHING,
            forecast.why,
        )
    return format_html(
        '<time datetime="{}" title="{} {}"{}>{}</time>',
        forecast.dry_at.isoformat(timespec="seconds"),
        stamp(forecast.dry_at),
        at_the_rate(forecast),
        SafeString(' class="warn"') if forecast.dry_at - now < SOON else "",
        when(forecast.dry_at, now),
    )


@register.filter
def rate(forecast: Forecast | None) -> str:
    """What goes in an hour, at the rate of the last minutes; a dash where that is not known."""
    if forecast is None or forecast.rate is None:
        return NOTHING
    return number(round(forecast.rate))
