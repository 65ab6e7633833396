"""Who else has a page open, and what makes this one a sign of its own."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

from django import template

from agentstate.presence import board
from dashboard.templatetags.console import epoch_ms

register = template.Library()


@register.inclusion_tag("components/presence.html", takes_context=True)
def presence(context: template.Context, page: str) -> dict[str, Any]:
    """The whole component, once on a page. page: `run:<key>` or `reclaim:<unit>`.

    Its address goes with the page's stream, which is the sign that the page is open.
    """
    address = urlencode({"page": page, "seen": uuid.uuid4().hex})
    return onlookers(context, page) | {"address": address}


@register.inclusion_tag("components/onlookers.html", takes_context=True)
def onlookers(context: template.Context, page: str) -> dict[str, Any]:
    """Only what it says, for what refreshes an open page."""
    now = epoch_ms(context["now"]) * 1_000
    others = board.others(page, context["request"].access.name, now=now)
    return {"page": page, "others": others}
