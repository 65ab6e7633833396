"""Settings that are fine by themselves and do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentstate.doctor.findings import Finding, problem, warning

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]", "testserver"})


def look(settings: Any) -> Iterator[Finding]:
    """settings: Django's."""
    yield from _reached_from_elsewhere(settings)
    yield from _sign_in(settings)
    if not settings.EMBEDDED and not settings.SECRET_KEY_GIVEN:
        yield warning(
            "settings",
            f"the secret key is a file on this machine ({settings.AGENTSTATE_HOME / 'secret-key'})",
            "with a second machine, set AGENTSTATE_SECRET_KEY to the same text on all of them",
        )
    if settings.SESSION_IDLE_SECONDS > settings.SESSION_COOKIE_AGE:
        yield warning(
            "settings",
            "AGENTSTATE_SESSION_IDLE_SECONDS is longer than AGENTSTATE_SESSION_SECONDS",
            "make it shorter: as it is, it never ends a session",
        )


def _reached_from_elsewhere(settings: Any) -> Iterator[Finding]:
    others = [host for host in settings.ALLOWED_HOSTS if host not in LOCAL]
    if others and settings.DEBUG:
        yield problem(
            "settings",
            "AGENTSTATE_DEBUG shows settings and stacks to whoever causes an error",
            "unset it: others reach this site",
        )
    if others and not settings.HTTPS:
        yield warning(
            "settings",
            f"{', '.join(others)}: passwords and keys go over the network as they are",
            "put a proxy with TLS before it and set AGENTSTATE_HTTPS=yes (docs/tls.md)",
        )
    if "*" in settings.ALLOWED_HOSTS:
        yield warning(
            "settings",
            "AGENTSTATE_HOSTS is *: whoever sends a request says what this site is called",
            "name the hosts",
        )
    if settings.HTTPS and not others:
        yield problem(
            "settings",
            "AGENTSTATE_HTTPS is on, and AGENTSTATE_HOSTS names this machine alone",
            "set AGENTSTATE_HOSTS to the names under which the proxy is reached",
        )
    if settings.HTTPS and settings.PROXIES == 0:
        yield warning(
            "settings",
            "AGENTSTATE_PROXIES is 0 behind a proxy: all people count as one address",
            "set it to the number of proxies that add to X-Forwarded-For",
        )
    plain = [one for one in settings.CSRF_TRUSTED_ORIGINS if one.startswith("http://")]
    if settings.HTTPS and plain:
        yield problem(
            "settings",
            f"AGENTSTATE_ORIGINS has {', '.join(plain)} on a site of HTTPS",
            "write it with https://",
        )


def _sign_in(settings: Any) -> Iterator[Finding]:
    if settings.OIDC_ISSUER and not settings.OIDC_CLIENT_ID:
        yield problem(
            "settings",
            "AGENTSTATE_OIDC_ISSUER is set without AGENTSTATE_OIDC_CLIENT_ID",
            "set the id and the secret that the provider gave to this site",
        )
    if settings.OIDC_ISSUER and not settings.OIDC_ROLES:
        yield problem(
            "settings",
            "AGENTSTATE_OIDC_ISSUER is set without AGENTSTATE_OIDC_ROLES: it lets nobody in",
            "say which of the provider's groups gives which role: sre=operator,platform=admin",
        )
    if settings.DELIVERY_NETWORKS and any(one.prefixlen == 0 for one in settings.DELIVERY_NETWORKS):
        yield warning(
            "settings",
            "AGENTSTATE_DELIVERY_NETWORKS is everything: who adds a target reaches all of it",
            "name the networks in which receivers are",
        )
