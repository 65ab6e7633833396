"""What the admin's frame shows beside unfold's own tags."""

from __future__ import annotations

from typing import Any, NamedTuple

from django import template
from django.template.context import RequestContext
from django.urls import reverse

from dashboard import zones
from dashboard.administration.site import site

register = template.Library()


class Crumb(NamedTuple):
    title: str
    address: str


@register.simple_tag(takes_context=True)
def crumbs(context: RequestContext) -> list[Crumb]:
    """Where a page is, in the words of the sidebar; the models' own names are not for people."""
    found = [Crumb("Admin", reverse("admin:index"))]
    opts = context.get("opts")
    if opts is None:
        return found
    table: Any = site.get_model_admin(opts.model)
    path = f"admin:{opts.app_label}_{opts.model_name}"
    found.append(Crumb(table.many.capitalize(), reverse(f"{path}_changelist")))
    row = context.get("original") or context.get("object")
    if row is not None:
        found.append(Crumb(table.title_of(row), reverse(f"{path}_change", args=[row.pk])))
    elif context.get("add"):
        found.append(Crumb("New", ""))
    return found


@register.simple_tag
def zone_word() -> str:
    """The zone of the times on this page, in a word."""
    return zones.word()
