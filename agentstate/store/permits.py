"""What somebody may do to a thing now, or why not: lists, pages, bulk and the API all ask here.

It only says; the store looks again at the scopes and at the thing under its own rules and locks, so
an action that was shown is not a promise, and a button that was hidden is not the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from agentstate.store.states import OPERATOR_MOVES, TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether an action is open to a caller now; `why` says what stands against it, and `needs`
    the scope, if that is what is missing."""

    action: str
    allowed: bool
    why: str = ""
    needs: str = ""


def allowed_actions(scopes: Set[str], thing: Mapping[str, Any]) -> dict[str, Verdict]:
    """What a caller with these scopes may do to a thing now, by the name of the action.

    thing: `kind` is run, unit, budget, worker, alert, target, bulk, person or age. A run has
    `status`, `held` and `live`, a unit `held` and `live`, a worker `draining` and, if it is known,
    `key`, a bulk that was begun `at_work`.
    """
    verdicts = _OF_KIND[thing["kind"]](scopes, thing)
    return {verdict.action: verdict for verdict in verdicts}


# Action → the status that it leads to.
MOVES = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
# What else an operator may do to a run, and whether only before its end.
DEEDS = {"signal": True, "brake": True, "edit": False, "keep": False}


def _with(scopes: Set[str], action: str, scope: str, because: str = "") -> Verdict:
    """Allowed to who has the scope. because: what makes it needed."""
    if scope in scopes:
        return Verdict(action=action, allowed=True)
    why = f"{because}so it needs the scope {scope}" if because else f"needs the scope {scope}"
    return Verdict(action=action, allowed=False, why=why, needs=scope)


def _not(action: str, why: str) -> Verdict:
    return Verdict(action=action, allowed=False, why=why)


def _move(scopes: Set[str], run: Mapping[str, Any], action: str, to: str) -> Verdict:
    if run["status"] in TERMINAL:
        return _not(action, f"the run is {run['status']}")
    if run["status"] == to:
        return _not(action, f"it is {to} already")
    if (run["status"], to) not in OPERATOR_MOVES:
        return _not(action, f"not from {run['status']}")
    if action == "resume" and run["status"] != "paused":
        return _not(action, "the run is not paused")
    return _with(scopes, action, "operate")


def _reclaim(scopes: Set[str], thing: Mapping[str, Any]) -> Verdict:
    if not thing["held"]:
        return _not("reclaim", "nobody holds it")
    if "operate" in scopes and thing["live"]:
        return _with(scopes, "reclaim", "override", "the holder's lease is live, ")
    return _with(scopes, "reclaim", "operate")


def _deed(scopes: Set[str], run: Mapping[str, Any], action: str) -> Verdict:
    if DEEDS[action] and run["status"] in TERMINAL:
        return _not(action, f"the run is {run['status']}")
    return _with(scopes, action, "operate")


def _of_run(scopes: Set[str], run: Mapping[str, Any]) -> list[Verdict]:
    moves = [_move(scopes, run, action, to) for action, to in MOVES.items()]
    return [_reclaim(scopes, run), *moves, *(_deed(scopes, run, action) for action in DEEDS)]


def _of_unit(scopes: Set[str], unit: Mapping[str, Any]) -> list[Verdict]:
    return [_reclaim(scopes, unit)]


def _of_budget(scopes: Set[str], budget: Mapping[str, Any]) -> list[Verdict]:
    return [_with(scopes, "change-cap", "override")]


def _of_worker(scopes: Set[str], worker: Mapping[str, Any]) -> list[Verdict]:
    draining = worker["draining"]
    return [
        _not("drain", "it is draining") if draining else _with(scopes, "drain", "operate"),
        _with(scopes, "stop-draining", "operate")
        if draining
        else _not("stop-draining", "it is not draining"),
        _with(scopes, "revoke-key", "admin")
        if worker.get("key")
        else _not("revoke-key", "no key of it is known"),
    ]


def _of_alert(scopes: Set[str], alert: Mapping[str, Any]) -> list[Verdict]:
    return [_with(scopes, action, "operate") for action in ("acknowledge", "snooze", "bounds")]


def _of_target(scopes: Set[str], target: Mapping[str, Any]) -> list[Verdict]:
    actions = ("new", "test", "change", "rotate", "delete", "resend")
    return [_with(scopes, action, "admin") for action in actions]


def _of_bulk(scopes: Set[str], bulk: Mapping[str, Any]) -> list[Verdict]:
    """large: of more runs than an operator alone may (bulking.ALONE_MAX)."""
    return [
        _with(scopes, "begin", "operate"),
        _with(scopes, "large", "override", "these are many, "),
        _with(scopes, "stop", "operate") if bulk.get("at_work") else _not("stop", "it has ended"),
    ]


def _of_person(scopes: Set[str], person: Mapping[str, Any]) -> list[Verdict]:
    return [_with(scopes, "sign-out", "admin")]


def _of_age(scopes: Set[str], age: Mapping[str, Any]) -> list[Verdict]:
    return [_with(scopes, "change", "admin")]


_OF_KIND: dict[str, Callable[[Set[str], Mapping[str, Any]], list[Verdict]]] = {
    "run": _of_run,
    "unit": _of_unit,
    "budget": _of_budget,
    "worker": _of_worker,
    "alert": _of_alert,
    "target": _of_target,
    "bulk": _of_bulk,
    "person": _of_person,
    "age": _of_age,
}
