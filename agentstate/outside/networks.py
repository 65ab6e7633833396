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
# Not marked as private everywhere, and never a receiver: NAT64 and 6to4 lead to IPv4 addresses.
_TUNNELS = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16")))


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
    return all(_is_public(form) for form in forms)


def check(address: str, allowed: Iterable[Network]) -> None:
    """Raises Forbidden."""
    if not may_reach(address, allowed):
        raise Forbidden(address)


def _inner(ip: IP) -> IP:
    """The IPv4 address in an IPv6 one that stands for it."""
    return getattr(ip, "ipv4_mapped", None) or ip


def _is_public(ip: IP) -> bool:
    return ip.is_global and not ip.is_multicast and not any(ip in net for net in _TUNNELS)
