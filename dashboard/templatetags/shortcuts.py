"""The sheet of keys."""

from __future__ import annotations

from django import template

from dashboard.shortcuts import Section, sections_for

register = template.Library()


@register.simple_tag(takes_context=True)
def key_sections(context: template.Context) -> list[Section]:
    """What keys do, those of the page that is open first."""
    match = getattr(context.get("request"), "resolver_match", None)
    return sections_for(match.url_name or "" if match else "")


@register.filter
def alternatives(keys: str) -> list[list[str]]:
    """`g r` is one way of two keys, `j, k` two ways of one."""
    return [way.split(" ") for way in keys.split(", ")]
