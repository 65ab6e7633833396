"""Addresses of targets: what one may be, and how much of it may be shown."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

import httpx
from django.conf import settings

from agentstate.outside import services
from agentstate.outside.networks import SETTING, may_reach
from agentstate.store.delivering import ADDRESS_CHARS, WEBHOOK
from agentstate.store.errors import Invalid

HINT_CHARS = 100
PORT_MAX = 65_535
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """text: the whole of it, a secret. hint: what may be shown."""

    text: str = field(repr=False)
    hint: str


def read_address(kind: str, text: str) -> Address:
    """What was typed as an address of a webhook or for apprise. Raises Invalid.

    For apprise it takes a second or two: a process of its own looks at it, and sends nothing.
    """
    if not 1 <= len(text) <= ADDRESS_CHARS:
        raise Invalid("address", f"1 to {ADDRESS_CHARS} characters")
    if not _VISIBLE.fullmatch(text):
        raise Invalid("address", "printable ASCII characters without a space: encode others with %")
    return _webhook(text) if kind == WEBHOOK else _service(text)


def _webhook(text: str) -> Address:
    try:
        url = httpx.URL(text)
        host = url.host
    except (httpx.InvalidURL, ValueError):
        raise Invalid("address", "not a URL") from None
    if url.scheme not in ("http", "https") or not host or (url.port or 1) > PORT_MAX:
        raise Invalid("address", "a URL like https://example.org/hook")
    if url.userinfo:
        raise Invalid("address", "no user and password in it: what is sent is signed")
    if url.fragment:
        raise Invalid("address", "no # in it: what stands behind it is never sent")
    if _is_ip(host) and not may_reach(host, settings.DELIVERY_NETWORKS):
        raise Invalid("address", f"{host} is not a public address; {SETTING} may allow it")
    port = f":{url.port}" if url.port else ""
    more = "/…" if url.raw_path not in (b"", b"/") else "/"
    shown = f"[{host}]" if ":" in host else host
    return Address(text=text, hint=_short(f"{url.scheme}://{shown}{port}{more}"))


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _service(text: str) -> Address:
    found = services.describe(text)
    if found.wrong:
        raise Invalid("address", found.wrong)
    return Address(text=text, hint=_short(f"{found.scheme}://… ({found.service})"))


def _short(text: str) -> str:
    return text if len(text) <= HINT_CHARS else text[: HINT_CHARS - 1] + "…"
