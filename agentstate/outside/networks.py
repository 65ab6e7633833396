"""Which machines may be reached: the public internet, and what the site's own setting adds.

Else whoever may add a target could reach what only this machine can: other services beside it, the
metadata of a cloud. A name is no protection, it can lead elsewhere a moment later: what counts is
the address that is connected to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

type IP = ipaddress.IPv4Address | ipaddress.IPv6Address
type Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SETTING = "AGENTSTATE_DELIVERY_NETWORKS"
# Of IPv6, what is given out to networks; 6to4 in it leads to IPv4 addresses.
_UNICAST, _TUNNELS = ipaddress.ip_network("2000::/3"), ipaddress.ip_network("2002::/16")


class Forbidden(Exception):
    """An address that may not be reached."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is not a public address; {SETTING} may allow it")


def may_reach(address: str, allowed: Iterable[Network]) -> bool:
    """Whether an IP address may be connected to. allowed: beside public ones."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    forms = {ip, _inner(ip)}
    if any(form in network for form in forms for network in allowed):
        return True
    return _is_public(_inner(ip))


def check(address: str, allowed: Iterable[Network]) -> None:
    """Raises Forbidden."""
    if not may_reach(address, allowed):
        raise Forbidden(address)


def _inner(ip: IP) -> IP:
    """The IPv4 address in an IPv6 one that stands for it."""
    return getattr(ip, "ipv4_mapped", None) or ip


def _is_public(ip: IP) -> bool:
    if not ip.is_global or ip.is_multicast or ip.is_reserved:
        return False
    return ip.version == 4 or (ip in _UNICAST and ip not in _TUNNELS)
