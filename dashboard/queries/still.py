"""Whether whoever began something long may still do it."""

from __future__ import annotations

from dashboard.access import access_of
from dashboard.models import Session


def scopes_of_session(key: str | None) -> frozenset[str]:
    """What its person may now; nothing when it is over."""
    found = Session.objects.going_on().filter(session_key=key).first() if key else None
    if found is None or found.user is None:
        return frozenset()
    found.user.role_names = frozenset(found.roles)  # type: ignore[attr-defined]  # annotated
    return access_of(found.user).scopes
