"""How often a secret may be tried: counted in the database, before anything slow is done.

One counter of each name and one of each address, for all web processes together, by the database's
clock. A try is counted when it begins and taken back when it was right, so that forty at once are
no more than five one after another. What is refused costs one statement and no hashing.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import connection
from django.http import HttpRequest

_TAKE = """
INSERT INTO dashboard_try AS t (what, tries, until)
VALUES (%(what)s, 1, agentstate_now() + make_interval(secs => %(seconds)s))
ON CONFLICT (what) DO UPDATE SET
    tries = CASE WHEN t.until <= agentstate_now() THEN 1 ELSE least(t.tries + 1, 1000000) END,
    until = CASE WHEN t.until <= agentstate_now() THEN excluded.until ELSE t.until END
RETURNING tries, ceil(extract(epoch FROM until - agentstate_now()))::int
"""
_GIVE_BACK = "UPDATE dashboard_try SET tries = greatest(tries - 1, 0) WHERE what = ANY(%s)"
IPV6_BITS = 64  # what one household or host has


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most so many tries of one thing in so many seconds."""

    of: str
    tries: int
    seconds: int

    def counter(self, thing: str) -> str:
        return hashlib.sha256(f"{self.of}\0{thing}".encode()).hexdigest()


OF_A_NAME = Limit(of="name", tries=5, seconds=300)
OF_AN_ADDRESS = Limit(of="address", tries=20, seconds=60)
OF_A_FACTOR = Limit(of="factor", tries=5, seconds=300)
# A code of an authenticator app is right for 90 s, and once.
OF_A_CODE = Limit(of="code", tries=1, seconds=120)
OF_SETUP = Limit(of="setup", tries=10, seconds=300)
OF_A_PROVIDER = Limit(of="provider", tries=60, seconds=60)


class TooMany(ValidationError):
    """Tried too often. seconds: until the next try is looked at."""

    def __init__(self, seconds: int) -> None:
        self.seconds = max(1, seconds)
        wait = f"{self.seconds} seconds" if self.seconds < 120 else f"{-(-seconds // 60)} minutes"
        super().__init__(f"Tried too often. Try again in {wait}.", code="too-many")


def take(*asked: tuple[Limit, str]) -> list[str]:
    """Count a try of each of these; the counters, to be given back. Raises TooMany."""
    counters = []
    for limit, thing in asked:
        counter = limit.counter(thing)
        with connection.cursor() as cursor:
            cursor.execute(_TAKE, {"what": counter, "seconds": limit.seconds})
            tries, seconds = cursor.fetchone()
        if tries > limit.tries:
            raise TooMany(seconds)
        counters.append(counter)
    return counters


def give_back(counters: Sequence[str]) -> None:
    """It was right: as if it had not been tried."""
    with connection.cursor() as cursor:
        cursor.execute(_GIVE_BACK, [list(counters)])


def address_of(request: HttpRequest) -> str:
    """Where a request comes from: what our own proxies say, the outermost of them last."""
    told: str = request.META.get("REMOTE_ADDR", "")
    if settings.PROXIES:
        behind = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
        told = (behind[-settings.PROXIES :] or [""])[0].strip() or told
    try:
        address = ipaddress.ip_address(told)
    except ValueError:
        return told[:100]
    if isinstance(address, ipaddress.IPv6Address):
        network = ipaddress.ip_network((address, IPV6_BITS), strict=False)
        return str(network.network_address)
    return str(address)
