"""Whether a browser lets a security key be used at the address that somebody came by."""

from __future__ import annotations

import ipaddress

from django import template
from django.http.request import split_domain_port
from django.template.context import RequestContext

register = template.Library()

LOCAL = "localhost"


@register.simple_tag(takes_context=True)
def no_key_here(context: RequestContext) -> str:
    """Why not, as a sentence; else nothing. Browsers tell only their console of it, so that a
    button would do nothing. A key belongs to a site's name, and to one with HTTPS or this machine.
    """
    host = split_domain_port(context.request.get_host())[0]
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if context.request.is_secure() or host == LOCAL or host.endswith(f".{LOCAL}"):
            return ""
        return "Browsers use security keys on sites with HTTPS alone."
    return f"A security key belongs to a name: not to {host}, but to {LOCAL}, for example."
