"""Who may do what. Roles, their scopes, and the one function that says yes, or no and why.

Pages show what `allowed_actions` says; the store checks the scopes again under its own rules, so a
button that was hidden is not the guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, User

from agentstate.store import permits
from agentstate.store.callers import ROLES, Caller
from agentstate.store.permits import DEEDS, MOVES, Verdict

__all__ = ["DEEDS", "MOVES", "NEEDS_ADMIN", "ROLES", "Access", "Verdict", "allowed_actions"]

NO_ROLE = "no role"


def make_roles(**_signal: object) -> None:
    """The groups that carry the roles. Running it again changes nothing."""
    for role in ROLES:
        Group.objects.get_or_create(name=role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A person at the console, decided once per request."""

    name: str
    role: str
    scopes: frozenset[str]

    @property
    def may_see_payloads(self) -> bool:
        return "payloads" in self.scopes

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    @property
    def caller(self) -> Caller:
        """The same person as the store knows them."""
        return Caller(kind="person", name=self.name, scopes=self.scopes)


def access_of(user: AbstractBaseUser | AnonymousUser) -> Access:
    """The highest role of a person; nobody's role is none, a superuser's is admin."""
    if not isinstance(user, User) or not user.is_active:
        return Access(name="", role=NO_ROLE, scopes=frozenset())
    held = {"admin"} if user.is_superuser else _groups(user)
    role = next((role for role in reversed(ROLES) if role in held), NO_ROLE)
    scopes = ROLES.get(role, frozenset())
    if role == "viewer" and not settings.VIEWERS_SEE_PAYLOADS:
        scopes -= {"payloads"}
    return Access(name=user.get_username(), role=role, scopes=scopes)


def _groups(user: User) -> frozenset[str]:
    """Their names; read with the session, if that is where the person comes from."""
    known: frozenset[str] | None = getattr(user, "role_names", None)
    return frozenset(user.groups.values_list("name", flat=True)) if known is None else known


NEEDS_ADMIN = "needs the role admin"
ROLE_OF = {"operate": "operator", "override": "senior", "admin": "admin"}


def allowed_actions(access: Access, thing: Mapping[str, Any]) -> dict[str, Verdict]:
    """What this person may do to a thing now, by the name of the action: the store's own answer
    (`permits.allowed_actions` says what a thing is), with roles in place of scopes."""
    verdicts = permits.allowed_actions(access.scopes, thing)
    return {action: _in_roles(verdict) for action, verdict in verdicts.items()}


def _in_roles(verdict: Verdict) -> Verdict:
    if not verdict.needs:
        return verdict
    role = ROLE_OF[verdict.needs]
    return replace(verdict, why=verdict.why.replace(f"scope {verdict.needs}", f"role {role}"))
