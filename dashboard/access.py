"""Who may do what. Roles, their scopes, and the one function that says yes, or no and why.

Pages show what `allowed_actions` says; the store checks the scopes again under its own rules, so a
button that was hidden is not the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, User

from agentstate.store.callers import Caller
from agentstate.store.states import OPERATOR_MOVES, TERMINAL

# From the least to the most; each has what the one before it has.
ROLES: dict[str, frozenset[str]] = {
    "viewer": frozenset({"read", "payloads"}),
    "operator": frozenset({"read", "payloads", "operate"}),
    "senior": frozenset({"read", "payloads", "operate", "override"}),
    "admin": frozenset({"read", "payloads", "operate", "override", "admin"}),
}
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
    held = {"admin"} if user.is_superuser else set(user.groups.values_list("name", flat=True))
    role = next((role for role in reversed(ROLES) if role in held), NO_ROLE)
    return Access(name=user.get_username(), role=role, scopes=ROLES.get(role, frozenset()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether an action is open to a person now; `why` says what stands against it."""

    action: str
    allowed: bool
    why: str = ""


NEEDS_OPERATOR = "needs the role operator"
NEEDS_SENIOR = "needs the role senior"
NEEDS_ADMIN = "needs the role admin"
LIVE_NEEDS_SENIOR = "the holder's lease is live, so it needs the role senior"


def allowed_actions(access: Access, thing: Mapping[str, Any]) -> dict[str, Verdict]:
    """What this person may do to a thing now, by the name of the action.

    thing: `kind` is run, unit, budget, worker, alert or target. A run has `status`, `held` and
    `live`, a unit `held` and `live`, a worker `draining`.
    """
    verdicts = _OF_KIND[thing["kind"]](access, thing)
    return {verdict.action: verdict for verdict in verdicts}


# Action → the status that it leads to.
MOVES = {"pause": "paused", "resume": "running", "cancel": "cancelled"}


def _move(access: Access, run: Mapping[str, Any], action: str, to: str) -> Verdict:
    if run["status"] in TERMINAL:
        return Verdict(action=action, allowed=False, why=f"the run is {run['status']}")
    if (run["status"], to) not in OPERATOR_MOVES:
        return Verdict(action=action, allowed=False, why=f"not from {run['status']}")
    if action == "resume" and run["status"] != "paused":
        return Verdict(action=action, allowed=False, why="the run is not paused")
    if not access.may("operate"):
        return Verdict(action=action, allowed=False, why=NEEDS_OPERATOR)
    return Verdict(action=action, allowed=True)


def _reclaim(access: Access, thing: Mapping[str, Any]) -> Verdict:
    if not thing["held"]:
        return Verdict(action="reclaim", allowed=False, why="nobody holds it")
    if not access.may("operate"):
        return Verdict(action="reclaim", allowed=False, why=NEEDS_OPERATOR)
    if thing["live"] and not access.may("override"):
        return Verdict(action="reclaim", allowed=False, why=LIVE_NEEDS_SENIOR)
    return Verdict(action="reclaim", allowed=True)


def _with_scope(access: Access, action: str, scope: str, why: str) -> Verdict:
    may = access.may(scope)
    return Verdict(action=action, allowed=may, why="" if may else why)


def _of_run(access: Access, run: Mapping[str, Any]) -> list[Verdict]:
    moves = [_move(access, run, action, to) for action, to in MOVES.items()]
    return [_reclaim(access, run), *moves, *(_deed(access, run, action) for action in DEEDS)]


# What else an operator may do to a run, and whether only before its end.
DEEDS = {"signal": True, "brake": True, "edit": False, "keep": False}


def _deed(access: Access, run: Mapping[str, Any], action: str) -> Verdict:
    if DEEDS[action] and run["status"] in TERMINAL:
        return Verdict(action=action, allowed=False, why=f"the run is {run['status']}")
    return _with_scope(access, action, "operate", NEEDS_OPERATOR)


def _of_unit(access: Access, unit: Mapping[str, Any]) -> list[Verdict]:
    return [_reclaim(access, unit)]


def _of_budget(access: Access, budget: Mapping[str, Any]) -> list[Verdict]:
    return [_with_scope(access, "change-cap", "override", NEEDS_SENIOR)]


def _of_worker(access: Access, worker: Mapping[str, Any]) -> list[Verdict]:
    action = "stop-draining" if worker["draining"] else "drain"
    return [_with_scope(access, action, "operate", NEEDS_OPERATOR)]


def _of_alert(access: Access, alert: Mapping[str, Any]) -> list[Verdict]:
    return [
        _with_scope(access, action, "operate", NEEDS_OPERATOR)
        for action in ("acknowledge", "snooze")
    ]


def _of_target(access: Access, target: Mapping[str, Any]) -> list[Verdict]:
    return [
        _with_scope(access, action, "admin", NEEDS_ADMIN)
        for action in ("new", "test", "change", "delete", "resend")
    ]


_OF_KIND: dict[str, Callable[[Access, Mapping[str, Any]], list[Verdict]]] = {
    "run": _of_run,
    "unit": _of_unit,
    "budget": _of_budget,
    "worker": _of_worker,
    "alert": _of_alert,
    "target": _of_target,
}
